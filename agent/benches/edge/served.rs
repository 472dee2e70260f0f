//! Polite packets that a UDP server still serves during a flood, and the CPU time that this costs.
//!
//! One CPU does it all, as that of a small server does: it sends, receives, limits and serves. The flood is due at a rate
//! that does not depend on how fast it is taken, with polite requests among the rest; as with a network card, what the
//! CPU has not come to when its ring is full is lost, whoever it is from.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use nix::sys::pthread::{pthread_kill, pthread_self};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::socket::{setsockopt, sockopt};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::gettid;

use crate::flood::{CPU, Flooded, PORT, frame, send_until_interrupted, timed};
use crate::network::{INTERFACE, Lane, Sender};
use crate::programs::{Harness, Order, Pace, Sent};
use crate::rivals::{Limit, Per, Rival};
use testbed::measure::{CpuTime, Series, pin, scheduled};

const PART: &str = "served";
/// As in harness.c.
const POLITE_SOURCES: u8 = 50;
/// One of so many packets: 2,500 a second, a tenth of their limit.
const POLITE_EVERY: u64 = 400;
const FLOODING_SOURCES: u64 = 100;
/// 20 times the limit.
const FLOOD_PER_SECOND: u64 = 1_000_000;
const LIMIT: Limit = Limit {
    count: 500,
    per: Per::Second,
    burst: 500,
};
/// Packets that a network card has room for.
const RING: u64 = 4_096;
/// Runs of the sender that tell what waiting costs.
const WAITS: u32 = 500_000;
const SAMPLE: Duration = Duration::from_millis(700);
/// Longer than the kernel takes to start the sender.
const STARTING: Duration = Duration::from_millis(100);
const SETTLING: Duration = Duration::from_millis(100);

/// One turn of one rival.
struct Turn {
    /// Of a hundred polite requests, those that the server got.
    served: f64,
    /// Of a hundred packets, those that the CPU came to.
    taken: f64,
    /// Of a hundred, the share of its time that the CPU worked to send, receive and limit.
    receiving: f64,
    /// The same for the server.
    serving: f64,
}

/// Measures every rival that has `only` in its name, and a server without any.
pub fn run(rounds: usize, only: &str) -> Result<Vec<Series>> {
    let sender = Sender::new()?;
    sender.enter()?;
    let rivals: Vec<Rival> = [Rival::Nothing]
        .into_iter()
        .chain(Rival::LIMITERS)
        .filter(|rival| rival.name().contains(only))
        .collect();
    let mut flooded = Vec::new();
    for rival in &rivals {
        let one = Flooded::new(&sender, *rival, LIMIT)?;
        prepare(&one.lane).with_context(|| rival.name().to_owned())?;
        flooded.push(one);
    }
    pin(CPU)?;
    catch_interrupts()?;
    let case = "under a flood of a million/s";
    let series = |unit| -> Vec<Series> {
        rivals
            .iter()
            .map(|rival| Series::new(PART, case, rival.name(), unit))
            .collect()
    };
    let units = [
        "% of polite requests served",
        "% of packets taken",
        "% of a CPU to receive",
        "% of a CPU to serve",
    ];
    let mut measured = units.map(series);
    for _ in 0..rounds {
        for (nth, one) in flooded.iter_mut().enumerate() {
            let turn = turn(one)?;
            let samples = [turn.served, turn.taken, turn.receiving, turn.serving];
            for (series, sample) in measured.iter_mut().zip(samples) {
                series[nth].samples.push(sample);
            }
        }
    }
    Ok(measured.concat())
}

/// Where answers go.
fn prepare(lane: &Lane) -> Result<()> {
    for source in 1..=POLITE_SOURCES {
        let address = format!("172.16.0.{source}");
        lane.run(
            "ip",
            &[
                "neigh",
                "replace",
                &address,
                "lladdr",
                "02:00:00:00:00:01",
                "dev",
                INTERFACE,
            ],
        )?;
    }
    Ok(())
}

