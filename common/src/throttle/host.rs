//! The interface between the evaluation and its host: the kernel or user space.

use core::ops::DerefMut;

use super::outcome::{Outcome, TableEvent};
use super::verdict::HotVerdict;
use crate::fair::Words;
use crate::hot::CpuRow;
use crate::key::{Hash, Key};
use crate::limiter::Algorithm;
use crate::rule::{Rule, Size};
use crate::table::{Counted, Place, Set, Shape};
use crate::time::{TickScale, Ticks};

/// A word of a log's ring, shared by CPUs.
pub trait Cell: Copy {
    /// Reads the word.
    fn load(self) -> u64;
    /// Replaces `current` by `new` and returns the previous value. Sequentially consistent.
    fn compare_exchange(self, current: u64, new: u64) -> u64;
    /// Writes the word.
    fn store(self, value: u64);
    /// Adds packets to one of its bytes, as [`Set::count`] does.
    fn count(self, byte: u32, packets: u32, instant: u8) -> Counted;
}

/// Access to rules, states and counters: BPF maps in the kernel, memory in user space.
pub trait Host: Sized {
    /// A set of the table.
    type Set: Set;
    /// A word of a ring.
    type Cell: Cell;
    /// The row of a rule.
    fn rule(&self, index: u32) -> Option<&Rule>;
    /// A set of the table of sources, with the layout of `shape`.
    fn set(&self, index: u32) -> Option<Self::Set>;
    /// A word of the rings.
    fn cell(&self, index: u32) -> Option<Self::Cell>;
    /// The current time.
    fn now(&self) -> Ticks;
    /// The shape of the table.
    fn shape(&self) -> Shape;
    /// The hash of a key under the table's secret.
    fn hash(&self, key: &Key) -> Hash;
    /// The number of ring words of each slot.
    fn ring_words(&self) -> u32;
    /// The most rules for any packet: the verifier removes code for more.
    fn most_rules(&self) -> u32;
    /// Whether any rule runs this algorithm: the verifier removes code for others.
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
    /// This CPU's row of a rule's counters, where CPUs have memory of their own. Code that counts in it also calls
    /// [`Host::trace`].
    fn row(&self, _counter: u32) -> Option<impl DerefMut<Target = CpuRow>> {
        None::<&mut CpuRow>
    }
    /// Records a count in a row.
    fn trace(&self, _counter: u32, _outcome: Outcome, _size: Size) {}
    /// Charges a conforming packet of this CPU's hot key: [`super::charge_hot`].
    fn charge_hot(
        &self,
        _rule: u32,
        _place: Place,
        _from: u64,
        _now: Ticks,
        _size: Size,
    ) -> HotVerdict {
        HotVerdict::Lost
    }
    /// Adds the counts of this CPU's hot key of a rule to its samples, now or only when they are due: [`super::add_hot`].
    fn add_hot(&self, _rule: u32, _now: Ticks, _only_if_due: bool) {}
    /// Adds refusals of some time ago to a key's samples.
    fn add_refused(&self, _rule: &Rule, _key: &Key, _refused: u32) {}
    /// Makes a key this CPU's hot key of a rule: [`super::make_hot`]. True if the present one would give way, but has counts that
    /// [`Host::add_hot`] has to add first.
    fn make_hot(&self, _rule: u32, _key: &Key, _now: Ticks, _size: u16) -> bool {
        false
    }
    /// Whether some rule is fair: the verifier removes code for them otherwise.
    fn fair_in_use(&self) -> bool {
        false
    }
    /// Whether some fair rule has rules of wider keys: the verifier removes code for them otherwise.
    fn wider_in_use(&self) -> bool {
        self.fair_in_use()
    }
    /// The words of a fair rule: [`Words::read`].
    #[inline(always)]
    fn fair_words(&self, rule: &Rule) -> Words {
        rule.fair_words()
    }
    /// Whether a fair rule does nothing: [`Words::are_idle_in`].
    #[inline(always)]
    fn fair_is_idle(&self, rule: &Rule) -> bool {
        rule.fair_words().are_idle()
    }
    /// Returns `number`, whatever `any` is. In the kernel, the verifier loses its knowledge of the value here.
    fn forget_number(&self, number: u64, any: u64) -> u64 {
        let _ = any;
        number
    }
    /// A random number, for the samples of fair rules.
    fn random(&self) -> u32 {
        u32::MAX
    }
    /// Sends a sampled packet of a fair rule to the agent: its key, class and cost, and the one-in-so-many of the sample.
    fn sample_offered(&self, _rule: &Rule, _key: &Key, _class: u32, _units: u64, _one_in: u32) {}
    /// Counts an event of the table.
    fn note(&self, event: TableEvent);
    /// The length of a tick.
    fn scale(&self) -> TickScale;
    /// The instant `now` on the clock of [`crate::table::Tally`].
    #[inline(always)]
    fn coarse(&self, now: Ticks) -> u8 {
        self.scale().coarse(now)
    }
    /// Whether a key with a first refusal in a while may be sampled: see [`crate::counters::SampleQuota`].
    fn may_sample(&self, now: Ticks) -> bool;
    /// Samples a key that has been counted another 64 times, or for which [`Host::may_sample`] is true.
    fn sample(&self, sample: &Sample<'_>);
    /// Samples a refusal under a key without a slot, which has no tally: every refusal of a key that is sampled already,
    /// and of others those for which [`Host::may_sample`] is true.
    fn sample_untallied(&self, sample: &Sample<'_>) {
        self.sample(sample);
    }
}

/// A sample of a key.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// The rule.
    pub rule: &'a Rule,
    /// The key under which it was counted.
    pub key: Key,
    /// Passed, refused, or would have been refused.
    pub outcome: Outcome,
    /// Packets in full steps of 64 that this sample represents.
    pub weight: u32,
    /// Packets since the last full step.
    pub rest: u32,
}
