//! The table of sources, mapped into memory, so that reads take no system call.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use aya::maps::MapData;
use common::key::Key;
use common::rule::Rule;
use common::settings::Settings;
use common::table::{ELEMENT_WORDS, NO_SLOT, Place, Shape, Tag, Tally, WIDEST_SLOT};
use common::throttle::CELLS;
use common::time::is_alive;
use memmap2::{MmapOptions, MmapRaw};

use crate::error::LoadError;

/// The mapped table, with the rings of its slots.
#[derive(Debug)]
pub struct Sources {
    pub(crate) table: Words,
    pub(crate) rings: Words,
    pub(crate) settings: Settings,
}

/// A map of words, mapped into memory.
#[derive(Debug)]
pub(crate) struct Words {
    memory: MmapRaw,
    count: usize,
}

impl Words {
    fn map(map: &MapData, count: usize) -> Result<Self, LoadError> {
        let memory = MmapOptions::new()
            .len(count * size_of::<u64>())
            .map_raw(map.fd().as_fd().as_raw_fd())
            .map_err(LoadError::Mmap)?;
        Ok(Self { memory, count })
    }

    /// Zeroed words in this process's memory. A page takes memory once one of its words has been written.
    fn in_memory(count: usize) -> Result<Self, LoadError> {
        let memory = MmapOptions::new()
            .len(count * size_of::<u64>())
            .no_reserve_swap()
            .map_anon();
        let memory = MmapRaw::from(memory.map_err(LoadError::Mmap)?);
        // Fails on a kernel without huge pages, where it is not needed.
        let _ = memory.advise(memmap2::Advice::NoHugePage);
        Ok(Self { memory, count })
    }

    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        &self.words(index..index + 1)[0]
    }

    fn words(&self, range: Range<usize>) -> &[AtomicU64] {
        assert!(
            range.end <= self.count && range.start <= range.end,
            "words {range:?} of a map of {}",
            self.count
        );
        // SAFETY: within the mapping, which is page-aligned and outlives the reference; all accesses, here and in the
        // kernel, are atomic or single-copy-atomic operations on aligned words.
        unsafe {
            std::slice::from_raw_parts(
                self.memory.as_ptr().cast::<AtomicU64>().add(range.start),
                range.len(),
            )
        }
    }
}

/// A copy of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotView {
    /// The number of its key's group.
    pub group: u32,
    /// Packets that passed, modulo 64.
    pub passed: u8,
    /// Its index in the table.
    pub number: u32,
    /// Head and states; words beyond the table's slot size are 0.
    pub words: [u64; WIDEST_SLOT as usize],
}

impl Sources {
    pub(crate) fn map(
        table: &MapData,
        rings: &MapData,
        settings: Settings,
    ) -> Result<Self, LoadError> {
        let table = Words::map(
            table,
            settings.shape.elements() as usize * ELEMENT_WORDS as usize,
        )?;
        let slots = settings.shape.all_slots() as usize;
        // A map has at least one word.
        let rings = Words::map(rings, (slots * settings.ring_words as usize).max(1))?;
        Ok(Self {
            table,
            rings,
            settings,
        })
    }

    /// An empty table in this process's memory.
    pub(crate) fn in_memory(settings: Settings) -> Result<Self, LoadError> {
        let table = Words::in_memory(settings.shape.elements() as usize * ELEMENT_WORDS as usize)?;
        let slots = settings.shape.all_slots() as usize;
        let rings = Words::in_memory((slots * settings.ring_words as usize).max(1))?;
        Ok(Self {
            table,
            rings,
            settings,
        })
    }

    pub(crate) fn shape(&self) -> Shape {
        self.settings.shape
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        self.table.word(index)
    }

    /// The ring of a rule in the slot with this number; empty if its algorithm has none.
    fn ring(&self, slot: u32, rule: &Rule) -> impl Iterator<Item = &AtomicU64> {
        let first = slot as usize * self.settings.ring_words as usize + usize::from(rule.ring);
        (first..first + rule.ring_words()).map(|word| self.rings.word(word))
    }

    /// The state of a rule in a slot, with its ring.
    #[must_use]
    pub fn state(&self, slot: &SlotView, rule: &Rule) -> Vec<u64> {
        let first = usize::from(rule.position);
        let ring = self
            .ring(slot.number, rule)
            .map(|word| word.load(Ordering::Relaxed));
        slot.words[first..first + rule.words()]
            .iter()
            .copied()
            .chain(ring)
            .collect()
    }

    /// The index of a set's first word in the mapping.
    pub(crate) fn set(&self, set: u32) -> usize {
        let (element, first) = self.shape().element(set);
        element as usize * ELEMENT_WORDS as usize + first as usize
    }

