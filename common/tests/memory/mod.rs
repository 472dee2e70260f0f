//! A host in memory: what the kernel keeps in maps, with the same orderings, and a clock that is given.

use common::key::HashSeed;
use common::rule::{Rule, Size};
use common::table::{Set, Shape, SlotCounter};
use common::throttle::{Cell, Hearing, Host, Outcome, Sighting, TableEvent};
use common::time::{Ticks, is_alive};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Cells of each group.
pub const CELLS: u32 = 1 << 12;

pub struct Memory {
    pub rules: Vec<Rule>,
    pub words: Vec<AtomicU64>,
    pub rings: Vec<AtomicU64>,
    pub shape: Shape,
    pub ring_words: u32,
    pub clock: AtomicU64,
    /// Ticks, as [`Memory::clock`].
    pub room_until: AtomicU64,
    /// A thread gives way to the others before one in so many of its changes of a state; never if 0.
    pub delay_one_in: u64,
    pub counts: [AtomicU64; 4],
    pub events: [AtomicU64; 5],
}

impl Memory {
    /// Rules as a policy has them.
    pub fn new(rules: Vec<Rule>, sets: u32, slot_words: u32, ring_words: u32) -> Self {
        Self::of_rows(rules.into_iter().map(Rule::made_swift).collect(), sets, slot_words, ring_words)
    }

    pub fn of_rows(rules: Vec<Rule>, sets: u32, slot_words: u32, ring_words: u32) -> Self {
        Self::cut(rules, sets, slot_words, ring_words, CELLS)
    }

    /// As [`Memory::new`], with so many cells for each group.
    pub fn with_cells(rules: Vec<Rule>, sets: u32, slot_words: u32, ring_words: u32, cells: u32) -> Self {
        Self::cut(rules.into_iter().map(Rule::made_swift).collect(), sets, slot_words, ring_words, cells)
    }

    fn cut(rules: Vec<Rule>, sets: u32, slot_words: u32, ring_words: u32, cells: u32) -> Self {
        let groups = rules.iter().map(|rule| u32::from(rule.group) + 1).max().unwrap_or(1);
        let shape = Shape { sets, slot_words, groups, cells };
        let slots = shape.all_slots();
        Self {
            rules,
            words: (0..slots * slot_words).map(|_| AtomicU64::new(0)).collect(),
            rings: (0..slots * ring_words).map(|_| AtomicU64::new(0)).collect(),
            shape,
            ring_words,
            clock: AtomicU64::new(1 << 40),
            room_until: AtomicU64::new(0),
            delay_one_in: 0,
            counts: Default::default(),
            events: Default::default(),
        }
    }

    pub fn counted(&self, outcome: Outcome) -> u64 {
        self.counts[outcome as usize].load(SeqCst)
    }

    pub fn noted(&self, event: TableEvent) -> u64 {
        self.events[event as usize].load(SeqCst)
    }
}

#[derive(Clone, Copy)]
pub struct SetRef<'a>(&'a [AtomicU64], u64);

impl SetRef<'_> {
    fn word(&self, word: u32) -> &AtomicU64 {
        &self.0[word as usize]
    }

    /// What preemption between reading a state and changing it comes to.
    fn delay(&self) {
        thread_local!(static CHANGES: std::cell::Cell<u64> = const { std::cell::Cell::new(0) });
        let changes = CHANGES.get() + 1;
        CHANGES.set(changes);
        if changes.checked_rem(self.1) == Some(0) {
            std::thread::yield_now();
        }
    }
}

impl Set for SetRef<'_> {
    fn load(self, word: u32) -> u64 {
        self.word(word).load(SeqCst)
    }
    fn store(self, word: u32, value: u64) {
        self.word(word).store(value, SeqCst);
    }
    fn compare_exchange(self, word: u32, current: u64, new: u64) -> u64 {
        self.delay();
        match self.word(word).compare_exchange(current, new, SeqCst, SeqCst) {
            Ok(found) | Err(found) => found,
        }
    }
    fn exchange(self, word: u32, value: u64) -> u64 {
        self.word(word).swap(value, SeqCst)
    }
    fn fetch_or(self, word: u32, bits: u64) -> u64 {
        self.word(word).fetch_or(bits, SeqCst)
    }
    fn and(self, word: u32, bits: u64) {
        self.word(word).fetch_and(bits, SeqCst);
    }
    fn count(self, word: u32, counter: SlotCounter) -> u8 {
        let shift = match counter {
            SlotCounter::Passed => 0,
            SlotCounter::Refused => 8,
        };
        let mut count = 0;
        self.word(word)
            .fetch_update(SeqCst, SeqCst, |head| {
                count = ((head >> shift) as u8).wrapping_add(1);
                Some(head & !(0xff << shift) | u64::from(count) << shift)
            })
            .unwrap();
        count
    }
}

#[derive(Clone, Copy)]
pub struct CellRef<'a>(&'a AtomicU64);

impl Cell for CellRef<'_> {
    fn load(self) -> u64 {
        self.0.load(SeqCst)
    }
    fn compare_exchange(self, current: u64, new: u64) -> u64 {
        match self.0.compare_exchange(current, new, SeqCst, SeqCst) {
            Ok(found) | Err(found) => found,
        }
    }
}

impl<'m> Host for &'m Memory {
    type Set = SetRef<'m>;
    type Cell = CellRef<'m>;
    type Hearing = Box<Hearing>;

    fn rule(&self, index: u32) -> Option<&Rule> {
        self.rules.get(index as usize)
    }
    fn set(&self, index: u32) -> Option<SetRef<'m>> {
        self.words
            .chunks((self.shape.slots() * self.shape.slot_words) as usize)
            .nth(index as usize)
            .map(|words| SetRef(words, self.delay_one_in))
    }
    fn cell(&self, index: u32) -> Option<CellRef<'m>> {
        self.rings.get(index as usize).map(CellRef)
    }
    fn now(&self) -> Ticks {
        self.clock.load(SeqCst)
    }
    fn shape(&self) -> Shape {
        self.shape
    }
    fn seed(&self) -> HashSeed {
        HashSeed::new([0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb, 0x2545_f491_4f6c_dd1d])
    }
    fn ring_words(&self) -> u32 {
        self.ring_words
    }
    fn most_rules(&self) -> u32 {
        self.rules.len() as u32
    }
    fn hearing(&self) -> Option<Box<Hearing>> {
        Some(Box::default())
    }
    fn has_room(&self, now: Ticks) -> bool {
        is_alive(self.room_until.load(SeqCst), now)
    }
    fn count(&self, _counter: u32, outcome: Outcome, _size: Size) {
        self.counts[outcome as usize].fetch_add(1, SeqCst);
    }
    fn note(&self, event: TableEvent) {
        self.events[event as usize].fetch_add(1, SeqCst);
    }
    fn sight(&self, _sighting: &Sighting<'_>) {}
}
