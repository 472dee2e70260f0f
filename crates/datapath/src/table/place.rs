//! Decides which table of sources a policy uses: the previous one, or a new one to which its state is migrated.
//!
//! A new table is pinned in a folder beside the pins in use, filled, and moved to its final place once the programs
//! that use it are attached. If the agent is killed meanwhile, the next one completes the move or undoes it, depending
//! on which table the attached programs use.

use std::path::{Path, PathBuf};

use aya::maps::{Array, Map, MapData};
use common::key::{HashSeed, SEED_WORDS};
use common::settings::{Settings, TableIdentity};

use crate::compile::Layout;
use crate::error::LoadError;
use crate::hooks::pins::PinDirectory;
use crate::maps::generation::Generation;
use crate::maps::text;
use crate::table::saved::SavedTable;
use crate::table::sources::Sources;

/// The table of an earlier policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Before {
    identity: TableIdentity,
    layout: Layout,
}

/// The place of a policy's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TablePlace {
    directory: PathBuf,
    seed: HashSeed,
    is_next: bool,
    /// The generation of the policy's pinned counters, if any.
    generation: Option<Generation>,
}

impl Before {
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The constants of its policy that concern the table.
    #[must_use]
    pub const fn settings(&self) -> Settings {
        let TableIdentity {
            seed,
            shape,
            scale,
            groups,
            ring_words,
            ..
        } = self.identity;
        Settings {
            seed,
            shape,
            scale,
            groups,
            ring_words,
            ..Settings::NONE
        }
    }
}

impl TablePlace {
    /// Whether it is a new table.
    #[must_use]
    pub const fn is_next(&self) -> bool {
        self.is_next
    }

    /// The same, with pinned counters.
    #[must_use]
    pub fn with_counters(self, generation: &Generation) -> Self {
        Self {
            generation: Some(generation.clone()),
            ..self
        }
    }

    pub(crate) const fn generation(&self) -> Option<&Generation> {
        self.generation.as_ref()
    }

    pub(crate) const fn seed(&self) -> HashSeed {
        self.seed
    }

    pub(crate) fn map(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Maps the table.
    ///
    /// # Errors
    ///
    /// When it cannot be mapped.
    pub fn open(&self, settings: &Settings) -> Result<Sources, LoadError> {
        Sources::map(
            &MapData::from_pin(self.map("SOURCES"))?,
            &MapData::from_pin(self.map("RINGS"))?,
            *settings,
        )
    }
}

impl PinDirectory {
    /// The table of the policy in effect, or the reason why its state cannot be used; `Err("")` without a table.
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
        // A map of another size belongs to another version.
        let Ok(array) = Array::<_, TableIdentity>::try_from(Map::Array(MapData::from_pin(&path)?))
        else {
            return Ok(Err(OTHER));
        };
        let identity = array.get(&0, 0)?;
        if identity.version != TableIdentity::VERSION {
            return Ok(Err(OTHER));
        }
        match layout_at(&self.map("LAYOUT"))
            .filter(|layout| layout.fingerprint() == identity.groups)
        {
            Some(layout) => Ok(Ok(Before { identity, layout })),
            None => Ok(Err("the layout of the table of sources cannot be read")),
        }
    }

    /// The place of the table of a policy with these settings: the previous table if it fits unchanged.
    ///
    /// # Errors
    ///
    /// When random numbers are unavailable, or pins of an earlier attempt cannot be removed.
    pub fn place(
        &self,
        settings: &Settings,
        before: Option<&Before>,
    ) -> Result<TablePlace, LoadError> {
        self.begin_change()?;
        if let Some(before) = before.filter(|before| before.identity.fits(settings)) {
            return Ok(TablePlace {
                directory: self.path().to_owned(),
                seed: before.identity.seed,
                is_next: false,
                generation: None,
            });
        }
        // Keys are found only with the same seed.
        Ok(self.next_place(before.map_or_else(random_seed, |before| Ok(before.identity.seed))?))
    }

    /// The place of a new table to which a saved one is migrated.
    ///
    /// # Errors
    ///
    /// When pins of an earlier attempt cannot be removed.
    pub fn place_after(&self, saved: &SavedTable) -> Result<TablePlace, LoadError> {
        self.begin_change()?;
        Ok(self.next_place(saved.seed()))
    }

    fn next_place(&self, seed: HashSeed) -> TablePlace {
        TablePlace {
            directory: self.next(),
            seed,
            is_next: true,
            generation: None,
        }
    }

    /// Maps the previous policy's table.
    ///
    /// # Errors
    ///
    /// When it cannot be mapped.
    pub fn open_table(&self, before: &Before) -> Result<Sources, LoadError> {
        let (directory, seed) = (self.path().to_owned(), before.identity.seed);
        TablePlace {
            directory,
            seed,
            is_next: false,
            generation: None,
        }
        .open(&before.settings())
    }
}

pub(crate) fn text_of(layout: &Layout) -> Vec<u8> {
    // Names and numbers always serialise.
    serde_json::to_vec(layout).unwrap_or_default()
}

/// The pinned layout; `None` if it cannot be parsed.
fn layout_at(pin: &Path) -> Option<Layout> {
    serde_json::from_slice(&text::read(pin)?).ok()
}

/// A secret seed, from the kernel's random numbers.
fn random_seed() -> Result<HashSeed, LoadError> {
    let mut random = [[0u8; 8]; SEED_WORDS];
    getrandom::fill(random.as_flattened_mut())
        .map_err(|error| LoadError::Random(error.to_string()))?;
    Ok(HashSeed {
        words: random.map(u64::from_ne_bytes),
    })
}
