//! Process groups with the agent's own binary, on this host's cgroups: each limit by its effect, not by its file.

mod host;
mod work;

use std::fs;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use host::{Host, Worker, cgroups_of, hierarchies};
use libtest_mimic::{Arguments, Trial};
use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};
use weir::host_load::HostLoad;

/// Why a test cannot run here, if it cannot.
type Obstacle = fn() -> Option<String>;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [first, work @ ..] = words.as_slice()
        && first == "--work"
    {
        return work::run(work);
    }
    let tests: &[(&str, fn(), Obstacle)] = &[
        ("a_busy_loop_has_its_percent_of_a_cpu", cpu, nothing),
        ("a_hog_is_stopped_at_its_memory", memory, nothing),
        ("a_fork_bomb_is_stopped_at_its_pids", pids, nothing),
        ("disks_are_held_to_bytes_and_operations_both_ways", io, no_disk),
        ("two_groups_share_a_cpu_by_their_weights", weight, nothing),
        ("memory_above_high_is_reclaimed", high, no_memory_v2),
        ("swap_is_held_to_its_share", swap, no_memory_v2),
        ("an_inner_node_with_processes_is_told", inner_node, no_memory_v2),
        ("a_group_runs_on_its_cpus_only", cpus, nothing),
        ("what_a_group_sends_is_held_to_its_rate", egress, no_unified),
        ("what_a_group_receives_is_held_to_its_rate", ingress, no_unified),
        ("processes_are_in_their_group_soon_under_churn", churn, no_churn),
        ("children_follow", children, nothing),
        ("a_group_outlives_its_agent_and_the_next_one_goes_on", restart, nothing),
        ("detaching_sends_processes_back_and_leaves_nothing", detach, nothing),
        ("a_config_without_groups_ends_those_of_the_one_before", no_more_groups, no_bpffs),
        ("a_group_can_be_frozen_thawed_and_killed", emergency, nothing),
        ("what_cannot_be_held_is_told_and_the_rest_stands", notes, nothing),
        ("an_elastic_group_gets_what_is_idle_and_gives_it_back", elastic, busy_host),
    ];
    let arguments = Arguments::from_args();
    let common = common_obstacle();
    let trials = tests
        .iter()
        .map(|(name, test, obstacle)| {
            let (test, reason) = (*test, common.clone().or_else(obstacle));
            if let Some(reason) = &reason {
                eprintln!("skipped: {name}: {reason}");
            }
            Trial::test(*name, move || {
                test();
                Ok(())
            })
            .with_ignored_flag(reason.is_some())
        })
        .collect();
    // One after the other: they measure CPU time and disks.
    let arguments = Arguments { test_threads: Some(1), ..arguments };
    libtest_mimic::run(&arguments, trials).exit();
}

fn common_obstacle() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("process groups need root, for cgroups and BPF".to_owned());
    }
    if host::agent().is_none() {
        return Some("it needs the agent that `cargo xtask build` leaves: run `cargo xtask test`".to_owned());
    }
    hierarchies().is_empty().then(|| "no cgroup hierarchy is mounted".to_owned())
}

fn nothing() -> Option<String> {
    None
}

/// An agent without groups holds packets.
fn no_bpffs() -> Option<String> {
    (!Path::new("/sys/fs/bpf").exists()).then(|| "it needs bpffs mounted".to_owned())
}

fn no_unified() -> Option<String> {
    let is_there = hierarchies().iter().any(|root| root.join("cgroup.controllers").exists());
    let has_pins = Path::new("/sys/fs/bpf").exists();
    (!is_there || !has_pins).then(|| "it needs the cgroup v2 hierarchy and bpffs mounted".to_owned())
}

fn no_churn() -> Option<String> {
    let slow = is_virtual().then(|| "an emulated CPU does not start 1,000 processes a second".to_owned());
    slow.or_else(no_unified)
}

/// Whether this is a virtual machine of `cargo xtask vm`.
fn is_virtual() -> bool {
    std::env::var_os("WEIR_VM").is_some()
}

/// What cgroup v1 cannot do, and swap, which is no test's to turn on elsewhere.
fn no_memory_v2() -> Option<String> {
    (!is_virtual()).then(|| "it needs memory under cgroup v2, and a disk to swap to: cargo xtask vm".to_owned())
}

