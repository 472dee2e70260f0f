//! The level of a fair limit, which the agent changes while packets are evaluated.
//!
//! A fair limit has no rate of its own: see [`crate::rule::Enforcement::Fair`]. Three words of its row change, each by one
//! store. The level is one of them, so that every packet is evaluated by exactly one level, whichever instant it comes
//! at. States are instants, which are valid at any level.
//!
//! Where sources alone cannot be limited, wider keys have levels, too: networks, and all sources together. Each is a rule with
//! a row of its own, outside of the span. The source's row names those in effect, so that none is read while none is.

use crate::fields::{half, word};
use crate::limiter::{
    Charge, Decision, Parameters, Parametric as _, SharedState, TokenBucket, charge_word,
};
use crate::time::{HORIZON, Ticks, is_alive};

/// Nanoseconds after the agent's last write for which a level refuses packets. Then they pass as if it were off.
pub const LIFE_NANOSECONDS: u64 = 2_000_000_000;

/// The fraction bits of the emission interval of levels in bytes.
pub const SHIFT_OF_BYTES: u8 = 12;
/// The fraction bits of bursts in packets and connections.
const FRACTION_OF_PACKETS: u8 = 6;
/// The bytes of a packet by which keys are out of step.
const BYTES_OF_A_PACKET: u64 = 1500;

/// The most fair limits on one packet.
pub const MOST_FAIR: u32 = 4;

/// The wider keys of a fair limit that may have a level.
pub const WIDER_KEYS: u32 = 2;

/// A level: emission interval and burst of a token bucket, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Level(u64);

impl Level {
    /// Nothing is refused.
    pub const OFF: Self = Self(0);
    /// The longest emission interval: 137 s a packet on the finest scale.
    pub const LONGEST_INTERVAL: u64 = (1 << Self::INTERVAL_BITS) - 1;
    const MOST_BURST: u64 = u64::MAX >> Self::INTERVAL_BITS;
    const INTERVAL_BITS: u32 = 42;

    /// The level with an emission interval in ticks, times 2 to the power of the rule's shift, and a burst in [`Level::parts`] of a
    /// unit. Both are at least a unit's, and at most what the word holds. A burst is shortened so far that a state stays below half
    /// the horizon.
    #[must_use]
    pub fn new(interval: u64, burst: u64, shift: u8) -> Self {
        let unit = Self::parts(shift);
        let interval = interval.clamp(1, Self::LONGEST_INTERVAL);
        let longest = (HORIZON / 2 / interval).saturating_mul(unit);
        let longest = longest.clamp(unit, Self::MOST_BURST);
        Self(burst.clamp(unit, longest) << Self::INTERVAL_BITS | interval)
    }

    /// The parts of a unit in which bursts are counted, for a rule with this shift: the time that a bucket stores hardly changes
    /// with the rate.
    #[inline(always)]
    #[must_use]
    pub const fn parts(shift: u8) -> u64 {
        1 << Self::fraction(shift)
    }

    #[inline(always)]
    const fn fraction(shift: u8) -> u8 {
        if shift == 0 { FRACTION_OF_PACKETS } else { 0 }
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
        let (emission, burst) = (
            self.0 & Self::LONGEST_INTERVAL,
            self.0 >> Self::INTERVAL_BITS,
        );
        // At most 42 and 22 bits.
        let fraction = Self::fraction(shift);
        let parts = u32::from(shift + fraction) & 63;
        let tolerance = emission.wrapping_mul(burst).wrapping_add((1 << parts) - 1) >> parts;
        Bucket {
            bucket: TokenBucket {
                emission,
                emission_shift: shift.into(),
                tolerance,
                burst: burst >> fraction,
            },
            late: 0,
            key: 0,
        }
    }
}

/// The bucket of a key at a level.
///
/// A token bucket, but any cost passes when the bucket is full, and leaves a debt if it is above the burst: levels have short
/// bursts, and the network stack merges packets. The rate stays exact; the burst is exceeded by one cost at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    bucket: TokenBucket,
    /// The most ticks by which a packet is late, in 256ths; 0: none is.
    late: Ticks,
    /// The key's number, which the hash includes.
    key: u64,
}

impl Bucket {
    /// The same out of step with those of other keys: each packet is late by another part of a packet's interval, by the state that
    /// it finds and the key. Without it, keys above the level that began together would pass packets at the same instants.
    #[inline(always)]
    #[must_use]
    pub fn out_of_step(mut self, key: u64) -> Self {
        let units = if self.bucket.emission_shift == 0 {
            1
        } else {
            BYTES_OF_A_PACKET
        };
        (self.late, self.key) = (self.charge(units) >> 8, key);
        self
    }

    /// The ticks by which the next packet is late.
    #[inline(always)]
    fn late(&self, state: u64) -> Ticks {
        // Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4).
        let part = (state ^ self.key).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
        self.late.wrapping_mul(part)
    }

