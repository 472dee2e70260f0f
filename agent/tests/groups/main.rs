//! Process groups with the agent's own binary, on this host's cgroups: each limit by its effect, not by its file.

mod jobs;
mod limits;
mod outbound;
mod places;
mod work;

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use datapath::is_kernel_too_old;
use libtest_mimic::Arguments;
use nix::sys::signal::Signal;
use testbed::groups::{self, Host, Worker, cgroups_of, hierarchies};
use testbed::host_load::HostCpus;
use testbed::test;
use testbed::trials::{Test, is_quick, trial_unless};

/// Why a test cannot run here, if it cannot.
type Obstacle = fn() -> Option<String>;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [first, work @ ..] = words.as_slice()
        && first == "--work"
    {
        return work::run(work);
    }
    let tests: &[(Test, Obstacle)] = &[
        (
            test!(limits::a_busy_loop_gets_no_more_than_its_percent_of_a_cpu),
            nothing,
        ),
        (test!(limits::a_hog_is_stopped_at_its_memory), nothing),
        (test!(limits::a_fork_bomb_is_stopped_at_its_pids), nothing),
        (test!(limits::a_lifted_limit_is_set_again), nothing),
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
        (test!(limits::egress_of_a_group_is_limited), no_network),
        (test!(limits::ingress_of_a_group_is_limited), no_network),
        (
            test!(jobs::jobs_have_the_limits_of_their_page_and_others_have_not),
            no_network,
        ),
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
            test!(limits_that_an_old_kernel_lacks_are_reported_and_the_others_apply),
            new_kernel,
        ),
        (
            test!(detaching_sends_processes_back_and_leaves_nothing),
            nothing,
        ),
        (test!(places::a_cgroup_is_limited_where_it_is), no_network),
    ];
    // The same on every kernel.
    let of_the_agent: &[(Test, Obstacle)] = &[
        (
            test!(outbound::usage_is_right_over_restarts_and_kills_of_the_agent),
            no_network,
        ),
        (test!(processes_are_in_their_group_under_churn), no_unified),
        (test!(children_follow), nothing),
        (
            test!(a_group_outlives_its_agent_and_the_next_one_goes_on),
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
        (
            test!(places::a_delegated_cgroup_keeps_its_processes_unless_forced),
            no_unified,
        ),
        (test!(places::a_second_agent_evicts_no_source), no_bpffs),
        (
            test!(an_elastic_group_gets_what_is_idle_and_gives_it_back),
            nothing,
        ),
    ];
    let arguments = Arguments::from_args();
    let common = common_obstacle();
    let quick = is_quick().then(|| "--quick leaves out what is the same everywhere".to_owned());
    let trials = tests
        .iter()
        .map(|test| (test, None))
        .chain(of_the_agent.iter().map(|test| (test, quick.clone())))
        .map(|((test, obstacle), quick)| {
            trial_unless(test, common.clone().or(quick).or_else(obstacle))
        })
        .collect();
    testbed::trials::run(&arguments, trials)
}

fn common_obstacle() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("process groups need root, for cgroups and BPF".to_owned());
    }
    if groups::agent().is_none() {
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

fn an_inner_node_with_processes_is_reported() {
    let mut host = Host::new();
    let parent = Path::new("/sys/fs/cgroup").join(host.cgroup("").trim_matches('/'));
    fs::create_dir(&parent).unwrap();
    let mut squatter = Guarded(Command::new("sleep").arg("60").spawn().unwrap());
    fs::write(parent.join("cgroup.procs"), squatter.0.id().to_string()).unwrap();
    host.start("", "pids = 20");
    // The group's cgroup is made for its first process.
    let _sleeper = Worker::spawn(&host.worker(), &["sleep"]);
    let deadline = Instant::now() + Duration::from_secs(300);
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

fn processes_are_in_their_group_under_churn() {
    let mut host = Host::new();
    let short = host.path("short");
    groups::copy(Path::new("/bin/true"), &short);
    host.start("", "pids = 500");
    let mut churner = Worker::spawn(
        &std::env::current_exe().unwrap(),
        &["exec", short.to_str().unwrap()],
    );
    let cgroup = host.cgroup("g");
    for _ in 0..30 {
        let mut probe = Worker::spawn(&host.worker(), &["probe", &cgroup]);
        assert_eq!(probe.line(), "moved");
    }
    churner.end();
    let started: u64 = churner.line().parse().unwrap();
    assert!(started > 0, "no other process was started");
}

fn children_follow() {
    let mut host = Host::new();
    let shell = Command::new("/bin/sh")
        .args(["-c", "sleep 60 & sleep 60"])
        .spawn()
        .unwrap();
    let mut shell = Guarded(shell);
    // By its number, which its children do not have; they were forked before there was an agent.
    let deadline = Instant::now() + Duration::from_secs(300);
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
    let lines = "cpu = { max = \"2%\" }\nnetwork = { egress = \"40Mbit/s\" }";
    host.start("", lines);
    let mut worker = host.spawn(&["busy", "600000"]);
    worker.begin();
    let deadline = Instant::now() + Duration::from_secs(300);
    let usage = || host.group()["cpu"]["usage_seconds"].as_f64().unwrap();
    while usage() == 0.0 {
        assert!(Instant::now() < deadline, "no usage is reported");
        std::thread::sleep(Duration::from_millis(50));
    }
    let before = usage();
    // The CPU time of the worker before it was in the group does not count.
    let used_before = groups::cpu_time(worker.id()).as_secs_f64();
    host.stop(Signal::SIGKILL);
    // Nobody is there, and the limit holds.
    limits::assert_limited(&host, &worker, 2.0);
    let used = groups::cpu_time(worker.id()).as_secs_f64() - used_before;
    host.start("", lines);
    let counted = host.group()["cpu"]["usage_seconds"].as_f64().unwrap() - before;
    // The kernel brings a group's account up to date at its timer ticks, of at most 10 ms.
    assert!(counted >= used - 0.01, "{counted} of {used}");
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
    let deadline = Instant::now() + Duration::from_secs(300);
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
    let checked = Command::new(groups::agent().unwrap())
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
    let cpus = HostCpus::idle();
    host.start_on(&cpus, "", "cpu = { max = \"2%\", elastic = true }");
    let mut worker = host.spawn(&["busy", "600000"]);
    worker.begin();
    let wait_for = |what: &str, is: &dyn Fn(f64) -> bool| {
        let deadline = Instant::now() + Duration::from_secs(300);
        loop {
            let share = host.group()["cpu"]["max_percent"].as_f64().unwrap();
            if is(share) {
                break;
            }
            assert!(Instant::now() < deadline, "{what}: it has {share} %");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    wait_for("a CPU", &|share| share >= 90.0);
    // Somebody else needs every CPU.
    cpus.become_busy();
    wait_for("its own share", &|share| share == 2.0);
}
