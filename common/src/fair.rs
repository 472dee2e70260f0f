//! The level of a fair limit, which the agent changes while packets are evaluated.
//!
//! A fair limit has no rate of its own: see [`crate::rule::Enforcement::Fair`]. Three words of its row change, each by one
//! store. The level is one of them, so that every packet is evaluated by exactly one level, whichever instant it comes
//! at. States are instants, which are valid at any level.

use crate::fields::{half, word};
use crate::limiter::{
    Charge, Decision, Parameters, Parametric as _, SharedState, TokenBucket, charge_word,
};
use crate::time::{HORIZON, Ticks, is_alive};

/// Nanoseconds after the agent's last write for which a level refuses packets. Then they pass as if it were off.
pub const LIFE_NANOSECONDS: u64 = 2_000_000_000;

/// The fraction bits of the emission interval of levels in bytes.
pub const SHIFT_OF_BYTES: u8 = 12;

/// The most fair limits on one packet.
pub const MOST_FAIR: u32 = 4;

/// A level: emission interval and burst of a token bucket, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Level(u64);

impl Level {
    /// Nothing is refused.
    pub const OFF: Self = Self(0);
    /// The largest burst, in units.
    pub const MOST_BURST: u64 = u64::MAX >> Self::INTERVAL_BITS;
    /// The longest emission interval: 137 s a packet on the finest scale.
    pub const LONGEST_INTERVAL: u64 = (1 << Self::INTERVAL_BITS) - 1;
    const INTERVAL_BITS: u32 = 42;

    /// The level with an emission interval in ticks, times 2 to the power of the rule's shift, and a burst in units. Both are
    /// at least 1, and at most what the word holds. A burst is shortened so far that a state stays below half the horizon.
    #[must_use]
    pub fn new(interval: u64, burst: u64) -> Self {
        let interval = interval.clamp(1, Self::LONGEST_INTERVAL);
        let longest = (HORIZON / 2 / interval).clamp(1, Self::MOST_BURST);
        Self(burst.clamp(1, longest) << Self::INTERVAL_BITS | interval)
    }

    /// From the number of [`Level::to_bits`].
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The word in the row.
    #[inline(always)]
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Whether nothing is refused.
    #[inline(always)]
    #[must_use]
    pub const fn is_off(self) -> bool {
        self.0 == 0
    }

    /// The bucket of a key, for a rule with this shift.
    #[inline(always)]
    #[must_use]
    pub fn bucket(self, shift: u8) -> Bucket {
        let burst = self.0 >> Self::INTERVAL_BITS;
        let mut bucket = TokenBucket {
            emission: self.0 & Self::LONGEST_INTERVAL,
            emission_shift: shift.into(),
            tolerance: 0,
            burst,
        };
        bucket.tolerance = bucket.charge(burst);
        Bucket(bucket)
    }
}

/// The bucket of a key at a level.
///
/// A token bucket, but a cost above the burst passes when the bucket is full, and leaves a debt: levels have short bursts, and
/// the network stack merges packets. The rate stays exact; the burst is exceeded by one cost at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket(TokenBucket);

impl Bucket {
    /// The most that a state may be ahead of now for another unit to pass.
    #[inline(always)]
    #[must_use]
    pub const fn tolerance(&self) -> Ticks {
        self.0.tolerance
    }

    /// The bucket in a rule's row.
    #[must_use]
    pub fn parameters(&self) -> Parameters {
        self.0.parameters()
    }

    /// The ticks by which a cost moves the state.
    ///
    /// Cannot overflow for costs of frames: an interval has 42 bits, and a cost at most 22.
    #[inline(always)]
    #[must_use]
    pub fn charge(&self, cost: u64) -> Ticks {
        self.0.charge(cost)
    }

