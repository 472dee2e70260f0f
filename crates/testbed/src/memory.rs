//! A host in memory instead of the kernel's maps, with the same memory orderings and a settable clock.

use common::key::{Hash, HashSeed, Key};
use common::limiter::{Algorithm, AnyLimiter, Costs, Rate};
use common::rule::{Rule, Size};
use common::table::{Counted, Set, Shape, SlotCounter, Tally};
use common::throttle::{Cell, FullTable, Host, Outcome, PacketState, Sample, Steps, TableEvent};
use common::time::{TickScale, Ticks, is_alive};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The number of cells of each group.
pub const CELLS: u32 = 1 << 12;

/// A rule for whole addresses.
pub const MASKS: Rule = Rule {
    mask_hi: u64::MAX,
    mask_lo: u64::MAX,
    mask_ipv4: u32::MAX,
    ..Rule::EMPTY
};

/// A rule of every algorithm with this rate, by whole address: its name, the rule, and the words of its ring.
pub fn of_every_algorithm(rate: Rate) -> Vec<(&'static str, Rule, u32)> {
    let rule = |algorithm: &Algorithm| {
        let limiter = AnyLimiter::new(
            *algorithm,
            rate,
            rate.count,
            Costs::Single,
            TickScale::FINEST,
        );
        let ring = algorithm.ring_words(rate.count) as u32;
        (
            algorithm.name(),
            MASKS.with_parameters(*algorithm, limiter.parameters()),
            ring,
        )
    };
    Algorithm::ALL.iter().map(rule).collect()
}

pub struct Memory {
    pub rules: Vec<Rule>,
    pub words: Vec<AtomicU64>,
    pub rings: Vec<AtomicU64>,
    pub shape: Shape,
    pub ring_words: u32,
    pub clock: AtomicU64,
    /// By which keys have their places.
    pub seed: HashSeed,
    /// Ticks, as [`Memory::clock`].
    pub room_until: AtomicU64,
    /// A thread yields before one in this many of its changes of a state; never if 0.
    pub delay_one_in: u64,
    /// The same before it reads a place of a log.
    pub delay_loads_one_in: u64,
    pub counts: [AtomicU64; 5],
    pub events: [AtomicU64; 5],
}

impl Memory {
    /// With the rules of a policy.
    pub fn new(rules: Vec<Rule>, sets: u32, slot_words: u32, ring_words: u32) -> Self {
        Self::of_rows(
            rules.into_iter().map(Rule::made_fast).collect(),
            sets,
            slot_words,
            ring_words,
        )
    }

    pub fn of_rows(rules: Vec<Rule>, sets: u32, slot_words: u32, ring_words: u32) -> Self {
        Self::cut(rules, sets, slot_words, ring_words, CELLS)
    }

    /// Like [`Memory::new`], with this many cells for each group.
    pub fn with_cells(
        rules: Vec<Rule>,
        sets: u32,
        slot_words: u32,
        ring_words: u32,
        cells: u32,
    ) -> Self {
        Self::cut(
            rules.into_iter().map(Rule::made_fast).collect(),
            sets,
            slot_words,
            ring_words,
            cells,
        )
    }

