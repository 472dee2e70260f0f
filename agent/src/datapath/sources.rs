//! The table of sources, read through shared memory: without a system call, and without disturbing a packet.

use aya::maps::MapData;
use common::key::Key;
use common::settings::Settings;
use common::table::{ELEMENT_WORDS, SLOTS, Shape, Tag, WIDEST_SLOT};
use common::time::is_alive;
use memmap2::{MmapOptions, MmapRaw};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::LoadError;

/// The mapped table.
#[derive(Debug)]
pub struct Sources {
    memory: MmapRaw,
    words: usize,
    settings: Settings,
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
    pub(super) fn map(map: &MapData, settings: Settings) -> Result<Self, LoadError> {
        let words = settings.shape.elements() as usize * ELEMENT_WORDS as usize;
        let memory = MmapOptions::new()
            .len(words * size_of::<u64>())
            .map_raw(map.fd().as_fd().as_raw_fd())
            .map_err(LoadError::Mmap)?;
        Ok(Self { memory, words, settings })
    }

    fn shape(&self) -> Shape {
        self.settings.shape
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.words, "word {index} of a table of {}", self.words);
        // SAFETY: within the mapping, which is page-aligned and lives as long as `self`; all access to it, here and in
        // the kernel, is by atomic or single-copy-atomic operations on aligned words.
        unsafe { AtomicU64::from_ptr(self.memory.as_mut_ptr().cast::<u64>().add(index)) }
    }

    /// First word of a set in the mapping.
    fn set(&self, set: u32) -> usize {
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
        (0..SLOTS).filter_map(|nth| self.view(set, self.shape().slot(nth))).find(|view| tag.matches(view.words[0]))
    }

    /// Every slot in use, in the order of the table.
    pub fn iter(&self) -> impl Iterator<Item = SlotView> + '_ {
        (0..self.shape().all_sets())
            .flat_map(move |set| (0..SLOTS).filter_map(move |nth| self.view(set, self.shape().slot(nth))))
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

    /// Forgets the states of one key: from now on it has its whole allowance. Returns whether it had a slot.
    pub fn reset(&self, key: &Key, now: u64) -> bool {
        let Some(view) = self.find(key) else { return false };
        let set = view.number / SLOTS;
        let first = self.set(set) + self.shape().slot(view.number % SLOTS) as usize;
        for nth in 1..self.shape().slot_words as usize {
            self.word(first + nth).store(now, Ordering::SeqCst);
        }
        true
    }
}
