//! The host of an evaluation, on loom's atomics.

use std::cell::Cell as Local;

use common::connections::{Ledger, Reservation, Tuple};
use common::key::{Hash, HashSeed, Key};
use common::rule::{Rule, Size};
use common::table::{Counted, LOCK, Set, Shape, SlotCounter};
use common::throttle::{Cell, FullTable, Host, Outcome, PacketState, Sample, Steps, TableEvent};
use common::time::{TickScale, Ticks};
use loom::sync::atomic::Ordering::{Relaxed, SeqCst};
use loom::sync::atomic::{AtomicU64, fence};

/// The number of cells of each group.
const CELLS: u32 = 8;

/// A tally that counts nothing: it changes no verdict.
const UNCOUNTED: Counted = Counted {
    carried: 0,
    rest: 0,
    is_due: false,
};

/// The memory that all CPUs share.
pub struct Memory {
    rules: Vec<Rule>,
    shape: Shape,
    words: Vec<AtomicU64>,
    ring_words: u32,
    rings: Vec<AtomicU64>,
    /// The open connections and the reservations of each group.
    connections: Vec<[AtomicU64; 2]>,
}

impl Memory {
    /// A table for these rules.
    #[must_use]
    pub fn table(rules: Vec<Rule>, sets: u32, slot_words: u32, ring_words: u32) -> Self {
        let groups = rules.iter().map(|rule| u32::from(rule.group) + 1).max();
        let shape = Shape {
            sets,
            slot_words,
            groups: groups.unwrap_or(1),
            cells: CELLS,
        };
        Self {
            words: zeros(shape.all_slots() * slot_words),
            rings: zeros(shape.all_slots() * ring_words),
            connections: Vec::new(),
            rules,
            shape,
            ring_words,
        }
    }

    /// The counts of connections of these rules, which are of different groups.
    #[must_use]
    pub fn connections(rules: Vec<Rule>) -> Self {
        Self {
            shape: Shape {
                sets: 0,
                slot_words: 2,
                groups: 0,
                cells: 1,
            },
            words: Vec::new(),
            rings: Vec::new(),
            connections: rules
                .iter()
                .map(|_| [AtomicU64::new(0), AtomicU64::new(0)])
                .collect(),
            rules,
            ring_words: 0,
        }
    }

    /// The shape of the table.
    #[must_use]
    pub const fn shape(&self) -> Shape {
        self.shape
    }

    /// The number of rules.
    #[must_use]
    pub const fn rules(&self) -> usize {
        self.rules.len()
    }

    /// The open connections of a key.
    #[must_use]
    pub fn open(&self, key: &Key) -> &AtomicU64 {
        &self.connections[key.group as usize][0]
    }

    /// The reservations of a key.
    #[must_use]
    pub fn pending(&self, key: &Key) -> Word<'_> {
        Word(&self.connections[key.group as usize][1])
    }

    /// A set of the table.
    #[must_use]
    pub fn set(&self, number: u32) -> Option<SetRef<'_>> {
        let words = (self.shape.slots() * self.shape.slot_words) as usize;
        let first = number as usize * words;
        self.words.get(first..first + words).map(SetRef)
    }
}

fn zeros(count: u32) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

/// An exchange orders what is before it and what is behind it, as the kernel's do. Loom takes `SeqCst` of an access for
/// acquire and release, so that this needs fences.
fn ordered<R>(exchange: impl FnOnce() -> R) -> R {
    fence(SeqCst);
    let result = exchange();
    fence(SeqCst);
    result
}

/// A word that CPUs share.
#[derive(Clone, Copy, Debug)]
pub struct Word<'m>(pub &'m AtomicU64);

impl Cell for Word<'_> {
    fn load(self) -> u64 {
        self.0.load(Relaxed)
    }

    fn compare_exchange(self, current: u64, new: u64) -> u64 {
        ordered(
            || match self.0.compare_exchange(current, new, SeqCst, SeqCst) {
                Ok(found) | Err(found) => found,
            },
        )
    }

    fn store(self, value: u64) {
        self.0.store(value, Relaxed);
    }

    fn count(self, _byte: u32, _packets: u32, _instant: u8) -> Counted {
        UNCOUNTED
    }
}

