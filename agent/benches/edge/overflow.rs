//! A table that an attacker has filled, by BPF_PROG_TEST_RUN: what polite and greedy sources get that nobody has seen before.
//!
//! Each made-up source sends one HTTP request. That keeps a slow state alive, of an hour's limit on requests, and so a slot,
//! at the least cost to the attacker. Before anything is measured, twice as many have come as the table has room for, and in
//! each round more come than in a tenth of the table.

use anyhow::{Result, ensure};
use aya::Ebpf;
use aya::programs::{TestRun as _, TestRunOptions};
use common::packet::build::Frame;
use datapath::Entry;
use nix::time::{ClockId, clock_gettime};
use testbed::measure::{Series, pin, worked};

use crate::policies::policy_for;
use crate::programs::{Harness, Order, Weir, minimal, xdp};

const PART: &str = "overflow";
const CASE: &str = "a table full of made-up requests";
const XDP_PASS: u32 = 2;
/// As many as the minimal limiter's hash has room for.
const SOURCES: u32 = 1 << 20;
const MADE_UP: u32 = SOURCES / 8;
const POLITE: u32 = 500;
/// Packets of each polite source in a round.
const POLITE_PACKETS: u32 = 10;
const GREEDY: u32 = 10;
/// Packets of each greedy source in a round, a few at a time between those of the others.
const GREEDY_PACKETS: u32 = 2_000;
const PER_SECOND: u64 = 100;
const BURST: u64 = 200;

enum Limiter {
    Weir(Box<Weir>),
    Minimal(Ebpf),
}

impl Limiter {
    const fn name(&self) -> &'static str {
        match self {
            Self::Weir(_) => "weir",
            Self::Minimal(_) => "minimal, LRU hash",
        }
    }

    /// The verdict on the last of so many packets.
    fn run(&self, frame: &[u8], repeat: u32) -> Result<u32> {
        let mut options = TestRunOptions::new();
        options.data_in = Some(frame);
        options.repeat = repeat;
        let result = match self {
            Self::Weir(weir) => weir.datapath.test_run(Entry::Xdp, options)?,
            Self::Minimal(ebpf) => xdp(ebpf, "minimal")?.test_run(options)?,
        };
        Ok(result.return_value)
    }
}

/// A limiter, and what fills its table.
struct Attacked {
    limiter: Limiter,
    harness: Harness,
    nanoseconds: Vec<f64>,
    polite: Vec<f64>,
    greedy: Vec<f64>,
}

impl Attacked {
    fn new(limiter: Limiter) -> Result<Self> {
        let mut harness = Harness::load(0)?;
        harness.walk(Order::New, Order::MOST_NEW)?;
        match &limiter {
            Limiter::Weir(weir) => harness.aim(weir.datapath.entry_point(Entry::Xdp)?)?,
            Limiter::Minimal(ebpf) => harness.aim(xdp(ebpf, "minimal")?.fd()?)?,
        }
        let attacked = Self {
            limiter,
            harness,
            nanoseconds: Vec::new(),
            polite: Vec::new(),
            greedy: Vec::new(),
        };
        attacked.attack(2 * SOURCES)?;
        Ok(attacked)
    }

    /// So many requests, each of a source that was not seen before. Returns the nanoseconds that one takes.
    fn attack(&self, packets: u32) -> Result<f64> {
        let frame = Frame::ethernet()
            .ipv4([0; 4], [10, 9, 9, 9])
            .tcp(7, 80, 16, b"GET / HTTP/1.1\r\n\r\n")
            .build();
        let mut options = TestRunOptions::new();
        options.data_in = Some(&frame);
        options.repeat = packets;
        let before = worked()?;
        self.harness.xdp("generate")?.test_run(options)?;
        Ok((worked()? - before).as_nanos() as f64 / f64::from(packets))
    }

