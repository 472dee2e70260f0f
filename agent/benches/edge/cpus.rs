//! One program on several CPUs at once, by BPF_PROG_TEST_RUN on each: with sources of their own, and with one key for all.

use std::sync::Barrier;

use anyhow::{Context as _, Result};
use aya::programs::{TestRun as _, TestRunOptions};
use common::packet::build::Frame;
use datapath::Entry;
use testbed::measure::{Series, pin, worked};

use crate::policies::{Bucket, HOT, REFUSING, limit, policy_for};
use crate::programs::{Weir, minimal, xdp};

const PART: &str = "cpus";
pub const WEIR: &str = "weir";
const MINIMAL: &str = "minimal C";
/// Packets of one sample on each CPU: some tens of milliseconds.
pub const PACKETS: u32 = 500_000;

/// A limit that one key of a busy host may have, with a burst of 10 ms.
const FAST: Bucket = Bucket {
    rate: "100000000/s",
    burst: 1_000_000,
    emission_ns: 10,
};

/// A tenth of it.
const SLOWER: Bucket = Bucket {
    rate: "10000000/s",
    burst: 100_000,
    emission_ns: 100,
};

/// Which sources the CPUs' packets have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// All CPUs have packets of one source.
    One,
    /// Each has packets of its own.
    Apart,
}

/// Measures the cases that have `only` in their names.
pub fn run(rounds: usize, only: &str) -> Result<Vec<Series>> {
    let all = std::thread::available_parallelism()?.get();
    let counts: Vec<usize> = std::iter::successors(Some(1), |cpus| Some(cpus * 2))
        .take_while(|cpus| *cpus < all)
        .chain([all])
        .collect();
    let mut series = Vec::new();
    for (case, bucket, keys) in [
        ("a source for each", HOT, Keys::Apart),
        ("one key, all pass", HOT, Keys::One),
        ("one key, 100 million/s", FAST, Keys::One),
        ("one key, 10 million/s", SLOWER, Keys::One),
        ("one key, all refused", REFUSING, Keys::One),
    ] {
        if case.contains(only) {
            series.extend(on_cpus(PART, rounds, case, bucket, keys, &counts)?);
            series.extend(minimal_on_cpus(rounds, case, bucket, keys, &counts)?);
        }
    }
    Ok(series)
}

/// A packet of one of these sources.
pub fn frame(source: u8) -> Vec<u8> {
    Frame::ethernet()
        .ipv4([10, 0, 7, source], [10, 9, 9, 9])
        .udp(7, 53, &[0; 22])
        .build()
}

/// Nanoseconds of this thread's CPU time for each of [`PACKETS`].
pub fn nanoseconds(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let before = worked()?;
    work()?;
    Ok((worked()? - before).as_nanos() as f64 / f64::from(PACKETS))
}

/// Runs a program on so many CPUs at once: the mean time of a packet.
fn at_once(
    cpus: usize,
    keys: Keys,
    run: impl Fn(TestRunOptions<'_>) -> Result<()> + Sync,
) -> Result<f64> {
    let barrier = Barrier::new(cpus);
    let on = |cpu: usize| {
        pin(cpu)?;
        let frame = frame(if keys == Keys::Apart { cpu as u8 } else { 0 });
        barrier.wait();
        nanoseconds(|| {
            let mut options = TestRunOptions::new();
            options.data_in = Some(&frame);
            options.repeat = PACKETS;
            run(options)
        })
    };
    let times: Result<Vec<f64>> = std::thread::scope(|scope| {
        let on = &on;
        let threads: Vec<_> = (0..cpus).map(|cpu| scope.spawn(move || on(cpu))).collect();
        threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .map_err(|_| anyhow::anyhow!("a thread panicked"))?
            })
            .collect()
    });
    Ok(times?.iter().sum::<f64>() / cpus as f64)
}

/// The time of a packet, what all CPUs make of it, how many of these passed, and how many of a million were refused because
/// other CPUs changed the state at every attempt.
pub fn on_cpus(
    part: &'static str,
    rounds: usize,
    case: &str,
    bucket: Bucket,
    keys: Keys,
    counts: &[usize],
) -> Result<Vec<Series>> {
    let weir = Weir::load(&policy_for(1_000_000, &limit("a", bucket, "")), Entry::Xdp)?;
    let mut all = Vec::new();
    for cpus in counts {
        let name = format!("{case}, CPUs: {cpus}");
        let series = |unit: &'static str| Series::new(part, name.clone(), WEIR, unit);
        let (mut time, mut rate) = (series("ns"), series("million/s"));
        let (mut passed, mut contended) = (
            series("million/s that pass"),
            series("contended of a million"),
        );
        for _ in 0..rounds {
            let before = (
                weir.datapath.counters_of(0)?.throttled.packets,
                weir.datapath.table_counters()?.contended,
            );
            let ns = at_once(*cpus, keys, |options| {
                weir.datapath.test_run(Entry::Xdp, options)?;
                Ok(())
            })?;
            time.samples.push(ns);
            rate.samples.push(*cpus as f64 * 1e3 / ns);
            let packets = f64::from(PACKETS) * *cpus as f64;
            let refused = (weir.datapath.counters_of(0)?.throttled.packets - before.0) as f64;
            passed
                .samples
                .push(*cpus as f64 * 1e3 / ns * (1.0 - refused / packets));
            let lost = (weir.datapath.table_counters()?.contended - before.1) as f64;
            contended.samples.push(lost * 1e6 / packets);
        }
        all.extend([time, rate, passed, contended]);
    }
    Ok(all)
}

/// The same for the minimal limiter.
fn minimal_on_cpus(
    rounds: usize,
    case: &str,
    bucket: Bucket,
    keys: Keys,
    counts: &[usize],
) -> Result<Vec<Series>> {
    let ebpf = minimal(bucket.emission_ns, bucket.tolerance_ns())?;
    let mut all = Vec::new();
    for cpus in counts {
        let name = format!("{case}, CPUs: {cpus}");
        let mut time = Series::new(PART, name.clone(), MINIMAL, "ns");
        let mut rate = Series::new(PART, name, MINIMAL, "million/s");
        for _ in 0..rounds {
            let ns = at_once(*cpus, keys, |options| {
                xdp(&ebpf, "minimal")?
                    .test_run(options)
                    .context("running the minimal limiter")?;
                Ok(())
            })?;
            time.samples.push(ns);
            rate.samples.push(*cpus as f64 * 1e3 / ns);
        }
        all.extend([time, rate]);
    }
    Ok(all)
}