    /// The sets that have ever had a key. In a table with few keys, this takes a tenth of the time of reading each slot.
    pub(crate) fn used_sets(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.shape().sets).filter(|set| self.is_used(*set))
    }

    fn is_used(&self, set: u32) -> bool {
        let first = self.set(set);
        let words = (self.shape().slots() * self.shape().slot_words) as usize;
        let words = self.table.words(first..first + words).iter();
        words.fold(0, |any, word| any | word.load(Ordering::Relaxed)) != 0
    }

    fn view(&self, set: u32, slot: u32) -> Option<SlotView> {
        let first = self.set(set) + slot as usize;
        let mut words = [0; WIDEST_SLOT as usize];
        for (nth, word) in words
            .iter_mut()
            .enumerate()
            .take(self.shape().slot_words as usize)
        {
            *word = self.word(first + nth).load(Ordering::Relaxed);
        }
        Some(SlotView {
            group: Tag::group(words[0])?,
            passed: Tally(words[0] as u8).rest(),
            number: self.shape().slot_number(set, slot),
            words,
        })
    }

    /// The packets that each state of a slot refused or would have refused, modulo 64, by the state's word.
    #[must_use]
    pub fn refused(&self, slot: &SlotView) -> [u8; WIDEST_SLOT as usize] {
        let tallies = if self.shape().has_refusal_words() {
            let place = slot.number as usize * self.settings.ring_words as usize;
            self.rings.word(place).load(Ordering::Relaxed).to_le_bytes()
        } else {
            [0, (slot.words[0] >> 8) as u8, 0, 0, 0, 0, 0, 0]
        };
        tallies.map(|tally| Tally(tally).rest())
    }

    /// The slot of a key; `None` if it has none.
    #[must_use]
    pub fn find(&self, key: &Key) -> Option<SlotView> {
        let hash = self.settings.seed.hash(key);
        let (set, tag, slot) = self.shape().locate(
            |set| self.mapped(set),
            self.shape().set(hash),
            Tag::new(hash, key),
        );
        if slot == NO_SLOT {
            None
        } else {
            self.view(set, slot)
                .filter(|view| tag.matches(view.words[0]))
        }
    }

    /// Every slot in use, in the order of the table.
    pub fn iter(&self) -> impl Iterator<Item = SlotView> + '_ {
        self.used_sets().flat_map(move |set| {
            (0..self.shape().slots()).filter_map(move |nth| self.view(set, self.shape().slot(nth)))
        })
    }

    /// The number of keys of each group with a state that has not decayed at `now`.
    #[must_use]
    pub fn tracked(&self, now: u64, groups: usize) -> Vec<u64> {
        let mut tracked = vec![0; groups];
        for view in self.iter() {
            let is_tracked = view.words[1..self.shape().slot_words as usize]
                .iter()
                .any(|state| is_alive(*state, now));
            if let (true, Some(count)) = (is_tracked, tracked.get_mut(view.group as usize)) {
                *count += 1;
            }
        }
        tracked
    }

    /// Resets the states of one key under these rules, and of keys that share its cells: their allowance is full again.
    /// Returns whether its state in a slot had not decayed.
    pub fn reset<'r>(
        &self,
        key: &Key,
        rules: impl IntoIterator<Item = &'r Rule> + Copy,
        now: u64,
    ) -> bool {
        let was_tracked = self
            .find(key)
            .is_some_and(|view| self.forget_if_tracked(&view, rules, now));
        let hash = self.settings.seed.hash(key);
        let (set, tag) = (self.shape().set(hash), Tag::new(hash, key));
        for nth in 0..CELLS {
            self.forget_at(self.shape().cell(set, tag, nth), rules, now);
        }
        was_tracked
    }

    /// Resets the states of every key of a group under these rules. Returns the number of keys whose state had not
    /// decayed.
    pub fn reset_all<'r>(
        &self,
        group: u32,
        rules: impl IntoIterator<Item = &'r Rule> + Copy,
        now: u64,
    ) -> u64 {
        for place in self.shape().cells_of(group) {
            self.forget_at(place, rules, now);
        }
        let of_group = self.iter().filter(|view| view.group == group);
        of_group
            .filter(|view| self.forget_if_tracked(view, rules, now))
            .count() as u64
    }

    /// Resets a slot's states; returns whether one had not decayed.
    fn forget_if_tracked<'r>(
        &self,
        view: &SlotView,
        rules: impl IntoIterator<Item = &'r Rule> + Copy,
        now: u64,
    ) -> bool {
        let is_tracked = rules
            .into_iter()
            .any(|rule| is_alive(view.words[usize::from(rule.position)], now));
        let slots = self.shape().slots();
        let place = Place {
            set: view.number / slots,
            word: self.shape().slot(view.number % slots),
        };
        self.forget_at(place, rules, now);
        is_tracked
    }

    fn forget_at<'r>(&self, place: Place, rules: impl IntoIterator<Item = &'r Rule>, now: u64) {
        let first = self.set(place.set) + place.word as usize;
        for rule in rules {
            for word in 0..rule.words() {
                self.word(first + usize::from(rule.position) + word)
                    .store(now, Ordering::SeqCst);
            }
            let number = self.shape().slot_number(place.set, place.word);
            self.ring(number, rule)
                .for_each(|word| word.store(now, Ordering::SeqCst));
        }
    }
}
