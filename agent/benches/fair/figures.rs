//! Figures of a run.

use serde::Serialize;
use testbed::overload::BIN;

use crate::rows::{Kind, Row, Who};
use crate::run::{Log, Sample};

/// A window of the time to follow a capacity, and how long it is looked for.
const WINDOW: f64 = 0.5;
const FOLLOWED: f64 = 3.0;
/// Seconds before the end whose levels are compared, and of which each mean is.
const LEVELS: f64 = 3.0;
const MEAN: f64 = 0.5;

/// The units of figures, each of one quantity.
pub const POLITE: &str = "% of polite served";
pub const USED: &str = "% of capacity used";
pub const REFUSED: &str = "refused";
pub const OFF: &str = "s until off";
pub const REFUSED_AFTER: &str = "refused once off";
pub const SWING: &str = "% of level swing";
pub const JAIN: &str = "Jain's index";
pub const DOWN: &str = "s to follow down";
pub const UP: &str = "s to follow up";
pub const CAPACITY: &str = "units/s of capacity";
pub const PAUSED: &str = "ms of pauses";

/// Everything that a run of this row says.
pub fn of(row: &Row, log: &Log) -> Vec<(&'static str, f64)> {
    let Log { course, .. } = log;
    let is_peace = matches!(row.kind, Kind::Peace(_));
    // With an overload, from a second after its onset.
    let from = course.onset + if is_peace { 0.0 } else { 1.0 };
    let polite = log.sources.groups[Who::Polite as usize].share(bin(from)..bin(course.end));
    let is_pulsed = matches!(row.kind, Kind::Pulses(_));
    let used = (!is_peace && !is_pulsed).then(|| used(log, from, course.end));
    let many = (row.kind == Kind::Many)
        .then(|| jain(&log.shares))
        .flatten();
    let follows = course.follows;
    let figures = [
        (POLITE, polite.map(|share| 100.0 * share)),
        (USED, used.flatten().map(|share| 100.0 * share)),
        (
            REFUSED,
            log.refused.filter(|_| is_peace).map(|units| units as f64),
        ),
        (OFF, log.off),
        (REFUSED_AFTER, log.refused_after.map(|units| units as f64)),
        (
            SWING,
            swing(log).filter(|_| matches!(row.kind, Kind::Heavy { .. } | Kind::Many)),
        ),
        (JAIN, many),
        (DOWN, follows.map(|(down, _)| seconds_to_follow(log, down))),
        (UP, follows.map(|(_, up)| seconds_to_follow(log, up))),
        (CAPACITY, Some(log.capacity)),
        (PAUSED, Some(1e3 * log.delays.0.as_secs_f64())),
    ];
    let present = figures
        .into_iter()
        .filter_map(|(unit, figure)| Some((unit, figure?)));
    present.collect()
}

/// The bin at this second.
fn bin(second: f64) -> usize {
    (second / BIN.as_secs_f64()).round() as usize
}

/// The samples of these bins.
fn samples(log: &Log, from: f64, to: f64) -> &[Sample] {
    let place = |second: f64| {
        log.samples
            .partition_point(|sample| sample.bin < bin(second))
    };
    &log.samples[place(from)..place(to)]
}

/// The part of what the server could do in this time that it did.
fn used(log: &Log, from: f64, to: f64) -> Option<f64> {
    let samples = samples(log, from, to);
    let (first, last) = (samples.first()?, samples.last()?);
    let possible = last.possible - first.possible;
    (possible > 0.0).then(|| (last.served - first.served) / possible)
}

/// Half the range of the level's half-second means before the end, in percent of their mean.
fn swing(log: &Log) -> Option<f64> {
    let end = log.course.end;
    let samples = samples(log, end - LEVELS, end);
    let means = samples.chunks_exact(bin(MEAN)).map(|part| {
        // A level that ended during the overload counts as 0.
        let levels = part.iter().map(|sample| sample.level.unwrap_or(0.0));
        levels.sum::<f64>() / part.len() as f64
    });
    let means: Vec<f64> = means.collect();
    let (least, most) = means
        .iter()
        .fold((f64::MAX, 0.0_f64), |(least, most), mean| {
            (least.min(*mean), most.max(*mean))
        });
    let mean = means.iter().sum::<f64>() / means.len() as f64;
    (mean > 0.0).then(|| 100.0 * (most - least) / 2.0 / mean)
}

/// Jain's index of fairness: 1 if all have the same.
fn jain(shares: &[u64]) -> Option<f64> {
    let sum: f64 = shares.iter().map(|share| *share as f64).sum();
    let squares: f64 = shares.iter().map(|share| (*share as f64).powi(2)).sum();
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

/// Seconds after a change from when on polite units are served and the capacity is used, in each half second.
fn seconds_to_follow(log: &Log, change: f64) -> f64 {
    let polite = &log.sources.groups[Who::Polite as usize];
    let (first, last) = (bin(change), bin(change + FOLLOWED - WINDOW));
    let is_behind = |start: usize| {
        let end = start + bin(WINDOW);
        let (from, to) = (start as f64, end as f64);
        let is_polite = polite.share(start..end).is_none_or(|share| share >= 0.99);
        let used = used(log, from * BIN.as_secs_f64(), to * BIN.as_secs_f64());
        !is_polite || used.is_none_or(|used| used < 0.95)
    };
    let behind = (first..=last).rev().find(|start| is_behind(*start));
    behind.map_or(0.0, |start| {
        (start + bin(WINDOW) - first) as f64 * BIN.as_secs_f64()
    })
}

/// A run over time, for a plot: each value is of a tenth of a second.
#[derive(Serialize)]
pub struct Line {
    case: String,
    by: String,
    /// Seconds of the onset and of the end.
    onset: f64,
    end: f64,
    capacity: f64,
    seconds: Vec<f64>,
    /// Units a second.
    offered: Vec<f64>,
    served: Vec<f64>,
    passed: Vec<Option<f64>>,
    level: Vec<Option<f64>>,
    /// The share of polite units that was served.
    polite: Vec<Option<f64>>,
}

pub fn line(case: &str, by: &str, log: &Log) -> Line {
    let mut line = Line {
        case: case.to_owned(),
        by: by.to_owned(),
        onset: log.course.onset,
        end: log.course.end,
        capacity: log.capacity,
        seconds: Vec::new(),
        offered: Vec::new(),
        served: Vec::new(),
        passed: Vec::new(),
        level: Vec::new(),
        polite: Vec::new(),
    };
    for pair in log.samples.windows(3).step_by(2) {
        let (before, after) = (&pair[0], &pair[2]);
        let bins = before.bin + 1..after.bin + 1;
        let seconds = bins.len() as f64 * BIN.as_secs_f64();
        let groups = log.sources.groups.iter();
        let sent: u64 = groups.map(|group| group.sent.sum(bins.clone())).sum();
        line.seconds.push(after.bin as f64 * BIN.as_secs_f64());
        line.offered.push(sent as f64 / seconds);
        line.served.push((after.served - before.served) / seconds);
        line.passed.push(after.passed);
        line.level.push(after.level);
        let polite = &log.sources.groups[Who::Polite as usize];
        line.polite.push(polite.share(bins));
    }
    line
}
