//! Packets a second over veth. The sender is an XDP program that writes the next source into the packet and redirects
//! it to a veth pair, run by BPF_PROG_TEST_RUN on live frames: it outruns any sender in user space, and frames arrive
//! as they would from a driver. Sending, delivery and limiting are all on one CPU, and the figure is for all three, in
//! time of that CPU: what others take of it meanwhile is not counted.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use aya::programs::{ProgramError, TestRun as _, TestRunAttrs, TestRunOptions};
use common::packet::build::Frame;

use crate::network::{INTERFACE, Lane, RECEIVER, RECEIVER_MAC, Sender};
use crate::programs::{Harness, Order};
use crate::rivals::{Holding, Limit, Per, Rival};
use testbed::measure::{CpuTime, Series, pin, pinned};

const PART: &str = "flood";
/// Where packets go to.
pub const PORT: u16 = 9;
const BATCH: u32 = 64;
/// The one that sends and receives; the other has the rest of this program.
pub const CPU: usize = 1;
/// How long one sample takes, about.
const SAMPLE: Duration = Duration::from_millis(60);
/// The packets a second that are offered at 20 times the limit: fewer than each of them can process.
const OFFERED: u32 = 1_000_000;
const SOURCE_COUNTS: [u64; 4] = [1, 1_000, 100_000, 1_000_000];

/// A rival, and what sends to it. Fields are dropped in this order.
pub struct Flooded {
    pub rival: Rival,
    _holding: Holding,
    pub harness: Harness,
    pub lane: Lane,
}

/// One packet for each source, and none after it.
pub const REFUSING: Limit = Limit {
    count: 1,
    per: Per::Hour,
    burst: 1,
};

/// A limit on so many sources such that a twentieth of a turn passes: what a bucket holds comes back before its next
/// turn. With a hundred thousand sources or more it comes back more slowly than a run lasts, and nearly nothing passes.
const fn twentieth(sources: u64) -> Limit {
    match sources {
        1 => Limit {
            count: 6_250,
            per: Per::Second,
            burst: 2_880,
        },
        1_000 => Limit {
            count: 6,
            per: Per::Second,
            burst: 3,
        },
        100_000 => Limit {
            count: 4,
            per: Per::Minute,
            burst: 1,
        },
        _ => Limit {
            count: 23,
            per: Per::Hour,
            burst: 1,
        },
    }
}

/// A frame for the receiver, whose source the sending program fills in.
pub fn frame() -> Vec<u8> {
    const CHECKSUM: usize = 14 + 20 + 6;
    let ethernet = Frame::between([2, 0, 0, 0, 0, 1], RECEIVER_MAC);
    let mut frame = ethernet
        .ipv4([10, 0, 0, 0], RECEIVER)
        .udp(7, PORT, &[0; 18])
        .build();
    // None: that of another source would be wrong.
    frame[CHECKSUM..CHECKSUM + 2].fill(0);
    frame
}

/// Sends so many frames. The kernel stops before the last for any signal, also for those of its own that nobody has sent.
pub fn send(harness: &Harness, frame: &[u8], packets: u32) -> Result<()> {
    let runs = || harness.sent().map(|sent| sent.packets + sent.waited);
    let last = runs()? + u64::from(packets);
    // The other end takes frames where it was woken: a sender that moved to another CPU would soon be ahead of it.
    pinned(CPU, || {
        loop {
            let left = u32::try_from(last - runs()?)?;
            if left == 0 || send_until_interrupted(harness, frame, left)? {
                return Ok(());
            }
        }
    })
}

/// Sends so many frames, or fewer if a signal comes; `false` if one did. To start it takes the kernel some milliseconds in
/// which nothing is sent.
pub fn send_until_interrupted(harness: &Harness, frame: &[u8], packets: u32) -> Result<bool> {
    let mut options = TestRunOptions::new();
    options.data_in = Some(frame);
    options.repeat = packets;
    options.attrs = TestRunAttrs::new().xdp_live_frames(BATCH);
    match harness.xdp("send")?.test_run(options) {
        Err(ProgramError::SyscallError(error))
            if error.io_error.kind() == ErrorKind::Interrupted =>
        {
            Ok(false)
        }
        sent => sent.map(|_| true).context("sending live frames"),
    }
}

