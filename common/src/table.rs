//! The table of sources: its slots, and which keys may be evicted.
//!
//! A decayed state equals no state: removing it changes no verdict. So the table only contains sources whose allowance
//! is not full at this moment, and knows which slots are free: those whose state has decayed. A flood of forged
//! sources, each seen once, occupies (packets a second × emission interval) slots and evicts no other source.
//!
//! The table is an array of sets of slots. A slot has 2, 4 or 8 words: a head, and the states of all limits with the
//! same key. With up to seven limits a slot is one cache line, and a set has four. With one limit, four slots are a
//! cache line and a set is two neighbouring ones. A key is looked up, and inserted if there is room, first in the line
//! that its hash selects. In a half-full table only one key in a hundred finds its set full; with sets of one line it
//! would be one in twenty-seven (by the tail of the Poisson distribution). That key takes a slot in its alternate set, if
//! there is room: one of the seven (or three) next to its home set, by its hash. Four keys in ten thousand find both
//! full. As in a cuckoo filter (Fan, Andersen, Kaminsky and Mitzenmacher, CoNEXT 2014), each set of the two follows from
//! the other and the tag. A head is
//!
//! ```text
//! 63    33 32    31    30     16 15        8 7         0
//! hash     home  lock  group     refused     passed
//! ```
//!
//! where each counter is a [`Tally`], whose full steps the caller adds up, and home is 0 for a key in its alternate
//! set. The lock is in the first head of a set. In the nth other head, the same bit says that keys of this set may be in
//! the set at distance n; the alternate set of a new key is only read if it is set. If hash and home are 0, the slot is
//! free. With slots of two words, which have one state, `refused` counts its refusals.
//! In wider slots each state has a separate byte, in a word before the slot's rings, and `refused` stays 0.
//!
//! Updates of states are lock-free. Only taking a slot locks the set, by compare-and-swap with a bounded number of
//! attempts, so that two CPUs with packets of one new source never create two buckets for it.
//!
//! The kernel uses this on a BPF array, user space on its own memory, and the tests on both.

use crate::key::{Hash, Key};

mod claim;

pub use claim::{Claim, Claimed, Request, life_of};

/// The most slots of a set.
const MOST_SLOTS: u32 = 8;
/// Slots of two words in a cache line.
const LINE: u32 = 4;
/// Words of the widest slot.
pub const WIDEST_SLOT: u32 = 8;
/// Words of the widest set, and of an element of the kernel's array, which holds one or two sets.
pub const ELEMENT_WORDS: u32 = 4 * WIDEST_SLOT;
/// Replaces the first word of a slot: there is none.
pub const NO_SLOT: u32 = u32::MAX;
/// How often a CPU retries on a set that another one has locked.
pub const LOCK_TRIES: u32 = 64;

/// The slot of each line that groups of long lives leave to those of short ones, if a table has both.
const KEPT: u32 = 3;

/// In the first head of a set: a CPU is taking a slot of it. In the nth other head: keys of this set may be in its nth
/// alternate set.
pub const LOCK: u64 = 1 << 31;
/// The bits of a head that identify the key.
const TAG: u64 = !(LOCK | 0xffff);
const GROUP: u64 = 0x7fff_0000;
const HASH: u64 = 0xffff_ffff << 32;
/// Set in the head of a key that is in its home set.
const AT_HOME: u64 = 1 << 32;

/// The counters in a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotCounter {
    /// Packets of this key that passed.
    Passed,
    /// Packets of this key that were refused, or would have been refused; in slots of two words only.
    Refused,
}

/// A byte that counts packets modulo [`Tally::STEP`] in its lower six bits. The upper two are the last count's instant
/// on a coarse clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Tally(pub u8);

/// The result of a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Packets in full steps of [`Tally::STEP`], which the caller adds elsewhere.
    pub carried: u32,
    /// Packets since the last full step.
    pub rest: u32,
    /// The byte has not counted before, or not since the coarse clock has advanced.
    pub is_due: bool,
}

