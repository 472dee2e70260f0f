//! The costs in the model of growth (docs/explanation/growth.md): CPUs with sources of their own, keys that no cache has, and the
//! agent's reads of counters and table.

use anyhow::{Context as _, Result, ensure};
use aya::programs::{TestRun as _, TestRunOptions};
use common::hot::CpuRow;
use common::table::ELEMENT_WORDS;
use datapath::Entry;
use testbed::measure::{Series, pin, worked};
use weir::stats::monotonic_nanoseconds;

use crate::cpus::{Keys, PACKETS, WEIR, frame, nanoseconds, on_cpus};
use crate::policies::{HOT, REFUSING, USUAL, limit, limits_elsewhere, policy_for};
use crate::programs::{Harness, Order, Weir};

const PART: &str = "growth";
const DROP: &str = "drop only";
/// The numbers of sources in random order, one table for each.
const SOURCES: [u32; 3] = [10_000, 1_000_000, 10_000_000];
/// Limits whose counters are read.
const LIMITS: u32 = 10_000;

/// Measures the cases that have `only` in their names.
pub fn run(rounds: usize, only: &str) -> Result<Vec<Series>> {
    let mut series = vec![bare_drop(rounds)?];
    let case = "keys apart, passed";
    if case.contains(only) {
        let all = std::thread::available_parallelism()?.get();
        let counts = if all == 1 { vec![1] } else { vec![1, all] };
        series.extend(on_cpus(PART, rounds, case, HOT, Keys::Apart, &counts)?);
    }
    for sources in SOURCES {
        if format!("sources: {sources}").contains(only) {
            series.extend(of_sources(rounds, sources)?);
        }
    }
    if format!("counters, limits: {LIMITS}").contains(only) {
        series.extend(counters(rounds)?);
    }
    Ok(series)
}

/// The test run itself.
fn bare_drop(rounds: usize) -> Result<Series> {
    pin(0)?;
    let harness = Harness::load(0)?;
    let frame = frame(0);
    let one = |_| {
        nanoseconds(|| {
            let mut options = TestRunOptions::new();
            options.data_in = Some(&frame);
            options.repeat = PACKETS;
            harness
                .xdp("drop")?
                .test_run(options)
                .context("running the program that drops")?;
            Ok(())
        })
    };
    Ok(Series::new(PART, "hot key", DROP, "ns").with((0..rounds).map(one).collect::<Result<_>>()?))
}

/// Packets of any of so many sources: without the generator's time, but with that of a bare drop. And what the agent takes
/// to read the table.
fn of_sources(rounds: usize, sources: u32) -> Result<Vec<Series>> {
    pin(0)?;
    let weir = Weir::load(&policy_for(sources, &limit("a", REFUSING, "")), Entry::Xdp)?;
    let (mut generated, mut dropped) = (Harness::load(0)?, Harness::load(0)?);
    generated.aim(weir.datapath.entry_point(Entry::Xdp)?)?;
    let drop = dropped.xdp("drop")?.fd()?.try_clone()?;
    dropped.aim(&drop)?;
    generated.walk(Order::Orderly, u64::from(sources))?;
    let frame = frame(0);
    let run = |harness: &Harness, repeat: u32| -> Result<()> {
        let mut options = TestRunOptions::new();
        options.data_in = Some(&frame);
        options.repeat = repeat;
        harness
            .xdp("generate")?
            .test_run(options)
            .context("running the generator")?;
        Ok(())
    };
    // The first packet of each passes.
    run(&generated, sources)?;
    let table = weir.datapath.sources()?;
    let groups = weir.datapath.image().groups.len();
    let tracked: u64 = table.tracked(monotonic_nanoseconds(), groups).iter().sum();
    ensure!(
        tracked > u64::from(sources) / 100 * 97,
        "of {sources} sources, {tracked} are in the table"
    );
    let name = format!("sources: {sources}");
    let mut time = Series::new(PART, name.clone(), WEIR, "ns");
    let mut scan = Series::new(PART, name.clone(), WEIR, "ms of a scan");
    for harness in [&mut generated, &mut dropped] {
        harness.walk(Order::Random, u64::from(sources))?;
    }
    for _ in 0..rounds {
        let with = nanoseconds(|| run(&generated, PACKETS))?;
        time.samples
            .push(with - nanoseconds(|| run(&dropped, PACKETS))?);
        let start = worked()?;
        std::hint::black_box(table.tracked(monotonic_nanoseconds(), groups));
        scan.samples.push((worked()? - start).as_secs_f64() * 1e3);
    }
    let bytes =
        f64::from(weir.datapath.settings().shape.elements()) * f64::from(ELEMENT_WORDS) * 8.0;
    let bytes = Series::new(PART, name, WEIR, "bytes").with(vec![bytes]);
    Ok(vec![time, scan, bytes])
}

/// The counters of many limits, of each CPU: their memory, and a read of all.
fn counters(rounds: usize) -> Result<Vec<Series>> {
    let tables = limit("a", USUAL, "") + &limits_elsewhere(LIMITS - 1);
    let weir = Weir::load(&policy_for(1_000, &tables), Entry::Xdp)?;
    let name = format!("counters, limits: {LIMITS}");
    let read = |_| {
        let start = worked()?;
        weir.datapath.counters()?;
        Ok((worked()? - start).as_secs_f64() * 1e3)
    };
    let cpus = aya::util::nr_cpus().map_err(|(path, error)| anyhow::anyhow!("{path}: {error}"))?;
    let bytes = f64::from(weir.datapath.image().counters()) * size_of::<CpuRow>() as f64;
    Ok(vec![
        Series::new(PART, name.clone(), WEIR, "ms of a read")
            .with((0..rounds).map(read).collect::<Result<_>>()?),
        Series::new(PART, name.clone(), WEIR, "bytes of a CPU").with(vec![bytes]),
        Series::new(PART, name, WEIR, "CPUs").with(vec![cpus as f64]),
    ])
}