/// Sends so many frames and returns what that took of this CPU.
pub fn timed(harness: &Harness, frame: &[u8], packets: u32) -> Result<Duration> {
    let cpu = CpuTime::of(CPU);
    let before = cpu.now()?;
    send(harness, frame, packets)?;
    Ok(cpu.now()? - before)
}

impl Flooded {
    pub fn new(sender: &Sender, rival: Rival, limit: Limit) -> Result<Self> {
        let lane = sender.lane()?;
        let holding = rival.hold(&lane, limit)?;
        let harness = Harness::load(lane.from_index)?;
        Ok(Self {
            rival,
            _holding: holding,
            harness,
            lane,
        })
    }

    /// Lets every source be seen, twice so that what refuses after the first packet does so. Says if frames get lost.
    pub fn warm(&mut self, keys: u64) -> Result<()> {
        self.harness.walk(Order::Orderly, keys)?;
        let before = self.lane.received()?.1;
        let packets = 2 * u32::try_from(keys)?.max(50_000);
        send(&self.harness, &frame(), packets)?;
        let received = self.lane.received()?.1 - before;
        ensure!(
            received >= u64::from(packets),
            "{}: of {packets} frames, only {received} arrived at {INTERFACE}",
            self.rival.name()
        );
        Ok(())
    }
}

/// The results of one kind of flood: each rival's packets a second and its percentage of passed packets.
struct Outcome {
    speed: Vec<Series>,
    passed: Vec<Series>,
}

impl Outcome {
    fn new(case: &str, rivals: &[Rival]) -> Self {
        let series = |unit| {
            rivals
                .iter()
                .map(move |rival| Series::new(PART, case, rival.name(), unit))
                .collect()
        };
        Self {
            speed: series("million packets/s"),
            passed: series("% passed"),
        }
    }

    fn add(&mut self, nth: usize, packets: u32, time: Duration, passed: u64) {
        self.speed[nth]
            .samples
            .push(f64::from(packets) / time.as_secs_f64() / 1e6);
        self.passed[nth]
            .samples
            .push(100.0 * passed as f64 / f64::from(packets));
    }
}

/// Measures all floods whose name has `only` in it.
pub fn run(rounds: usize, only: &str) -> Result<Vec<Series>> {
    let sender = Sender::new()?;
    sender.enter()?;
    pin(CPU)?;
    let mut outcomes = Vec::new();
    refused(&sender, rounds, only, &mut outcomes)?;
    for sources in SOURCE_COUNTS {
        let case = format!("20 times the limit, {sources} sources");
        if case.contains(only) {
            outcomes.push(overload(&sender, rounds, &case, sources)?);
        }
    }
    let case = "every packet a new source";
    if case.contains(only) {
        outcomes.push(new_sources(&sender, rounds, case)?);
    }
    let speed = outcomes.iter().flat_map(|outcome| outcome.speed.clone());
    let passed = outcomes.iter().flat_map(|outcome| outcome.passed.clone());
    Ok(speed.chain(passed).collect())
}

fn with_floors(floors: &[Rival]) -> Vec<Rival> {
    floors.iter().chain(&Rival::LIMITERS).copied().collect()
}

fn flooded(sender: &Sender, rivals: &[Rival], limit: Limit) -> Result<Vec<Flooded>> {
    rivals
        .iter()
        .map(|rival| Flooded::new(sender, *rival, limit))
        .collect()
}

/// A flood of which every packet is refused.
struct Refused {
    case: String,
    order: Order,
    /// Sources that send.
    sources: u64,
    /// Sources in the tables, all of which have had their packet.
    remembered: u64,
}

impl Refused {
    /// Each with tables of its own: to expire a million entries takes time, which is no cost of one source's packets. The last
    /// one shows it.
    fn all() -> Vec<Self> {
        let of = |order, sources, remembered, more: &str| Self {
            case: format!("all refused, {sources} sources{more}"),
            order,
            sources,
            remembered,
        };
        let mut all: Vec<_> = SOURCE_COUNTS
            .map(|sources| of(Order::Random, sources, sources, ""))
            .into();
        all.push(of(Order::Orderly, 1_000_000, 1_000_000, " in order"));
        all.push(of(Order::Random, 1, 1_000_000, ", 1000000 remembered"));
        all
    }
}

