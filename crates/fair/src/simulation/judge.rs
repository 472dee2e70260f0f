//! The evaluation of a run.

use super::sources::STEP;
use super::world::{Log, Scenario};

/// Figures of a run, or their means over several.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Percent of the judged sources' units with a reply in time, from a second after the onset.
    pub polite: f64,
    /// Percent of what was wanted and possible that was served.
    pub used: f64,
    /// Refused units before the onset, and from five seconds after the end on.
    pub peace: f64,
    pub after: f64,
    /// Seconds from the end until the level is off.
    pub off: f64,
    /// Half the range of the level's half-second means in the last three seconds, in percent.
    pub swing: f64,
    /// Jain's index of what the sources named "many" had accepted.
    pub jain: f64,
    /// Seconds to follow a capacity that halves at 5 s and returns at 8 s.
    pub down: f64,
    pub up: f64,
}

pub fn judge(scenario: &Scenario, judged: &str, log: &Log) -> Figures {
    let column = |name: &str| scenario.blocks.iter().position(|block| block.name == name);
    let group = column(judged).expect("sources with this name");
    let entries = &log.entries;
    let at = |seconds: f64| ((seconds / STEP).round() as usize).min(entries.len());
    let inside = &entries[at(scenario.onset + 1.0)..at(scenario.end).max(at(scenario.onset + 1.0))];
    let sum = |values: &[f64]| values.iter().sum::<f64>();
    let refused = |entries: &[super::world::Entry]| -> f64 {
        entries
            .iter()
            .map(|entry| sum(&entry.offered) - sum(&entry.passed))
            .sum()
    };
    let good: f64 = inside.iter().map(|entry| entry.good[group]).sum();
    let offered: f64 = inside.iter().map(|entry| entry.offered[group]).sum();
    let (mut served, mut wanted) = (0.0, 0.0);
    for part in inside.chunks_exact(20) {
        served += part.iter().map(|entry| entry.served).sum::<f64>();
        let can: f64 = part.iter().map(|entry| entry.can).sum();
        let offered: f64 = part.iter().map(|entry| sum(&entry.offered)).sum();
        wanted += can.min(offered);
    }
    let last_on = entries[at(scenario.end)..]
        .iter()
        .rposition(|entry| entry.level.is_finite());
    let many: Vec<f64> = column("many").map_or(Vec::new(), |many| {
        let first: usize = scenario.blocks[..many]
            .iter()
            .map(|block| block.number)
            .sum();
        log.accepted[first..first + scenario.blocks[many].number].to_vec()
    });
    let squares: f64 = many.iter().map(|units| units * units).sum();
    let follows = |change: f64| {
        let window = at(0.5);
        let mut seconds = 0.0;
        for start in (at(change)..at(change + 3.0) - window).step_by(5) {
            let part = &entries[start..start + window];
            let of = |value: fn(&super::world::Entry, usize) -> f64| -> f64 {
                part.iter().map(|entry| value(entry, group)).sum()
            };
            let is_polite = of(|entry, group| entry.good[group])
                >= 0.99 * of(|entry, group| entry.offered[group]);
            if !is_polite || of(|entry, _| entry.served) < 0.95 * of(|entry, _| entry.can) {
                seconds = (start + window - at(change)) as f64 * STEP;
            }
        }
        seconds
    };
    Figures {
        polite: 100.0 * good / offered.max(1.0),
        used: 100.0 * (served / wanted.max(1.0)).min(1.0),
        peace: refused(&entries[..at(scenario.onset)]),
        after: refused(&entries[at(scenario.end + 5.0)..]),
        off: last_on.map_or(0.0, |last| (last + 1) as f64 * STEP),
        swing: swing(&entries[at((scenario.end - 3.0).max(0.0))..at(scenario.end)]),
        jain: sum(&many).powi(2) / (many.len() as f64 * squares).max(1e-9),
        down: if scenario.follows { follows(5.0) } else { 0.0 },
        up: if scenario.follows { follows(8.0) } else { 0.0 },
    }
}

fn swing(entries: &[super::world::Entry]) -> f64 {
    let means = entries
        .chunks_exact(50)
        .map(|part| part.iter().map(|entry| entry.level).sum::<f64>() / 50.0);
    let mut means: Vec<f64> = means.filter(|mean| mean.is_finite()).collect();
    means.sort_by(f64::total_cmp);
    if means.len() < 2 {
        return 0.0;
    }
    // The 2.5th and 97.5th percentiles, between neighbours.
    let at = |share: f64| {
        let place = share * (means.len() - 1) as f64;
        let next = (place as usize + 1).min(means.len() - 1);
        means[place as usize] + (means[next] - means[place as usize]) * place.fract()
    };
    let mean = means.iter().sum::<f64>() / means.len() as f64;
    100.0 * (at(0.975) - at(0.025)) / 2.0 / mean
}

impl Figures {
    /// Means; medians of the times to follow, which one stall of the server makes as long as they are looked for.
    pub fn mean(runs: &[Self]) -> Self {
        let median = |value: fn(&Self) -> f64| {
            let mut values: Vec<f64> = runs.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2])
        };
        let mean =
            |value: fn(&Self) -> f64| runs.iter().map(value).sum::<f64>() / runs.len() as f64;
        Self {
            polite: mean(|run| run.polite),
            used: mean(|run| run.used),
            peace: mean(|run| run.peace),
            after: mean(|run| run.after),
            off: mean(|run| run.off),
            swing: mean(|run| run.swing),
            jain: mean(|run| run.jain),
            down: median(|run| run.down),
            up: median(|run| run.up),
        }
    }
}
