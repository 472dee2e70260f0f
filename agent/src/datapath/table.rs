//! Which table of sources a policy uses: that of the policy before, or another one that takes over what is in it.
//!
//! Another table is made in a directory of its own beside the pins in use, filled, and moved into their place once the
//! programs that use it are in force. Whenever the agent dies on the way, the next one finds out which table the programs
//! in force use, and completes the move or undoes it.

use std::path::{Path, PathBuf};

use aya::maps::{Array, Map, MapData};
use common::key::HashSeed;
use common::settings::{Settings, TableIdentity};

use super::error::LoadError;
use super::generation::Generation;
use super::pins::PinDirectory;
use super::random_seed;
use super::saved::SavedTable;
use super::sources::Sources;
use crate::compile::Layout;

/// Bytes of one element of the map of the layout.
pub const CHUNK: usize = 4096;
/// The text's length, before the text.
const LENGTH: usize = size_of::<u64>();

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

    /// The constants of the policy that it was made for, as far as they are about the table.
    #[must_use]
    pub const fn settings(&self) -> Settings {
        let TableIdentity { seed, shape, scale, groups, ring_words, .. } = self.identity;
        Settings { seed, shape, scale, groups, ring_words, ..Settings::NONE }
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
        self.begin_change()?;
        if let Some(before) = before.filter(|before| before.identity.fits(settings)) {
            return Ok(TablePlace {
                directory: self.path().to_owned(),
                seed: before.identity.seed,
                is_next: false,
                generation: None,
            });
        }
        // Keys are found again only under the same secret.
        Ok(self.next_place(before.map_or_else(random_seed, |before| Ok(before.identity.seed))?))
    }

    /// Where the table of a policy is that takes up a saved one.
    ///
    /// # Errors
    ///
    /// When what is left of an earlier attempt cannot be removed.
    pub fn place_after(&self, saved: &SavedTable) -> Result<TablePlace, LoadError> {
        self.begin_change()?;
        Ok(self.next_place(saved.seed()))
    }

    fn next_place(&self, seed: HashSeed) -> TablePlace {
        TablePlace { directory: self.next(), seed, is_next: true, generation: None }
    }

    /// The table of the policy before, to take over from.
    ///
    /// # Errors
    ///
    /// When it cannot be mapped.
    pub fn open_table(&self, before: &Before) -> Result<Sources, LoadError> {
        let (directory, seed) = (self.path().to_owned(), before.identity.seed);
        TablePlace { directory, seed, is_next: false, generation: None }.open(&before.settings())
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