fn refused(sender: &Sender, rounds: usize, only: &str, outcomes: &mut Vec<Outcome>) -> Result<()> {
    let rivals = with_floors(&[Rival::DropOnly]);
    for flood in Refused::all() {
        if !flood.case.contains(only) {
            continue;
        }
        let mut flooded = flooded(sender, &rivals, REFUSING)?;
        for flooded in &mut flooded {
            flooded.warm(flood.remembered)?;
            flooded.harness.walk(flood.order, flood.sources)?;
        }
        let mut outcome = Outcome::new(&flood.case, &rivals);
        unpaced(&flooded, rounds, &mut outcome)?;
        outcomes.push(outcome);
        eprintln!("measured   {}", flood.case);
    }
    Ok(())
}

/// As fast as it goes.
fn unpaced(flooded: &[Flooded], rounds: usize, outcome: &mut Outcome) -> Result<()> {
    let frame = frame();
    let mut packets = Vec::new();
    for flooded in flooded {
        let time = timed(&flooded.harness, &frame, 20_000)?;
        packets.push((20_000.0 * SAMPLE.as_secs_f64() / time.as_secs_f64()) as u32);
    }
    for _ in 0..rounds {
        for (nth, (flooded, packets)) in flooded.iter().zip(&packets).enumerate() {
            // Caches are this one's again before anything counts.
            send(&flooded.harness, &frame, packets / 8)?;
            let before = flooded.lane.received()?.0;
            let time = timed(&flooded.harness, &frame, *packets)?;
            outcome.add(nth, *packets, time, flooded.lane.received()?.0 - before);
        }
    }
    Ok(())
}

/// [`OFFERED`] packets a second, of which a twentieth is within the limit. What counts is the time that the packets take,
/// not the time until the next ones are due.
fn overload(sender: &Sender, rounds: usize, case: &str, sources: u64) -> Result<Outcome> {
    // Enough that starting the sender does not count.
    const AT_ONCE: u32 = 6_400;
    let rivals = Rival::LIMITERS;
    let mut flooded = flooded(sender, &rivals, twentieth(sources))?;
    for flooded in &mut flooded {
        flooded.warm(sources)?;
        flooded.harness.walk(Order::Random, sources)?;
    }
    let mut outcome = Outcome::new(case, &rivals);
    let frame = frame();
    let packets = (f64::from(OFFERED) * SAMPLE.as_secs_f64()) as u32 / AT_ONCE * AT_ONCE;
    // Until as much passes as comes in from refills, nothing counts.
    for round in 0..rounds + 2 {
        for (nth, flooded) in flooded.iter().enumerate() {
            let before = flooded.lane.received()?.0;
            let start = Instant::now();
            let mut busy = Duration::ZERO;
            for sent in (0..packets).step_by(AT_ONCE as usize) {
                let due = Duration::from_secs_f64(f64::from(sent) / f64::from(OFFERED));
                while start.elapsed() < due {
                    std::hint::spin_loop();
                }
                busy += timed(&flooded.harness, &frame, AT_ONCE)?;
            }
            if round >= 2 {
                outcome.add(nth, packets, busy, flooded.lane.received()?.0 - before);
            }
        }
    }
    eprintln!("measured   {case}");
    Ok(outcome)
}

/// No limit on a source refuses these: what each costs is remembering it, and passing it.
fn new_sources(sender: &Sender, rounds: usize, case: &str) -> Result<Outcome> {
    let rivals = with_floors(&[Rival::PassOnly, Rival::DropOnly]);
    let mut flooded = flooded(
        sender,
        &rivals,
        Limit {
            count: 1_000,
            per: Per::Second,
            burst: 1_000,
        },
    )?;
    for flooded in &mut flooded {
        flooded.harness.walk(Order::New, Order::MOST_NEW)?;
        // More than anybody remembers.
        send(&flooded.harness, &frame(), 1_200_000)?;
        eprintln!("prepared   {} for new sources", flooded.rival.name());
    }
    let mut outcome = Outcome::new(case, &rivals);
    unpaced(&flooded, rounds, &mut outcome)?;
    Ok(outcome)
}
