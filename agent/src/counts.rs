//! Counters that go on from policy to policy and from agent to agent.
//!
//! See [`crate::datapath::Generations`] for where they are while no agent runs.

use common::counters::BYPASS_ROWS;
use common::packet::Direction;
use serde::{Deserialize, Serialize};

use crate::compile::Image;
use crate::config::policy::Limit;
use crate::datapath::{Datapath, Generation, Generations, LoadError};
use crate::stats::{Counted, CountedDocument};

/// The most limits whose counters are kept; beyond that, those of limits that are no longer in effect are dropped.
const MOST_LIMITS: usize = 16_384;

/// What the rows of a generation stand for.
#[derive(Debug, Serialize, Deserialize)]
struct Rows {
    /// Rows before those of the rules.
    bypass: u32,
    /// The limits' names, in the config's order.
    limits: Vec<String>,
    /// For each row of a rule: the limit, by its place, and the row where the span's passed packets are.
    ingress: Vec<(usize, u32)>,
    egress: Vec<(usize, u32)>,
}

/// What generations that are no longer in effect have counted.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Base {
    counted: CountedDocument,
    /// Generations that are contained in it and may still be pinned.
    folded: Vec<u64>,
    /// The highest number so far.
    last: u64,
    /// The state file that it began with, after a reboot.
    restored: Option<u64>,
}

impl Base {
    fn read(generations: &Generations) -> Self {
        let text = generations.base();
        text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    fn write(&self, generations: &Generations) -> Result<(), LoadError> {
        // Names and numbers: there is nothing in it that could not be written.
        generations.replace_base(&serde_json::to_vec(self).unwrap_or_default())
    }
}

/// Begins a generation.
///
/// # Errors
///
/// When it cannot be pinned.
pub fn begin(generations: &Generations) -> Result<Generation, LoadError> {
    generations.begin(Base::read(generations).last)
}

/// Pins what the rows of a generation stand for. It counts from then on, as far as its programs are attached.
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
    let rows = |image: &Image| image.catalogue.iter().map(|counted| (counted.limit, counted.span)).collect();
    let rows = Rows {
        bypass: BYPASS_ROWS,
        limits: limits.iter().map(|limit| limit.name.clone()).collect(),
        ingress: rows(ingress.image()),
        egress: egress.map(|egress| rows(egress.image())).unwrap_or_default(),
    };
    generation.describe(&serde_json::to_vec(&rows).unwrap_or_default())
}

/// Adds every generation but `current`, whose programs alone may still count, to the base. Returns what the base has
/// then, and what could not be read.
///
/// # Errors
///
/// When the base cannot be replaced; then nothing is changed.
pub fn fold(generations: &Generations, current: &Generation) -> Result<(Counted, Vec<String>), LoadError> {
    let mut base = Base::read(generations);
    let mut counted = Counted::from(&base.counted);
    let mut notes = Vec::new();
    let numbers = generations.numbers();
    let others: Vec<u64> = numbers.iter().copied().filter(|number| *number != current.number()).collect();
    for generation in others.iter().filter(|number| !base.folded.contains(number)).map(|number| generations.at(*number))
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
        base = Base { counted: CountedDocument::from(&counted), folded: others.clone(), ..base };
        base.write(generations)?;
    }
    for number in others {
        // What stays is known to be contained, and removed by the next attempt.
        let _ = generations.at(number).remove();
    }
    Ok((counted, notes))
}

/// Whether what a state file holds is in the base already.
#[must_use]
pub fn is_restored(generations: &Generations, file: u64) -> bool {
    Base::read(generations).restored == Some(file)
}

/// Has the base begin with what a state file holds, once.
///
/// # Errors
///
/// When the base cannot be replaced; then nothing is changed.
pub fn restore(generations: &Generations, file: u64, saved: &CountedDocument) -> Result<(), LoadError> {
    let base = Base::read(generations);
    if base.restored == Some(file) {
        return Ok(());
    }
    let mut counted = Counted::from(&base.counted);
    counted.plus(&Counted::from(saved));
    Base { counted: CountedDocument::from(&counted), restored: Some(file), ..base }.write(generations)
}

fn description(generation: &Generation) -> Option<Rows> {
    serde_json::from_slice(&generation.description()?).ok()
}

fn add(generation: &Generation, counted: &mut Counted) -> Result<(), LoadError> {
    let Some(rows) = description(generation) else { return Ok(()) };
    for (direction, catalogue) in [(Direction::Ingress, &rows.ingress), (Direction::Egress, &rows.egress)] {
        if let Some((counters, table)) = generation.read(direction)? {
            counted.add(&rows.limits, rows.bypass, catalogue, &counters, table);
        }
    }
    Ok(())
}
