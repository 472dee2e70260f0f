//! Process groups with the agent's own binary, on this host's cgroups: each limit by its effect, not by its file.

mod host;
mod limits;
mod outbound;
mod places;
mod work;

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ::host::load::HostLoad;
use datapath::is_kernel_too_old;
use host::{Host, Worker, cgroups_of, hierarchies};
use libtest_mimic::Arguments;
use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};
use testbed::stalls::Stalls;
use testbed::test;
use testbed::trials::{Test, is_left_out, trial_unless};

/// Why a test cannot run here, if it cannot.
type Obstacle = fn() -> Option<String>;

/// Tests of nanoseconds, with thousands of processes, and of CPU time that a process must get. `cargo xtask test` runs
/// the others beside other programs.
const MEASURING: [&str; 9] = [
    "a_busy_loop_has_its_percent_of_a_cpu",
    "two_groups_share_a_cpu_by_their_weights",
    "a_bystanders_connection_costs_a_microsecond_more_at_most",
    "counting_a_groups_network_costs_a_microsecond_a_packet_at_most",
    "usage_is_right_over_restarts_and_kills_of_the_agent",
    "processes_are_in_their_group_soon_under_churn",
    "a_group_outlives_its_agent_and_the_next_one_goes_on",
    "many_processes_are_no_load",
    "an_elastic_group_gets_what_is_idle_and_gives_it_back",
];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [first, work @ ..] = words.as_slice()
        && first == "--work"
    {
        return work::run(work);
    }
    let tests: &[(Test, Obstacle)] = &[
        (test!(limits::a_busy_loop_has_its_percent_of_a_cpu), nothing),
        (test!(limits::a_hog_is_stopped_at_its_memory), nothing),
        (test!(limits::a_fork_bomb_is_stopped_at_its_pids), nothing),
        (
            test!(limits::disks_are_limited_in_bytes_and_operations_both_ways),
            no_disk,
        ),
        (
            test!(limits::two_groups_share_a_cpu_by_their_weights),
            nothing,
        ),
        (test!(limits::memory_above_high_is_reclaimed), no_memory_v2),
        (test!(limits::swap_is_limited), no_memory_v2),
        (
            test!(an_inner_node_with_processes_is_reported),
            no_memory_v2,
        ),
        (test!(limits::a_group_runs_on_its_cpus_only), nothing),
        (test!(limits::what_a_group_sends_is_limited), no_network),
        (test!(limits::what_a_group_receives_is_limited), no_network),
        (
            test!(outbound::a_scanner_never_exceeds_its_connects),
            no_network,
        ),
        (
            test!(outbound::a_scanner_never_exceeds_its_destinations),
            no_network,
        ),
        (
            test!(outbound::a_connection_is_charged_to_all_of_its_limits_or_to_none),
            no_network,
        ),
        (
            test!(outbound::limits_on_connections_outlive_their_agent_and_no_config),
            no_network,
        ),
        (
            test!(outbound::packets_that_a_group_sends_are_limited),
            no_network,
        ),
        (
            test!(outbound::a_bystanders_connection_costs_a_microsecond_more_at_most),
            no_network,
        ),
        (
            test!(outbound::counting_a_groups_network_costs_a_microsecond_a_packet_at_most),
            no_churn,
        ),
        (
            test!(outbound::usage_is_right_over_restarts_and_kills_of_the_agent),
            no_network,
        ),
        (
            test!(limits_that_an_old_kernel_lacks_are_reported_and_the_others_apply),
            new_kernel,
        ),
        (
            test!(processes_are_in_their_group_soon_under_churn),
            no_churn,
        ),
        (test!(children_follow), nothing),
        (
            test!(a_group_outlives_its_agent_and_the_next_one_goes_on),
            nothing,
        ),
        (
            test!(detaching_sends_processes_back_and_leaves_nothing),
            nothing,
        ),
        (
            test!(a_config_without_groups_ends_those_of_the_one_before),
            no_bpffs,
        ),
        (test!(a_group_can_be_frozen_thawed_and_killed), nothing),
        (
            test!(a_failed_group_limit_is_reported_and_the_others_apply),
            nothing,
        ),
        (
            test!(a_reload_reports_what_it_cannot_enforce_of_a_group),
            nothing,
        ),
        (test!(places::a_cgroup_is_limited_where_it_is), no_network),
        (
            test!(places::a_delegated_cgroup_keeps_its_processes_unless_forced),
            no_unified,
        ),
        (test!(places::a_second_agent_evicts_no_source), no_bpffs),
        (test!(places::many_processes_are_no_load), no_room_for_many),
        (
            test!(an_elastic_group_gets_what_is_idle_and_gives_it_back),
            busy_host,
        ),
    ];
    assert!(
        MEASURING
            .iter()
            .all(|name| tests.iter().any(|((test, _), _)| test == name)),
        "MEASURING names an unknown test"
    );
    let arguments = Arguments::from_args();
    let common = common_obstacle();
    let trials = tests
        .iter()
        .filter(|((name, _), _)| !is_left_out(MEASURING.contains(name)))
        .map(|(test, obstacle)| trial_unless(test, common.clone().or_else(obstacle)))
        .collect();
    // One after the other: they measure CPU time and disks.
    let arguments = Arguments {
        test_threads: Some(1),
        ..arguments
    };
    libtest_mimic::run(&arguments, trials).exit();
}

