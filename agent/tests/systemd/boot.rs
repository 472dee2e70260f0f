//! The state after a boot, before anybody logs in.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use testbed::tests;

use crate::Test;
use crate::guest::{
    INTERFACE, configure, json, limit, property, received, run, said, systemctl, try_run, within,
};
use crate::package::install;

pub const TESTS: &[Test] = tests![
    limits_are_in_effect_before_the_network_is_up,
    no_ordering_cycle_of_cloud_init_firewalld_or_ifupdown_leads_over_weir,
    an_interface_that_comes_long_after_boot_is_limited,
    the_unit_has_the_permissions_of_groups_at_boot,
    totals_of_usage_before_the_reboot_go_on_after_it,
];

const UNITS: &str = "/etc/systemd/system";
/// Unit files of packages that are not installed: of these, only the ordering counts.
const FOREIGN: &str = "/usr/lib/weir-tests/units";
/// Makes the host's interface, as a driver would, and leaves it down.
const DRIVER: &str = "[Unit]\nDefaultDependencies=no\nBefore=weir.service\n[Service]\nType=oneshot\n\
    RemainAfterExit=yes\nExecStart=/bin/sh -c 'ip netns add client && ip link add weir0 type veth peer name client0 \
    netns client'\n";
/// Sets it up, as whatever configures networks does.
const NETWORK: &str = "[Unit]\nDefaultDependencies=no\nAfter=network-pre.target test-driver.service\n\
    Before=network.target\nWants=network.target network-pre.target\n[Service]\nType=oneshot\nRemainAfterExit=yes\n\
    ExecStart=/bin/sh -c 'ip addr add 10.77.0.1/24 dev weir0 && ip link set weir0 up && ip -n client link set client0 \
    up'\n";
const LATE: &str =
    "[Service]\nExecStart=/bin/sh -c 'sleep 20; ip link add late0 type veth peer name late1'\n";

/// A group whose usage is billed over a reboot.
const BILLED: &str = "\n[[group]]\nname = \"billed\"\nunit = \"billed.service\"\npids = 50\n";
/// It works once there is [`BEGIN`].
const WORK: &str = "[Service]\nType=notify\nNotifyAccess=all\nTimeoutStartSec=infinity\nExecStart=/bin/bash -c 'until \
    [ -e /run/billed-begin ]; do sleep 0.1; done; for n in {1..50}; do echo x > /dev/udp/127.0.0.1/9; done; \
    for n in {1..200000}; do :; done; systemd-notify --ready --status=done; exec sleep 3600'\n";
const BEGIN: &str = "/run/billed-begin";
/// The usage that was recorded before the reboot.
const BEFORE: &str = "/root/billed-before.json";

/// The file for the next boot.
pub fn prepare() {
    install("weir.deb");
    configure(&format!(
        "{}{BILLED}",
        limit(10).replace("\"weir0\"", "\"weir0\", \"late0\"")
    ));
    for (name, text) in [
        ("test-driver", DRIVER),
        ("systemd-networkd", NETWORK),
        ("test-late", LATE),
    ] {
        fs::write(format!("{UNITS}/{name}.service"), text).unwrap();
        systemctl(&["add-wants", "multi-user.target", &format!("{name}.service")]);
    }
    for entry in fs::read_dir(FOREIGN).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !path.is_file() || name.contains('@') {
            continue;
        }
        fs::copy(&path, format!("{UNITS}/{name}")).unwrap();
        if name.ends_with(".service") {
            let drop_in = format!("{UNITS}/{name}.d");
            fs::create_dir_all(&drop_in).unwrap();
            // Their programs are not here.
            let text = "[Service]\nType=oneshot\nRemainAfterExit=yes\nBusName=\nExecStart=\nExecStart=/bin/true\n\
                ExecStartPre=\nExecStartPost=\nExecStop=\nExecReload=\n";
            fs::write(format!("{drop_in}/nothing.conf"), text).unwrap();
        }
        if !name.contains("hotplug") {
            systemctl(&["add-wants", "multi-user.target", &name]);
        }
    }
    fs::write(format!("{UNITS}/billed.service"), WORK).unwrap();
    systemctl(&["daemon-reload"]);
    systemctl(&["enable", "weir"]);
    systemctl(&["start", "weir"]);
    let bill = work();
    assert!(bill[0] > 0.0 && bill[1] > 0.0, "{bill:?}");
    fs::write(BEFORE, serde_json::to_vec(&bill).unwrap()).unwrap();
}

/// The group's usage on all days: seconds of CPU, bytes sent.
fn billed() -> [f64; 2] {
    let rows = json(&["usage", "--group", "billed"]);
    let sum = |name: &str| {
        rows.as_array()
            .unwrap()
            .iter()
            .map(|row| row[name].as_f64().unwrap())
            .sum()
    };
    [sum("cpu_seconds"), sum("network_egress_bytes")]
}

/// The group's usage since this boot, by its cgroup.
fn counted() -> [f64; 2] {
    let group: Value = json(&["groups"])[0].clone();
    let number = |table: &str, name: &str| group[table][name].as_f64().unwrap_or_default();
    [
        number("cpu", "usage_seconds"),
        number("network", "egress_bytes"),
    ]
}

