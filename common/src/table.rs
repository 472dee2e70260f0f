//! The table of sources: who is where, and who may take whose place.
//!
//! A state that has decayed is no state: forgetting it changes no verdict. So the table holds only those sources whose
//! allowance is not whole at this moment, and knows exactly which places are free: those whose time has passed. A flood
//! of made-up sources, each seen once, occupies (packets a second × emission interval) places and pushes out nobody.
//!
//! The table is an array of sets of slots. A slot has 2, 4 or 8 words: a head, and the states of all limits that count by
//! the same key. With up to seven limits a slot is one cache line, and a set has four. With one limit, four slots are a
//! cache line and a set is two neighbouring ones: a key is looked for, and put if there is room, first in the line that
//! its hash names, so that of a table half full only one key in a hundred finds its set full, where it would be one in
//! twenty-seven if a set were one line (by the tail of the Poisson distribution). A head is
//!
//! ```text
//! 63        32 31    30     16 15        8 7         0
//! hash         lock  group     refused     passed
//! ```
//!
//! where the two counters are modulo 256 (the caller carries them on), and the lock is used in the first head of a set
//! only. A hash of 0 is a free slot.
//!
//! Updates of states are lock-free. Only taking a slot locks the set, by compare-and-swap with a bounded number of
//! tries, so that two CPUs that meet a new source at once never make two buckets for it.
//!
//! The kernel runs this on a BPF array; user space runs it on its own memory, and its tests on both.

use crate::key::{Hash, Key};
use crate::time::{Ticks, is_alive};

/// Slots of the set that has the most.
const MOST_SLOTS: u32 = 8;
/// Slots of two words in a cache line.
const LINE: u32 = 4;
/// Words of the widest slot.
pub const WIDEST_SLOT: u32 = 8;
/// Words of the widest set, and of an element of the kernel's array, which holds one or two sets.
pub const ELEMENT_WORDS: u32 = 4 * WIDEST_SLOT;
/// In place of the first word of a slot: there is none.
pub const NO_SLOT: u32 = u32::MAX;
/// How often a CPU looks again at a set that another one has locked.
pub const LOCK_TRIES: u32 = 64;

/// Of each line, the slot that groups of long lives leave to those of short ones, where a table has both.
const KEPT: u32 = 3;

/// Set in the first head of a set while somebody takes a slot of it.
pub const LOCK: u64 = 1 << 31;
/// What of a head names the key.
const TAG: u64 = !(LOCK | 0xffff);
const GROUP: u64 = 0x7fff_0000;
const HASH: u64 = 0xffff_ffff << 32;
/// Groups are numbered below this.
pub const MAX_GROUPS: u32 = 1 << 15;

/// The counters in a head, and what they are modulo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotCounter {
    /// Packets of this key that passed.
    Passed,
    /// Packets of this key that were refused.
    Refused,
}

/// One set of the table, shared by CPUs. Its words are numbered from 0.
pub trait Set: Copy {
    /// Reads a word.
    fn load(self, word: u32) -> u64;
    /// Writes a word of a slot that the caller has locked.
    fn store(self, word: u32, value: u64);
    /// Replaces `current` by `new` and returns what was there: `current` if it was replaced. Sequentially consistent.
    fn compare_exchange(self, word: u32, current: u64, new: u64) -> u64;
    /// Writes a word and returns what was there. Sequentially consistent.
    fn exchange(self, word: u32, value: u64) -> u64;
    /// Sets bits of a word and returns what was there. Sequentially consistent.
    fn fetch_or(self, word: u32, bits: u64) -> u64;
    /// Keeps only `bits` of a word. Sequentially consistent.
    fn and(self, word: u32, bits: u64);
    /// `word` itself, `a` and `b` being equal. In the kernel, the verifier forgets here which slot it is, and need not go on
    /// with each of them.
    fn forget(self, word: u32, a: u64, b: u64) -> u32 {
        debug_assert_eq!(a, b, "equal by what the caller has compared");
        word
    }
    /// Adds to one of the counters of a head without disturbing the rest; two CPUs at once may lose one count.
    fn count(self, word: u32, counter: SlotCounter) -> u8;
}

