//! Which table of sources a policy uses: that of the policy before, or another one that takes over what is in it.
//!
//! Another table is made in a directory of its own beside the pins in use, filled, and moved into their place once the
//! programs that use it are in force. Whenever the agent dies on the way, the next one finds out which table the programs
//! in force use, and completes the move or undoes it.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use aya::maps::{Array, Map, MapData};
use aya::programs::ProgramInfo;
use aya::programs::links::{FdLink, PinnedLink};
use common::key::HashSeed;
use common::packet::Direction;
use common::settings::{Settings, TableIdentity};

use super::error::LoadError;
use super::generation::Generation;
use super::pins::{Holder, PinDirectory, PinnedHook, SHARED_MAPS, remove};
use super::random_seed;
use super::saved::SavedTable;
use super::sources::Sources;
use crate::compile::Layout;

/// Bytes of one element of the map of the layout.
const CHUNK: usize = 4096;
/// The text's length, before the text.
const LENGTH: usize = size_of::<u64>();
/// Where a table is until it is in use.
const NEXT: &str = "next";
/// How the pins of programs begin that use it.
const PROGRAM: &str = "program-";

/// The table of an earlier policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Before {
    identity: TableIdentity,
    layout: Layout,
}

/// Where a policy's table is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TablePlace {
    directory: PathBuf,
    seed: HashSeed,
    is_next: bool,
    /// Where the policy's counters are pinned, if they are.
    generation: Option<Generation>,
}

impl Before {
    /// What is where in it.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }
}

impl TablePlace {
    /// Whether it is another table than the one before.
    #[must_use]
    pub const fn is_next(&self) -> bool {
        self.is_next
    }

    /// The same, with a policy whose counters are pinned.
    #[must_use]
    pub fn with_counters(self, generation: &Generation) -> Self {
        Self { generation: Some(generation.clone()), ..self }
    }

    pub(super) const fn generation(&self) -> Option<&Generation> {
        self.generation.as_ref()
    }

    pub(super) const fn seed(&self) -> HashSeed {
        self.seed
    }

    pub(super) fn map(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Where a program is pinned, so that it can be told by it which table is in use.
    pub(super) fn program(&self, direction: Direction, name: &str) -> Option<PathBuf> {
        let direction = match direction {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        };
        self.is_next.then(|| self.directory.join(format!("{PROGRAM}{direction}-{name}")))
    }

    /// The table there, mapped once more.
    ///
    /// # Errors
    ///
    /// When it cannot be mapped.
    pub fn open(&self, settings: &Settings) -> Result<Sources, LoadError> {
        Sources::map(&MapData::from_pin(self.map("SOURCES"))?, &MapData::from_pin(self.map("RINGS"))?, *settings)
    }
}

impl PinDirectory {
    /// The table of the policy in force, or why there is none to go on with: `Err("")` if there is none at all.
    ///
    /// # Errors
    ///
    /// When a pin cannot be read or moved.
    pub fn before(&self) -> Result<Result<Before, &'static str>, LoadError> {
        self.recover()?;
        let path = self.map("TABLE");
        if !path.exists() {
            return Ok(Err(""));
        }
        const OTHER: &str = "the table of sources is of another version of Weir";
        // A map of another layout is one of another version: not ours to go on with.
        let Ok(array) = Array::<_, TableIdentity>::try_from(Map::Array(MapData::from_pin(&path)?)) else {
            return Ok(Err(OTHER));
        };
        let identity = array.get(&0, 0)?;
        if identity.version != TableIdentity::VERSION {
            return Ok(Err(OTHER));
        }
        match read(&self.map("LAYOUT")).filter(|layout| layout.fingerprint() == identity.groups) {
            Some(layout) => Ok(Ok(Before { identity, layout })),
            None => Ok(Err("what is where in the table of sources cannot be read")),
        }
    }

    /// Where the table of a policy with these settings is: that of the one before if it can go on with it as it is.
    ///
    /// # Errors
    ///
    /// When there is no secret to be had, or what is left of an earlier attempt cannot be removed.
    pub fn place(&self, settings: &Settings, before: Option<&Before>) -> Result<TablePlace, LoadError> {
        if let Some(before) = before.filter(|before| before.identity.fits(settings)) {
            return Ok(TablePlace {
                directory: self.path().to_owned(),
                seed: before.identity.seed,
                is_next: false,
                generation: None,
            });
        }
        // Keys are found again only under the same secret.
        self.next_place(before.map_or_else(random_seed, |before| Ok(before.identity.seed))?)
    }

    /// Where the table of a policy is that takes up a saved one.
    ///
    /// # Errors
    ///
    /// When what is left of an earlier attempt cannot be removed.
    pub fn place_after(&self, saved: &SavedTable) -> Result<TablePlace, LoadError> {
        self.next_place(saved.seed())
    }