fn common_obstacle() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("process groups need root, for cgroups and BPF".to_owned());
    }
    if host::agent().is_none() {
        return Some(
            "it needs the agent that `cargo xtask build` leaves: run `cargo xtask test`".to_owned(),
        );
    }
    hierarchies()
        .is_empty()
        .then(|| "no cgroup hierarchy is mounted".to_owned())
}

fn nothing() -> Option<String> {
    None
}

/// An agent without groups holds packets.
fn no_bpffs() -> Option<String> {
    (!Path::new("/sys/fs/bpf").exists()).then(|| "it needs bpffs mounted".to_owned())
}

fn no_unified() -> Option<String> {
    let is_there = hierarchies()
        .iter()
        .any(|root| root.join("cgroup.controllers").exists());
    let has_pins = Path::new("/sys/fs/bpf").exists();
    (!is_there || !has_pins)
        .then(|| "it needs the cgroup v2 hierarchy and bpffs mounted".to_owned())
}

fn no_network() -> Option<String> {
    let is_old =
        is_kernel_too_old().then(|| "limits on a group's network need Linux 5.15".to_owned());
    is_old.or_else(no_unified)
}

fn new_kernel() -> Option<String> {
    let is_new = (!is_kernel_too_old()).then(|| "this kernel is newer than 5.15".to_owned());
    is_new.or_else(no_unified)
}

fn no_churn() -> Option<String> {
    let slow =
        is_virtual().then(|| "an emulated CPU does not start 1,000 processes a second".to_owned());
    slow.or_else(no_unified)
}

/// Whether this is a virtual machine of `cargo xtask vm`.
fn is_virtual() -> bool {
    std::env::var_os("WEIR_VM").is_some()
}

/// Memory limits that cgroup v1 lacks, and swap, which tests turn on in guests only.
fn no_memory_v2() -> Option<String> {
    (!is_virtual()).then(|| {
        "it needs memory under cgroup v2, and a disk to swap to: cargo xtask vm".to_owned()
    })
}

fn no_disk() -> Option<String> {
    (!is_virtual() && !Path::new("/dev/loop-control").exists())
        .then(|| "it needs a loop device for a disk of its own".to_owned())
}

/// Twenty thousand processes take 1.1 GB of memory, and a number each.
fn no_room_for_many() -> Option<String> {
    const WANTED: u64 = places::MANY as u64 + 4_000;
    let slow = is_virtual().then(|| "an emulated CPU does not start 20,000 processes".to_owned());
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let most: u64 = read("/proc/sys/kernel/pid_max").trim().parse().ok()?;
    // RUNNING/ALL, the fourth field; threads have numbers, too.
    let used = read("/proc/loadavg")
        .split_whitespace()
        .nth(3)?
        .split_once('/')?
        .1
        .parse()
        .ok()?;
    let few = || {
        let free = most.saturating_sub(used);
        (free < WANTED)
            .then(|| format!("it needs {WANTED} free process numbers, and there are {free}"))
    };
    let available = read("/proc/meminfo").lines().find_map(|line| {
        line.strip_prefix("MemAvailable:")?
            .trim()
            .trim_end_matches(" kB")
            .parse::<u64>()
            .ok()
    })?;
    let small = || {
        (available < 3 << 20)
            .then(|| format!("it needs 3 GiB of memory, and {available} KiB are free"))
    };
    slow.or_else(few).or_else(small)
}

/// CPU time that a process has used.
fn cpu_seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

