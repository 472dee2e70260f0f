//! What a UDP server still serves to polite sources while others flood it, and the CPU that this costs.
//!
//! One CPU receives: the interface's packets are taken by a thread of the kernel's (threaded NAPI), and the server
//! answers. The other CPU floods, at a rate that does not depend on how fast they are taken, with polite requests among
//! the rest; as with a network card, what does not fit into the interface's ring is lost, whoever it is from.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::socket::{setsockopt, sockopt};
use nix::unistd::Pid;

use crate::flood::{Flooded, PORT, frame, send};
use crate::measure::{Series, kernel_threads, pin, scheduled, worked};
use crate::network::{INTERFACE, Lane, Sender, run as command};
use crate::programs::{Harness, Order, Pace};
use crate::rivals::{Limit, Per, Rival};

const PART: &str = "served";
const RECEIVING: usize = 0;
const SENDING: usize = 1;
/// As in harness.c.
const POLITE_SOURCES: u8 = 50;
/// One of so many packets: 5,000 a second, a tenth of their limit.
const POLITE_EVERY: u64 = 400;
const FLOODING_SOURCES: u64 = 100;
/// 20 times the limit.
const FLOOD_PER_SECOND: u64 = 2_000_000;
const LIMIT: Limit = Limit { count: 1_000, per: Per::Second, burst: 1_000 };
const SAMPLE: Duration = Duration::from_millis(700);
const SETTLING: Duration = Duration::from_millis(100);

/// One turn of one rival.
struct Turn {
    /// Of a hundred polite requests, those that the server got.
    served: f64,
    /// Of a hundred, the share of its time that a CPU worked to receive.
    receiving: f64,
    /// The same for the server.
    serving: f64,
    /// What the flood really was.
    flood_per_second: f64,
}

/// Measures every rival that has `only` in its name, and a server without any.
pub fn run(rounds: usize, only: &str) -> Result<Vec<Series>> {
    let sender = Sender::new()?;
    sender.enter()?;
    let rivals: Vec<Rival> =
        [Rival::Nothing].into_iter().chain(Rival::LIMITERS).filter(|rival| rival.name().contains(only)).collect();
    let mut flooded = Vec::new();
    for (nth, rival) in rivals.iter().enumerate() {
        let one = Flooded::new(&sender, nth, *rival, LIMIT)?;
        let receiving = prepare(&one.lane).with_context(|| rival.name().to_owned())?;
        flooded.push((one, receiving));
    }
    pin(SENDING)?;
    let case = "under a flood of 2 million/s";
    let series =
        |unit| -> Vec<Series> { rivals.iter().map(|rival| Series::new(PART, case, rival.name(), unit)).collect() };
    let units =
        ["% of polite requests served", "% of a CPU to receive", "% of a CPU to serve", "million flooding packets/s"];
    let mut measured = units.map(series);
    for _ in 0..rounds {
        for (nth, (one, receiving)) in flooded.iter_mut().enumerate() {
            let turn = turn(one, receiving)?;
            let samples = [turn.served, turn.receiving, turn.serving, turn.flood_per_second / 1e6];
            for (series, sample) in measured.iter_mut().zip(samples) {
                series[nth].samples.push(sample);
            }
        }
    }
    Ok(measured.concat())
}

/// Where answers go, and the kernel's threads that receive, which are returned.
fn prepare(lane: &Lane) -> Result<Vec<PathBuf>> {
    for source in 1..=POLITE_SOURCES {
        let address = format!("172.16.0.{source}");
        lane.run("ip", &["neigh", "replace", &address, "lladdr", "02:00:00:00:00:01", "dev", INTERFACE])?;
    }
    // In a mount namespace of its own, where /sys shows the receiver's interfaces.
    let name = format!("napi/{INTERFACE}-");
    let before = kernel_threads(&name);
    let threaded = format!("echo 1 > /sys/class/net/{INTERFACE}/threaded");
    command("ip", &["netns", "exec", &lane.namespace, "sh", "-c", &threaded])?;
    let threads: Vec<PathBuf> = kernel_threads(&name).into_iter().filter(|thread| !before.contains(thread)).collect();
    ensure!(!threads.is_empty(), "{INTERFACE} has no thread that receives: does this kernel have threaded NAPI?");
    let mut set = CpuSet::new();
    set.set(RECEIVING)?;
    for thread in &threads {
        let number = thread.file_name().and_then(|name| name.to_str()?.parse().ok()).context("/proc has odd names")?;
        sched_setaffinity(Pid::from_raw(number), &set).context("keeping the receiving thread to its CPU")?;
    }
    Ok(threads)
}

/// One flood, with the polite in it.
fn turn(one: &mut Flooded, receiving: &[PathBuf]) -> Result<Turn> {
    let received = || receiving.iter().map(|thread| scheduled(thread)).sum::<Result<Duration>>();
    let is_over = AtomicBool::new(false);
    let polite = AtomicU64::new(0);
    let lane = &one.lane;
    let harness = &mut one.harness;
    thread::scope(|scope| {
        let server = scope.spawn(|| lane.inside(|| serve(&is_over, &polite))?);
        let flooding = (|| {
            let interval = 1_000_000_000 / FLOOD_PER_SECOND;
            // The buckets' first burst is gone before anything counts.
            harness.walk_paced(Order::Random, FLOODING_SOURCES, Pace { interval, polite_every: 0 })?;
            flood(harness, SETTLING)?;
            harness.walk_paced(Order::Random, FLOODING_SOURCES, Pace { interval, polite_every: POLITE_EVERY })?;
            let (before, start) = (received()?, Instant::now());
            flood(harness, SAMPLE)?;
            let outcome = (received()? - before, start.elapsed(), harness.sent()?);
            // What is on its way arrives.
            thread::sleep(Duration::from_millis(50));
            Ok::<_, anyhow::Error>(outcome)
        })();
        is_over.store(true, Ordering::Relaxed);
        let serving = server.join().map_err(|_| anyhow!("the server panicked"))??;
        let (receiving, time, sent) = flooding?;
        Ok(Turn {
            served: 100.0 * polite.load(Ordering::Relaxed) as f64 * POLITE_EVERY as f64 / sent as f64,
            receiving: 100.0 * receiving.as_secs_f64() / time.as_secs_f64(),
            serving: 100.0 * serving,
            flood_per_second: sent as f64 / time.as_secs_f64(),
        })
    })
}

/// Has the sender run, which sends when it is due.
fn flood(harness: &Harness, time: Duration) -> Result<()> {
    let frame = frame();
    let start = Instant::now();
    while start.elapsed() < time {
        send(harness, &frame, 50_000)?;
    }
    Ok(())
}

/// Takes what arrives, and counts and answers the polite. Returns what it worked, of the time.
fn serve(is_over: &AtomicBool, polite: &AtomicU64) -> Result<f64> {
    pin(RECEIVING)?;
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).context("binding the server")?;
    setsockopt(&socket, sockopt::RcvBufForce, &(4 << 20))?;
    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
    let (start, before) = (Instant::now(), worked()?);
    let mut buffer = [0; 64];
    while !is_over.load(Ordering::Relaxed) {
        // Nobody may be asking, for a while.
        let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
        if matches!(from.ip(), IpAddr::V4(address) if address.octets()[0] == 172) {
            polite.fetch_add(1, Ordering::Relaxed);
            // Where it goes, nobody waits for it.
            let _ = socket.send_to(&buffer[..length], from);
        }
    }
    Ok((worked()? - before).as_secs_f64() / start.elapsed().as_secs_f64())
}
