//! Token bucket, as the generic cell rate algorithm.
//!
//! Source: ITU-T I.371, annex A, "virtual scheduling". The one word of state is the theoretical arrival time: the
//! instant at which the bucket will be full again. A cost conforms if paying for it moves that instant no further than
//! the burst tolerance ahead of now. A refill is never computed, so it has no remainder to lose.
//!
//! Error bound: what passes in any span `t` is at most `burst + rate·t`, always. The emission interval is rounded up to
//! a whole tick for costs of 1, so the rate kept is at most the rate asked for and short of it by less than
//! (tick ÷ emission interval): 3·10⁻⁵ at a million a second, 3·10⁻⁸ at 1,000. For costs in bytes the interval keeps
//! fraction bits, and each packet is charged at most one tick, 2⁻⁵ ns, too much.

use super::{Decision, Rate};
use crate::time::{TickScale, Ticks, is_alive};

/// A token bucket: what it refills by, and how much it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    /// Ticks between two units at the limit's rate, times 2^`emission_shift`.
    pub emission: u64,
    /// Fraction bits of `emission`.
    pub emission_shift: u32,
    /// How far the theoretical arrival time may be ahead of now: the burst, in ticks. At most half the horizon.
    pub tolerance: Ticks,
    /// The largest cost that can pass, in units: the bucket's size.
    pub burst: u64,
}

/// Whether costs are always 1 or anything up to the burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Costs {
    /// Packets, connections, requests.
    Single,
    /// Bytes, credits.
    Many,
}

impl TokenBucket {
    /// The bucket for `rate`, holding `burst` ≥ 1 units, on a scale that holds `rate.nanoseconds_for(burst)`.
    #[must_use]
    pub fn new(rate: Rate, burst: u64, costs: Costs, scale: TickScale) -> Self {
        let per_ticks = (u128::from(rate.per_nanoseconds) << scale.left) >> scale.right;
        let count = u128::from(rate.count);
        let interval = |shift: u32| (per_ticks << shift).div_ceil(count).max(1);
        // As many fraction bits as make the interval right to one part in a million, if costs vary and they fit: the
        // largest product that `charge` forms is burst × emission + 2^shift, and has to stay below 2⁶⁴.
        let fits = |shift: u32| interval(shift) * u128::from(burst) < 1 << 63;
        let mut shift = 0;
        if costs == Costs::Many {
            while shift < 20 && interval(shift) < 1 << 20 && fits(shift + 1) {
                shift += 1;
            }
        }
        let emission = u64::try_from(interval(shift)).unwrap_or(u64::MAX);
        let mut bucket = Self { emission, emission_shift: shift, tolerance: 0, burst };
        bucket.tolerance = bucket.charge(burst);
        bucket
    }

    /// What a cost of at most `burst` moves the theoretical arrival time by, in ticks, rounded up.
    ///
    /// Cannot overflow: `new` chose the shift such that burst × emission < 2⁶³.
    #[inline(always)]
    #[must_use]
    pub fn charge(&self, cost: u64) -> Ticks {
        let shift = self.emission_shift & 63;
        (cost.wrapping_mul(self.emission).wrapping_add((1 << shift) - 1)) >> shift
    }

    /// Decides on `cost` at `now`.
    #[inline(always)]
    #[must_use]
    pub fn decide(&self, state: u64, now: Ticks, cost: u64) -> Decision {
        if cost > self.burst {
            return Decision::Refuse;
        }
        // A bucket that is full again starts over from now: what it did not use is not saved up beyond the burst.
        let base = if is_alive(state, now) { state } else { now };
        let next = base.wrapping_add(self.charge(cost));
        if next.wrapping_sub(now) > self.tolerance { Decision::Refuse } else { Decision::Pass(next) }
    }

    /// The state with an earlier charge of `cost` taken back, `None` if there is nothing left to take back.
    ///
    /// `now` has to be read after the charge. While the state that the charge left is still alive, nobody can have
    /// started over from a later instant, so that every charge since was added to it and subtraction is exact.
    #[inline(always)]
    #[must_use]
    pub fn refund(&self, state: u64, charged: u64, now: Ticks, cost: u64) -> Option<u64> {
        is_alive(charged, now).then(|| state.wrapping_sub(self.charge(cost)))
    }

    /// Ticks until `cost` would pass if nothing else did; `None` if it never can.
    #[must_use]
    pub fn wait(&self, state: u64, now: Ticks, cost: u64) -> Option<Ticks> {
        if cost > self.burst {
            return None;
        }
        let ahead = if is_alive(state, now) { state.wrapping_sub(now) } else { 0 };
        Some((ahead + self.charge(cost)).saturating_sub(self.tolerance))
    }

    /// The largest cost that would pass now, in units.
    #[must_use]
    pub fn remaining(&self, state: u64, now: Ticks) -> u64 {
        let ahead = if is_alive(state, now) { state.wrapping_sub(now) } else { 0 };
        let free = u128::from(self.tolerance.saturating_sub(ahead)) << self.emission_shift;
        // The largest cost whose rounded-up charge fits is the floor of this quotient.
        u64::try_from(free / u128::from(self.emission)).unwrap_or(u64::MAX).min(self.burst)
    }
}

#[cfg(test)]
mod tests;
