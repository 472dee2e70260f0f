//! Counters that continue over policies and agents.
//!
//! See [`datapath::Generations`] for where they are stored while no agent runs.

use std::collections::HashMap;

use common::counters::{BYPASS_ROWS, Counters};
use common::packet::Direction;
use config::policy::Limit;
use datapath::compile::Image;
use datapath::{Datapath, Generation, Generations, LoadError};
use host::Moment;
use serde::{Deserialize, Serialize};

use crate::stats::{self, Counted, CountedDocument};

/// The most limits whose counters are kept; beyond that, those of limits that are no longer in effect are dropped.
const MOST_LIMITS: usize = 16_384;

/// The meaning of a generation's rows.
#[derive(Debug, Serialize, Deserialize)]
struct Rows {
    /// Rows before those of the rules.
    bypass: u32,
    /// The names of [`stats::names`].
    limits: Vec<String>,
    /// For each row of a rule: the name's index, and the row with the span's passed packets.
    ingress: Vec<(usize, u32)>,
    egress: Vec<(usize, u32)>,
}

/// The counts of generations that are no longer in effect.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Base {
    counted: CountedDocument,
    /// Generations that it contains and that may still be pinned.
    folded: Vec<u64>,
    /// The highest number so far.
    last: u64,
    /// The state file with which it started after a reboot or a detach.
    restored: Option<u64>,
    /// When that was restored, which says how its clock was converted; missing in bases of earlier versions.
    #[serde(default)]
    restored_at: Option<Moment>,
    /// The state file whose restoration has begun on the same boot.
    #[serde(default)]
    restoring: Option<u64>,
    /// The counters of each limit at the operator's last reset.
    #[serde(default)]
    cleared: CountedDocument,
}

impl Base {
    fn read(generations: &Generations) -> Self {
        let text = generations.base();
        text.and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default()
    }

    fn write(&self, generations: &Generations) -> Result<(), LoadError> {
        // Names and numbers always serialise.
        generations.replace_base(&serde_json::to_vec(self).unwrap_or_default())
    }
}

/// The counters of each limit at the operator's last reset.
#[must_use]
pub fn cleared(generations: &Generations) -> HashMap<String, Counters> {
    Counted::from(&Base::read(generations).cleared).limits
}

/// Saves the counters of each limit for the operator's reset.
///
/// # Errors
///
/// When the base cannot be replaced; then nothing has changed.
pub fn clear(
    generations: &Generations,
    limits: HashMap<String, Counters>,
) -> Result<(), LoadError> {
    let cleared = CountedDocument::from(&Counted {
        limits,
        ..Counted::default()
    });
    Base {
        cleared,
        ..Base::read(generations)
    }
    .write(generations)
}

/// Begins a generation.
///
/// # Errors
///
/// When it cannot be pinned.
pub fn begin(generations: &Generations) -> Result<Generation, LoadError> {
    generations.begin(Base::read(generations).last)
}

/// Pins the meaning of a generation's rows. From then on it is counted, as far as its programs are attached.
///
/// # Errors
///
/// When it cannot be pinned.
pub fn describe(
    generation: &Generation,
    limits: &[Limit],
    ingress: &Datapath,
    egress: Option<&Datapath>,
) -> Result<(), LoadError> {
    let rows = |image: &Image| stats::rows(limits, image);
    let rows = Rows {
        bypass: BYPASS_ROWS,
        limits: stats::names(limits),
        ingress: rows(ingress.image()),
        egress: egress
            .map(|egress| rows(egress.image()))
            .unwrap_or_default(),
    };
    generation.describe(&serde_json::to_vec(&rows).unwrap_or_default())
}

/// Adds every generation except `current`, the only one that still counts, to the base. Returns the base's counts, and
/// those that could not be read.
///
/// # Errors
///
/// When the base cannot be replaced; then nothing has changed.
pub fn fold(
    generations: &Generations,
    current: &Generation,
) -> Result<(Counted, Vec<String>), LoadError> {
    let mut base = Base::read(generations);
    let mut counted = Counted::from(&base.counted);
    let mut notes = Vec::new();
    let numbers = generations.numbers();
    let others: Vec<u64> = numbers
        .iter()
        .copied()
        .filter(|number| *number != current.number())
        .collect();
    for generation in others
        .iter()
        .filter(|number| !base.folded.contains(number))
        .map(|number| generations.at(*number))
    {
        if let Err(error) = add(&generation, &mut counted) {
            notes.push(format!("counters of an earlier policy are lost: {error}"));
        }
    }
    if counted.limits.len() > MOST_LIMITS
        && let Some(rows) = description(current)
    {
        counted.limits.retain(|name, _| rows.limits.contains(name));
    }
    if !others.is_empty() {
        base.last = numbers.last().copied().unwrap_or_default().max(base.last);
        base = Base {
            counted: CountedDocument::from(&counted),
            folded: others.clone(),
            ..base
        };
        base.write(generations)?;
    }
    for number in others {
        // If this fails, the next attempt removes it: the base contains it.
        let _ = generations.at(number).remove();
    }
    Ok((counted, notes))
}

/// Whether the base already contains a state file's counts.
#[must_use]
pub fn is_restored(generations: &Generations, file: u64) -> bool {
    Base::read(generations).restored == Some(file)
}

/// The moment at which a state file was restored, if it was.
#[must_use]
pub fn restored_at(generations: &Generations, file: u64) -> Option<Moment> {
    let base = Base::read(generations);
    base.restored_at.filter(|_| base.restored == Some(file))
}

/// Starts the base with a state file's counts, once, as of this moment.
///
/// # Errors
///
/// When the base cannot be replaced; then nothing has changed.
pub fn restore(
    generations: &Generations,
    file: u64,
    saved: &CountedDocument,
    present: &Moment,
) -> Result<(), LoadError> {
    let base = Base::read(generations);
    if base.restored == Some(file) {
        return Ok(());
    }
    let mut counted = Counted::from(&base.counted);
    counted.plus(&Counted::from(saved));
    Base {
        counted: CountedDocument::from(&counted),
        restored: Some(file),
        restored_at: Some(present.clone()),
        restoring: None,
        ..base
    }
    .write(generations)
}

/// Whether the restoration of a state file has begun and not ended: the agent was killed during its start.
#[must_use]
pub fn is_restoring(generations: &Generations, file: u64) -> bool {
    Base::read(generations).restoring == Some(file)
}

/// Records that the restoration of a state file begins.
///
/// # Errors
///
/// When the base cannot be replaced.
pub fn begin_restoring(generations: &Generations, file: u64) -> Result<(), LoadError> {
    Base {
        restoring: Some(file),
        ..Base::read(generations)
    }
    .write(generations)
}

fn description(generation: &Generation) -> Option<Rows> {
    serde_json::from_slice(&generation.description()?).ok()
}

fn add(generation: &Generation, counted: &mut Counted) -> Result<(), LoadError> {
    let Some(rows) = description(generation) else {
        return Ok(());
    };
    for (direction, catalogue) in [
        (Direction::Ingress, &rows.ingress),
        (Direction::Egress, &rows.egress),
    ] {
        if let Some((counters, table)) = generation.read(direction)? {
            counted.add(&rows.limits, rows.bypass, catalogue, &counters, table);
        }
    }
    Ok(())
}