fn no_disk() -> Option<String> {
    (!is_virtual() && !Path::new("/dev/loop-control").exists())
        .then(|| "it needs a loop device for a disk of its own".to_owned())
}

/// What is idle can only be given where something is: others build and test on this machine.
fn busy_host() -> Option<String> {
    let mut load = HostLoad::new().ok()?;
    std::thread::sleep(Duration::from_secs(2));
    let idle = load.sample().map_or(0.0, |sample| sample.idle);
    (idle < 0.8).then(|| format!("it needs a host that is idle otherwise, and this one is to {:.0} %", idle * 100.0))
}

fn cpu() {
    let mut host = Host::new();
    host.start("", "cpu = { max = \"30%\" }");
    let mut worker = host.spawn(&["busy", "6000"]);
    worker.begin();
    let (used, passed) = worker.numbers();
    let share = used / passed;
    assert!((0.285..=0.315).contains(&share), "it had {:.1} % of a CPU", share * 100.0);
    let group = host.group();
    assert_eq!(group["cpu"]["max_percent"], 30.0);
    assert!(group["cpu"]["usage_seconds"].as_f64().unwrap() * 1e9 >= used);
    assert!(group["cpu"]["throttled_seconds"].as_f64().unwrap() > 1.0, "{group}");
}

fn memory() {
    let mut host = Host::new();
    host.start("", "memory = { max = \"64MiB\" }");
    let mut worker = host.spawn(&["grow", "256"]);
    worker.begin();
    let (rest, status) = worker.rest();
    let touched: u64 = rest.lines().last().unwrap().parse().unwrap();
    assert_eq!(status.signal(), Some(Signal::SIGKILL as i32), "it had {touched} MiB");
    assert!((48..=64).contains(&touched), "it had {touched} MiB");
    assert!(host.group()["memory"]["oom_kills"].as_u64().unwrap() >= 1, "{}", host.group());
}

fn pids() {
    let mut host = Host::new();
    host.start("", "pids = 20");
    let mut worker = host.spawn(&["fork", "100"]);
    worker.begin();
    // The worker itself is one of them.
    assert_eq!(worker.line(), "19");
    assert_eq!(host.group()["name"], "g");
}

/// A disk that nobody else uses: that of a virtual machine, or a loop device over a file of the test's own, which is
/// gone when dropped.
struct Disk(String);

const VIRTUAL_DISK: &str = "/dev/vda";

