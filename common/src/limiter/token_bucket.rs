//! Token bucket, as the generic cell rate algorithm.
//!
//! Source: ITU-T I.371, annex A, "virtual scheduling". The one word of state is the theoretical arrival time: the
//! instant at which the bucket will be full again. A cost conforms if it moves that instant no further than the burst
//! tolerance ahead of now. A refill is never computed, so no remainder is lost.
//!
//! Error bound: at most `burst + rate·t` pass in any span `t`. The emission interval is rounded up to a whole tick for
//! costs of 1, so the enforced rate is at most the configured one, and lower by less than (tick ÷ emission interval):
//! 3·10⁻⁵ at a million a second, 3·10⁻⁸ at 1,000. For costs in bytes the interval has fraction bits. Each packet is
//! charged at most one tick, 2⁻⁵ ns, too much. The tolerance, too, is rounded up to a tick, so that the whole burst fits:
//! at most `burst + rate·(t + 1 tick)` pass.

use super::Decision;
use super::migration::Instants;
use super::moves::Moves;
use super::parameters::{Parameters, Parametric};
use super::rate::{Costs, Rate};
use super::rate_algorithm::RateAlgorithm;
use super::refund::Refund;
use super::shared::{Charge, SharedCharge, SharedState, Swap, charge_word};
use crate::share::Share;
use crate::time::{HORIZON, TickScale, Ticks, is_alive};

/// The maximum debt, in ticks ahead of now, so that states stay distinguishable: years on the finest scale.
const DEEPEST: Ticks = HORIZON / 4 * 3;

/// A token bucket: its refill and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    /// Ticks between two units at the limit's rate, times 2^`emission_shift`.
    pub emission: u64,
    /// Fraction bits of `emission`.
    pub emission_shift: u32,
    /// The most that the theoretical arrival time may be ahead of now: the burst in ticks. At most half the horizon.
    pub tolerance: Ticks,
    /// The largest cost that can pass, in units: the bucket's size.
    pub burst: u64,
}

impl TokenBucket {
    /// The bucket for `rate` with `burst` ≥ 1 units, on a scale that can represent `rate.nanoseconds_for(burst)`.
    #[must_use]
    pub fn new(rate: Rate, burst: u64, costs: Costs, scale: TickScale) -> Self {
        let per_ticks = (u128::from(rate.per_nanoseconds) << scale.left) >> scale.right;
        let count = u128::from(rate.count);
        let interval = |shift: u32| (per_ticks << shift).div_ceil(count).max(1);
        // Enough fraction bits that the interval is correct to one part in a million, if costs vary and the bits fit:
        // the largest product in `charge` is burst × emission + 2^shift, and must be below 2⁶⁴.
        let fits = |shift: u32| interval(shift) * u128::from(burst) < 1 << 63;
        let mut shift = 0;
        if costs == Costs::Many {
            while shift < 20 && interval(shift) < 1 << 20 && fits(shift + 1) {
                shift += 1;
            }
        }
        let emission = u64::try_from(interval(shift)).unwrap_or(u64::MAX);
        let mut bucket = Self {
            emission,
            emission_shift: shift,
            tolerance: 0,
            burst,
        };
        bucket.tolerance = bucket.charge(burst);
        bucket
    }

    /// The ticks by which a cost of at most `burst` moves the theoretical arrival time, rounded up.
    ///
    /// Cannot overflow: `new` chose the shift such that burst × emission < 2⁶³.
    #[inline(always)]
    #[must_use]
    pub fn charge(&self, cost: u64) -> Ticks {
        let shift = self.emission_shift & 63;
        (cost
            .wrapping_mul(self.emission)
            .wrapping_add((1 << shift) - 1))
            >> shift
    }

    /// Decides on `cost` at `now`.
    #[inline(always)]
    #[must_use]
    pub fn decide(&self, state: u64, now: Ticks, cost: u64) -> Decision {
        if cost > self.burst {
            return Decision::Refuse;
        }
        // A full bucket starts from now: unused allowance does not accumulate beyond the burst.
        let base = if is_alive(state, now) { state } else { now };
        let next = base.wrapping_add(self.charge(cost));
        if next.wrapping_sub(now) > self.tolerance {
            Decision::Refuse
        } else {
            Decision::Pass(next)
        }
    }

    /// The state before the charge of `cost` that left `charged`.
    ///
    /// It may only replace `charged` itself. A later charge may have started from its own instant if this one had not been
    /// there, and the word does not tell: subtracting from another state could pass more than the rate.
    #[inline(always)]
    #[must_use]
    pub fn uncharged(&self, charged: u64, cost: u64) -> u64 {
        charged.wrapping_sub(self.charge(cost))
    }

