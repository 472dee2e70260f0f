//! Memory of the kernel's for each source that is remembered.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use datapath::Entry;
use testbed::measure::Series;

use crate::flood::{Flooded, REFUSING};
use crate::network::Sender;
use crate::policies::{USUAL, limits, policy_for};
use crate::programs::Weir;
use crate::rivals::Rival;

const PART: &str = "memory";
const MILLION: u64 = 1_000_000;

/// Measures what a million sources take, of whoever has `only` in the name.
pub fn run(rounds: usize, only: &str) -> Result<Vec<Series>> {
    let mut series = tables(only)?;
    let sender = Sender::new()?;
    sender.enter()?;
    let case = "a million sources, whole kernel";
    let rivals = Rival::LIMITERS
        .into_iter()
        .filter(|rival| *rival != Rival::WeirTc && rival.name().contains(only));
    let mut measured: Vec<(Rival, Series)> = rivals
        .map(|rival| (rival, Series::new(PART, case, rival.name(), "bytes a key")))
        .collect();
    for _ in 0..rounds {
        // All stay until the round is over: what one gives back late would count against the next.
        let mut held = Vec::new();
        let mut before = settled()?;
        for (rival, series) in &mut measured {
            let mut flooded = Flooded::new(&sender, *rival, REFUSING)?;
            flooded.warm(MILLION)?;
            let after = kernel_memory()?;
            series.samples.push((after - before) / MILLION as f64);
            before = after;
            held.push(flooded);
        }
    }
    series.extend(measured.into_iter().map(|(_, series)| series));
    Ok(series)
}

/// Weir's table of sources, which is all there from the start: what each further source takes of it, and what a policy
/// for a million sources takes in all.
fn tables(only: &str) -> Result<Vec<Series>> {
    let mut series = Vec::new();
    for (count, case) in [
        (1, "table, one limit"),
        (3, "table, 3 limits"),
        (7, "table, 7 limits"),
    ] {
        if !Rival::WeirXdp.name().contains(only) {
            continue;
        }
        let of_so_many = |max_sources: u32| -> Result<(f64, f64)> {
            let weir = Weir::load(&policy_for(max_sources, &limits(count, USUAL)), Entry::Xdp)?;
            let maps = maps()?;
            drop(weir);
            Ok((maps.iter().copied().fold(0.0, f64::max), maps.iter().sum()))
        };
        let (table, all) = of_so_many(MILLION as u32)?;
        let further = of_so_many(2 * MILLION as u32)?.0 - table;
        let of = |bytes: f64, case: String| {
            Series::new(PART, case, Rival::WeirXdp.name(), "bytes a key")
                .with(vec![bytes / MILLION as f64])
        };
        series.push(of(further, case.to_owned()));
        series.push(of(all, format!("{case}, and all that a policy has")));
    }
    Ok(series)
}

/// The bytes of every BPF map that this process holds.
fn maps() -> Result<Vec<f64>> {
    let mut bytes = Vec::new();
    let mut seen = Vec::new();
    for entry in fs::read_dir("/proc/self/fdinfo").context("reading /proc/self/fdinfo")? {
        // One that was closed meanwhile is none of ours.
        let text = fs::read_to_string(entry?.path()).unwrap_or_default();
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t")?.parse().ok())
        };
        if let (Some(memlock), Some(id)) = (field("memlock"), field("map_id"))
            && !seen.contains(&id)
        {
            let id: f64 = id;
            seen.push(id);
            bytes.push(memlock);
        }
    }
    Ok(bytes)
}

/// The same once it stands still: what was dropped is given back when the kernel gets round to it.
pub fn settled() -> Result<f64> {
    const ENOUGH: f64 = 1e6;
    const LOOKS: u32 = 3;
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut last = kernel_memory()?;
    let mut still = 0;
    loop {
        thread::sleep(Duration::from_millis(500));
        let now = kernel_memory()?;
        still = if (last - now).abs() < ENOUGH {
            still + 1
        } else {
            0
        };
        if still == LOOKS || Instant::now() > deadline {
            return Ok(now);
        }
        last = now;
    }
}

/// Bytes that the kernel has for itself: slabs, what it maps for itself, and what it has once for each CPU.
fn kernel_memory() -> Result<f64> {
    let text = fs::read_to_string("/proc/meminfo").context("reading /proc/meminfo")?;
    let kilobytes = |name: &str| -> Option<f64> {
        let row = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        row.trim().strip_suffix(" kB")?.parse().ok()
    };
    let parts = ["Slab", "VmallocUsed", "Percpu"].map(kilobytes);
    Ok(parts.into_iter().flatten().sum::<f64>() * 1024.0)
}