/// Has the group's service do its work, and returns what is billed then, once all of it is.
fn work() -> [f64; 2] {
    let before = billed();
    let _ = fs::remove_file(BEGIN);
    systemctl(&["start", "--no-block", "billed"]);
    within(
        Duration::from_secs(120),
        "the service is the group's",
        || {
            json(&["groups"])[0]["pids"]
                .as_array()
                .is_some_and(|pids| !pids.is_empty())
        },
    );
    // Usage before the agent's first look is not recorded where the agent has just started. The service uses a little while it
    // waits.
    let [first, _] = billed();
    within(Duration::from_secs(300), "usage is recorded", || {
        billed()[0] > first
    });
    let [early, _] = counted();
    fs::write(BEGIN, "").unwrap();
    within(Duration::from_secs(120), "the work is done", || {
        property("billed.service", "StatusText") == "done" && counted()[1] > 0.0
    });
    let deadline = Instant::now() + Duration::from_secs(300);
    loop {
        let bill = billed();
        let counted = counted();
        let [cpu, sent] = [bill[0] - before[0], bill[1] - before[1]];
        let figures = format!("{before:?} and {bill:?} billed, {early} and {counted:?} counted");
        assert!(cpu <= counted[0] + 0.02 && sent <= counted[1], "{figures}");
        if cpu >= counted[0] - early - 0.02 && sent == counted[1] {
            return bill;
        }
        assert!(
            Instant::now() < deadline,
            "the work is not billed: {figures}"
        );
        std::thread::sleep(Duration::from_millis(500));
    }
}

fn the_unit_has_the_permissions_of_groups_at_boot() {
    assert_eq!(
        property("weir.service", "DropInPaths"),
        "/run/systemd/generator/weir.service.d/groups.conf"
    );
    let group = json(&["groups"])[0].clone();
    assert!(!group["notes"].to_string().contains("CAP_"), "{group}");
}

fn totals_of_usage_before_the_reboot_go_on_after_it() {
    let before: [f64; 2] = serde_json::from_slice(&fs::read(BEFORE).unwrap()).unwrap();
    let after = billed();
    // It sent nothing while the system went down, and its processes used little.
    assert!(
        (before[0]..before[0] + 1.0).contains(&after[0]) && after[1] == before[1],
        "{before:?} {after:?}"
    );
    let last = work();
    println!(
        "seconds of CPU and bytes billed: {before:?} before the reboot, {after:?} after it, {last:?} in the end"
    );
}

/// When a unit began to start, in microseconds after the kernel's start; 0 if it did not.
fn started(unit: &str) -> u64 {
    property(unit, "InactiveExitTimestampMonotonic")
        .parse()
        .unwrap()
}

/// When it had started.
fn activated(unit: &str) -> u64 {
    property(unit, "ActiveEnterTimestampMonotonic")
        .parse()
        .unwrap()
}

fn limits_are_in_effect_before_the_network_is_up() {
    within(Duration::from_secs(120), "weir.service is active", || {
        property("weir.service", "ActiveState") == "active"
    });
    let (weir, pre, network) = (
        activated("weir.service"),
        activated("network-pre.target"),
        activated("network.target"),
    );
    // To break the cycle of cloud-init and firewalld, systemd may leave out network-pre.target.
    let is_before_pre = pre == 0 || (weir <= pre && pre <= network);
    let is_ordered = 0 < weir && weir <= network && is_before_pre;
    let units = [
        "--unit",
        "weir",
        "--unit",
        "network-pre.target",
        "--unit",
        "network.target",
    ];
    let journal = || {
        run(
            "journalctl",
            &[
                &["--boot", "--no-pager", "--output=short-monotonic"][..],
                &units,
            ]
            .concat(),
        )
    };
    let restarts = property("weir.service", "NRestarts");
    assert!(
        is_ordered,
        "weir {weir} after {restarts} restarts, network-pre {pre}, network {network}\n{}",
        journal()
    );
    // A manager may be left out for that, too: it does not start then.
    let started = ["systemd-networkd.service", "networking.service"].map(started);
    assert!(
        started.iter().all(|at| *at == 0 || weir <= *at) && started.iter().any(|at| *at > 0),
        "weir {weir}, networkd and networking {started:?}\n{}",
        journal()
    );
    // The use of a source before the reboot still counts: this one has sent nothing.
    assert_eq!(received(9, 30), 10);
}

fn no_ordering_cycle_of_cloud_init_firewalld_or_ifupdown_leads_over_weir() {
    for unit in [
        "cloud-init-local.service",
        "cloud-init.target",
        "firewalld.service",
        "networking.service",
    ] {
        assert!(Path::new(UNITS).join(unit).exists(), "{unit} is not there");
    }
    // firewalld and cloud-init have a cycle between themselves; none may lead over Weir.
    let grep = "--grep=ordering cycle|Found dependency|to break";
    let cycles = said(&try_run(
        "journalctl",
        &["--boot", "--no-pager", "--output=cat", grep],
    ));
    assert!(!cycles.contains("weir"), "{cycles}");
}

fn an_interface_that_comes_long_after_boot_is_limited() {
    let attached = || {
        let status = json(&["status"]);
        let state = |name: &str| {
            let interfaces = status["interfaces"].as_array().unwrap();
            let found = interfaces
                .iter()
                .find(|interface| interface["name"] == name);
            found.map_or(String::new(), |found| {
                found["state"].as_str().unwrap_or_default().to_owned()
            })
        };
        (state(INTERFACE), state("late0"))
    };
    within(Duration::from_secs(180), "late0 is there", || {
        Path::new("/sys/class/net/late0").exists()
    });
    run("ip", &["link", "set", "late0", "up"]);
    run("ip", &["link", "set", "late1", "up"]);
    within(Duration::from_secs(120), "late0 is attached", || {
        attached().1 == "attached"
    });
    assert_eq!(attached().0, "attached");
}
