//! Real packets over veth, the agent's own binary: what an operator would see.

mod actions;
mod allowed;
mod attacks;
mod ban_owners;
mod bans;
mod bouncer;
mod capture;
mod cluster;
mod connection_limits;
mod connections;
mod counting;
mod crowdsec;
mod documents;
mod elastic;
mod escalation;
mod essential;
mod events;
mod fair;
mod fair_connections;
mod fair_load;
mod fair_networks;
mod fleet_rules;
mod flood;
mod fragments;
mod geo;
mod heavy_prefixes;
mod hook_conflicts;
mod hooks;
mod in_place;
mod instants;
mod intercept;
mod interface_names;
mod interfaces;
mod keys;
mod kinds;
mod left_out;
mod levels;
mod life;
mod limits;
mod lists;
mod log;
mod members;
mod memory;
mod metrics;
mod neighbours;
mod notify;
mod offenders;
mod operations;
mod prove;
mod prove_kinds;
mod rates;
mod reading;
mod reboot;
mod recipes;
mod record;
mod reload;
mod replies;
mod resets;
mod safety;
mod scopes;
mod service;
mod shared_bans;
mod stacked;
mod start;
mod survive;
mod top;
mod tour;
mod trace;
mod traffic;
mod trials;
mod weights;

use libtest_mimic::Arguments;
use testbed::trials::{Test, is_quick, trial};
use testbed::{flows, foreign, network as support, redis, tcp, wire};

/// Tests whose results depend on the kernel: hooks, devices, offloads, sockets and replies. Each kernel that is tested runs
/// them, and those for which the build machine may lack something.
const ON_KERNELS: [&[Test]; 6] = [
    connections::ON_KERNELS,
    hooks::TESTS,
    weights::ON_KERNELS,
    replies::ON_KERNELS,
    prove::ON_KERNELS,
    resets::ON_KERNELS,
];
/// Tests of what is the same on every kernel: arithmetic, which `kernel` compares with the function, and the agent.
const ON_ANY_KERNEL: [&[Test]; 64] = [
    interfaces::TESTS,
    interface_names::TESTS,
    hook_conflicts::TESTS,
    stacked::TESTS,
    kinds::TESTS,
    actions::TESTS,
    life::TESTS,
    memory::TESTS,
    rates::TESTS,
    levels::TESTS,
    lists::TESTS,
    limits::TESTS,
    keys::TESTS,
    allowed::TESTS,
    bans::TESTS,
    ban_owners::TESTS,
    essential::TESTS,
    fleet_rules::TESTS,
    flood::TESTS,
    fragments::TESTS,
    reload::TESTS,
    in_place::TESTS,
    survive::TESTS,
    counting::TESTS,
    scopes::TESTS,
    record::TESTS,
    capture::TESTS,
    attacks::TESTS,
    weights::ON_ANY_KERNEL,
    replies::ON_ANY_KERNEL,
    neighbours::TESTS,
    connections::ON_ANY_KERNEL,
    connection_limits::ON_ANY_KERNEL,
    safety::TESTS,
    reboot::TESTS,
    geo::TESTS,
    crowdsec::TESTS,
    notify::TESTS,
    log::TESTS,
    elastic::TESTS,
    recipes::TESTS,
    instants::TESTS,
    escalation::TESTS,
    events::TESTS,
    fair::TESTS,
    fair_connections::TESTS,
    fair_load::TESTS,
    fair_networks::TESTS,
    top::TESTS,
    tour::TESTS,
    documents::TESTS,
    start::TESTS,
    left_out::TESTS,
    trials::TESTS,
    metrics::TESTS,
    reading::TESTS,
    offenders::TESTS,
    operations::TESTS,
    service::TESTS,
    members::TESTS,
    heavy_prefixes::TESTS,
    prove::ON_ANY_KERNEL,
    resets::ON_ANY_KERNEL,
    prove_kinds::ON_ANY_KERNEL,
];

