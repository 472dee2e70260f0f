//! What sources have used of slow limits, as it is saved to a file and taken up after a reboot.

use std::sync::atomic::Ordering;

use common::key::HashSeed;
use common::settings::{Settings, TableIdentity};
use common::table::Shape;
use common::time::{TickScale, is_alive};
use serde::{Deserialize, Serialize};

use super::error::LoadError;
use super::sources::{Sources, Words};
use crate::compile::Layout;
use crate::memory;

/// A state that decays within this time is not saved.
const A_MINUTE: u64 = 60_000_000_000;

/// What the words of a saved table mean.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedLayout {
    version: u32,
    seed: [u64; 4],
    sets: u32,
    slot_words: u32,
    scale: (u32, u32),
    ring_words: u32,
    /// What is where in a slot.
    pub layout: Layout,
}

/// The slots of a table that hold a slow state: each is its number, its words, and its part of the rings.
#[derive(Clone, Debug)]
pub struct SavedTable {
    /// What they mean.
    pub layout: SavedLayout,
    /// Slot after slot.
    pub words: Vec<u64>,
}

impl SavedTable {
    /// Copies the slots with a state that lives for a minute from `now` on, in nanoseconds: as many as fit into
    /// `most_words`, those that live longest first, to a factor of two.
    #[must_use]
    pub fn copy(sources: &Sources, layout: &Layout, now: u64, most_words: usize) -> Self {
        let settings = &sources.settings;
        let scale = settings.scale;
        let (later, now) = (scale.ticks(now.saturating_add(A_MINUTE)), scale.ticks(now));
        let slot_words = settings.shape.slot_words as usize;
        // Twice over the table rather than once with a list: a table may have 16 million slots.
        let slow = || {
            sources.iter().filter_map(|view| {
                let states = view.words.get(1..slot_words)?;
                let life = states.iter().filter(|state| is_alive(**state, later)).map(|state| state.wrapping_sub(now));
                Some((life.max()?.ilog2() as usize, view))
            })
        };
        let each = 1 + slot_words + settings.ring_words as usize;
        let mut lives = [0usize; u64::BITS as usize];
        slow().for_each(|(life, _)| lives[life] += 1);
        // By powers of two of what is left of their lives, the longest first: how many of each are saved.
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
            seed: settings.seed.multipliers,
            sets: settings.shape.sets,
            slot_words: settings.shape.slot_words,
            scale: (scale.left, scale.right),
            ring_words: settings.ring_words,
            layout: layout.clone(),
        };
        Self { layout, words }
    }

    /// Whether this version knows what it means.
    #[must_use]
    pub const fn is_known(&self) -> bool {
        let SavedLayout { version, sets, slot_words, .. } = self.layout;
        version == TableIdentity::VERSION && sets > 0 && sets <= 1 << 24 && matches!(slot_words, 2 | 4 | 8)
    }

    /// What taking it up takes, at the most: itself once more, and its slots in a table of its own.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let own = size_of_val(&self.words[..]) as u64;
        let SavedLayout { sets, slot_words, ring_words, .. } = self.layout;
        let slots = own / (8 * u64::from(1 + slot_words + ring_words));
        let shape = Shape { sets, slot_words, groups: 1, cells: 1 };
        let table = memory::copy(&Settings { shape, ring_words, ..Settings::NONE });
        // A slot fills a page where it is the only one of it, and its ring another.
        own + table.min(own + slots * 2 * memory::PAGE)
    }

    /// Under which its keys are found again.
    pub(super) const fn seed(&self) -> HashSeed {
        HashSeed { multipliers: self.layout.seed }
    }

    /// The table, in memory of this process, with the saved slots in their places.
    ///
    /// # Errors
    ///
    /// When there is no memory.
    pub fn open(&self) -> Result<Sources, LoadError> {
        let saved = &self.layout;
        let shape = Shape { sets: saved.sets, slot_words: saved.slot_words, groups: 1, cells: 1 };
        let scale = TickScale { left: saved.scale.0, right: saved.scale.1 };
        let settings = Settings { seed: self.seed(), shape, scale, ring_words: saved.ring_words, ..Settings::NONE };
        let sources = Sources::in_memory(settings)?;
        let (slot_words, ring_words) = (shape.slot_words as usize, saved.ring_words as usize);
        for slot in self.words.chunks_exact(1 + slot_words + ring_words) {
            let Some((number, rest)) = slot.split_first() else { continue };
            let Some(number) = u32::try_from(*number).ok().filter(|number| *number < shape.all_slots()) else {
                continue;
            };
            let first = sources.set(number / shape.slots()) + shape.slot(number % shape.slots()) as usize;
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