/// Idle CPU can only be granted where there is some: others build and test on this machine.
fn busy_host() -> Option<String> {
    let mut load = HostLoad::new().ok()?;
    std::thread::sleep(Duration::from_secs(2));
    let idle = load.sample().map_or(0.0, |sample| sample.idle);
    (idle < 0.8).then(|| {
        format!(
            "it needs a host that is idle otherwise, and this one is to {:.0} %",
            idle * 100.0
        )
    })
}

fn an_inner_node_with_processes_is_reported() {
    let mut host = Host::new();
    let parent = Path::new("/sys/fs/cgroup").join(host.cgroup("").trim_matches('/'));
    fs::create_dir(&parent).unwrap();
    let mut squatter = Guarded(Command::new("sleep").arg("60").spawn().unwrap());
    fs::write(parent.join("cgroup.procs"), squatter.0.id().to_string()).unwrap();
    host.start("", "pids = 20");
    // The group's cgroup is made for its first process.
    let _sleeper = Worker::spawn(&host.worker(), &["sleep"]);
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let notes = host.json(&["status"])["notes"].to_string();
        if notes.contains("inner cgroup") {
            break;
        }
        assert!(Instant::now() < deadline, "{notes}");
        std::thread::sleep(Duration::from_millis(50));
    }
    squatter.0.kill().unwrap();
    squatter.0.wait().unwrap();
}

fn a_reload_reports_what_it_cannot_enforce_of_a_group() {
    let mut host = Host::new();
    host.start("", "pids = 20");
    host.config(
        "",
        "pids = 20\nio = [{ device = \"/dev/weir-none\", read = \"1MB/s\" }]",
    );
    let answer = host.json(&["reload"]);
    assert_eq!(answer["ok"], true, "{answer}");
    assert!(
        answer["notes"]
            .to_string()
            .contains("/dev/weir-none cannot be found"),
        "{answer}"
    );
    assert!(
        host.said().contains("/dev/weir-none cannot be found"),
        "{}",
        host.said()
    );
}

fn processes_are_in_their_group_soon_under_churn() {
    let mut host = Host::new();
    let short = host.path("short");
    fs::copy("/bin/true", &short).unwrap();
    host.start("", "pids = 500");
    let mut churner = Worker::spawn(
        &std::env::current_exe().unwrap(),
        &["exec", short.to_str().unwrap()],
    );
    let cgroup = host.cgroup("g");
    let (mut delays, stalls) = (Vec::new(), Stalls::watch());
    // How long this thread was late, and the agent's could run and had no CPU.
    let agent = host.agent_pid();
    let kept = || stalls.so_far() + host::run_delay(agent);
    for _ in 0..200 {
        let before_probe = kept();
        let before = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap());
        let mut probe = Worker::spawn(&host.worker(), &["probe", &cgroup]);
        let line = probe.line();
        // A probe in which the machine kept the agent from running shows nothing about the agent.
        if kept() - before_probe < Duration::from_millis(5) {
            assert_ne!(
                line, "missed",
                "a process that lived 200 ms was not put in its group"
            );
            delays.push(line.parse::<u128>().unwrap() - before.as_nanos());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    if delays.len() < 50 {
        eprintln!(
            "skipped: delays under churn: this machine was late in {} of 200 probes",
            200 - delays.len()
        );
        return;
    }
    churner.end();
    let (started, passed) = churner.numbers();
    delays.sort_unstable();
    let (median, late) = (delays[delays.len() / 2], delays[delays.len() * 99 / 100]);
    let told = format!(
        "median {median} ns, 99th percentile {late} ns, at {:.0} a second",
        started * 1e9 / passed
    );
    eprintln!("{told}");
    // A thousand are wanted; how many a machine that others use as well starts is not up to the agent.
    assert!(started * 1e9 / passed >= 100.0, "{told}");
    // From before the fork to after the move: more than from exec to being in the group.
    assert!(median < 10_000_000 && late < 50_000_000, "{told}");
}

fn children_follow() {
    let mut host = Host::new();
    let shell = Command::new("/bin/sh")
        .args(["-c", "sleep 60 & sleep 60"])
        .spawn()
        .unwrap();
    let mut shell = Guarded(shell);
    // By its number, which its children do not have; they were forked before there was an agent.
    let deadline = Instant::now() + Duration::from_secs(60);
    let children = || {
        let pid = shell.0.id();
        let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        text.split_whitespace()
            .map(|pid| pid.parse().unwrap())
            .collect::<Vec<u32>>()
    };
    while children().len() < 2 {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    let more = format!(
        "[[group]]\nname = \"h\"\nmatch = [{{ pid = {} }}]\n",
        shell.0.id()
    );
    host.start("", &format!("pids = 50\n{more}"));
    for pid in children() {
        assert!(
            cgroups_of(pid)
                .iter()
                .any(|line| line.ends_with(&host.cgroup("h"))),
            "{:?}",
            cgroups_of(pid)
        );
    }
    let groups = host.json(&["groups"]);
    assert_eq!(groups[1]["pids"].as_array().unwrap().len(), 3, "{groups}");
    for pid in children() {
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid.cast_signed()),
            Signal::SIGKILL,
        )
        .unwrap();
    }
    shell.0.wait().unwrap();
}