    /// The state without a debt: empty at most.
    #[must_use]
    pub fn without_debt(&self, state: u64, now: Ticks) -> u64 {
        if is_alive(state, now) {
            now.wrapping_add(state.wrapping_sub(now).min(self.tolerance))
        } else {
            state
        }
    }

    /// The state after charging `cost` at `now` even if it does not conform: beyond the tolerance it is a debt.
    #[must_use]
    pub fn charge_beyond(&self, state: u64, now: Ticks, cost: u64) -> u64 {
        let ahead = if is_alive(state, now) {
            state.wrapping_sub(now)
        } else {
            0
        };
        let charge = self.wide_charge(cost);
        now.wrapping_add(
            u64::try_from(charge.saturating_add(ahead.into()))
                .unwrap_or(DEEPEST)
                .min(DEEPEST),
        )
    }

    /// The state after returning `cost` at `now`; at most full.
    #[must_use]
    pub fn give_back(&self, state: u64, now: Ticks, cost: u64) -> u64 {
        let ahead = if is_alive(state, now) {
            state.wrapping_sub(now)
        } else {
            return state;
        };
        now.wrapping_add(
            u64::try_from(u128::from(ahead).saturating_sub(self.wide_charge(cost))).unwrap_or(0),
        )
    }

    /// `charge` for a cost that may exceed the burst.
    fn wide_charge(&self, cost: u64) -> u128 {
        let shift = self.emission_shift & 63;
        (u128::from(cost) * u128::from(self.emission) + ((1 << shift) - 1)) >> shift
    }

    /// Ticks until `cost` would pass if nothing else did; `None` if it never can.
    #[must_use]
    pub fn wait(&self, state: u64, now: Ticks, cost: u64) -> Option<Ticks> {
        if cost > self.burst {
            return None;
        }
        let ahead = if is_alive(state, now) {
            state.wrapping_sub(now)
        } else {
            0
        };
        Some((ahead + self.charge(cost)).saturating_sub(self.tolerance))
    }

    /// The largest cost that would pass now, in units.
    #[must_use]
    pub fn remaining(&self, state: u64, now: Ticks) -> u64 {
        let ahead = if is_alive(state, now) {
            state.wrapping_sub(now)
        } else {
            0
        };
        let free = u128::from(self.tolerance.saturating_sub(ahead)) << self.emission_shift;
        // The largest cost whose rounded-up charge fits is the floor of this quotient.
        u64::try_from(free / u128::from(self.emission))
            .unwrap_or(u64::MAX)
            .min(self.burst)
    }
}

impl Parametric for TokenBucket {
    const NAME: &'static str = "token-bucket";

    #[inline(always)]
    fn from_parameters(parameters: Parameters) -> Self {
        Self {
            emission: parameters.interval,
            emission_shift: u32::from(parameters.shift),
            tolerance: parameters.tolerance,
            burst: parameters.most,
        }
    }

    fn parameters(&self) -> Parameters {
        Parameters {
            interval: self.emission,
            tolerance: self.tolerance,
            most: self.burst,
            shift: self.emission_shift as u8,
            share_shift: 0,
        }
    }
}

impl RateAlgorithm for TokenBucket {
    const HAS_BURST: bool = true;
    const MOVES: Moves = Moves::Anywhere;

    fn build(rate: Rate, burst: u64, costs: Costs, scale: TickScale) -> Self {
        Self::new(rate, burst, costs, scale)
    }

    fn longest_life(rate: Rate, burst: u64) -> u128 {
        rate.nanoseconds_for(burst)
    }

    /// A debt is a span of time like any other state.
    fn with_room_for_debt(&self) -> Self {
        *self
    }

    fn without_room_for_debt(&self) -> Self {
        *self
    }

    fn at_share(&self, share: Share) -> Self {
        let shift = self.emission_shift & 63;
        let burst = share.units(self.burst);
        if share >= Share::WHOLE {
            return *self;
        }
        if burst == 0 {
            return Self { burst, ..*self };
        }
        // A share of 0 has a burst of 0, so this divides by more than that.
        let scaled = (u128::from(self.emission) * u128::from(Share::PARTS))
            .div_ceil(u128::from(share.parts()));
        // The burst has to fit whole into the tolerance. The product of the two stays below the tolerance's 2^63.
        let fitting = (u128::from(self.tolerance) << shift) / u128::from(burst);
        let emission = u64::try_from(scaled.min(fitting))
            .unwrap_or(u64::MAX)
            .max(self.emission);
        Self {
            emission,
            burst,
            ..*self
        }
    }

