//! Process groups: what they add to connections, packets and starts of processes, and what many processes cost.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};
use testbed::groups::{Host, Worker, copy, run_delay};

use crate::{Cost, percent};

fn myself() -> PathBuf {
    std::env::current_exe().unwrap()
}

/// The number that a worker prints.
fn cost(mut worker: Worker) -> f64 {
    worker.begin();
    worker.line().parse().unwrap()
}

fn nanoseconds(with: f64, without: f64, most: f64) -> Cost {
    Cost {
        figures: format!("{with:.0} ns, and {without:.0} ns without"),
        bound: format!("{most:.0} ns more"),
        is_within: with <= without + most,
    }
}

/// A connection of a process in no group, while another group is limited.
pub fn bystander() -> Cost {
    let apart = || cost(Worker::spawn(&myself(), &["connect", "400"]));
    let mut host = Host::new();
    let mut without = apart();
    host.start(
        "",
        "network = { connects = \"100000000/s\", destinations = \"100/min\" }",
    );
    let with = (0..3).map(|_| apart()).fold(f64::MAX, f64::min);
    drop(host);
    without = without.min(apart());
    nanoseconds(with, without, 1_000.0)
}

/// A packet that is sent and arrives, in a group with these lines and in none, in turns.
fn packet(lines: &str, most: f64) -> Cost {
    let (mut with, mut without) = (f64::MAX, f64::MAX);
    for _ in 0..3 {
        let mut host = Host::new();
        host.start("on_exit = \"detach\"", lines);
        with = with.min(cost(host.spawn(&["deliver", "400"])));
        without = without.min(cost(Worker::spawn(&myself(), &["deliver", "400"])));
    }
    nanoseconds(with, without, most)
}

pub fn counted_packet() -> Cost {
    packet("pids = 50", 1_000.0)
}

pub fn limited_packet() -> Cost {
    packet(
        "pids = 50\nnetwork = { egress = \"100Gbit/s\", ingress = \"100Gbit/s\" }",
        2_000.0,
    )
}

/// From before the fork to after the move, while a thousand other processes a second start and end.
pub fn churn() -> Cost {
    let mut host = Host::new();
    let short = host.path("short");
    copy(Path::new("/bin/true"), &short);
    host.start("", "pids = 500");
    let mut churner = Worker::spawn(&myself(), &["exec", short.to_str().unwrap()]);
    let cgroup = host.cgroup("g");
    let mut delays: Vec<Duration> = (0..200)
        .map(|_| {
            let before = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap());
            let mut probe = Worker::spawn(&host.worker(), &["probe", &cgroup]);
            let moved = Duration::from_nanos(probe.line().parse().unwrap());
            thread::sleep(Duration::from_millis(10));
            moved - before
        })
        .collect();
    churner.end();
    let (started, passed) = churner.numbers();
    delays.sort_unstable();
    let (median, late) = (delays[delays.len() / 2], delays[delays.len() * 99 / 100]);
    Cost {
        figures: format!(
            "in its group after {median:.1?}, 99 of 100 after {late:.1?}, beside {:.0} starts a second",
            started * 1e9 / passed
        ),
        bound: "10 ms, 50 ms".to_owned(),
        is_within: median < Duration::from_millis(10) && late < Duration::from_millis(50),
    }
}

/// Sleeping processes, all of them the group's.
const MANY: usize = 20_000;
/// The share of a CPU for them, in percent, and the time of a reply.
const SHARE: f64 = 1.0;
const REPLY: Duration = Duration::from_millis(50);

/// CPU time of the whole agent.
fn cpu_time(pid: u32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    tasks
        .map(|task| testbed::measure::scheduled(&task.path()).unwrap_or_default())
        .sum()
}

pub fn many_processes() -> Cost {
    let mut host = Host::new();
    let mut forker = Worker::spawn(&host.worker(), &["sleepers", &MANY.to_string()]);
    forker.begin();
    assert_eq!(
        forker.line(),
        MANY.to_string(),
        "not all processes could be forked"
    );
    host.start("", "cpu = { weight = 50 }");
    assert_eq!(host.group()["pids"].as_array().unwrap().len(), MANY + 1);
    let agent = host.agent_pid();
    // The first look at all of them is over when the agent replies. Another one follows once the kernel's events are
    // watched.
    thread::sleep(Duration::from_secs(10));
    let (before, start) = (cpu_time(agent), Instant::now());
    let mut slowest = Duration::ZERO;
    while start.elapsed() < Duration::from_secs(40) {
        thread::sleep(Duration::from_millis(500));
        let waited = || run_delay(agent) + run_delay(std::process::id());
        let before = waited();
        let took = host.status_takes();
        // Time in which threads of both could run and had no CPU is not the agent's.
        slowest = slowest.max(took.saturating_sub(waited() - before));
    }
    let share = percent(cpu_time(agent) - before, start.elapsed());
    host.stop(Signal::SIGTERM);
    Cost {
        figures: format!("{share:.2} % of a CPU, slowest reply after {slowest:.1?}"),
        bound: format!("{SHARE} %, {REPLY:?}"),
        is_within: share < SHARE && slowest < REPLY,
    }
}
