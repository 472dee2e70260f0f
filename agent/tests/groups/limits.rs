//! Each limit by its effect.

use std::fs;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use testbed::groups::{Host, Worker, copy, cpu_time, hierarchies};

use crate::{is_virtual, work};

/// The most CPU time that a limit in percent allows in a time. The kernel grants a period's share at once, and notices at
/// its next tick that it is used up.
fn allowed(percent: f64, passed: Duration) -> Duration {
    const PERIOD: Duration = Duration::from_millis(100);
    const TICK: Duration = Duration::from_millis(10);
    (passed + 2 * PERIOD).mul_f64(percent / 100.0) + TICK
}

/// Checks that a busy loop gets no more than its percent in a second and until the group was throttled. On a machine that
/// gives it less than that, it is never throttled.
pub fn assert_limited(host: &Host, worker: &Worker, percent: f64) {
    let (start, before) = (Instant::now(), cpu_time(worker.id()));
    std::thread::sleep(Duration::from_secs(1));
    let used = cpu_time(worker.id()) - before;
    let most = allowed(percent, start.elapsed());
    assert!(used <= most, "it had {used:?} of at most {most:?}");
    let deadline = Instant::now() + Duration::from_secs(300);
    while host.throttled_periods() == 0 {
        assert!(Instant::now() < deadline, "it is not throttled");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn a_busy_loop_gets_no_more_than_its_percent_of_a_cpu() {
    let mut host = Host::new();
    host.start("", "cpu = { max = \"2%\" }");
    let mut worker = host.spawn(&["busy", "600000"]);
    worker.begin();
    assert_limited(&host, &worker, 2.0);
    let used = cpu_time(worker.id()).as_secs_f64();
    let deadline = Instant::now() + Duration::from_secs(300);
    loop {
        let group = host.group();
        assert_eq!(group["cpu"]["max_percent"], 2.0);
        if group["cpu"]["usage_seconds"].as_f64().unwrap() >= used
            && group["cpu"]["throttled_seconds"].as_f64().unwrap() > 0.0
        {
            break;
        }
        assert!(Instant::now() < deadline, "{group}");
        std::thread::sleep(Duration::from_millis(50));
    }
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
    let event = host.event();
    assert_eq!(
        (&event["verdict"], &event["group"]),
        (&"oom-kill".into(), &"g".into())
    );
}

pub fn a_fork_bomb_is_stopped_at_its_pids() {
    let mut host = Host::new();
    host.start("", "pids = 20");
    let mut worker = host.spawn(&["fork", "100"]);
    worker.begin();
    // The worker itself is one of them.
    assert_eq!(worker.line(), "19");
    let group = host.group();
    assert!(group["pids_refused"].as_u64().unwrap() > 0, "{group}");
    let event = host.event();
    assert_eq!(
        (&event["verdict"], &event["group"], &event["limit"]),
        (&"throttled".into(), &"g".into(), &"pids".into())
    );
}

pub fn a_lifted_limit_is_set_again() {
    let mut host = Host::new();
    host.start("", "pids = 20");
    let cgroup = host.cgroup("g");
    let file = hierarchies()
        .into_iter()
        .map(|root| root.join(cgroup.trim_matches('/')).join("pids.max"))
        .find(|file| file.exists())
        .unwrap();
    let limit = || fs::read_to_string(&file).unwrap().trim().to_owned();
    assert_eq!(limit(), "20");
    // The first time may be before the agent's first comparison.
    for time in 1..=2 {
        fs::write(&file, "max").unwrap();
        let start = Instant::now();
        while limit() != "20" {
            assert!(
                start.elapsed() < Duration::from_secs(300),
                "it stays lifted"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        println!("set again for time {time} after {:?}", start.elapsed());
    }
    let event = host.event();
    assert_eq!(
        (&event["verdict"], &event["group"], &event["limit"]),
        (&"limit-lifted".into(), &"g".into(), &"pids.max".into())
    );
    fs::write(&file, "7").unwrap();
    std::thread::sleep(Duration::from_secs(7));
    assert_eq!(limit(), "7", "a lower value of another program stays");
    assert_eq!(host.group()["enforcement"], "full", "{}", host.group());
}

/// A disk that nobody else uses: that of a virtual machine, or a loop device over a file of the test's own, which is
/// gone when dropped.
struct Disk {
    device: String,
    _only_user: Option<MutexGuard<'static, ()>>,
}

const VIRTUAL_DISK: &str = "/dev/vda";

/// The virtual machine has one disk, and tests run at the same time.
fn only_user() -> MutexGuard<'static, ()> {
    static DISK: Mutex<()> = Mutex::new(());
    DISK.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Disk {
    fn new(host: &Host) -> Self {
        if is_virtual() {
            return Self {
                device: VIRTUAL_DISK.to_owned(),
                _only_user: Some(only_user()),
            };
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
        let device = String::from_utf8(output.stdout).unwrap();
        Self {
            device: device.trim().to_owned(),
            _only_user: None,
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if is_virtual() {
            return;
        }
        let _ = Command::new("losetup")
            .args(["--detach", &self.device])
            .status();
    }
}

pub fn disks_are_limited_in_bytes_and_operations_both_ways() {
    let mut host = Host::new();
    let disk = Disk::new(&host);
    let device = &disk.device;
    let limits = "read = \"8MB/s\", write = \"4MB/s\", read_ops = \"200/s\", write_ops = \"100/s\"";
    host.start("", &format!("io = [{{ device = {device:?}, {limits} }}]"));
    // Large blocks come up against the bytes, small ones against the operations.
    for (way, block, bytes_a_second) in [
        ("read", 131_072, 8e6),
        ("write", 131_072, 4e6),
        ("read", 4_096, 819.2e3),
        ("write", 4_096, 409.6e3),
    ] {
        let bytes = 1.5 * bytes_a_second;
        let mut worker = host.spawn(&[way, device, &block.to_string(), &bytes.to_string()]);
        worker.begin();
        let (bytes, nanoseconds) = worker.numbers();
        // The kernel grants what a slice of time allows at once, a tenth of a second.
        let least = bytes * 1e9 / bytes_a_second - 0.2e9;
        assert!(
            nanoseconds >= least,
            "{way} in blocks of {block}: {bytes} bytes in {nanoseconds} ns, which takes at least {least} ns"
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
    copy(&host.worker(), &other);
    let second = format!(
        "[[group]]\nname = \"h\"\nmatch = [{{ exe = {other:?} }}]\ncpu = {{ weight = 300 }}\n"
    );
    host.start("", &format!("cpu = {{ weight = 100 }}\n{second}"));
    let mut light = host.spawn(&["pinned"]);
    let mut heavy = Worker::spawn(&other, &["pinned"]);
    let deadline = Instant::now() + Duration::from_secs(300);
    while host.json(&["groups"])[1]["pids"] != serde_json::json!([heavy.id()]) {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(10));
    }
    light.begin();
    heavy.begin();
    // Both run all the time, whatever the CPU has left for them.
    for worker in [&light, &heavy] {
        let started = cpu_time(worker.id());
        while cpu_time(worker.id()) == started {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    // The lighter before and after the other: somewhere in between was its time at the instant of the other's.
    let of_both = || [&light, &heavy, &light].map(|worker| cpu_time(worker.id()));
    let (before, deadline) = (of_both(), Instant::now() + Duration::from_secs(300));
    let ratios = loop {
        let now = of_both();
        let heavy = (now[1] - before[1]).as_secs_f64();
        let (light, most) = (now[0].saturating_sub(before[2]), now[2] - before[0]);
        // A turn takes some milliseconds, so that it is a small part of this.
        if light >= Duration::from_millis(250) {
            break [most, light].map(|light| heavy / light.as_secs_f64());
        }
        assert!(Instant::now() < deadline, "the lighter had {light:?} only");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(
        ratios[0] <= 3.6 && ratios[1] >= 2.4,
        "three times the weight had {:.2} to {:.2} times the CPU",
        ratios[0],
        ratios[1]
    );
}

pub fn memory_above_high_is_reclaimed() {
    let _disk = only_user();
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
    let _disk = only_user();
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
    let deadline = Instant::now() + Duration::from_secs(300);
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

/// 8 Mbit/s, in bytes a second.
const NETWORK_RATE: f64 = 1e6;
/// The limit's burst, half a second of the rate.
const NETWORK_BURST: f64 = NETWORK_RATE / 2.0;
/// So many bytes take a second and a half.
pub const NETWORK_BYTES: u64 = 2_000_000;

/// Checks that so many bytes took no less time than the limit allows.
pub fn assert_network_limited(nanoseconds: f64) {
    let least = (NETWORK_BYTES as f64 - NETWORK_BURST) * 1e9 / NETWORK_RATE;
    assert!(
        nanoseconds >= least,
        "{NETWORK_BYTES} bytes in {nanoseconds} ns, which takes at least {least} ns"
    );
}

pub fn egress_of_a_group_is_limited() {
    let mut host = Host::new();
    host.start("", "network = { egress = \"8Mbit/s\" }");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut worker = host.spawn(&["send", &listener.local_addr().unwrap().to_string()]);
    let start = Instant::now();
    worker.begin();
    work::take(&mut listener.accept().unwrap().0, NETWORK_BYTES);
    assert_network_limited(start.elapsed().as_nanos() as f64);
    let network = &host.group()["network"];
    assert!(
        network["egress_throttled_packets"].as_u64().unwrap() > 0,
        "{network}"
    );
    assert!(
        network["egress_bytes"].as_u64().unwrap() >= NETWORK_BYTES,
        "{network}"
    );
}

pub fn ingress_of_a_group_is_limited() {
    let mut host = Host::new();
    host.start("", "network = { ingress = \"8Mbit/s\" }");
    let mut worker = host.spawn(&["receive", &NETWORK_BYTES.to_string()]);
    worker.begin();
    let mut stream = TcpStream::connect(worker.line()).unwrap();
    let start = Instant::now();
    let sender = std::thread::spawn(move || {
        let block = vec![7; 64 * 1024];
        while stream.write_all(&block).is_ok() {}
    });
    assert_eq!(worker.line(), "received");
    assert_network_limited(start.elapsed().as_nanos() as f64);
    let network = host.group()["network"].clone();
    drop(worker);
    sender.join().unwrap();
    assert!(
        network["ingress_throttled_packets"].as_u64().unwrap() > 0,
        "{network}"
    );
}
