//! The counters of each policy, pinned so that they outlive the agent.
//!
//! Each policy has maps of counters, pinned under a unique number, its generation, with a text that describes the rows.
//! Another text, the base, has the sums of generations that are no longer in effect, and their numbers. It is replaced
//! atomically. So after a kill at any instant, each generation is either in the base or still to be added, never both.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use aya::Pod;
use aya::maps::{Map, MapData, MapError, PerCpuArray};
use common::counters::{Counters, TableCounters};
use common::hot::CpuRow;
use common::packet::Direction;

use super::text;
use crate::error::LoadError;
use crate::hooks::pins::{PinDirectory, remove};

const DIRECTORY: &str = "counters";
const BASE: &str = "base";
const ROWS: &str = "rows";

/// The generations of a pin directory.
#[derive(Clone, Debug)]
pub struct Generations(PathBuf);

/// One policy's counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    directory: PathBuf,
    number: u64,
}

impl PinDirectory {
    /// The generations pinned here.
    #[must_use]
    pub fn generations(&self) -> Generations {
        Generations(self.map(DIRECTORY))
    }
}

impl Generations {
    /// The numbers of pinned generations.
    #[must_use]
    pub fn numbers(&self) -> BTreeSet<u64> {
        let entries = fs::read_dir(&self.0)
            .into_iter()
            .flatten()
            .filter_map(Result::ok);
        entries
            .filter_map(|entry| entry.file_name().to_str()?.split('-').next()?.parse().ok())
            .collect()
    }

    #[must_use]
    pub fn at(&self, number: u64) -> Generation {
        Generation {
            directory: self.0.clone(),
            number,
        }
    }

    /// A new generation, after all that are pinned and after `last`.
    ///
    /// # Errors
    ///
    /// When the directory cannot be created.
    pub fn begin(&self, last: u64) -> Result<Generation, LoadError> {
        bpf::create_directory(&self.0)?;
        Ok(self.at(self.numbers().last().map_or(0, |number| *number).max(last) + 1))
    }

    /// The base's text; `None` if there is none.
    #[must_use]
    pub fn base(&self) -> Option<Vec<u8>> {
        text::read(&self.0.join(BASE))
    }

    /// Replaces the base atomically.
    ///
    /// # Errors
    ///
    /// When the map cannot be created or pinned.
    pub fn replace_base(&self, base: &[u8]) -> Result<(), LoadError> {
        let (next, path) = (self.0.join("base-next"), self.0.join(BASE));
        bpf::create_directory(&self.0)?;
        if next.exists() {
            remove(&next)?;
        }
        text::pin(&next, base)?;
        fs::rename(&next, &path).map_err(|source| LoadError::MovePin { path: next, source })
    }

    /// Removes all generations and the base.
    pub(crate) fn clear(&self) -> Result<(), LoadError> {
        for entry in fs::read_dir(&self.0)
            .into_iter()
            .flatten()
            .filter_map(Result::ok)
        {
            remove(&entry.path())?;
        }
        // Fails if nothing was ever counted.
        let _ = fs::remove_dir(&self.0);
        Ok(())
    }
}

impl Generation {
    /// Its unique number.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    fn pin(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{}-{name}", self.number))
    }

    /// (map, pin) of a direction's counters.
    pub(crate) fn maps(&self, direction: Direction) -> [(&'static str, PathBuf); 2] {
        let name = match direction {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        };
        [
            ("COUNTERS", self.pin(name)),
            ("TABLE_COUNTERS", self.pin(&format!("{name}-table"))),
        ]
    }

    /// Pins the text that describes its rows.
    ///
    /// # Errors
    ///
    /// When the map cannot be created or pinned.
    pub fn describe(&self, rows: &[u8]) -> Result<(), LoadError> {
        text::pin(&self.pin(ROWS), rows)
    }

    /// The description. A generation without one was never in effect.
    #[must_use]
    pub fn description(&self) -> Option<Vec<u8>> {
        text::read(&self.pin(ROWS))
    }

    /// The counters of a direction, summed over CPUs; `None` if it has no pins.
    ///
    /// # Errors
    ///
    /// When a map cannot be read, or is of another version.
    pub fn read(
        &self,
        direction: Direction,
    ) -> Result<Option<(Vec<Counters>, TableCounters)>, LoadError> {
        let [(_, counters), (_, table)] = self.maps(direction);
        if !counters.exists() || !table.exists() {
            return Ok(None);
        }
        let rows = match summed(&counters, |cpu: &CpuRow| cpu.counters) {
            // An agent of before has counters alone in its rows.
            Err(LoadError::Map(MapError::InvalidValueSize { .. })) => {
                summed(&counters, |cpu: &Counters| *cpu)?
            }
            rows => rows?,
        };
        let map =
            PerCpuArray::<_, TableCounters>::try_from(Map::PerCpuArray(MapData::from_pin(table)?))?;
        let table = map
            .get(&0, 0)?
            .iter()
            .fold(TableCounters::default(), |sum, cpu| sum.plus(*cpu));
        Ok(Some((rows, table)))
    }

    /// Removes its pins, the description last, since the generation is valid until then.
    ///
    /// # Errors
    ///
    /// When a pin cannot be removed.
    pub fn remove(&self) -> Result<(), LoadError> {
        let maps = [Direction::Ingress, Direction::Egress]
            .into_iter()
            .flat_map(|direction| self.maps(direction));
        for path in maps.map(|(_, path)| path).chain([self.pin(ROWS)]) {
            if path.exists() {
                remove(&path)?;
            }
        }
        Ok(())
    }
}

/// Each row of a pinned map of counters, summed over CPUs.
fn summed<R: Pod>(
    pin: &Path,
    counters: impl Fn(&R) -> Counters,
) -> Result<Vec<Counters>, LoadError> {
    let map = PerCpuArray::<_, R>::try_from(Map::PerCpuArray(MapData::from_pin(pin)?))?;
    let sum = |row: u32| -> Result<Counters, LoadError> {
        Ok(map
            .get(&row, 0)?
            .iter()
            .fold(Counters::default(), |sum, cpu| sum.plus(counters(cpu))))
    };
    (0..map.len()).map(sum).collect()
}
