//! The agent's static program beside the one with the system's C library, in turns.

use std::path::Path;

use anyhow::{Context as _, Result};
use testbed::measure::Series;

use crate::network::{Lane, Sender};
use crate::whole::{AGENT, Agent, Changed, TOP, policy, program};

const PART: &str = "static";
/// The size of the config that is read again: limits, and prefixes.
const RELOADED: (u32, u32) = (10_000, 0);
/// The number of samples of a round, of which the median counts.
const EACH: usize = 5;
const CASES: [(&str, &str); 4] = [
    ("top of a million sources", "ms"),
    ("memory with a million sources", "MB"),
    ("reload, limits: 10000", "ms"),
    ("memory with 10000 limits", "MB"),
];

/// Measures what has `only` in its name: memory after the commands of its round.
pub fn run(rounds: usize, only: &str) -> Result<Vec<Series>> {
    let sender = Sender::new()?;
    sender.enter()?;
    let builds = [
        ("weir", program(AGENT)?),
        ("static", program("WEIR_STATIC")?),
    ];
    let mut series: Vec<Series> = CASES
        .iter()
        .filter(|(case, _)| case.contains(only))
        .flat_map(|(case, unit)| {
            builds
                .each_ref()
                .map(|(by, _)| Series::new(PART, *case, *by, unit))
        })
        .collect();
    let lane = sender.lane()?;
    for round in 0..rounds {
        // The first one changes each round.
        for nth in 0..builds.len() {
            let (by, program) = &builds[(nth + round) % builds.len()];
            for (case, sample) in one_round(&lane, program)? {
                let of = |series: &&mut Series| series.by == *by && series.case == case;
                if let Some(series) = series.iter_mut().find(of) {
                    series.samples.push(sample);
                }
            }
        }
    }
    Ok(series)
}

/// A sample of each case.
fn one_round(lane: &Lane, program: &Path) -> Result<[(&'static str, f64); 4]> {
    let agent = Agent::with_a_million_sources(lane, program)?;
    let top = median((0..EACH).map(|_| agent.timed(&TOP)))?;
    let with_sources = agent.resident();
    drop(agent);
    let agent = Agent::start((lane, program), &policy(Changed::Burst, RELOADED, 0))?;
    let reload = median((1..=EACH).map(|nth| {
        agent.configure(&policy(Changed::Burst, RELOADED, nth))?;
        agent.timed(&["reload"])
    }))?;
    // The agent returns memory shortly after the reply.
    std::thread::sleep(std::time::Duration::from_secs(6));
    let with_limits = agent.resident();
    let figures = [
        top,
        with_sources as f64 / 1e6,
        reload,
        with_limits as f64 / 1e6,
    ];
    Ok(std::array::from_fn(|nth| (CASES[nth].0, figures[nth])))
}

fn median(samples: impl Iterator<Item = Result<f64>>) -> Result<f64> {
    let mut samples = samples.collect::<Result<Vec<f64>>>()?;
    samples.sort_unstable_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().context("no sample")
}