/// A set of the table.
#[derive(Clone, Copy, Debug)]
pub struct SetRef<'m>(&'m [AtomicU64]);

impl<'m> SetRef<'m> {
    fn word(self, word: u32) -> Word<'m> {
        Word(&self.0[word as usize])
    }
}

impl Set for SetRef<'_> {
    fn load(self, word: u32) -> u64 {
        let found = self.word(word).load();
        if word == 0 && found & LOCK != 0 {
            // A locked set is awaited: the CPU that holds it makes progress.
            loom::thread::yield_now();
        }
        found
    }

    fn store(self, word: u32, value: u64) {
        self.word(word).store(value);
    }

    fn compare_exchange(self, word: u32, current: u64, new: u64) -> u64 {
        self.word(word).compare_exchange(current, new)
    }

    fn exchange(self, word: u32, value: u64) -> u64 {
        ordered(|| self.0[word as usize].swap(value, SeqCst))
    }

    fn fetch_or(self, word: u32, bits: u64) -> u64 {
        ordered(|| self.0[word as usize].fetch_or(bits, SeqCst))
    }

    fn and(self, word: u32, bits: u64) {
        ordered(|| self.0[word as usize].fetch_and(bits, SeqCst));
    }

    fn count(self, _: u32, _: SlotCounter, _: u32, _: u8) -> Counted {
        UNCOUNTED
    }
}

/// A CPU: the shared memory, and its own reading of the clock.
pub struct Cpu<'m> {
    /// The memory.
    pub memory: &'m Memory,
    /// The clock in ticks, or the window of reservations.
    pub now: Local<Ticks>,
    /// The packets that were counted as contended.
    pub contended: Local<u32>,
}

impl<'m> Cpu<'m> {
    /// A CPU that reads `now` from the clock.
    #[must_use]
    pub const fn at(memory: &'m Memory, now: Ticks) -> Self {
        Self {
            memory,
            now: Local::new(now),
            contended: Local::new(0),
        }
    }
}

impl<'m> Host for Cpu<'m> {
    type Set = SetRef<'m>;
    type Cell = Word<'m>;

    fn rule(&self, index: u32) -> Option<&Rule> {
        self.memory.rules.get(index as usize)
    }

    fn set(&self, index: u32) -> Option<SetRef<'m>> {
        self.memory.set(index)
    }

    fn cell(&self, index: u32) -> Option<Word<'m>> {
        self.memory.rings.get(index as usize).map(Word)
    }

    fn now(&self) -> Ticks {
        self.now.get()
    }

    fn shape(&self) -> Shape {
        self.memory.shape
    }

    fn hash(&self, key: &Key) -> Hash {
        HashSeed::of_number(1).hash(key)
    }

    fn ring_words(&self) -> u32 {
        self.memory.ring_words
    }

    fn most_rules(&self) -> u32 {
        self.memory.rules.len() as u32
    }

    fn has_room(&self, _now: Ticks) -> bool {
        false
    }

    fn count(&self, _counter: u32, outcome: Outcome, _size: Size) {
        if outcome == Outcome::Contended {
            self.contended.set(self.contended.get() + 1);
        }
    }

    fn note(&self, _event: TableEvent) {}

    fn scale(&self) -> TickScale {
        TickScale::FINEST
    }

    fn may_sample(&self, _now: Ticks) -> bool {
        false
    }

    fn sample(&self, _sample: &Sample<'_>) {}
}

impl FullTable for Cpu<'_> {}

impl Steps for Cpu<'_> {
    type PacketState = Box<PacketState>;

    fn packet_state(&self) -> Option<Box<PacketState>> {
        Some(Box::default())
    }
}

impl Ledger for Cpu<'_> {
    fn open_connections(&self, key: &Key) -> u64 {
        Word(self.memory.open(key)).load()
    }

    fn pending_connections(&self, key: &Key) -> Option<Self::Cell> {
        Some(self.memory.pending(key))
    }

    fn reserved_in(&self, _tuple: &Tuple) -> Option<u32> {
        None
    }

    fn remember(&self, _tuple: &Tuple, _reservation: &Reservation) {}

    fn window(&self) -> u32 {
        self.now.get() as u32
    }
}