/// A child that is killed when it is dropped.
struct Guarded(std::process::Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn a_group_outlives_its_agent_and_the_next_one_goes_on() {
    let mut host = Host::new();
    let lines = "cpu = { max = \"30%\" }\nnetwork = { egress = \"40Mbit/s\" }";
    host.start("", lines);
    let mut worker = host.spawn(&["busy", "4000"]);
    let mut free = limits::Free::begin("4000");
    worker.begin();
    std::thread::sleep(Duration::from_millis(500));
    let before = host.group()["cpu"]["usage_seconds"].as_f64().unwrap();
    host.stop(Signal::SIGKILL);
    // Nobody is there, and the limit holds.
    let (used, passed) = worker.numbers();
    let (share, given) = (used / passed, free.given());
    let least = 0.27 * (given / 0.6).min(1.0);
    assert!(
        share <= 0.33 && share >= least,
        "it had {:.1} % of a CPU, of {:.1} %",
        share * 100.0,
        given * 100.0
    );
    host.start("", lines);
    let after = host.group()["cpu"]["usage_seconds"].as_f64().unwrap();
    assert!(
        before > 0.0 && after >= before && after * 1e9 >= used,
        "{before} {after} {used}"
    );
}

fn detaching_sends_processes_back_and_leaves_nothing() {
    let mut host = Host::new();
    let before = cgroups_of(std::process::id());
    host.start(
        "on_exit = \"detach\"",
        "pids = 50\nnetwork = { egress = \"40Mbit/s\" }",
    );
    let worker = host.spawn(&["sleep"]);
    assert_ne!(cgroups_of(worker.id()), before);
    assert!(host.has_remains());
    host.stop(Signal::SIGTERM);
    assert_eq!(cgroups_of(worker.id()), before, "{}", host.said());
    assert!(!host.has_remains(), "{}", host.said());
}

fn a_config_without_groups_ends_those_of_the_one_before() {
    let mut host = Host::new();
    let before = cgroups_of(std::process::id());
    host.start("", "pids = 50");
    let worker = host.spawn(&["sleep"]);
    host.stop(Signal::SIGTERM);
    assert_ne!(cgroups_of(worker.id()), before, "on_exit = \"keep\"");
    // The next config has a group of another name, and the one after it none at all.
    let other = host.path("other");
    host.start(
        "",
        &format!("pids = 50\n[[group]]\nname = \"h\"\nmatch = [{{ exe = {other:?} }}]\n"),
    );
    assert_eq!(
        host.group()["pids"],
        serde_json::json!([worker.id()]),
        "the next agent goes on with it"
    );
    host.stop(Signal::SIGTERM);
    host.start_without_groups();
    assert_eq!(cgroups_of(worker.id()), before, "{}", host.said());
    assert!(!host.has_cgroups(), "{}", host.said());
}

fn a_group_can_be_frozen_thawed_and_killed() {
    let mut host = Host::new();
    host.start("", "pids = 50");
    let mut worker = host.spawn(&["busy", "2000"]);
    worker.begin();
    assert!(host.command(&["groups", "freeze", "g"]).status.success());
    assert_eq!(host.group()["frozen"], true);
    let jiffies = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", worker.id())).unwrap();
        let fields: Vec<&str> = stat
            .rsplit_once(')')
            .unwrap()
            .1
            .split_whitespace()
            .collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    // It may take the kernel a moment to stop every thread.
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_frozen(&host.cgroup("g")) {
        assert!(Instant::now() < deadline, "it is not frozen");
        std::thread::sleep(Duration::from_millis(10));
    }
    let frozen = jiffies();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(jiffies(), frozen, "a frozen process ran");
    assert!(host.command(&["groups", "thaw", "g"]).status.success());
    let (used, _) = worker.numbers();
    assert!(used > 0.0);
    let mut sleeper = host.spawn(&["sleep"]);
    assert!(host.command(&["groups", "kill", "g"]).status.success());
    assert_eq!(sleeper.rest().1.signal(), Some(Signal::SIGKILL as i32));
    let wrong = host.command(&["groups", "kill", "h"]);
    assert_eq!(wrong.status.code(), Some(2));
    let reason = String::from_utf8_lossy(&wrong.stderr);
    assert!(reason.contains("the running agent has: g"), "{reason}");
}

/// Whether the kernel has stopped every process of a cgroup.
fn is_frozen(cgroup: &str) -> bool {
    hierarchies()
        .iter()
        .map(|root| root.join(cgroup.trim_start_matches('/')))
        .any(|directory| {
            let read = |file: &str| fs::read_to_string(directory.join(file)).unwrap_or_default();
            read("cgroup.events").contains("frozen 1") || read("freezer.state").trim() == "FROZEN"
        })
}

fn a_failed_group_limit_is_reported_and_the_others_apply() {
    let mut host = Host::new();
    host.start("", "pids = 20\nio = [{ device = \"/dev/weir-none\", read = \"1MB/s\" }]\ncpu = { max = \"800000%\" }");
    let notes = host.json(&["status"])["notes"].to_string();
    for part in [
        "/dev/weir-none cannot be found",
        "cpu max 800000%",
        "no process has matched yet",
    ] {
        assert!(notes.contains(part), "{part} is missing from {notes}");
    }
    let mut worker = host.spawn(&["fork", "100"]);
    worker.begin();
    assert_eq!(worker.line(), "19");
    let checked = Command::new(host::agent().unwrap())
        .arg("check")
        .arg(host.path("limits.toml"))
        .output()
        .unwrap();
    assert!(checked.status.success());
    assert!(
        String::from_utf8_lossy(&checked.stderr).contains("/dev/weir-none"),
        "{checked:?}"
    );
}

fn limits_that_an_old_kernel_lacks_are_reported_and_the_others_apply() {
    let mut host = Host::new();
    host.start("", "pids = 20\nnetwork = { egress = \"40Mbit/s\" }");
    let notes = host.json(&["status"])["notes"].to_string();
    assert!(
        notes.contains("is too old") && notes.contains("install 5.15 or newer"),
        "{notes}"
    );
    let mut worker = host.spawn(&["fork", "100"]);
    worker.begin();
    assert_eq!(worker.line(), "19");
}

fn an_elastic_group_gets_what_is_idle_and_gives_it_back() {
    let mut host = Host::new();
    host.start("", "cpu = { max = \"20%\", elastic = true }");
    let mut worker = host.spawn(&["busy", "200000"]);
    worker.begin();
    let share = || host.group()["cpu"]["max_percent"].as_f64().unwrap();
    // It is given what others leave idle: the seconds count in which these used hardly anything.
    let (mut load, mut quiet, start) = (HostLoad::new().unwrap(), Duration::ZERO, Instant::now());
    let cpus = std::thread::available_parallelism().unwrap().get() as f64;
    while share() < 90.0 {
        assert!(
            quiet < Duration::from_secs(10),
            "it was given {} % of what was idle for {quiet:?}",
            share()
        );
        if start.elapsed() > Duration::from_secs(150) {
            eprintln!(
                "skipped: what is idle goes to an elastic group: others kept this machine busy for {:?}",
                start.elapsed()
            );
            return;
        }
        let (used, began) = (cpu_seconds(worker.id()), Instant::now());
        std::thread::sleep(Duration::from_secs(1));
        let passed = began.elapsed();
        let own = (cpu_seconds(worker.id()) - used) / passed.as_secs_f64();
        if load
            .sample()
            .is_ok_and(|sample| sample.idle * cpus + own > cpus - 0.3)
        {
            quiet += passed;
        }
    }
    // Somebody else needs every CPU.
    let own = std::env::current_exe().unwrap();
    let count = std::thread::available_parallelism().unwrap().get();
    let mut others: Vec<Worker> = (0..count)
        .map(|_| Worker::spawn(&own, &["busy", "30000"]))
        .collect();
    others.iter_mut().for_each(Worker::begin);
    let (start, stalls) = (Instant::now(), Stalls::watch());
    while share() > 20.0 {
        let most = Duration::from_secs(2) + 4 * stalls.so_far();
        assert!(
            start.elapsed() < most,
            "it still has {} % after {:?}",
            share(),
            start.elapsed()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}