    /// The most that a state may be ahead of now for another unit to pass.
    #[inline(always)]
    #[must_use]
    pub const fn tolerance(&self) -> Ticks {
        self.bucket.tolerance
    }

    /// The bucket in a rule's row.
    #[must_use]
    pub fn parameters(&self) -> Parameters {
        self.bucket.parameters()
    }

    /// The ticks by which a cost moves the state.
    ///
    /// Cannot overflow for costs of frames: an interval has 42 bits, and a cost at most 22.
    #[inline(always)]
    #[must_use]
    pub fn charge(&self, cost: u64) -> Ticks {
        self.bucket.charge(cost)
    }

    /// Decides on `cost` at `now`.
    #[inline(always)]
    #[must_use]
    pub fn decide(&self, state: u64, now: Ticks, cost: u64) -> Decision {
        let base = if is_alive(state, now) { state } else { now };
        let ahead = base.wrapping_sub(now);
        let charge = self.charge(cost);
        let needed = ahead.wrapping_add(charge).wrapping_add(self.late(state));
        if ahead == 0 || needed <= self.bucket.tolerance {
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

/// The rules of wider keys whose levels are in effect: for networks and for all sources together, how many rows each is after
/// the source's. 0: none is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Wider(u32);

impl Wider {
    /// None is in effect.
    pub const NONE: Self = Self(0);
    const BITS: u32 = 8;

    /// From the distances of both, at most 255 each.
    #[must_use]
    pub const fn new(distances: [u8; WIDER_KEYS as usize]) -> Self {
        Self(distances[0] as u32 | (distances[1] as u32) << Self::BITS)
    }

    /// From the number of [`Wider::to_bits`].
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// As one number.
    #[inline(always)]
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// The distance of the nth one, from 0 on.
    #[inline(always)]
    #[must_use]
    pub const fn distance(self, nth: u32) -> u32 {
        self.skip(nth).0 & 0xff
    }

    /// Without those before the nth one.
    #[inline(always)]
    const fn skip(self, nth: u32) -> Self {
        Self(self.0 >> (nth * Self::BITS))
    }

    /// Whether none from the nth one on is in effect.
    #[inline(always)]
    #[must_use]
    pub const fn are_none_from(self, nth: u32) -> bool {
        self.skip(nth).0 == 0
    }

    /// Those of both: the distances of one policy do not change.
    #[inline(always)]
    const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The words of a fair rule's row that change. The row has them in place of [`crate::limiter::Parameters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Words {
    /// In `tolerance`: the instant at which level and sample end, unless the agent renews it.
    pub until: Ticks,
    /// In `interval`.
    pub level: Level,
    /// In the lower half of `most`: one in this many packets is sampled; 0: none is.
    pub one_in: u32,
    /// In its upper half.
    pub wider: Wider,
}

/// One of the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// [`Words::until`].
    Until,
    /// [`Words::level`].
    Level,
    /// [`Words::one_in`] and [`Words::wider`].
    Rest,
}

impl Words {
    /// Reads the words of a row. The deadline comes first: one that was renewed is never read with the level before
    /// it. Wider keys are read before and after the level: a level is never read without those that are in effect with it.
    #[inline(always)]
    #[must_use]
    pub fn read(load: impl Fn(Word) -> u64) -> Self {
        let until = load(Word::Until);
        let before = load(Word::Rest);
        let level = load(Word::Level);
        let after = load(Word::Rest);
        let wider = |rest: u64| Wider::from_bits((rest >> 32) as u32);
        Self {
            until,
            level: Level::from_bits(level),
            one_in: after as u32,
            wider: wider(before).union(wider(after)),
        }
    }

    /// The contents of the row's `most`.
    #[must_use]
    pub const fn rest(self) -> u64 {
        (self.wider.to_bits() as u64) << 32 | self.one_in as u64
    }

    /// The stores that replace the words `before` of a row while packets are evaluated, in order. What refuses more comes
    /// first: wider keys before the level with which they are in effect, and a level before the end of those that were in
    /// effect with the one before it.
    #[must_use]
    pub const fn stores(self, before: Self) -> [(Word, u64); 3] {
        let level = (Word::Level, self.level.to_bits());
        let rest = (Word::Rest, self.rest());
        let until = (Word::Until, self.until);
        if self.wider.to_bits() & !before.wider.to_bits() != 0 {
            [rest, level, until]
        } else {
            [level, rest, until]
        }
    }

    /// Whether a rule with these words does nothing, by reading as few of them as possible. While its level is off, those of
    /// wider keys are.
    #[inline(always)]
    #[must_use]
    pub fn are_idle_in(load: impl Fn(Word) -> u64) -> bool {
        load(Word::Level) == 0 && load(Word::Rest) as u32 == 0
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