fn main() {
    if std::env::var_os(top::PANIC).is_some() {
        top::panic_in_terminal();
    }
    let arguments = Arguments::from_args();
    let obstacle = support::obstacle();
    let is_too_old = datapath::is_kernel_too_old();
    let reason = match obstacle {
        Some(reason) => reason,
        None if is_too_old => {
            "this kernel is older than Linux 5.15, so that all it can show is a refusal"
        }
        None => "the refusal of kernels before Linux 5.15, since this one is newer",
    };
    eprintln!("skipped: {reason}");
    let mut rooms = ON_KERNELS.to_vec();
    if !is_quick() {
        rooms.extend(ON_ANY_KERNEL);
    }
    let has_fq = obstacle.is_none() && support::has_fq();
    if !has_fq {
        eprintln!(
            "skipped: what takes the queueing discipline fq, which this kernel does not have"
        );
    }
    let has_vxlan = obstacle.is_none() && support::has_vxlan();
    if !has_vxlan {
        eprintln!("skipped: what takes a VXLAN device, which this kernel does not have");
    }
    let has_tcx = support::has_tcx();
    if !has_tcx {
        eprintln!(
            "skipped: what takes a chain of programs at one hook, which kernels before Linux 6.6 do not have"
        );
    }
    if let (None, Some(reason)) = (obstacle, redis::obstacle()) {
        eprintln!("skipped: limits of many hosts: {reason}");
    }
    let has_memory_groups = memory::has_groups();
    if !has_memory_groups {
        eprintln!(
            "skipped: what takes a cgroup with a limit on memory, which this machine does not have"
        );
    } else if is_quick() {
        eprintln!("skipped: what takes a cgroup with a limit on memory, by --quick");
    }
    let has_memory_groups = has_memory_groups && !is_quick();
    let tells_usage = memory::kernel_tells_usage();
    if !tells_usage {
        eprintln!(
            "skipped: what kernels before Linux 6.4 do not tell, how much memory a map takes"
        );
    }
    if !recipes::has_ansible() {
        eprintln!("skipped: the Ansible role: `cargo xtask integration` provides ansible-playbook");
    }
    if !recipes::has_fail2ban() {
        eprintln!(
            "skipped: fail2ban itself, which takes fail2ban-server at WEIR_FAIL2BAN (cargo xtask integration)"
        );
    }
    let has_crowdsec = crowdsec::has_crowdsec();
    if !has_crowdsec {
        eprintln!(
            "skipped: CrowdSec itself, which takes its package unpacked at WEIR_CROWDSEC (cargo xtask integration)"
        );
    }
    let has_bouncer = bouncer::is_there();
    if !has_bouncer {
        eprintln!(
            "skipped: CrowdSec's bouncer, which takes its package unpacked at WEIR_CROWDSEC (cargo xtask integration)"
        );
    }
    let is_traced = obstacle.is_none() && trace::is_built();
    if is_traced {
        eprintln!(
            "skipped: what an agent with ordinary kernel programs says of a trace, since this one has others"
        );
    } else {
        eprintln!(
            "skipped: traces, which take an agent of a trace build (cargo xtask test --trace)"
        );
    }
    let has_systemd = service::has_systemd();
    if !has_systemd {
        eprintln!("skipped: what takes systemd-analyze, which this machine does not have");
    }
    let can_make = |device: &[&str]| obstacle.is_none() && support::can_make(device);
    let has_vlan = can_make(&[
        "link",
        support::INTERFACE,
        "name",
        "vlan0",
        "type",
        "vlan",
        "id",
        "7",
    ]);
    if !has_vlan {
        eprintln!("skipped: what takes VLAN devices, which this kernel does not have");
    }
    let has_vrf = can_make(&["name", "vrf7", "type", "vrf", "table", "77"]);
    if !has_vrf {
        eprintln!("skipped: what takes VRF devices, which this kernel does not have");
    }
    if !fleet_rules::has_nginx() {
        eprintln!("skipped: rules of a fleet over TLS, which take nginx and openssl");
    }
    if redis::valkey().is_none() {
        eprintln!("skipped: rules of a fleet in Valkey, which `cargo xtask integration` provides");
    }
    let has_bond = can_make(&["name", "bond7", "type", "bond"]);
    if !has_bond {
        eprintln!("skipped: what takes bonds, which this kernel does not have");
    }
    let has_nft = obstacle.is_none() && resets::has_nft();
    if !has_nft {
        eprintln!(
            "skipped: what takes nft and connection tracking, which this machine does not have"
        );
    }
    let is_locked_down = left_out::is_locked_down();
    if !is_locked_down {
        eprintln!("skipped: what takes a kernel in lockdown: cargo xtask vm --lockdown");
    }
    let served = rooms.into_iter().flatten().map(|test| (test, !is_too_old));
    let trials = served
        .chain(
            fleet_rules::WITH_NGINX
                .iter()
                .map(|test| (test, !is_too_old && fleet_rules::has_nginx())),
        )
        .chain(
            fleet_rules::WITH_REDIS
                .iter()
                .map(|test| (test, !is_too_old && redis::obstacle().is_none())),
        )
        .chain(
            fleet_rules::WITH_VALKEY
                .iter()
                .map(|test| (test, !is_too_old && redis::valkey().is_some())),
        )
        .chain(
            shared_bans::TESTS
                .iter()
                .map(|test| (test, !is_too_old && redis::obstacle().is_none())),
        )
        .chain(
            cluster::TESTS
                .iter()
                .map(|test| (test, !is_too_old && redis::obstacle().is_none())),
        )
        .chain(
            trace::ORDINARY
                .iter()
                .map(|test| (test, !is_too_old && !is_traced && !is_quick())),
        )
        .chain(
            trace::TRACED
                .iter()
                .map(|test| (test, !is_too_old && is_traced)),
        )
        .chain(
            actions::WITH_FQ
                .iter()
                .map(|test| (test, !is_too_old && has_fq)),
        )
        .chain(
            weights::WITH_VXLAN
                .iter()
                .map(|test| (test, !is_too_old && has_vxlan)),
        )
        .chain(
            neighbours::WITH_TCX
                .iter()
                .map(|test| (test, !is_too_old && has_tcx)),
        )
        .chain(
            stacked::WITH_VRF
                .iter()
                .map(|test| (test, !is_too_old && has_vrf)),
        )
        .chain(
            stacked::WITH_VLAN
                .iter()
                .map(|test| (test, !is_too_old && has_vlan)),
        )
        .chain(
            prove_kinds::WITH_VLAN
                .iter()
                .map(|test| (test, !is_too_old && has_vlan)),
        )
        .chain(
            stacked::WITH_BOND
                .iter()
                .map(|test| (test, !is_too_old && has_bond)),
        )
        .chain(
            resets::WITH_NFT
                .iter()
                .map(|test| (test, !is_too_old && has_nft)),
        )
        .chain(
            attacks::WITH_NFT
                .iter()
                .map(|test| (test, !is_too_old && has_nft)),
        )
        .chain(
            left_out::LOCKED_DOWN
                .iter()
                .map(|test| (test, !is_too_old && is_locked_down)),
        )
        .chain(
            scopes::WITH_BOND
                .iter()
                .map(|test| (test, !is_too_old && has_bond)),
        )
        .chain(
            memory::WITH_GROUPS
                .iter()
                .map(|test| (test, !is_too_old && has_memory_groups)),
        )
        .chain(memory::WITH_USAGE.iter().map(|test| (test, tells_usage)))
        .chain(service::WITH_SYSTEMD.iter().map(|test| (test, has_systemd)))
        .chain(
            recipes::WITH_FAIL2BAN
                .iter()
                .map(|test| (test, !is_too_old && recipes::has_fail2ban())),
        )
        .chain(
            crowdsec::WITH_CROWDSEC
                .iter()
                .map(|test| (test, !is_too_old && has_crowdsec)),
        )
        .chain(
            bouncer::TESTS
                .iter()
                .map(|test| (test, !is_too_old && has_bouncer)),
        )
        .chain(
            recipes::WITH_ANSIBLE
                .iter()
                .map(|test| (test, !is_too_old && recipes::has_ansible())),
        )
        .chain(life::ON_OLD_KERNELS.iter().map(|test| (test, is_too_old)))
        .map(|(test, fits)| trial(test).with_ignored_flag(obstacle.is_some() || !fits))
        .collect();
    testbed::trials::run(&arguments, trials)
}