impl Tally {
    /// The number of packets in a full step.
    pub const STEP: u32 = 64;

    /// Counts packets at an instant of the coarse clock, 0 to 3.
    #[inline(always)]
    #[must_use]
    pub const fn plus(self, packets: u32, instant: u8) -> (Self, Counted) {
        let sum = (self.0 as u32 & (Self::STEP - 1)).wrapping_add(packets);
        let rest = sum & (Self::STEP - 1);
        let next = rest as u8 | (instant & 3) << 6;
        let is_due = self.0 == 0 || (self.0 ^ next) >> 6 != 0;
        (
            Self(next),
            Counted {
                carried: sum & !(Self::STEP - 1),
                rest,
                is_due,
            },
        )
    }

    /// The packets since the last full step.
    #[must_use]
    pub const fn rest(self) -> u8 {
        self.0 & (Self::STEP - 1) as u8
    }
}

/// A set of the table, shared by CPUs. Word indices start at 0.
pub trait Set: Copy {
    /// Reads a word.
    fn load(self, word: u32) -> u64;
    /// Writes a word of a slot that the caller has locked.
    fn store(self, word: u32, value: u64);
    /// Replaces `current` by `new` and returns the previous value: `current` if it was replaced. Sequentially
    /// consistent.
    fn compare_exchange(self, word: u32, current: u64, new: u64) -> u64;
    /// Writes a word and returns its previous value. Sequentially consistent.
    fn exchange(self, word: u32, value: u64) -> u64;
    /// Sets bits of a word and returns its previous value. Sequentially consistent.
    fn fetch_or(self, word: u32, bits: u64) -> u64;
    /// Clears all but `bits` of a word. Sequentially consistent.
    fn and(self, word: u32, bits: u64);
    /// Returns `word`; `a` and `b` are equal. In the kernel, the verifier loses its knowledge of the slot here, so that
    /// it does not follow each slot separately.
    fn forget(self, word: u32, a: u64, b: u64) -> u32 {
        debug_assert_eq!(a, b, "equal by what the caller has compared");
        word
    }
    /// Adds packets to a counter of a head without changing the rest; of two simultaneous CPUs, one's packets may be
    /// lost. `instant` is for [`Tally::plus`].
    fn count(self, word: u32, counter: SlotCounter, packets: u32, instant: u8) -> Counted;
}

/// The division of the table into sets and slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Shape {
    /// The number of sets that hashes select.
    pub sets: u32,
    /// Words of a slot: 2, 4 or 8.
    pub slot_words: u32,
    /// The number of groups with cells: more than the highest group number.
    pub groups: u32,
    /// The number of cells of each group, at least 1.
    pub cells: u32,
}

/// The location of a slot or a cell: a set, and the slot's first word in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Place {
    /// The index of the set.
    pub set: u32,
    /// First word of the slot.
    pub word: u32,
}

/// The head of a key's slot without counters and lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Tag(pub u64);

impl Tag {
    /// The tag of a key with this hash.
    #[inline(always)]
    #[must_use]
    pub fn new(hash: Hash, key: &Key) -> Self {
        // At home, no key looks like a free slot.
        Self(hash.0 & HASH | AT_HOME | u64::from(key.group) << 16 & GROUP)
    }

    /// The bits of a head that identify its key.
    #[must_use]
    pub const fn of_head(head: u64) -> Self {
        Self(head & TAG)
    }

    /// The group in the head of a slot; `None` if it is free.
    #[must_use]
    pub fn group(head: u64) -> Option<u32> {
        (!Self::is_free(head)).then_some(((head & GROUP) >> 16) as u32)
    }

    /// Whether a head is that of a free slot.
    #[inline(always)]
    #[must_use]
    pub const fn is_free(head: u64) -> bool {
        head & HASH == 0
    }

