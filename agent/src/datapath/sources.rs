//! The table of sources, read through shared memory: without a system call, and without disturbing a packet.

use aya::maps::MapData;
use common::key::Key;
use common::rule::{Algorithm, Rule};
use common::settings::Settings;
use common::table::{ELEMENT_WORDS, Place, Shape, Tag, WIDEST_SLOT};
use common::throttle::CELLS;
use common::time::is_alive;
use memmap2::{MmapOptions, MmapRaw};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::LoadError;

/// The mapped table, and the rings of its slots.
#[derive(Debug)]
pub struct Sources {
    pub(super) table: Words,
    pub(super) rings: Words,
    pub(super) settings: Settings,
}

/// A map of words, mapped into memory.
#[derive(Debug)]
pub(super) struct Words {
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

    /// Words of this process, all 0. A page takes memory once one of its words has been written.
    fn in_memory(count: usize) -> Result<Self, LoadError> {
        let memory = MmapOptions::new().len(count * size_of::<u64>()).no_reserve_swap().map_anon();
        let memory = MmapRaw::from(memory.map_err(LoadError::Mmap)?);
        // A kernel without huge pages refuses, and has none to give.
        let _ = memory.advise(memmap2::Advice::NoHugePage);
        Ok(Self { memory, count })
    }

    pub(super) fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.count, "word {index} of a map of {}", self.count);
        // SAFETY: within the mapping, which is page-aligned and lives as long as `self`; all access to it, here and in
        // the kernel, is by atomic or single-copy-atomic operations on aligned words.
        unsafe { AtomicU64::from_ptr(self.memory.as_mut_ptr().cast::<u64>().add(index)) }
    }
}

/// A slot as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotView {
    /// Which key counts here.
    pub group: u32,
    /// Packets that passed, modulo 64.
    pub passed: u8,
    /// Packets that were refused, modulo 64.
    pub refused: u8,
    /// The number of the slot in the table.
    pub number: u32,
    /// Head and states; only as many as the table's slots have words.
    pub words: [u64; WIDEST_SLOT as usize],
}

impl Sources {
    pub(super) fn map(table: &MapData, rings: &MapData, settings: Settings) -> Result<Self, LoadError> {
        let table = Words::map(table, settings.shape.elements() as usize * ELEMENT_WORDS as usize)?;
        let slots = settings.shape.all_slots() as usize;
        // A map has one word at least.
        let rings = Words::map(rings, (slots * settings.ring_words as usize).max(1))?;
        Ok(Self { table, rings, settings })
    }

    /// An empty table that is no kernel's.
    pub(super) fn in_memory(settings: Settings) -> Result<Self, LoadError> {
        let table = Words::in_memory(settings.shape.elements() as usize * ELEMENT_WORDS as usize)?;
        let slots = settings.shape.all_slots() as usize;
        let rings = Words::in_memory((slots * settings.ring_words as usize).max(1))?;
        Ok(Self { table, rings, settings })
    }

    pub(super) fn shape(&self) -> Shape {
        self.settings.shape
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        self.table.word(index)
    }

    /// The ring of a log rule in the slot with this number.
    fn ring(&self, slot: u32, rule: &Rule) -> impl Iterator<Item = &AtomicU64> {
        let first = slot as usize * self.settings.ring_words as usize + usize::from(rule.ring);
        (first..first + rule.most as usize).map(|word| self.rings.word(word))
    }

    /// What is in the ring of a log rule in the slot with this number.
    #[must_use]
    pub fn log(&self, slot: u32, rule: &Rule) -> Vec<u64> {
        self.ring(slot, rule).map(|word| word.load(Ordering::Relaxed)).collect()
    }

    /// First word of a set in the mapping.
    pub(super) fn set(&self, set: u32) -> usize {
        let (element, first) = self.shape().element(set);
        element as usize * ELEMENT_WORDS as usize + first as usize
    }

