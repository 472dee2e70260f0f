//! Each limit by its effect.

use std::fs;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use testbed::stalls::Stalls;

use crate::host::{Host, Worker};
use crate::{is_virtual, work};

pub fn a_busy_loop_has_its_percent_of_a_cpu() {
    let mut host = Host::new();
    host.start("", "cpu = { max = \"30%\" }");
    let mut worker = host.spawn(&["busy", "6000"]);
    let mut free = Free::begin("6000");
    worker.begin();
    let (used, passed) = worker.numbers();
    let (share, given) = (used / passed, free.given());
    // Never more; less only if the machine had none to give.
    let told = format!(
        "it had {:.1} % of a CPU, and one without a limit {:.1} %",
        share * 100.0,
        given * 100.0
    );
    assert!(
        share <= 0.315 && share >= 0.285 * (given / 0.6).min(1.0),
        "{told}"
    );
    let group = host.group();
    assert_eq!(group["cpu"]["max_percent"], 30.0);
    assert!(group["cpu"]["usage_seconds"].as_f64().unwrap() * 1e9 >= used);
    let least = if given < 0.6 { 0.0 } else { 1.0 };
    assert!(
        group["cpu"]["throttled_seconds"].as_f64().unwrap() > least,
        "{group}"
    );
}

pub fn a_hog_is_stopped_at_its_memory() {
    let mut host = Host::new();
    host.start("", "memory = { max = \"64MiB\" }");
    let mut worker = host.spawn(&["grow", "256"]);
    worker.begin();
    let (rest, status) = worker.rest();
    let touched: u64 = rest.lines().last().unwrap().parse().unwrap();
    assert_eq!(
        status.signal(),
        Some(Signal::SIGKILL as i32),
        "it had {touched} MiB"
    );
    assert!((48..=64).contains(&touched), "it had {touched} MiB");
    assert!(
        host.group()["memory"]["oom_kills"].as_u64().unwrap() >= 1,
        "{}",
        host.group()
    );
    // It is told of, beside what is refused of packets.
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let told = String::from_utf8(host.command(&["events", "--json"]).stdout).unwrap();
        let events: Vec<serde_json::Value> = told
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        if let Some(event) = events.first() {
            assert_eq!(
                (&event["verdict"], &event["group"]),
                (&"oom-kill".into(), &"g".into())
            );
            break;
        }
        assert!(Instant::now() < deadline, "no event tells of it");
        std::thread::sleep(Duration::from_millis(100));
    }
}

pub fn a_fork_bomb_is_stopped_at_its_pids() {
    let mut host = Host::new();
    host.start("", "pids = 20");
    let mut worker = host.spawn(&["fork", "100"]);
    worker.begin();
    // The worker itself is one of them.
    assert_eq!(worker.line(), "19");
    assert_eq!(host.group()["name"], "g");
}

/// A busy loop in no group: what the machine has left for one.
pub struct Free(Worker);

impl Free {
    pub fn begin(milliseconds: &str) -> Self {
        let mut worker = Worker::spawn(&std::env::current_exe().unwrap(), &["busy", milliseconds]);
        worker.begin();
        Self(worker)
    }

    /// The part of a CPU that it had, once it has ended.
    pub fn given(&mut self) -> f64 {
        let (used, passed) = self.0.numbers();
        used / passed
    }
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
        let output = Command::new("losetup")
            .args(["--find", "--show", "--direct-io=off"])
            .arg(&file)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "losetup: {}",
            String::from_utf8_lossy(&output.stderr)
        );
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

pub fn disks_are_limited_in_bytes_and_operations_both_ways() {
    let mut host = Host::new();
    let disk = Disk::new(&host);
    let device = &disk.0;
    let limits = "read = \"8MB/s\", write = \"4MB/s\", read_ops = \"200/s\", write_ops = \"100/s\"";
    host.start("", &format!("io = [{{ device = {device:?}, {limits} }}]"));
    // Large blocks come up against the bytes, small ones against the operations.
    for (way, block, bytes_a_second) in [
        ("read", 131_072, 8e6),
        ("write", 131_072, 4e6),
        ("read", 4_096, 819.2e3),
        ("write", 4_096, 409.6e3),
    ] {
        let mut worker = host.spawn(&[way, device, &block.to_string(), "4000"]);
        let stalls = Stalls::watch();
        worker.begin();
        let (bytes, nanoseconds) = worker.numbers();
        let (rate, late) = (bytes * 1e9 / nanoseconds, late_share(&stalls, nanoseconds));
        let allowed = (0.9 - late) * bytes_a_second..=1.1 * bytes_a_second;
        assert!(
            allowed.contains(&rate),
            "{way} in blocks of {block}: {rate:.0} bytes a second"
        );
        let group = host.group();
        assert!(
            group["io"][0][format!("{way}_bytes")].as_f64().unwrap() >= bytes,
            "{group}"
        );
        assert_eq!(group["io"][0]["device"], device.as_str());
    }
}