    /// Decides on `cost` at `now`.
    #[inline(always)]
    #[must_use]
    pub fn decide(&self, state: u64, now: Ticks, cost: u64) -> Decision {
        let base = if is_alive(state, now) { state } else { now };
        let ahead = base.wrapping_sub(now);
        let charge = self.charge(cost);
        let fits = ahead.wrapping_add(charge) <= self.0.tolerance;
        if fits || (ahead == 0 && cost > self.0.burst) {
            Decision::Pass(base.wrapping_add(charge))
        } else {
            Decision::Refuse
        }
    }

    /// Charges a state that other CPUs charge as well.
    #[inline(always)]
    pub(crate) fn charge_shared(&self, state: &impl SharedState, now: Ticks, cost: u64) -> Charge {
        charge_word(state, |word| self.decide(word, now, cost))
    }

    /// Takes back one charge of `cost`, if it is still what it was: otherwise it stays until it has decayed.
    #[inline(always)]
    pub(crate) fn refund_shared(&self, state: &impl SharedState, charged: Charge, cost: u64) {
        let charged = charged.left();
        state.compare_exchange(0, charged, charged.wrapping_sub(self.charge(cost)));
    }
}

/// The words of a fair rule's row that change. The row has them in place of [`crate::limiter::Parameters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Words {
    /// In `tolerance`: the instant at which level and sample end, unless the agent renews it.
    pub until: Ticks,
    /// In `interval`.
    pub level: Level,
    /// In `most`: one in this many packets is sampled; 0: none is.
    pub one_in: u32,
}

/// One of the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// [`Words::until`].
    Until,
    /// [`Words::level`].
    Level,
    /// [`Words::one_in`].
    OneIn,
}

impl Words {
    /// Reads the words of a row, each once. The deadline comes first: one that was renewed is never read with the level before
    /// it.
    #[inline(always)]
    #[must_use]
    pub fn read(load: impl Fn(Word) -> u64) -> Self {
        let until = load(Word::Until);
        let level = load(Word::Level);
        Self {
            until,
            level: Level::from_bits(level),
            one_in: load(Word::OneIn) as u32,
        }
    }

    /// The stores that replace a row's words while packets are evaluated, in order.
    #[must_use]
    pub const fn stores(self) -> [(Word, u64); 3] {
        [
            (Word::Level, self.level.to_bits()),
            (Word::OneIn, self.one_in as u64),
            (Word::Until, self.until),
        ]
    }

    /// Whether the rule does nothing, without a look at the clock.
    #[inline(always)]
    #[must_use]
    pub const fn are_idle(&self) -> bool {
        self.level.to_bits() | self.one_in as u64 == 0
    }

    /// The level at `now`.
    #[inline(always)]
    #[must_use]
    pub fn level_at(&self, now: Ticks) -> Level {
        if is_alive(self.until, now) {
            self.level
        } else {
            Level::OFF
        }
    }

    /// Whether a packet at `now` is in the sample, by a random number; as [`crate::stream::StreamSettings::has`].
    #[inline(always)]
    #[must_use]
    pub fn sample_has(&self, random: u32, now: Ticks) -> bool {
        self.one_in != 0
            && u64::from(random).wrapping_mul(self.one_in.into()) >> 32 == 0
            && is_alive(self.until, now)
    }
}

/// A sampled packet that a fair rule has evaluated, whether it passed or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Offered {
    /// First half of its key's address, in memory order.
    pub hi: u64,
    /// Second half.
    pub lo: u64,
    /// The rule's row of counters.
    pub counter: u32,
    /// The class of the address.
    pub class: u32,
    /// Its cost, in the rule's unit.
    pub units: u32,
    /// The one-in-so-many of the sample to which it belongs.
    pub one_in: u32,
}

impl Offered {
    /// The length of a record, in bytes.
    pub const LENGTH: usize = size_of::<Self>();

    /// Parses a record; `None` if it is too short.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            hi: word(bytes, 0)?,
            lo: word(bytes, 8)?,
            counter: half(bytes, 16)?,
            class: half(bytes, 20)?,
            units: half(bytes, 24)?,
            one_in: half(bytes, 28)?,
        })
    }
}

#[cfg(test)]
mod tests;