    fn round(&mut self, round: u32) -> Result<()> {
        // Of the whole attack, in as many parts as the polite have packets.
        let (mut nanoseconds, mut passed) = (0.0, 0);
        let mut greedy = vec![Greedy::default(); GREEDY as usize];
        for _ in 0..POLITE_PACKETS {
            nanoseconds += self.attack(MADE_UP / POLITE_PACKETS)? / f64::from(POLITE_PACKETS);
            for nth in 0..POLITE {
                passed +=
                    u32::from(self.limiter.run(&udp(20, round * POLITE + nth), 1)? == XDP_PASS);
            }
            for (nth, greedy) in (0..).zip(&mut greedy) {
                let frame = udp(30, round * GREEDY + nth);
                for _ in 0..GREEDY_PACKETS / POLITE_PACKETS {
                    greedy.first = greedy.first.or(Some(now()?));
                    greedy.passed += u64::from(self.limiter.run(&frame, 1)? == XDP_PASS);
                }
                greedy.last = now()?;
            }
        }
        self.nanoseconds.push(nanoseconds);
        self.polite
            .push(100.0 * f64::from(passed) / f64::from(POLITE * POLITE_PACKETS));
        self.greedy
            .push(greedy.iter().map(Greedy::of_limit).fold(0.0, f64::max));
        Ok(())
    }
}

/// A source that sends far more than its limit.
#[derive(Clone, Copy, Default)]
struct Greedy {
    first: Option<u64>,
    last: u64,
    passed: u64,
}

impl Greedy {
    /// The percentage of packets within the limit that passed.
    fn of_limit(&self) -> f64 {
        let time = self.last - self.first.unwrap_or(self.last);
        100.0 * self.passed as f64 / (BURST as f64 + PER_SECOND as f64 * time as f64 / 1e9)
    }
}

/// Nanoseconds of the clock that programs read.
fn now() -> Result<u64> {
    Ok(u64::try_from(
        std::time::Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?).as_nanos(),
    )?)
}

/// A packet of the nth source below `first`.
fn udp(first: u8, nth: u32) -> Vec<u8> {
    let [_, b, c, d] = nth.to_be_bytes();
    Frame::ethernet()
        .ipv4([first, b, c, d], [10, 9, 9, 9])
        .udp(7, 53, &[0; 22])
        .build()
}

/// Measures Weir and the minimal limiter under the same attack.
pub fn run(rounds: usize, only: &str) -> Result<Vec<Series>> {
    if !CASE.contains(only) {
        return Ok(Vec::new());
    }
    pin(1).or_else(|_| pin(0))?;
    let limits = format!(
        "[[limit]]\nname = \"packets\"\nrate = \"{PER_SECOND}/s\"\nburst = {BURST}\n\
         [[limit]]\nname = \"requests\"\nunit = \"requests\"\nprotocol = \"tcp\"\nrate = \"10/h\"\n"
    );
    let emission = 1_000_000_000 / PER_SECOND;
    let mut attacked = [
        Attacked::new(Limiter::Weir(Box::new(Weir::load(
            &policy_for(SOURCES, &limits),
            Entry::Xdp,
        )?)))?,
        Attacked::new(Limiter::Minimal(minimal(emission, emission * (BURST - 1))?))?,
    ];
    for attacked in &attacked {
        ensure!(
            attacked.limiter.run(&udp(40, 0), 1)? == XDP_PASS,
            "{}: the first packet of a source is refused",
            attacked.limiter.name()
        );
        eprintln!("prepared   {} for {CASE}", attacked.limiter.name());
    }
    for round in 0..u32::try_from(rounds)? {
        for attacked in &mut attacked {
            attacked.round(round)?;
        }
    }
    let series = |attacked: &Attacked, unit, samples: &[f64]| {
        Series::new(PART, CASE, attacked.limiter.name(), unit).with(samples.to_vec())
    };
    let nanoseconds = attacked
        .iter()
        .map(|attacked| series(attacked, "ns a made-up packet", &attacked.nanoseconds));
    let polite = attacked
        .iter()
        .map(|attacked| series(attacked, "% of polite packets passed", &attacked.polite));
    let greedy = attacked
        .iter()
        .map(|attacked| series(attacked, "% of its limit, the greediest", &attacked.greedy));
    Ok(nanoseconds.chain(polite).chain(greedy).collect())
}