pub fn two_groups_share_a_cpu_by_their_weights() {
    let mut host = Host::new();
    let other = host.path("other");
    fs::copy(host.worker(), &other).unwrap();
    let second = format!(
        "[[group]]\nname = \"h\"\nmatch = [{{ exe = {other:?} }}]\ncpu = {{ weight = 300 }}\n"
    );
    host.start("", &format!("cpu = {{ weight = 100 }}\n{second}"));
    let mut light = host.spawn(&["pinned", "6000"]);
    let mut heavy = Worker::spawn(&other, &["pinned", "6000"]);
    let deadline = Instant::now() + Duration::from_secs(60);
    while host.json(&["groups"])[1]["pids"] != serde_json::json!([heavy.id()]) {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(10));
    }
    light.begin();
    heavy.begin();
    let (light, heavy) = (light.numbers().0, heavy.numbers().0);
    let ratio = heavy / light;
    assert!(
        (2.4..=3.6).contains(&ratio),
        "three times the weight had {ratio:.2} times the CPU"
    );
}

pub fn memory_above_high_is_reclaimed() {
    let mut host = Host::new();
    host.start("", "memory = { high = \"16MiB\" }");
    let mut worker = host.spawn(&["cache", VIRTUAL_DISK, "48"]);
    worker.begin();
    assert_eq!(worker.line(), "read");
    let current = host.group()["memory"]["current_bytes"].as_u64().unwrap();
    // Without the limit it would be 48 MiB and more; the kernel charges a batch at a time.
    assert!(current < 18 << 20, "{current} bytes: {}", host.group());
}

pub fn swap_is_limited() {
    for command in ["mkswap", "swapon"] {
        assert!(
            Command::new(command)
                .arg(VIRTUAL_DISK)
                .status()
                .unwrap()
                .success(),
            "{command}"
        );
    }
    let touched = |swap: &str| {
        let mut host = Host::new();
        host.start(
            "on_exit = \"detach\"",
            &format!("memory = {{ max = \"32MiB\", swap_max = {swap:?} }}"),
        );
        let mut worker = host.spawn(&["grow", "256"]);
        worker.begin();
        let (rest, status) = worker.rest();
        assert_eq!(status.signal(), Some(Signal::SIGKILL as i32));
        rest.lines().last().unwrap().parse::<u64>().unwrap()
    };
    let (without, with) = (touched("0B"), touched("128MiB"));
    assert!(
        Command::new("swapoff")
            .arg(VIRTUAL_DISK)
            .status()
            .unwrap()
            .success()
    );
    assert!((20..=32).contains(&without), "{without} MiB");
    // Of what is swapped out some is kept in memory, too, and counts twice.
    assert!((64..=160).contains(&with), "{with} MiB");
}

pub fn a_group_runs_on_its_cpus_only() {
    let mut host = Host::new();
    host.start("", "cpus = \"0\"");
    let worker = host.spawn(&["sleep"]);
    // The kernel's own answer, not the cgroup's file.
    let allowed = || {
        let status = fs::read_to_string(format!("/proc/{}/status", worker.id())).unwrap();
        status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
            .unwrap()
            .trim()
            .to_owned()
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while allowed() != "0" {
        assert!(
            Instant::now() < deadline,
            "it may run on {}: {}",
            allowed(),
            host.group()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// 40 Mbit/s, in bytes a second.
const NETWORK_RATE: f64 = 5e6;

fn assert_network_rate(bytes: f64, nanoseconds: f64, stalls: &Stalls) {
    let (rate, late) = (bytes * 1e9 / nanoseconds, late_share(stalls, nanoseconds));
    // Packets that waited meanwhile come after it.
    let allowed = (0.95 - late) * NETWORK_RATE..=(1.05 + late) * NETWORK_RATE;
    assert!(
        allowed.contains(&rate),
        "{rate:.0} bytes a second came through, late for {:.1} %",
        late * 100.0
    );
}

/// The part of a time in which a busy machine may have kept a test's processes from their work.
fn late_share(stalls: &Stalls, nanoseconds: f64) -> f64 {
    (2.0 * stalls.so_far().as_nanos() as f64 / nanoseconds).min(1.0)
}

pub fn what_a_group_sends_is_limited() {
    let mut host = Host::new();
    host.start("", "network = { egress = \"40Mbit/s\" }");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut worker = host.spawn(&["send", &listener.local_addr().unwrap().to_string()]);
    worker.begin();
    let stalls = Stalls::watch();
    let (bytes, nanoseconds) =
        work::count(&mut listener.accept().unwrap().0, Duration::from_secs(8));
    let network = &host.group()["network"];
    assert!(
        network["egress_throttled_packets"].as_u64().unwrap() > 0,
        "{network}"
    );
    assert!(
        network["egress_bytes"].as_u64().unwrap() >= bytes,
        "{network}"
    );
    assert_network_rate(bytes as f64, nanoseconds as f64, &stalls);
}

pub fn what_a_group_receives_is_limited() {
    let mut host = Host::new();
    host.start("", "network = { ingress = \"40Mbit/s\" }");
    let mut worker = host.spawn(&["receive", "8000"]);
    worker.begin();
    let mut stream = TcpStream::connect(worker.line()).unwrap();
    let sender = std::thread::spawn(move || {
        let block = vec![7; 64 * 1024];
        while stream.write_all(&block).is_ok() {}
    });
    let stalls = Stalls::watch();
    let (bytes, nanoseconds) = worker.numbers();
    let network = host.group()["network"].clone();
    drop(worker);
    sender.join().unwrap();
    assert!(
        network["ingress_throttled_packets"].as_u64().unwrap() > 0,
        "{network}"
    );
    assert_network_rate(bytes, nanoseconds, &stalls);
}