    /// The line of its set in which the key is looked up first: a bit of the hash that is neither used for the set nor
    /// equal in all tags.
    #[inline(always)]
    const fn line(self) -> u32 {
        (self.0 >> 33) as u32 & 1
    }

    /// The tag of the same key in its alternate set. For one key in 2³¹, this is a free slot's: it has no alternate set.
    #[inline(always)]
    #[must_use]
    pub const fn in_alternate(self) -> Self {
        Self(self.0 & !AT_HOME)
    }

    /// Whether this is the tag of a key in its alternate set.
    #[inline(always)]
    const fn is_alternate(self) -> bool {
        self.0 & AT_HOME == 0 && !Self::is_free(self.0)
    }

    /// Whether this is the head of this key.
    #[inline(always)]
    #[must_use]
    pub fn matches(self, head: u64) -> bool {
        head & TAG == self.0
    }
}

impl Shape {
    /// The set of a key: the hash's lower half as a fraction of all sets.
    #[inline(always)]
    #[must_use]
    pub fn set(&self, hash: Hash) -> u32 {
        (((hash.0 & 0xffff_ffff) * u64::from(self.sets)) >> 32) as u32
    }

    /// The distance between a key's home set and its alternate set: from 1 to the number of a set's other slots.
    #[inline(always)]
    const fn distance(&self, tag: Tag) -> u32 {
        // Bits of the hash that [`Tag::line`] does not use.
        1 + (((tag.0 >> 34 & 0xff) as u32 * (self.slots() - 1)) >> 8)
    }

    /// The alternate set of a key in its home set, and the home set of a key in its alternate set. At the end of the
    /// table it may not exist: then no key is there.
    #[inline(always)]
    #[must_use]
    pub const fn other_set(&self, set: u32, tag: Tag) -> u32 {
        set ^ self.distance(tag)
    }

    /// The home set of a key in `set`, and its tag there.
    #[inline(always)]
    #[must_use]
    pub const fn home(&self, set: u32, tag: Tag) -> (u32, Tag) {
        if tag.is_alternate() {
            (self.other_set(set, tag), Tag(tag.0 | AT_HOME))
        } else {
            (set, tag)
        }
    }

    /// The word of its home set with the mark that a key may be in its alternate set.
    #[inline(always)]
    const fn mark(&self, tag: Tag) -> u32 {
        self.slot(self.distance(tag))
    }

    /// Whether the key may be in its alternate set.
    #[inline(always)]
    #[must_use]
    pub fn may_be_in_alternate(&self, home: impl Set, tag: Tag) -> bool {
        home.load(self.mark(tag)) & LOCK != 0
    }

    /// The number of sets in the whole table.
    #[must_use]
    pub const fn all_sets(&self) -> u32 {
        // One more for each group: see `latest`.
        self.sets + (self.groups * (self.cells + 1)).div_ceil(self.slots())
    }

    /// Whether each state of a slot has a separate byte for its refusals, in the first word of the slot's rings.
    #[inline(always)]
    #[must_use]
    pub const fn has_refusal_words(&self) -> bool {
        self.slot_words > 2
    }

    /// The number of slots in a set.
    #[inline(always)]
    #[must_use]
    pub const fn slots(&self) -> u32 {
        if self.slot_words == 2 { MOST_SLOTS } else { 4 }
    }

    /// The location of a set in an array of elements of [`ELEMENT_WORDS`]: (element, its first word there).
    #[inline(always)]
    #[must_use]
    pub const fn element(&self, set: u32) -> (u32, u32) {
        match self.slot_words {
            2 | 4 => (set >> 1, (set & 1) * (ELEMENT_WORDS / 2)),
            _ => (set, 0),
        }
    }

