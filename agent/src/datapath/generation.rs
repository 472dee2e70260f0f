//! The counters of each policy, pinned so that they outlive the agent.
//!
//! A policy counts in maps of its own. They are pinned under a number that is never used twice, its generation, beside a
//! text that says what the rows stand for. What generations that are no longer in effect have counted is summed up in
//! one more text, the base, which is replaced in one step and names the generations that it contains. Whenever the agent
//! is killed, each generation is therefore either named by the base or still to be added, and never both.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use aya::maps::{Array, Map, MapData, PerCpuArray};
use common::counters::{Counters, TableCounters};
use common::packet::Direction;

use super::error::LoadError;
use super::pins::{PinDirectory, remove};

const DIRECTORY: &str = "counters";
const BASE: &str = "base";
const ROWS: &str = "rows";
/// Bytes of one element of a text's map.
const CHUNK: usize = 4096;
/// The text's length, before the text.
const LENGTH: usize = size_of::<u64>();

/// Where the generations of a pin directory are.
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
    /// The numbers in use.
    #[must_use]
    pub fn numbers(&self) -> BTreeSet<u64> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().filter_map(Result::ok);
        entries.filter_map(|entry| entry.file_name().to_str()?.split('-').next()?.parse().ok()).collect()
    }

    /// A generation of this number.
    #[must_use]
    pub fn at(&self, number: u64) -> Generation {
        Generation { directory: self.0.clone(), number }
    }

    /// A new generation, after all that are pinned and after `last`.
    ///
    /// # Errors
    ///
    /// When the directory cannot be made.
    pub fn begin(&self, last: u64) -> Result<Generation, LoadError> {
        fs::create_dir_all(&self.0).map_err(|source| LoadError::PinDirectory { path: self.0.clone(), source })?;
        Ok(self.at(self.numbers().last().map_or(0, |number| *number).max(last) + 1))
    }

    /// The base's text; `None` if there is none.
    #[must_use]
    pub fn base(&self) -> Option<Vec<u8>> {
        read_text(&self.0.join(BASE))
    }

    /// Replaces the base, in one step.
    ///
    /// # Errors
    ///
    /// When the map cannot be made or pinned.
    pub fn replace_base(&self, text: &[u8]) -> Result<(), LoadError> {
        let (next, path) = (self.0.join("base-next"), self.0.join(BASE));
        fs::create_dir_all(&self.0).map_err(|source| LoadError::PinDirectory { path: self.0.clone(), source })?;
        if next.exists() {
            remove(&next)?;
        }
        pin_text(&next, text)?;
        fs::rename(&next, &path).map_err(|source| LoadError::MovePin { path: next, source })
    }

    /// Takes out everything.
    pub(super) fn clear(&self) -> Result<(), LoadError> {
        for entry in fs::read_dir(&self.0).into_iter().flatten().filter_map(Result::ok) {
            remove(&entry.path())?;
        }
        // It is missing where nothing was ever counted.
        let _ = fs::remove_dir(&self.0);
        Ok(())
    }
}

impl Generation {
    /// Its number.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    fn pin(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{}-{name}", self.number))
    }

    /// The maps of a direction's programs that are pinned, by name, and where.
    pub(super) fn maps(&self, direction: Direction) -> [(&'static str, PathBuf); 2] {
        let name = match direction {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        };
        [("COUNTERS", self.pin(name)), ("TABLE_COUNTERS", self.pin(&format!("{name}-table")))]
    }

    /// Pins the text that says what its rows stand for.
    ///
    /// # Errors
    ///
    /// When the map cannot be made or pinned.
    pub fn describe(&self, text: &[u8]) -> Result<(), LoadError> {
        pin_text(&self.pin(ROWS), text)
    }

    /// That text. A generation without it was never in effect.
    #[must_use]
    pub fn description(&self) -> Option<Vec<u8>> {
        read_text(&self.pin(ROWS))
    }

    /// What a direction has counted, summed over CPUs; `None` if nothing is pinned for it.
    ///
    /// # Errors
    ///
    /// When a map cannot be read, or is of another version.
    pub fn read(&self, direction: Direction) -> Result<Option<(Vec<Counters>, TableCounters)>, LoadError> {
        let [(_, counters), (_, table)] = self.maps(direction);
        if !counters.exists() || !table.exists() {
            return Ok(None);
        }
        let map = PerCpuArray::<_, Counters>::try_from(Map::PerCpuArray(MapData::from_pin(counters)?))?;
        let sum = |row: u32| -> Result<Counters, LoadError> {
            Ok(map.get(&row, 0)?.iter().fold(Counters::default(), |sum, cpu| sum.plus(*cpu)))
        };
        let rows = (0..map.len()).map(sum).collect::<Result<_, _>>()?;
        let map = PerCpuArray::<_, TableCounters>::try_from(Map::PerCpuArray(MapData::from_pin(table)?))?;
        let table = map.get(&0, 0)?.iter().fold(TableCounters::default(), |sum, cpu| sum.plus(*cpu));
        Ok(Some((rows, table)))
    }

    /// Takes out its pins, the description last: until then it is a generation.
    ///
    /// # Errors
    ///
    /// When a pin cannot be removed.
    pub fn remove(&self) -> Result<(), LoadError> {
        let maps = [Direction::Ingress, Direction::Egress].into_iter().flat_map(|direction| self.maps(direction));
        for path in maps.map(|(_, path)| path).chain([self.pin(ROWS)]) {
            if path.exists() {
                remove(&path)?;
            }
        }
        Ok(())
    }
}

fn pin_text(path: &Path, text: &[u8]) -> Result<(), LoadError> {
    let bytes = [(text.len() as u64).to_le_bytes().as_slice(), text].concat();
    let chunks = bytes.len().div_ceil(CHUNK) as u32;
    let mut array = Array::<_, [u8; CHUNK]>::create(chunks, 0)?;
    for (nth, part) in (0u32..).zip(bytes.chunks(CHUNK)) {
        let mut chunk = [0; CHUNK];
        chunk[..part.len()].copy_from_slice(part);
        array.set(nth, chunk, 0)?;
    }
    array.pin(path).map_err(|error| LoadError::Pin { path: path.to_owned(), reason: error.to_string() })
}

fn read_text(path: &Path) -> Option<Vec<u8>> {
    let array = Array::<_, [u8; CHUNK]>::try_from(Map::Array(MapData::from_pin(path).ok()?)).ok()?;
    let mut bytes = Vec::new();
    for nth in 0..array.len() {
        bytes.extend(array.get(&nth, 0).ok()?);
    }
    let length = u64::from_le_bytes(bytes.get(..LENGTH)?.try_into().ok()?);
    Some(bytes.get(LENGTH..)?.get(..usize::try_from(length).ok()?)?.to_vec())
}