    fn next_place(&self, seed: HashSeed) -> Result<TablePlace, LoadError> {
        self.discard_next()?;
        let directory = self.path().join(NEXT);
        fs::create_dir_all(&directory).map_err(|source| LoadError::PinDirectory { path: directory.clone(), source })?;
        Ok(TablePlace { directory, seed, is_next: true, generation: None })
    }

    /// The table of the policy before, to take over from.
    ///
    /// # Errors
    ///
    /// When it cannot be mapped.
    pub fn open_table(&self, before: &Before) -> Result<Sources, LoadError> {
        let identity = &before.identity;
        let place =
            TablePlace { directory: self.path().to_owned(), seed: identity.seed, is_next: false, generation: None };
        place.open(&Settings {
            seed: identity.seed,
            shape: identity.shape,
            scale: identity.scale,
            groups: identity.groups,
            ring_words: identity.ring_words,
            ..Settings::NONE
        })
    }

    /// Puts a table that is in use by now in place of the one before.
    ///
    /// # Errors
    ///
    /// When a pin cannot be moved.
    pub fn settle(&self, place: &TablePlace) -> Result<(), LoadError> {
        if place.is_next { self.complete() } else { Ok(()) }
    }

    /// Takes out a table that came into use nowhere.
    ///
    /// # Errors
    ///
    /// When a pin cannot be removed.
    pub fn discard_next(&self) -> Result<(), LoadError> {
        let next = self.path().join(NEXT);
        for name in SHARED_MAPS {
            remove(&next.join(name))?;
        }
        self.forget_programs()
    }

    fn complete(&self) -> Result<(), LoadError> {
        let next = self.path().join(NEXT);
        for name in SHARED_MAPS {
            let (from, to) = (next.join(name), self.map(name));
            if from.exists() {
                fs::rename(&from, &to).map_err(|source| LoadError::MovePin { path: from, source })?;
            }
        }
        self.forget_programs()
    }

    /// Takes out what told which programs use the next table, when it is no more or in its place.
    fn forget_programs(&self) -> Result<(), LoadError> {
        let next = self.path().join(NEXT);
        for entry in fs::read_dir(&next).into_iter().flatten().filter_map(Result::ok) {
            remove(&entry.path())?;
        }
        // It is not there, as a rule.
        let _ = fs::remove_dir(next);
        Ok(())
    }

    /// Completes or undoes what an earlier agent began.
    fn recover(&self) -> Result<(), LoadError> {
        let next = self.path().join(NEXT);
        if !next.exists() {
            return Ok(());
        }
        // The programs that use the next table are pinned beside it: is one of them in force?
        let in_force: HashSet<u32> = self.hooks().iter().filter_map(program_at).collect();
        let pinned = fs::read_dir(&next).into_iter().flatten().filter_map(Result::ok);
        let programs = pinned.filter(|entry| entry.file_name().to_string_lossy().starts_with(PROGRAM));
        let is_in_use = programs
            .filter_map(|entry| ProgramInfo::from_pin(entry.path()).ok())
            .any(|program| in_force.contains(&program.id()));
        if is_in_use { self.complete() } else { self.discard_next() }
    }
}

/// The program that is in force at a hook of ours, by its number.
pub(super) fn program_at(hook: &PinnedHook) -> Option<u32> {
    match hook.holder {
        Holder::Link => Some(FdLink::from(PinnedLink::from_pin(&hook.path).ok()?).info().ok()?.program_id()),
        Holder::Filter => Some(ProgramInfo::from_pin(&hook.path).ok()?.id()),
    }
}

fn text(layout: &Layout) -> Vec<u8> {
    // Names and numbers: there is nothing in it that could not be written.
    let text = serde_json::to_vec(layout).unwrap_or_default();
    [(text.len() as u64).to_le_bytes().as_slice(), &text].concat()
}

/// How many elements the map of this layout has.
pub(super) fn chunks(layout: &Layout) -> u32 {
    text(layout).len().div_ceil(CHUNK) as u32
}

/// Writes the layout into its map.
pub(super) fn write(map: &mut Map, layout: &Layout) -> Result<(), LoadError> {
    let mut array = Array::<_, [u8; CHUNK]>::try_from(map)?;
    for (nth, part) in (0u32..).zip(text(layout).chunks(CHUNK)) {
        let mut chunk = [0; CHUNK];
        chunk[..part.len()].copy_from_slice(part);
        array.set(nth, chunk, 0)?;
    }
    Ok(())
}

/// Reads it; `None` if it cannot be.
fn read(path: &Path) -> Option<Layout> {
    let array = Array::<_, [u8; CHUNK]>::try_from(Map::Array(MapData::from_pin(path).ok()?)).ok()?;
    let mut bytes = Vec::new();
    for nth in 0..array.len() {
        bytes.extend(array.get(&nth, 0).ok()?);
    }
    let length = u64::from_le_bytes(bytes.get(..LENGTH)?.try_into().ok()?);
    serde_json::from_slice(bytes.get(LENGTH..)?.get(..usize::try_from(length).ok()?)?).ok()
}