    /// The nth cell of a key, by its set and tag. Both are in the slot, so that the cell of an evicted key can be
    /// found.
    #[inline(always)]
    #[must_use]
    pub fn cell(&self, set: u32, tag: Tag, nth: u32) -> Place {
        // The finalizer of SplitMix64, then double hashing.
        let mut mixed = (tag.0 >> 32 << 32 | u64::from(set)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^= mixed >> 32;
        let hash = (mixed as u32).wrapping_add(nth.wrapping_mul((mixed >> 32) as u32 | 1));
        let cell = ((u64::from(hash) * u64::from(self.cells)) >> 32) as u32;
        self.behind_sets(self.region(tag) + 1 + cell)
    }

    /// The first word of a group's cells: a slot whose first state is an upper bound for when the last cell has
    /// decayed.
    #[inline(always)]
    #[must_use]
    pub fn latest(&self, tag: Tag) -> Place {
        self.behind_sets(self.region(tag))
    }

    /// All cells of a group.
    pub fn cells_of(&self, group: u32) -> impl Iterator<Item = Place> + use<> {
        let shape = *self;
        let first = shape.region(Tag(u64::from(group) << 16 & GROUP)) + 1;
        (first..first + shape.cells).map(move |nth| shape.behind_sets(nth))
    }

    #[inline(always)]
    const fn region(&self, tag: Tag) -> u32 {
        let group = ((tag.0 & GROUP) >> 16) as u32;
        (if group < self.groups { group } else { 0 }) * (self.cells + 1)
    }

    #[inline(always)]
    const fn behind_sets(&self, nth: u32) -> Place {
        let shift = if self.slots() == MOST_SLOTS { 3 } else { 2 };
        Place {
            set: self.sets + (nth >> shift),
            word: self.slot(nth & (self.slots() - 1)),
        }
    }

    /// The number of array elements for the whole table.
    #[must_use]
    pub const fn elements(&self) -> u32 {
        self.element(self.all_sets() - 1).0 + 1
    }

    /// The number of slots that hashes select: the most keys in the table.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.sets as u64 * self.slots() as u64
    }

    /// The number of slots in the whole table.
    #[must_use]
    pub const fn all_slots(&self) -> u32 {
        self.all_sets() * self.slots()
    }

    /// The first word of the set's nth slot.
    #[inline(always)]
    #[must_use]
    pub const fn slot(&self, nth: u32) -> u32 {
        nth * self.slot_words
    }

    /// The first word of the nth slot in a key's look-up order.
    #[inline(always)]
    fn nth_of(&self, tag: Tag, nth: u32) -> u32 {
        let line = if self.slots() == MOST_SLOTS {
            tag.line() * LINE
        } else {
            0
        };
        self.slot(nth ^ line)
    }

    /// The index of a slot in the table, by its set's index and its first word.
    #[inline(always)]
    #[must_use]
    pub const fn slot_number(&self, set: u32, slot: u32) -> u32 {
        let nth = match self.slot_words {
            2 => slot >> 1,
            4 => slot >> 2,
            _ => slot >> 3,
        };
        set * self.slots() + nth
    }

    /// The first word of the slot of `tag`; [`NO_SLOT`] if the set has none.
    #[inline(always)]
    #[must_use]
    pub fn find(&self, set: impl Set, tag: Tag) -> u32 {
        for nth in 0..MOST_SLOTS {
            if nth >= self.slots() {
                break;
            }
            let slot = self.nth_of(tag, nth);
            let found = set.load(slot) & TAG;
            if found == tag.0 {
                return set.forget(slot, found, tag.0);
            }
        }
        NO_SLOT
    }

    /// The set of a key's slot, the key's tag there, and the first word of the slot; [`NO_SLOT`] and the home set if it
    /// has none.
    pub fn locate<S: Set>(&self, sets: impl Fn(u32) -> S, home: u32, tag: Tag) -> (u32, Tag, u32) {
        let slot = self.find(sets(home), tag);
        if slot == NO_SLOT && self.may_be_in_alternate(sets(home), tag) {
            let (set, tag) = (self.other_set(home, tag), tag.in_alternate());
            let slot = self.find(sets(set), tag);
            if slot != NO_SLOT {
                return (set, tag, slot);
            }
        }
        (home, tag, slot)
    }
}