    fn opening(&self, initial: u64) -> Ticks {
        // Not the charge of what is missing: both are rounded up, and the initial units have to fit whole.
        self.tolerance - self.charge(initial.min(self.burst))
    }

    fn conforms(&self, words: &[u64], now: Ticks, cost: u64) -> bool {
        self.decide(words[0], now, cost) != Decision::Refuse
    }

    #[inline]
    fn charge(&self, words: &mut [u64], now: Ticks, cost: u64) -> bool {
        self.decide(words[0], now, cost).write(&mut words[0])
    }

    /// A debt has no bound but the clock's horizon.
    fn charge_beyond(&self, words: &mut [u64], until: Ticks, cost: u64) {
        words[0] = self.charge_beyond(words[0], until, cost);
    }

    /// At most full, and at most the part of the charge that the bucket has not made up for. The difference of two charges, so
    /// that a charge whose units are all returned leaves nothing.
    fn refund(&self, words: &mut [u64], now: Ticks, refund: Refund) {
        let left = match refund.ends {
            Some(ends) if !is_alive(ends, now) => 0,
            Some(ends) => u128::from(ends.wrapping_sub(now)),
            None => u128::MAX,
        };
        let returned = self
            .wide_charge(refund.charged)
            .saturating_sub(self.wide_charge(refund.used))
            .min(left);
        if is_alive(words[0], now) {
            let ahead = u128::from(words[0].wrapping_sub(now)).saturating_sub(returned);
            words[0] = now.wrapping_add(u64::try_from(ahead).unwrap_or(DEEPEST));
        }
    }

    fn debt(&self, words: &[u64], now: Ticks) -> u64 {
        if !is_alive(words[0], now) {
            return 0;
        }
        // Charges are rounded up to a tick: that tick is no debt.
        let beyond = words[0]
            .wrapping_sub(now)
            .saturating_sub(self.tolerance)
            .saturating_sub(1);
        let units =
            (u128::from(beyond) << (self.emission_shift & 63)).div_ceil(u128::from(self.emission));
        u64::try_from(units).unwrap_or(u64::MAX)
    }

    fn give_back(&self, words: &mut [u64], now: Ticks, cost: u64) {
        words[0] = self.give_back(words[0], now, cost);
    }

    fn remaining(&self, words: &[u64], now: Ticks) -> u64 {
        self.remaining(words[0], now)
    }

    fn wait(&self, words: &[u64], now: Ticks, cost: u64) -> Option<Ticks> {
        self.wait(words[0], now, cost)
    }

    fn refilled_in(&self, ticks: Ticks) -> f64 {
        let interval = self.emission as f64 / f64::from(1u32 << self.emission_shift.min(31));
        ticks as f64 / interval
    }

    /// The used units keep their number: each takes another time to come back.
    fn migrate(&self, old: &Self, old_words: &[u64], words: &mut [u64], now: Instants) {
        words[0] = now.to;
        if is_alive(old_words[0], now.from) {
            let ahead = u128::from(old_words[0].wrapping_sub(now.from));
            let used = ahead << (old.emission_shift & 63);
            let (interval, shift) = (u128::from(self.emission), self.emission_shift & 63);
            let per_unit = u128::from(old.emission.max(1));
            let ahead = match used.checked_mul(interval) {
                Some(product) => product.div_ceil(per_unit << shift),
                None => (used.div_ceil(per_unit)).saturating_mul(interval) >> shift,
            };
            let ahead = u64::try_from(ahead).unwrap_or(DEEPEST).min(DEEPEST);
            words[0] = now.to.wrapping_add(ahead);
        }
    }

    fn merge(&self, current: u64, then: u64, last: u64, now: Ticks) -> u64 {
        match (is_alive(last, now), is_alive(current, now)) {
            (false, _) => current,
            (true, false) => last,
            (true, true) => {
                let then = if is_alive(then, now) { then } else { now };
                current.wrapping_add(last.wrapping_sub(then))
            }
        }
    }
}

impl SharedCharge for TokenBucket {
    #[inline(always)]
    fn swap_shared<S: SharedState>(&self, _: &S, first: u64, now: Ticks, cost: u64) -> Swap {
        self.decide(first, now, cost).swap(first)
    }

    #[inline(always)]
    fn charge_shared<S: SharedState>(&self, state: &S, now: Ticks, cost: u64) -> Charge {
        charge_word(state, |word| self.decide(word, now, cost))
    }

    #[inline(always)]
    fn refund_shared<S: SharedState>(&self, state: &S, charged: Charge, _: Ticks, cost: u64) {
        let charged = charged.left();
        state.compare_exchange(0, charged, self.uncharged(charged, cost));
    }
}

#[cfg(test)]
mod tests;