impl Disk {
    fn new(host: &Host) -> Self {
        if is_virtual() {
            return Self(VIRTUAL_DISK.to_owned());
        }
        let file = host.path("disk");
        fs::write(&file, vec![7; 64 << 20]).unwrap();
        let output = Command::new("losetup").args(["--find", "--show", "--direct-io=off"]).arg(&file).output().unwrap();
        assert!(output.status.success(), "losetup: {}", String::from_utf8_lossy(&output.stderr));
        Self(String::from_utf8(output.stdout).unwrap().trim().to_owned())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if is_virtual() {
            return;
        }
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

fn io() {
    let mut host = Host::new();
    let disk = Disk::new(&host);
    let device = &disk.0;
    let limits = "read = \"8MB/s\", write = \"4MB/s\", read_ops = \"200/s\", write_ops = \"100/s\"";
    host.start("", &format!("io = [{{ device = {device:?}, {limits} }}]"));
    // Large blocks come up against the bytes, small ones against the operations.
    for (way, block, bytes_a_second) in
        [("read", 131_072, 8e6), ("write", 131_072, 4e6), ("read", 4_096, 819.2e3), ("write", 4_096, 409.6e3)]
    {
        let mut worker = host.spawn(&[way, device, &block.to_string(), "4000"]);
        worker.begin();
        let (bytes, nanoseconds) = worker.numbers();
        let rate = bytes * 1e9 / nanoseconds;
        let allowed = 0.9 * bytes_a_second..=1.1 * bytes_a_second;
        assert!(allowed.contains(&rate), "{way} in blocks of {block}: {rate:.0} bytes a second");
        let group = host.group();
        assert!(group["io"][0][format!("{way}_bytes")].as_f64().unwrap() >= bytes, "{group}");
        assert_eq!(group["io"][0]["device"], device.as_str());
    }
}

fn weight() {
    let mut host = Host::new();
    let other = host.path("other");
    fs::copy(host.worker(), &other).unwrap();
    let second = format!("[[group]]\nname = \"h\"\nmatch = [{{ exe = {other:?} }}]\ncpu = {{ weight = 300 }}\n");
    host.start("", &format!("cpu = {{ weight = 100 }}\n{second}"));
    let mut light = host.spawn(&["pinned", "6000"]);
    let mut heavy = Worker::spawn(&other, &["pinned", "6000"]);
    let deadline = Instant::now() + Duration::from_secs(10);
    while host.json(&["groups"])[1]["pids"] != serde_json::json!([heavy.id()]) {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(10));
    }
    light.begin();
    heavy.begin();
    let (light, heavy) = (light.numbers().0, heavy.numbers().0);
    let ratio = heavy / light;
    assert!((2.4..=3.6).contains(&ratio), "three times the weight had {ratio:.2} times the CPU");
}

fn high() {
    let mut host = Host::new();
    host.start("", "memory = { high = \"16MiB\" }");
    let mut worker = host.spawn(&["cache", VIRTUAL_DISK, "48"]);
    worker.begin();
    assert_eq!(worker.line(), "read");
    let current = host.group()["memory"]["current_bytes"].as_u64().unwrap();
    // Without the limit it would be 48 MiB and more; the kernel charges a batch at a time.
    assert!(current < 18 << 20, "{current} bytes: {}", host.group());
}

fn swap() {
    for command in ["mkswap", "swapon"] {
        assert!(Command::new(command).arg(VIRTUAL_DISK).status().unwrap().success(), "{command}");
    }
    let touched = |swap: &str| {
        let mut host = Host::new();
        host.start("on_exit = \"detach\"", &format!("memory = {{ max = \"32MiB\", swap_max = {swap:?} }}"));
        let mut worker = host.spawn(&["grow", "256"]);
        worker.begin();
        let (rest, status) = worker.rest();
        assert_eq!(status.signal(), Some(Signal::SIGKILL as i32));
        rest.lines().last().unwrap().parse::<u64>().unwrap()
    };
    let (without, with) = (touched("0B"), touched("128MiB"));
    assert!(Command::new("swapoff").arg(VIRTUAL_DISK).status().unwrap().success());
    assert!((20..=32).contains(&without), "{without} MiB");
    // Of what is swapped out some is kept in memory, too, and counts twice.
    assert!((64..=160).contains(&with), "{with} MiB");
}

fn inner_node() {
    let mut host = Host::new();
    let parent = Path::new("/sys/fs/cgroup").join(host.cgroup("").trim_matches('/'));
    fs::create_dir(&parent).unwrap();
    let mut squatter = Guarded(Command::new("sleep").arg("60").spawn().unwrap());
    fs::write(parent.join("cgroup.procs"), squatter.0.id().to_string()).unwrap();
    host.start("", "pids = 20");
    let notes = host.json(&["status"])["notes"].to_string();
    assert!(notes.contains("cgroup.subtree_control") && notes.contains("inner cgroup"), "{notes}");
    squatter.0.kill().unwrap();
    squatter.0.wait().unwrap();
}

fn cpus() {
    let mut host = Host::new();
    host.start("", "cpus = \"0\"");
    let worker = host.spawn(&["sleep"]);
    // The kernel's own answer, not the cgroup's file.
    let allowed = || {
        let status = fs::read_to_string(format!("/proc/{}/status", worker.id())).unwrap();
        status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned()
    };
    let deadline = Instant::now() + Duration::from_secs(5);
    while allowed() != "0" {
        assert!(Instant::now() < deadline, "it may run on {}: {}", allowed(), host.group());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// 40 Mbit/s, in bytes a second.
const NETWORK_RATE: f64 = 5e6;

fn assert_network_rate(bytes: f64, nanoseconds: f64) {
    let rate = bytes * 1e9 / nanoseconds;
    assert!((0.95 * NETWORK_RATE..=1.05 * NETWORK_RATE).contains(&rate), "{rate:.0} bytes a second came through");
}

fn egress() {
    let mut host = Host::new();
    host.start("", "network = { egress = \"40Mbit/s\" }");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut worker = host.spawn(&["send", &listener.local_addr().unwrap().to_string()]);
    worker.begin();
    let (bytes, nanoseconds) = work::count(&mut listener.accept().unwrap().0, Duration::from_secs(8));
    let network = &host.group()["network"];
    assert!(network["egress_throttled_packets"].as_u64().unwrap() > 0, "{network}");
    assert!(network["egress_bytes"].as_u64().unwrap() >= bytes, "{network}");
    assert_network_rate(bytes as f64, nanoseconds as f64);
}

fn ingress() {
    let mut host = Host::new();
    host.start("", "network = { ingress = \"40Mbit/s\" }");
    let mut worker = host.spawn(&["receive", "8000"]);
    worker.begin();
    let mut stream = TcpStream::connect(worker.line()).unwrap();
    let sender = std::thread::spawn(move || {
        let block = vec![7; 64 * 1024];
        while stream.write_all(&block).is_ok() {}
    });
    let (bytes, nanoseconds) = worker.numbers();
    let network = host.group()["network"].clone();
    drop(worker);
    sender.join().unwrap();
    assert!(network["ingress_throttled_packets"].as_u64().unwrap() > 0, "{network}");
    assert_network_rate(bytes, nanoseconds);
}

fn churn() {
    let mut host = Host::new();
    let short = host.path("short");
    fs::copy("/bin/true", &short).unwrap();
    host.start("", "pids = 500");
    let mut churner = Worker::spawn(&std::env::current_exe().unwrap(), &["exec", short.to_str().unwrap()]);
    let cgroup = host.cgroup("g");
    let mut delays = Vec::new();
    for _ in 0..200 {
        let before = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap());
        let mut probe = Worker::spawn(&host.worker(), &["probe", &cgroup]);
        let line = probe.line();
        assert_ne!(line, "missed", "a process that lived 200 ms was not put in its group");
        delays.push(line.parse::<u128>().unwrap() - before.as_nanos());
        std::thread::sleep(Duration::from_millis(10));
    }
    churner.end();
    let (started, passed) = churner.numbers();
    delays.sort_unstable();
    let (median, late) = (delays[delays.len() / 2], delays[delays.len() * 99 / 100]);
    let told = format!("median {median} ns, 99th percentile {late} ns, at {:.0} a second", started * 1e9 / passed);
    eprintln!("{told}");
    assert!(started * 1e9 / passed >= 900.0, "{told}");
    // From before the fork to after the move: more than from exec to being in the group.
    assert!(median < 10_000_000 && late < 50_000_000, "{told}");
}

fn children() {
    let mut host = Host::new();
    let shell = Command::new("/bin/sh").args(["-c", "sleep 60 & sleep 60"]).spawn().unwrap();
    let mut shell = Guarded(shell);
    // By its number, which its children do not have; they were forked before there was an agent.
    let deadline = Instant::now() + Duration::from_secs(5);
    let children = || {
        let pid = shell.0.id();
        let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        text.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<u32>>()
    };
    while children().len() < 2 {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    let more = format!("[[group]]\nname = \"h\"\nmatch = [{{ pid = {} }}]\n", shell.0.id());
    host.start("", &format!("pids = 50\n{more}"));
    for pid in children() {
        assert!(cgroups_of(pid).iter().any(|line| line.ends_with(&host.cgroup("h"))), "{:?}", cgroups_of(pid));
    }
    let groups = host.json(&["groups"]);
    assert_eq!(groups[1]["pids"].as_array().unwrap().len(), 3, "{groups}");
    for pid in children() {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.cast_signed()), Signal::SIGKILL).unwrap();
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

fn restart() {
    let mut host = Host::new();
    let lines = "cpu = { max = \"30%\" }\nnetwork = { egress = \"40Mbit/s\" }";
    host.start("", lines);
    let mut worker = host.spawn(&["busy", "4000"]);
    worker.begin();
    std::thread::sleep(Duration::from_millis(500));
    let before = host.group()["cpu"]["usage_seconds"].as_f64().unwrap();
    host.stop(Signal::SIGKILL);
    // Nobody is there, and the limit holds.
    let (used, passed) = worker.numbers();
    assert!((0.27..=0.33).contains(&(used / passed)), "it had {:.1} % of a CPU", used / passed * 100.0);
    host.start("", lines);
    let after = host.group()["cpu"]["usage_seconds"].as_f64().unwrap();
    assert!(before > 0.0 && after >= before && after * 1e9 >= used, "{before} {after} {used}");
}

fn detach() {
    let mut host = Host::new();
    let before = cgroups_of(std::process::id());
    host.start("on_exit = \"detach\"", "pids = 50\nnetwork = { egress = \"40Mbit/s\" }");
    let worker = host.spawn(&["sleep"]);
    assert_ne!(cgroups_of(worker.id()), before);
    assert!(host.has_remains());
    host.stop(Signal::SIGTERM);
    assert_eq!(cgroups_of(worker.id()), before, "{}", host.said());
    assert!(!host.has_remains(), "{}", host.said());
}

fn no_more_groups() {
    let mut host = Host::new();
    let before = cgroups_of(std::process::id());
    host.start("", "pids = 50");
    let worker = host.spawn(&["sleep"]);
    host.stop(Signal::SIGTERM);
    assert_ne!(cgroups_of(worker.id()), before, "on_exit = \"keep\"");
    // The next config has a group of another name, and the one after it none at all.
    let other = host.path("other");
    host.start("", &format!("pids = 50\n[[group]]\nname = \"h\"\nmatch = [{{ exe = {other:?} }}]\n"));
    assert_eq!(host.group()["pids"], serde_json::json!([worker.id()]), "the next agent goes on with it");
    host.stop(Signal::SIGTERM);
    host.start_without_groups();
    assert_eq!(cgroups_of(worker.id()), before, "{}", host.said());
    assert!(!host.has_cgroups(), "{}", host.said());
}

fn emergency() {
    let mut host = Host::new();
    host.start("", "pids = 50");
    let mut worker = host.spawn(&["busy", "2000"]);
    worker.begin();
    assert!(host.command(&["groups", "freeze", "g"]).status.success());
    assert_eq!(host.group()["frozen"], true);
    let jiffies = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", worker.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    // It may take the kernel a moment to stop every thread.
    std::thread::sleep(Duration::from_millis(200));
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
    assert_eq!(wrong.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("there is g"));
}

fn notes() {
    let mut host = Host::new();
    host.start("", "pids = 20\nio = [{ device = \"/dev/weir-none\", read = \"1MB/s\" }]\ncpu = { max = \"800000%\" }");
    let notes = host.json(&["status"])["notes"].to_string();
    for part in ["/dev/weir-none cannot be found", "cpu max 800000%", "no process has matched yet"] {
        assert!(notes.contains(part), "{part} is missing from {notes}");
    }
    let mut worker = host.spawn(&["fork", "100"]);
    worker.begin();
    assert_eq!(worker.line(), "19");
    let checked = Command::new(host::agent().unwrap()).arg("check").arg(host.path("limits.toml")).output().unwrap();
    assert!(checked.status.success());
    assert!(String::from_utf8_lossy(&checked.stderr).contains("/dev/weir-none"), "{checked:?}");
}

fn elastic() {
    let mut host = Host::new();
    host.start("", "cpu = { max = \"20%\", elastic = true }");
    let mut worker = host.spawn(&["busy", "20000"]);
    worker.begin();
    let share = || host.group()["cpu"]["max_percent"].as_f64().unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while share() < 90.0 {
        assert!(Instant::now() < deadline, "it was given {} %", share());
        std::thread::sleep(Duration::from_millis(100));
    }
    // Somebody else needs every CPU.
    let own = std::env::current_exe().unwrap();
    let count = std::thread::available_parallelism().unwrap().get();
    let mut others: Vec<Worker> = (0..count).map(|_| Worker::spawn(&own, &["busy", "6000"])).collect();
    others.iter_mut().for_each(Worker::begin);
    let start = Instant::now();
    while share() > 20.0 {
        assert!(start.elapsed() < Duration::from_secs(2), "it still has {} %", share());
        std::thread::sleep(Duration::from_millis(50));
    }
}