    fn view(&self, set: u32, slot: u32) -> Option<SlotView> {
        let first = self.set(set) + slot as usize;
        let mut words = [0; WIDEST_SLOT as usize];
        for (nth, word) in words.iter_mut().enumerate().take(self.shape().slot_words as usize) {
            *word = self.word(first + nth).load(Ordering::Relaxed);
        }
        Some(SlotView {
            group: Tag::group(words[0])?,
            passed: (words[0] & 63) as u8,
            refused: (words[0] >> 8 & 63) as u8,
            number: self.shape().slot_number(set, slot),
            words,
        })
    }

    /// The slot of a key, if it has one.
    #[must_use]
    pub fn find(&self, key: &Key) -> Option<SlotView> {
        let hash = self.settings.seed.hash(key);
        let tag = Tag::new(hash, key);
        let set = self.shape().set(hash);
        (0..self.shape().slots())
            .filter_map(|nth| self.view(set, self.shape().slot(nth)))
            .find(|view| tag.matches(view.words[0]))
    }

    /// Every slot in use, in the order of the table.
    pub fn iter(&self) -> impl Iterator<Item = SlotView> + '_ {
        (0..self.shape().sets).flat_map(move |set| {
            (0..self.shape().slots()).filter_map(move |nth| self.view(set, self.shape().slot(nth)))
        })
    }

    /// How many keys of each group have a state that has not decayed at `now`.
    #[must_use]
    pub fn tracked(&self, now: u64, groups: usize) -> Vec<u64> {
        let mut tracked = vec![0; groups];
        for view in self.iter() {
            let is_tracked = view.words[1..self.shape().slot_words as usize].iter().any(|state| is_alive(*state, now));
            if let (true, Some(count)) = (is_tracked, tracked.get_mut(view.group as usize)) {
                *count += 1;
            }
        }
        tracked
    }

    /// Forgets the states of one key under these rules: from now on it has its whole allowance. So have the keys that
    /// share its cells, if it had no slot. Returns whether it had one.
    pub fn reset<'r>(&self, key: &Key, rules: impl IntoIterator<Item = &'r Rule> + Copy, now: u64) -> bool {
        let view = self.find(key);
        if let Some(view) = &view {
            self.forget(view, rules, now);
        }
        let hash = self.settings.seed.hash(key);
        let (set, tag) = (self.shape().set(hash), Tag::new(hash, key));
        for nth in 0..CELLS {
            self.forget_at(self.shape().cell(set, tag, nth), rules, now);
        }
        view.is_some()
    }

    /// Forgets the states of every key of a group under these rules; how many keys had one that had not decayed.
    pub fn reset_all<'r>(&self, group: u32, rules: impl IntoIterator<Item = &'r Rule> + Copy, now: u64) -> u64 {
        for place in self.shape().cells_of(group) {
            self.forget_at(place, rules, now);
        }
        let of_group = self.iter().filter(|view| view.group == group);
        of_group
            .filter(|view| {
                let is_tracked = rules.into_iter().any(|rule| is_alive(view.words[usize::from(rule.position)], now));
                self.forget(view, rules, now);
                is_tracked
            })
            .count() as u64
    }

    fn forget<'r>(&self, view: &SlotView, rules: impl IntoIterator<Item = &'r Rule>, now: u64) {
        let slots = self.shape().slots();
        let place = Place { set: view.number / slots, word: self.shape().slot(view.number % slots) };
        self.forget_at(place, rules, now);
    }

    fn forget_at<'r>(&self, place: Place, rules: impl IntoIterator<Item = &'r Rule>, now: u64) {
        let first = self.set(place.set) + place.word as usize;
        for rule in rules {
            for word in 0..rule.words() {
                self.word(first + usize::from(rule.position) + word).store(now, Ordering::SeqCst);
            }
            if rule.is(Algorithm::SlidingLog) {
                let number = self.shape().slot_number(place.set, place.word);
                self.ring(number, rule).for_each(|word| word.store(now, Ordering::SeqCst));
            }
        }
    }
}