/// How the table is cut into sets and slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Shape {
    /// Number of sets that hashes name.
    pub sets: u32,
    /// Words of a slot: 2, 4 or 8.
    pub slot_words: u32,
    /// Groups that have cells of their own: more than the highest number of a group.
    pub groups: u32,
    /// Cells of each group, at least 1.
    pub cells: u32,
}

/// Where a slot or a cell is: a set, and the slot's first word in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Place {
    /// The number of the set.
    pub set: u32,
    /// First word of the slot.
    pub word: u32,
}

/// The head of a key's slot, but for counters and lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Tag(pub u64);

impl Tag {
    /// The tag for a key that hashes to `hash`.
    #[inline(always)]
    #[must_use]
    pub fn new(hash: Hash, key: &Key) -> Self {
        // The lowest bit of the hash is set, so that no key looks like a free slot.
        Self(hash.0 & HASH | 1 << 32 | u64::from(key.group) << 16 & GROUP)
    }

    /// What of a head names its key.
    #[must_use]
    pub const fn of_head(head: u64) -> Self {
        Self(head & TAG)
    }

    /// The group in the head of a slot that is in use, `None` if it is free.
    #[must_use]
    pub fn group(head: u64) -> Option<u32> {
        (!Self::is_free(head)).then_some(((head & GROUP) >> 16) as u32)
    }

    /// Whether a head is that of no key.
    #[inline(always)]
    #[must_use]
    pub const fn is_free(head: u64) -> bool {
        head & HASH == 0
    }

    /// In which line of its set the key is looked for first: a bit of the hash that neither the set was chosen by nor every
    /// tag has.
    #[inline(always)]
    const fn line(self) -> u32 {
        (self.0 >> 33) as u32 & 1
    }

    /// Whether a head is that of this key.
    #[inline(always)]
    #[must_use]
    pub fn matches(self, head: u64) -> bool {
        head & TAG == self.0
    }
}

/// What came of looking for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// How it ended.
    pub outcome: Claimed,
    /// First word of the slot in the set; [`NO_SLOT`] if there is none.
    pub slot: u32,
}

/// How a claim ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// A slot that was free, or whose state had decayed. It is locked and belongs to the caller, who writes its states
    /// and publishes it.
    Reserved,
    /// As `Reserved`, and a key no busier than the new one had to give way.
    Displaced,
    /// Another CPU made a slot for this key just now.
    Found,
    /// Every slot of the set is in use by a key that is busier.
    Full,
    /// The set stayed locked for longer than a packet can wait.
    Contended,
    /// There is no slot, and the key is counted in its cells; in place of the slot's word is which of them to charge.
    Shared,
}

impl Shape {
    /// The set of a key: the hash's lower half as a fraction of all sets.
    #[inline(always)]
    #[must_use]
    pub fn set(&self, hash: Hash) -> u32 {
        (((hash.0 & 0xffff_ffff) * u64::from(self.sets)) >> 32) as u32
    }

    /// Sets of the whole table.
    #[must_use]
    pub const fn all_sets(&self) -> u32 {
        // One more for each group: see `latest`.
        self.sets + (self.groups * (self.cells + 1)).div_ceil(self.slots())
    }

    /// Slots of a set.
    #[inline(always)]
    #[must_use]
    pub const fn slots(&self) -> u32 {
        if self.slot_words == 2 { MOST_SLOTS } else { 4 }
    }

    /// Where a set lies in an array of elements of [`ELEMENT_WORDS`]: (element, its first word there).
    #[inline(always)]
    #[must_use]
    pub const fn element(&self, set: u32) -> (u32, u32) {
        match self.slot_words {
            2 | 4 => (set >> 1, (set & 1) * (ELEMENT_WORDS / 2)),
            _ => (set, 0),
        }
    }

    /// The nth cell of a key, by its set and tag. The place follows from what the slot tells, so that it can be found for a
    /// key that gives way.
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

