//! A table of sources in memory.

use std::cell::Cell;

use common::settings::Settings;
use common::table::{Counted, Set, SlotCounter, Tally};
use common::throttle;
use datapath::memory;

/// Memory for a table of sources.
#[derive(Debug)]
pub struct TableMemory {
    words: Vec<u64>,
    rings: Vec<u64>,
}

impl TableMemory {
    /// Memory for the policy's table. The system allocates its pages on first use.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        let slots = settings.shape.all_slots() as usize;
        let mut words = vec![0; slots * settings.shape.slot_words as usize];
        memory::prefer_huge_pages(&mut words);
        Self {
            words,
            rings: vec![0; slots * settings.ring_words as usize],
        }
    }

    /// The table, shared by the programs of both directions.
    pub fn table(&mut self) -> Table<'_> {
        Table {
            words: Cell::from_mut(self.words.as_mut_slice()).as_slice_of_cells(),
            rings: Cell::from_mut(self.rings.as_mut_slice()).as_slice_of_cells(),
        }
    }
}

/// A table of sources that one thread uses.
#[derive(Clone, Copy, Debug)]
pub struct Table<'m> {
    pub(super) words: &'m [Cell<u64>],
    pub(super) rings: &'m [Cell<u64>],
}

/// A set of the table.
#[derive(Clone, Copy)]
pub struct MemorySet<'m>(pub(super) &'m [Cell<u64>]);

impl MemorySet<'_> {
    #[inline(always)]
    fn change(self, word: u32, change: impl FnOnce(u64) -> u64) -> u64 {
        let cell = &self.0[word as usize];
        let found = cell.get();
        cell.set(change(found));
        found
    }
}

impl Set for MemorySet<'_> {
    #[inline(always)]
    fn load(self, word: u32) -> u64 {
        self.0[word as usize].get()
    }

    #[inline(always)]
    fn store(self, word: u32, value: u64) {
        self.0[word as usize].set(value);
    }

    #[inline(always)]
    fn compare_exchange(self, word: u32, current: u64, new: u64) -> u64 {
        self.change(word, |found| if found == current { new } else { found })
    }

    #[inline(always)]
    fn exchange(self, word: u32, value: u64) -> u64 {
        self.change(word, |_| value)
    }

    #[inline(always)]
    fn fetch_or(self, word: u32, bits: u64) -> u64 {
        self.change(word, |found| found | bits)
    }

    #[inline(always)]
    fn and(self, word: u32, bits: u64) {
        self.change(word, |found| found & bits);
    }

    #[inline(always)]
    fn count(self, word: u32, counter: SlotCounter, packets: u32, instant: u8) -> Counted {
        let byte = match counter {
            SlotCounter::Passed => 0,
            SlotCounter::Refused => 1,
        };
        count_byte(&self.0[word as usize], byte, packets, instant)
    }
}

/// Adds to one of the eight tallies in a word.
#[inline(always)]
fn count_byte(word: &Cell<u64>, byte: u32, packets: u32, instant: u8) -> Counted {
    let shift = 8 * (byte & 7);
    let (tally, counted) = Tally((word.get() >> shift) as u8).plus(packets, instant);
    word.set(word.get() & !(0xff << shift) | u64::from(tally.0) << shift);
    counted
}

/// A word of memory.
#[derive(Clone, Copy)]
pub struct MemoryCell<'m>(pub(super) &'m Cell<u64>);

impl throttle::Cell for MemoryCell<'_> {
    #[inline(always)]
    fn load(self) -> u64 {
        self.0.get()
    }

    #[inline(always)]
    fn compare_exchange(self, current: u64, new: u64) -> u64 {
        let found = self.0.get();
        if found == current {
            self.0.set(new);
        }
        found
    }

    #[inline(always)]
    fn store(self, value: u64) {
        self.0.set(value);
    }

    #[inline(always)]
    fn count(self, byte: u32, packets: u32, instant: u8) -> Counted {
        count_byte(self.0, byte, packets, instant)
    }
}