/// One flood, with the polite in it.
fn turn(one: &mut Flooded) -> Result<Turn> {
    let served = Served::default();
    let lane = &one.lane;
    let harness = &mut one.harness;
    let waiting = waiting(harness)?;
    thread::scope(|scope| {
        let server = scope.spawn(|| lane.inside(|| serve(&served))?);
        let flooding = (|| {
            // The buckets' first burst is gone before anything counts.
            flood(harness, SETTLING, 0)?;
            let serving = served.worked()?;
            let flood = flood(harness, SAMPLE, POLITE_EVERY)?;
            let serving = served.worked()? - serving;
            // Packets on their way arrive.
            thread::sleep(Duration::from_millis(50));
            Ok::<_, anyhow::Error>((flood, serving))
        })();
        served.is_over.store(true, Ordering::Relaxed);
        server
            .join()
            .map_err(|_| anyhow!("the server panicked"))??;
        let (Flood { sent, time, worked }, serving) = flooding?;
        let due = time.as_secs_f64() * FLOOD_PER_SECOND as f64;
        let receiving = worked.as_secs_f64() - waiting.as_secs_f64() * sent.waited as f64;
        Ok(Turn {
            served: 100.0 * (served.polite.load(Ordering::Relaxed) * POLITE_EVERY) as f64 / due,
            taken: 100.0 * sent.packets as f64 / due,
            receiving: 100.0 * receiving / time.as_secs_f64(),
            serving: 100.0 * serving.as_secs_f64() / time.as_secs_f64(),
        })
    })
}

/// The result of a flood.
struct Flood {
    sent: Sent,
    /// From when the first packet was due.
    time: Duration,
    /// CPU time of the flood's sender, with its waits for the next packet.
    worked: Duration,
}

/// The sender's cost of a look at the clock without a packet due.
fn waiting(harness: &mut Harness) -> Result<Duration> {
    let never = Pace {
        interval: 1,
        first_due: u64::MAX,
        ..Pace::default()
    };
    harness.walk_paced(Order::Random, FLOODING_SOURCES, never)?;
    Ok(timed(harness, &frame(), WAITS)? / WAITS)
}

/// Sends what is due, as long as the ring had room for it.
fn flood(harness: &mut Harness, time: Duration, polite_every: u64) -> Result<Flood> {
    let interval = 1_000_000_000 / FLOOD_PER_SECOND;
    let now = || clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from);
    // The kernel has started the sender by then.
    let start = now()? + STARTING;
    let first_due = start.as_nanos() as u64;
    let pace = Pace {
        interval,
        latest: interval * RING,
        first_due,
        polite_every,
    };
    harness.walk_paced(Order::Random, FLOODING_SOURCES, pace)?;
    let cpu = CpuTime::of(CPU);
    let before = cpu.now()?;
    interrupted_after(STARTING + time, || {
        send_until_interrupted(harness, &frame(), u32::MAX)
    })?;
    let worked = cpu.now()? - before;
    Ok(Flood {
        sent: harness.sent()?,
        time: now()? - start,
        worked,
    })
}

/// Runs `work`, and interrupts its system call when the time is over.
fn interrupted_after<T>(time: Duration, work: impl FnOnce() -> T) -> T {
    let is_done = AtomicBool::new(false);
    let worker = pthread_self();
    thread::scope(|scope| {
        scope.spawn(|| {
            // Not in the way of what is measured.
            let _ = pin(1 - CPU);
            thread::sleep(time);
            while !is_done.load(Ordering::Relaxed) {
                let _ = pthread_kill(worker, Signal::SIGUSR1);
                thread::sleep(Duration::from_millis(1));
            }
        });
        let result = work();
        is_done.store(true, Ordering::Relaxed);
        result
    })
}

/// A signal that does nothing but interrupt.
fn catch_interrupts() -> Result<()> {
    extern "C" fn nothing(_: i32) {}
    let action = SigAction::new(
        SigHandler::Handler(nothing),
        SaFlags::empty(),
        SigSet::empty(),
    );
    // SAFETY: the handler touches nothing.
    unsafe { sigaction(Signal::SIGUSR1, &action) }.context("catching a signal")?;
    Ok(())
}

/// A server, and what it has done.
#[derive(Default)]
struct Served {
    /// Its thread.
    thread: AtomicI32,
    /// Requests of the polite.
    polite: AtomicU64,
    is_over: AtomicBool,
}

impl Served {
    /// Its thread's CPU time.
    fn worked(&self) -> Result<Duration> {
        scheduled(Path::new(&format!(
            "/proc/self/task/{}",
            self.thread.load(Ordering::Relaxed)
        )))
    }
}

/// Takes what arrives, and counts and answers the polite.
fn serve(served: &Served) -> Result<()> {
    pin(CPU)?;
    served.thread.store(gettid().as_raw(), Ordering::Relaxed);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).context("binding the server")?;
    setsockopt(&socket, sockopt::RcvBufForce, &(4 << 20))?;
    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
    let mut buffer = [0; 64];
    while !served.is_over.load(Ordering::Relaxed) {
        // Nobody may be asking, for a while.
        let Ok((length, from)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        if matches!(from.ip(), IpAddr::V4(address) if address.octets()[0] == 172) {
            served.polite.fetch_add(1, Ordering::Relaxed);
            // Where it goes, nobody waits for it.
            let _ = socket.send_to(&buffer[..length], from);
        }
    }
    Ok(())
}