    fn cut(rules: Vec<Rule>, sets: u32, slot_words: u32, ring_words: u32, cells: u32) -> Self {
        let groups = rules
            .iter()
            .map(|rule| u32::from(rule.group) + 1)
            .max()
            .unwrap_or(1);
        let shape = Shape {
            sets,
            slot_words,
            groups,
            cells,
        };
        let slots = shape.all_slots();
        Self {
            rules,
            words: (0..slots * slot_words).map(|_| AtomicU64::new(0)).collect(),
            rings: (0..slots * ring_words).map(|_| AtomicU64::new(0)).collect(),
            shape,
            ring_words,
            clock: AtomicU64::new(1 << 40),
            room_until: AtomicU64::new(0),
            seed: HashSeed::of_number(1),
            delay_one_in: 0,
            delay_loads_one_in: 0,
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
}

/// Simulates preemption between reading a state and changing it, once in this many changes.
fn delay(one_in: u64) {
    thread_local!(static CHANGES: std::cell::Cell<u64> = const { std::cell::Cell::new(0) });
    let changes = CHANGES.get() + 1;
    CHANGES.set(changes);
    if changes.checked_rem(one_in) == Some(0) {
        std::thread::yield_now();
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
        delay(self.1);
        match self
            .word(word)
            .compare_exchange(current, new, SeqCst, SeqCst)
        {
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
    fn count(self, word: u32, counter: SlotCounter, packets: u32, instant: u8) -> Counted {
        let byte = match counter {
            SlotCounter::Passed => 0,
            SlotCounter::Refused => 1,
        };
        count_byte(self.word(word), byte, packets, instant)
    }
}

fn count_byte(word: &AtomicU64, byte: u32, packets: u32, instant: u8) -> Counted {
    let shift = 8 * byte;
    let mut counted = None;
    word.fetch_update(SeqCst, SeqCst, |word| {
        let (tally, came_to) = Tally((word >> shift) as u8).plus(packets, instant);
        counted = Some(came_to);
        Some(word & !(0xff << shift) | u64::from(tally.0) << shift)
    })
    .unwrap();
    counted.unwrap()
}

#[derive(Clone, Copy)]
pub struct CellRef<'a> {
    word: &'a AtomicU64,
    delay_one_in: u64,
    delay_loads_one_in: u64,
}

impl Cell for CellRef<'_> {
    fn load(self) -> u64 {
        delay(self.delay_loads_one_in);
        self.word.load(SeqCst)
    }
    fn compare_exchange(self, current: u64, new: u64) -> u64 {
        delay(self.delay_one_in);
        match self.word.compare_exchange(current, new, SeqCst, SeqCst) {
            Ok(found) | Err(found) => found,
        }
    }
    fn store(self, value: u64) {
        self.word.store(value, SeqCst);
    }
    fn count(self, byte: u32, packets: u32, instant: u8) -> Counted {
        count_byte(self.word, byte, packets, instant)
    }
}

impl<'m> Host for &'m Memory {
    type Set = SetRef<'m>;
    type Cell = CellRef<'m>;

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
        self.rings.get(index as usize).map(|word| CellRef {
            word,
            delay_one_in: self.delay_one_in,
            delay_loads_one_in: self.delay_loads_one_in,
        })
    }
    fn now(&self) -> Ticks {
        self.clock.load(SeqCst)
    }
    fn shape(&self) -> Shape {
        self.shape
    }
    fn hash(&self, key: &Key) -> Hash {
        self.seed.hash(key)
    }
    fn ring_words(&self) -> u32 {
        self.ring_words
    }
    fn most_rules(&self) -> u32 {
        self.rules.len() as u32
    }
    fn has_room(&self, now: Ticks) -> bool {
        is_alive(self.room_until.load(SeqCst), now)
    }
    fn count(&self, _counter: u32, outcome: Outcome, _size: Size) {
        self.counts[outcome as usize].fetch_add(1, SeqCst);
    }
    fn fair_in_use(&self) -> bool {
        self.rules.iter().any(Rule::is_fair)
    }
    fn note(&self, event: TableEvent) {
        self.events[event as usize].fetch_add(1, SeqCst);
    }
    fn scale(&self) -> TickScale {
        TickScale::FINEST
    }
    fn may_sample(&self, _now: Ticks) -> bool {
        false
    }
    fn sample(&self, _sample: &Sample<'_>) {}
}

impl FullTable for &Memory {}

/// A thread's state of a packet, which stays from one step to the next, as a CPU's does in the kernel.
pub struct OwnState(Box<PacketState>);

thread_local!(static STATE: std::cell::Cell<Option<Box<PacketState>>> = const { std::cell::Cell::new(None) });

impl Deref for OwnState {
    type Target = PacketState;

    fn deref(&self) -> &PacketState {
        &self.0
    }
}

impl DerefMut for OwnState {
    fn deref_mut(&mut self) -> &mut PacketState {
        &mut self.0
    }
}

impl Drop for OwnState {
    fn drop(&mut self) {
        STATE.set(Some(std::mem::take(&mut self.0)));
    }
}

impl Steps for &Memory {
    type PacketState = OwnState;

    fn packet_state(&self) -> Option<OwnState> {
        Some(OwnState(STATE.take().unwrap_or_default()))
    }
}