    /// Where a group's cells begin: a slot whose first state is when the last of them has decayed, at the latest.
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
        Place { set: self.sets + (nth >> shift), word: self.slot(nth & (self.slots() - 1)) }
    }

    /// Elements of an array that holds the whole table.
    #[must_use]
    pub const fn elements(&self) -> u32 {
        self.element(self.all_sets() - 1).0 + 1
    }

    /// Slots that hashes name: how many keys the table can hold at the most.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.sets as u64 * self.slots() as u64
    }

    /// Slots of the whole table.
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

    /// The first word of the nth slot at which a key is looked for.
    #[inline(always)]
    fn nth_of(&self, tag: Tag, nth: u32) -> u32 {
        let line = if self.slots() == MOST_SLOTS { tag.line() * LINE } else { 0 };
        self.slot(nth ^ line)
    }

    /// The number of a slot in the table, from that of its set and its first word.
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

    /// When the last state of the slot decays, as ticks ahead of now; 0 if it has.
    #[inline(always)]
    #[must_use]
    pub fn life(&self, set: impl Set, slot: u32, now: Ticks) -> Ticks {
        let mut life = 0;
        for word in 1..WIDEST_SLOT {
            if word < self.slot_words {
                let ahead = life_of(set.load(slot + word), now);
                if ahead > life {
                    life = ahead;
                }
            }
        }
        life
    }

    /// Locks the set and reserves a slot for `tag`: a free one, else one that has decayed, else that of the same
    /// group's key with the shortest life, if that is no longer than `newcomer`, the life the new key will have.
    /// `displaced` is given the head and the first word of a slot whose states have not decayed, before they are
    /// replaced and after its key can no longer be found.
    ///
    /// A reserved slot has to be given back by [`Shape::publish`].
    #[inline(always)]
    #[must_use]
    pub fn claim<S: Set>(
        &self,
        set: S,
        tag: Tag,
        now: Ticks,
        newcomer: Ticks,
        is_confined: bool,
        displaced: impl FnOnce(Tag, u32),
    ) -> Claim {
        if !lock(set) {
            return Claim { outcome: Claimed::Contended, slot: NO_SLOT };
        }
        let slot = self.find(set, tag);
        if slot != NO_SLOT {
            set.and(0, !LOCK);
            return Claim { outcome: Claimed::Found, slot };
        }
        let mut victim = NO_SLOT;
        let mut shortest = newcomer;
        for nth in 0..MOST_SLOTS {
            // A slot that has decayed cannot be bettered.
            if nth < self.slots() && (victim == NO_SLOT || shortest > 0) && !(is_confined && nth & 3 == KEPT) {
                let slot = self.nth_of(tag, nth);
                let head = set.load(slot);
                let life = if Tag::is_free(head) { 0 } else { self.life(set, slot, now) };
                // A decayed slot of anybody; a living one only of our own group, whose lives compare with ours.
                if life == 0 || (life <= shortest && head & GROUP == tag.0 & GROUP) {
                    victim = slot;
                    shortest = life;
                }
            }
        }
        if victim == NO_SLOT {
            set.and(0, !LOCK);
            return Claim { outcome: Claimed::Full, slot: NO_SLOT };
        }
        // From here on nobody finds the old key; its states are replaced before the new one can be found.
        let head = set.exchange(victim, if victim == 0 { LOCK } else { 0 });
        let outcome = if shortest == 0 { Claimed::Reserved } else { Claimed::Displaced };
        if shortest > 0 {
            displaced(Tag::of_head(head), victim);
        }
        for word in 1..WIDEST_SLOT {
            if word < self.slot_words {
                set.store(victim + word, now);
            }
        }
        Claim { outcome, slot: victim }
    }

    /// Lets others find the slot that was reserved for `tag`, whose states the caller has written, and unlocks the set.
    #[inline(always)]
    pub fn publish(&self, set: impl Set, slot: u32, tag: Tag) {
        // Where the slot is the first one, this unlocks the set as well.
        set.exchange(slot, tag.0);
        if slot != 0 {
            set.and(0, !LOCK);
        }
    }
}

/// How far a state lies ahead of now; 0 if it has decayed.
#[inline(always)]
#[must_use]
pub fn life_of(state: u64, now: Ticks) -> Ticks {
    if is_alive(state, now) { state.wrapping_sub(now) } else { 0 }
}

/// Counters of the first slot may move under the lock bit, which is why it is set and cleared by itself.
#[inline(always)]
fn lock(set: impl Set) -> bool {
    for _ in 0..LOCK_TRIES {
        if set.load(0) & LOCK == 0 && set.fetch_or(0, LOCK) & LOCK == 0 {
            return true;
        }
    }
    false
}
