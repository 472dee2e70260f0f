//! The agent's CPU time and delays beside its work, against the bounds that docs/BENCHMARKS.md and the explanations state. `cargo xtask
//! bench costs` runs it. Each bound compares figures of one run: of a share of a CPU, of the same work without Weir, or of
//! a thread that only wakes up.

mod agent;
mod groups;
mod work;

use std::time::Duration;

use testbed::network;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [first, work @ ..] = words.as_slice()
        && first == "--work"
    {
        return work::run(work);
    }
    if let Some(reason) = network::obstacle() {
        eprintln!("skipped: {reason}");
        return;
    }
    let measurements: [Measurement; 7] = [
        ("a recording under a flood", agent::recording),
        ("a live page that is watched", agent::live_page),
        ("a connection beside a limited group", groups::bystander),
        ("a packet of a counted group", groups::counted_packet),
        ("a packet of a limited group", groups::limited_packet),
        ("a start under churn", groups::churn),
        ("a group of 20,000 processes", groups::many_processes),
    ];
    let mut missed = Vec::new();
    for (what, measure) in measurements {
        let cost = measure();
        println!("{what}: {} (bound: {})", cost.figures, cost.bound);
        if !cost.is_within {
            missed.push(what);
        }
    }
    if !missed.is_empty() {
        eprintln!("MISSED: {}", missed.join(", "));
        std::process::exit(1);
    }
}

/// The name and the function of a measurement.
type Measurement = (&'static str, fn() -> Cost);

/// A measurement and its bound, in words.
struct Cost {
    figures: String,
    bound: String,
    is_within: bool,
}

/// The share of one CPU, in percent.
fn percent(used: Duration, time: Duration) -> f64 {
    100.0 * used.as_secs_f64() / time.as_secs_f64()
}
