//! Fair limits before a UDP server and nginx, beside limits with the best number, with real packets between namespaces.
//! `cargo xtask bench fair` runs this and makes the tables and plots.

mod clients;
mod envoy;
mod figures;
mod limiter;
mod nginx;
mod rows;
mod run;

use std::path::PathBuf;
use std::thread;

use anyhow::{Context as _, Result};
use clap::Parser;
use testbed::measure::{self, Series};
use testbed::network;
use testbed::overload::{CALM, LATE};

use limiter::Limiter;
use rows::{Kind, ROWS, Row, Server};
use run::Log;

const PART: &str = "fair";
/// Runs of a cell at most, until one was calm.
const TRIES: usize = 2;

/// Measure fair limits; meant to be called by `cargo xtask bench`.
#[derive(Parser)]
struct Arguments {
    /// Where to write the figures, as JSON. Runs over time are written beside them, to `fair-lines.json`.
    #[arg(long)]
    out: PathBuf,
    /// How often everything takes its turn.
    #[arg(long)]
    rounds: usize,
    /// Only rows that have this in their names.
    #[arg(long)]
    only: Option<String>,
    /// Few and short rows, before the UDP server only.
    #[arg(long)]
    quick: bool,
    /// Given by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(reason) = network::obstacle() {
        anyhow::bail!("{reason}");
    }
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    println!("CPUs: {cpus}");
    let servers = servers(arguments.quick);
    let only = arguments.only.as_deref().unwrap_or("");
    let (mut series, mut lines) = (Vec::new(), Vec::new());
    for round in 0..arguments.rounds {
        for (row, server) in ROWS
            .iter()
            .flat_map(|row| servers.iter().map(move |server| (row, *server)))
        {
            let case = format!("{}, {}", server.name(), row.name);
            if !case.contains(only) || (arguments.quick && !row.is_quick) {
                continue;
            }
            for limiter in Limiter::all_for(server) {
                if let Some(reason) = limiter.obstacle() {
                    skip(&mut series, &case, limiter, reason);
                    continue;
                }
                let log = calm_run(row, server, limiter, arguments.quick);
                let figures = figures::of(row, &log);
                let shown = figures
                    .iter()
                    .map(|(unit, figure)| format!("{figure:.3} {unit}"));
                println!(
                    "{case}; {}: {}",
                    limiter.name(),
                    shown.collect::<Vec<_>>().join(", ")
                );
                for (unit, figure) in figures {
                    add(&mut series, &case, limiter, unit, figure);
                }
                if round == 0 {
                    lines.push(figures::line(&case, limiter.name(), &log));
                }
            }
        }
    }
    let path = arguments.out.with_file_name("fair-lines.json");
    let text = serde_json::to_string(&lines).context("writing runs over time as JSON")?;
    std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    measure::write(&arguments.out, &series)
}

/// The servers that can be measured here.
fn servers(is_quick: bool) -> Vec<Server> {
    if is_quick {
        return vec![Server::Udp];
    }
    if std::env::var_os(nginx::PROGRAM).is_none() {
        println!("skipped: nginx, which is not installed: `apt-get install nginx`");
        return vec![Server::Udp];
    }
    vec![Server::Udp, Server::Nginx]
}

/// A run in which nothing stalled, or the calmest of a few. A row with busy processes is measured as it is.
fn calm_run(row: &Row, server: Server, limiter: Limiter, is_quick: bool) -> Log {
    let is_busy = matches!(row.kind, Kind::Heavy { busy, .. } if busy > 0);
    let tries = if is_busy || is_quick { 1 } else { TRIES };
    let mut best: Option<Log> = None;
    for _ in 0..tries {
        let log = run::run(row, server, limiter, is_quick);
        let (stalled, waited) = log.delays;
        if stalled < CALM && waited < LATE {
            return log;
        }
        println!("threads stalled for {stalled:?}, the agent waited for {waited:?}");
        if best.as_ref().is_none_or(|best| stalled < best.delays.0) {
            best = Some(log);
        }
    }
    best.expect("there is a run")
}

fn add(series: &mut Vec<Series>, case: &str, limiter: Limiter, unit: &'static str, figure: f64) {
    let by = limiter.name();
    let is_it = |one: &&mut Series| one.case == case && one.by == by && one.unit == unit;
    match series.iter_mut().find(is_it) {
        Some(one) => one.samples.push(figure),
        None => series.push(Series::new(PART, case, by, unit).with(vec![figure])),
    }
}

/// Notes once why a limiter has no figures.
fn skip(series: &mut Vec<Series>, case: &str, limiter: Limiter, reason: &str) {
    let by = limiter.name();
    if series.iter().any(|one| one.case == case && one.by == by) {
        return;
    }
    println!("skipped: {case}; {by}: {reason}");
    let mut skipped = Series::new(PART, case, by, figures::POLITE);
    skipped.note = Some(reason.to_owned());
    series.push(skipped);
}
