//! The state of slow limits, saved to a file and restored after a reboot.

use std::sync::atomic::Ordering;

use common::key::{HashSeed, SEED_WORDS};
use common::settings::{Settings, TableIdentity};
use common::table::Shape;
use common::time::{TickScale, is_alive};
use serde::{Deserialize, Serialize};

use crate::compile::Layout;
use crate::error::LoadError;
use crate::memory;
use crate::table::sources::{Sources, Words};

/// States that decay within this time, in nanoseconds, are not saved.
const A_MINUTE: u64 = 60_000_000_000;

/// The layout of a saved table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedLayout {
    version: u32,
    /// [`HashSeed::words`]: of another number in other versions.
    seed: Vec<u64>,
    sets: u32,
    slot_words: u32,
    scale: (u32, u32),
    ring_words: u32,
    /// The layout of its slots.
    pub layout: Layout,
}

/// The slots of a table with a slow state: each as its index, its words, and its part of the rings.
#[derive(Clone, Debug)]
pub struct SavedTable {
    /// The layout of the words.
    pub layout: SavedLayout,
    /// Slot after slot.
    pub words: Vec<u64>,
}

impl SavedTable {
    /// Copies the slots with a state that lives for a minute from `now` on, in nanoseconds: as many as fit into
    /// `most_words`, the longest-lived first, to a factor of two.
    #[must_use]
    pub fn copy(sources: &Sources, layout: &Layout, now: u64, most_words: usize) -> Self {
        let settings = &sources.settings;
        let scale = settings.scale;
        let (later, now) = (scale.ticks(now.saturating_add(A_MINUTE)), scale.ticks(now));
        let slot_words = settings.shape.slot_words as usize;
        // Two passes over the table instead of a list: a table may have 16 million slots.
        let slow = || {
            sources.iter().filter_map(|view| {
                let states = view.words.get(1..slot_words)?;
                let life = states
                    .iter()
                    .filter(|state| is_alive(**state, later))
                    .map(|state| state.wrapping_sub(now));
                Some((life.max()?.ilog2() as usize, view))
            })
        };
        let each = 1 + slot_words + settings.ring_words as usize;
        let mut lives = [0usize; u64::BITS as usize];
        slow().for_each(|(life, _)| lives[life] += 1);
        // The number of saved slots by the power of two of their remaining life, the longest first.
        let mut room = most_words / each;
        for count in lives.iter_mut().rev() {
            *count = (*count).min(room);
            room -= *count;
        }
        let mut words = Vec::with_capacity(lives.iter().sum::<usize>() * each);
        for (life, view) in slow() {
            if lives[life] == 0 {
                continue;
            }
            lives[life] -= 1;
            words.push(u64::from(view.number));
            words.extend(view.words.iter().take(slot_words));
            let first = view.number as usize * settings.ring_words as usize;
            let ring = first..first + settings.ring_words as usize;
            words.extend(ring.map(|word| sources.rings.word(word).load(Ordering::Relaxed)));
        }
        let layout = SavedLayout {
            version: TableIdentity::VERSION,
            seed: settings.seed.words.to_vec(),
            sets: settings.shape.sets,
            slot_words: settings.shape.slot_words,
            scale: (scale.left, scale.right),
            ring_words: settings.ring_words,
            layout: layout.clone(),
        };
        Self { layout, words }
    }

    /// Whether this version can read it.
    #[must_use]
    pub const fn is_known(&self) -> bool {
        let SavedLayout {
            version,
            ref seed,
            sets,
            slot_words,
            ..
        } = self.layout;
        version == TableIdentity::VERSION
            && seed.len() == SEED_WORDS
            && sets > 0
            && sets <= 1 << 24
            && matches!(slot_words, 2 | 4 | 8)
    }

    /// The most bytes for restoring it: a second copy, and a table with its slots.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let own = size_of_val(&self.words[..]) as u64;
        let SavedLayout {
            sets,
            slot_words,
            ring_words,
            ..
        } = self.layout;
        let slots = own / (8 * u64::from(1 + slot_words + ring_words));
        let shape = Shape {
            sets,
            slot_words,
            groups: 1,
            cells: 1,
        };
        let table = memory::copy(&Settings {
            shape,
            ring_words,
            ..Settings::NONE
        });
        // A slot takes a whole page if it is the only one of it, and its ring another.
        own + table.min(own + slots * 2 * memory::PAGE)
    }

    pub(crate) fn seed(&self) -> HashSeed {
        let words =
            std::array::from_fn(|nth| self.layout.seed.get(nth).copied().unwrap_or_default());
        HashSeed { words }
    }

    /// The table in this process's memory, with the saved slots at their indices.
    ///
    /// # Errors
    ///
    /// When there is no memory.
    pub fn open(&self) -> Result<Sources, LoadError> {
        let saved = &self.layout;
        let shape = Shape {
            sets: saved.sets,
            slot_words: saved.slot_words,
            groups: 1,
            cells: 1,
        };
        let scale = TickScale {
            left: saved.scale.0,
            right: saved.scale.1,
        };
        let settings = Settings {
            seed: self.seed(),
            shape,
            scale,
            ring_words: saved.ring_words,
            ..Settings::NONE
        };
        let sources = Sources::in_memory(settings)?;
        let (slot_words, ring_words) = (shape.slot_words as usize, saved.ring_words as usize);
        for slot in self.words.chunks_exact(1 + slot_words + ring_words) {
            let Some((number, rest)) = slot.split_first() else {
                continue;
            };
            let Some(number) = u32::try_from(*number)
                .ok()
                .filter(|number| *number < shape.all_slots())
            else {
                continue;
            };
            let first =
                sources.set(number / shape.slots()) + shape.slot(number % shape.slots()) as usize;
            let put = |words: &Words, first: usize, values: &[u64]| {
                for (nth, value) in values.iter().enumerate() {
                    words.word(first + nth).store(*value, Ordering::Relaxed);
                }
            };
            let (words, ring) = rest.split_at(slot_words);
            put(&sources.table, first, words);
            put(&sources.rings, number as usize * ring_words, ring);
        }
        Ok(sources)
    }
}
