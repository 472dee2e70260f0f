//! The law on simulated hosts: what a server of known capacity replies to polite sources during overloads of many kinds, and
//! what an attacker gets. A host is a server with a capacity and a finite queue, behind one token bucket per source; a law
//! has what an agent has: counters, the queue, drops and sampled sources.

mod attacks;
mod judge;
mod junk;
mod memory;
mod networks;
mod outside;
mod overloads;
mod pauses;
mod releases;
mod reports;
mod safety;
mod scenarios;
mod sources;
mod world;

use judge::Figures;
use world::Scenario;

/// Runs of a scenario.
const SEEDS: u64 = 8;

/// Means over some seeds, printed for documents. None of these servers fails.
fn means(name: &str, scenario: &Scenario, judged: &str) -> Figures {
    means_of(SEEDS, name, scenario, judged)
}

fn means_of(seeds: u64, name: &str, scenario: &Scenario, judged: &str) -> Figures {
    let runs: Vec<Figures> = (1..=seeds)
        .map(|seed| {
            let log = world::run(scenario, seed);
            let mut reports = log.reports.iter();
            assert!(
                reports.all(|(_, report)| report.failure.is_none()),
                "{name}: a failure"
            );
            judge::judge(scenario, judged, &log)
        })
        .collect();
    let mean = Figures::mean(&runs);
    println!(
        "{name:40} polite {:5.1} used {:5.1} jain {:5.3} off {:4.1} swing {:4.1} refused {:.0}/{:.0} down {:3.1} up {:3.1}",
        mean.polite,
        mean.used,
        mean.jain,
        mean.off,
        mean.swing,
        mean.peace,
        mean.after,
        mean.down,
        mean.up
    );
    mean
}
