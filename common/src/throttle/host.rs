//! What a judgement needs of the world, and what it tells of itself.

use core::ops::DerefMut;

use super::overflow;
use super::{Hearing, Ruling, charge, charge_by_bucket, conclude, look, open, take, take_back};
use crate::key::{HashSeed, Key};
use crate::rule::{Algorithm, Moves, Rule, Size};
use crate::table::{Claim, Set, Shape, SlotCounter, Tag};
use crate::time::Ticks;

/// A word of a log's ring, shared by CPUs.
pub trait Cell: Copy {
    /// Reads it.
    fn load(self) -> u64;
    /// Replaces `current` by `new` and returns what was there. Sequentially consistent.
    fn compare_exchange(self, current: u64, new: u64) -> u64;
}

/// Where rules, states and counters are: BPF maps in the kernel, memory in user space.
pub trait Host: Sized {
    /// A set of the table.
    type Set: Set;
    /// A word of a ring.
    type Cell: Cell;
    /// Memory for a packet with several rules: kept apart, for there is little room on the kernel's stack.
    type Hearing: DerefMut<Target = Hearing>;
    /// The row of a rule.
    fn rule(&self, index: u32) -> Option<&Rule>;
    /// A set of the table of sources, of a table cut as `shape` says.
    fn set(&self, index: u32) -> Option<Self::Set>;
    /// A word of the rings.
    fn cell(&self, index: u32) -> Option<Self::Cell>;
    /// The clock, read anew.
    fn now(&self) -> Ticks;
    /// How the table is cut.
    fn shape(&self) -> Shape;
    /// The table's secret.
    fn seed(&self) -> HashSeed;
    /// Words of ring that each slot has.
    fn ring_words(&self) -> u32;
    /// The most rules that any packet is held to: what lies above it need not be verified or run.
    fn most_rules(&self) -> u32;
    /// Whether any rule runs this algorithm: what is not in use need not be verified or asked for.
    fn may_run(&self, _algorithm: Algorithm) -> bool {
        true
    }
    /// Whether `rule` runs this algorithm.
    #[inline(always)]
    fn runs(&self, rule: &Rule, algorithm: Algorithm) -> bool {
        self.may_run(algorithm) && rule.is(algorithm)
    }
    /// Whether elastic limits may pass more than their rate at `now`.
    fn has_room(&self, now: Ticks) -> bool;
    /// Counts a frame under `outcome` of the counters at `counter`.
    fn count(&self, counter: u32, outcome: Outcome, size: Size);
    /// Counts something that befell the table.
    fn note(&self, event: TableEvent);
    /// Where a packet with several rules is kept while it is judged.
    fn hearing(&self) -> Option<Self::Hearing>;
    /// [`charge_by_bucket`]. The kernel verifies it by itself, instead of for every way to get there; so with the next ones.
    fn charge_by_bucket(&self, hearing: &mut Hearing) -> Ruling {
        charge_by_bucket(self, hearing)
    }
    /// [`look`].
    fn look(&self, hearing: &mut Hearing, nth: u32) -> bool {
        look(self, hearing, nth)
    }
    /// [`open`].
    fn open(&self, hearing: &mut Hearing, nth: u32) {
        open(self, hearing, nth);
    }
    /// [`charge`].
    fn charge(&self, hearing: &mut Hearing, nth: u32) -> bool {
        charge(self, hearing, nth)
    }
    /// [`conclude`].
    fn conclude(&self, hearing: &mut Hearing, nth: u32) {
        conclude(self, hearing, nth);
    }
    /// [`take_back`].
    fn take_back(&self, hearing: &mut Hearing, count: u32) {
        take_back(self, hearing, count);
    }
    /// [`overflow::estimate`].
    fn estimate(&self, hearing: &mut Hearing) {
        overflow::estimate(self, hearing);
    }
    /// [`overflow::claim`].
    fn claim(&self, hearing: &mut Hearing) -> Claim {
        overflow::claim(self, hearing)
    }
    /// [`take`].
    fn take(&self, hearing: &mut Hearing, nth: u32, claim: Claim) {
        take(self, hearing, nth, claim);
    }
    /// [`overflow::least`].
    fn least(&self, set: u32, tag: Tag, moves: Moves, now: Ticks) -> u64 {
        overflow::least(self, set, tag, moves, now)
    }
    /// [`overflow::is_background`].
    fn is_background(&self, set: u32, tag: Tag, used: Ticks, now: Ticks) -> bool {
        overflow::is_background(self, set, tag, used, now)
    }
    /// [`overflow::leave`].
    fn leave(&self, hearing: &mut Hearing) {
        overflow::leave(self, hearing);
    }
    /// [`overflow::spread`].
    fn spread(&self, hearing: &mut Hearing) {
        overflow::spread(self, hearing);
    }
    /// Tells of a key that has been counted another 64 times, or was refused for the first time of 64.
    fn sight(&self, sighting: &Sighting<'_>);
    /// Tells of a key whose packet a rule that only observes would have refused, after that was counted.
    fn foresee(&self, _rule: &Rule, _key: &Key, _size: Size) {}
}

/// What is counted of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Passed all rules of its span; counted at the span's first rule only.
    Passed,
    /// Refused by this rule.
    Throttled,
    /// Would have been refused by this rule.
    WouldThrottle,
    /// Passed above the limit, since that is soft, or marks, or is elastic and there is room.
    Over,
}

/// What befalls the table of sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableEvent {
    /// A key whose state had not decayed gave way to one that is as busy.
    Evicted,
    /// A new key found no room and passed uncounted.
    FullPassed,
    /// A new key found no room and was refused.
    FullThrottled,
    /// A new key found no room and was counted in the shared bucket.
    FullShared,
    /// A packet was refused since other CPUs held its set or kept changing its state.
    Contended,
}

/// A key worth telling of.
#[derive(Clone, Copy, Debug)]
pub struct Sighting<'a> {
    /// The rule.
    pub rule: &'a Rule,
    /// Under which key it was counted.
    pub key: Key,
    /// Passed or refused.
    pub counter: SlotCounter,
    /// How many packets this stands for: 64, or 0 for the first one refused.
    pub weight: u32,
}

/// What becomes of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It conforms to all its rules, or to those that have a say, and what it conforms to is charged.
    Pass(Passage),
    /// The rule with this index refuses it, and none is charged.
    Refuse(u32),
}

/// How a packet passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// The first rule that marks it; [`Passage::UNMARKED`] if none does.
    pub marked_by: u32,
    /// When it is its turn, to four ticks; [`Passage::AT_ONCE`] if it need not wait.
    pub departure: Ticks,
}

impl Passage {
    /// No rule has this index.
    pub const UNMARKED: u32 = u32::MAX;
    /// No turn to wait for. An instant that is 0 by chance, once in eighteen years, waits for nothing either.
    pub const AT_ONCE: Ticks = 0;
    /// At once, as it is.
    pub const FREE: Self = Self { marked_by: Self::UNMARKED, departure: Self::AT_ONCE };
}
