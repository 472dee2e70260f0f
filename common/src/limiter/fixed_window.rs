//! Fixed window: a count that starts over.
//!
//! The window starts with the first unit after the last window ended, so no wall-clock boundary lets twice the limit
//! through in the instant around it from a source that was idle; across the end of a busy window, up to 2·N can pass
//! within less than T, which is the algorithm's nature (use a sliding one to avoid it).
//!
//! State: the window's end in the high bits, what was passed in it in the low bits. Error bound: exact in what it
//! passes; a window is longer than T by less than 2^`count_bits` ticks (32 ns at N = 1,000, 34 ms at
//! N = 10⁹ bytes), never shorter.

use super::{Decision, Rate};
use crate::time::{TickScale, Ticks, is_alive};

/// A fixed window of `most` units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    /// The window's length T in ticks.
    pub window: Ticks,
    /// N: what passes in a window, in units; below 2^`count_bits`.
    pub most: u64,
    /// How many low bits of the state hold the count.
    pub count_bits: u32,
}

impl FixedWindow {
    /// `rate.count` units in each window of `rate.per_nanoseconds`.
    #[must_use]
    pub fn new(rate: Rate, scale: TickScale) -> Self {
        let window = scale.ticks(rate.per_nanoseconds).max(1);
        Self { window, most: rate.count, count_bits: u64::BITS - rate.count.leading_zeros() }
    }

    #[inline(always)]
    fn count_mask(&self) -> u64 {
        (1 << (self.count_bits & 63)) - 1
    }

    /// A state as (the window's end, what was passed in it).
    pub(super) fn parts(&self, state: u64) -> (Ticks, u64) {
        (state & !self.count_mask(), state & self.count_mask())
    }

    /// The state of a window that ends at `end`, or as soon after that as a state can tell.
    pub(super) fn state(&self, end: Ticks, count: u64) -> u64 {
        end.wrapping_add(self.count_mask()) & !self.count_mask() | count
    }

    /// The window that `state` is in at `now`, as (end, count); a new one if it is over.
    #[inline(always)]
    fn at(&self, state: u64, now: Ticks) -> (Ticks, u64) {
        let mask = self.count_mask();
        let end = state & !mask;
        if is_alive(end, now) {
            (end, state & mask)
        } else {
            (now.wrapping_add(self.window).wrapping_add(mask) & !mask, 0)
        }
    }

    /// Decides on `cost` at `now`.
    #[inline(always)]
    #[must_use]
    pub fn decide(&self, state: u64, now: Ticks, cost: u64) -> Decision {
        let (end, count) = self.at(state, now);
        // count ≤ most, so the subtraction cannot wrap on a state that this function wrote; on any other it refuses.
        if cost > self.most.saturating_sub(count) { Decision::Refuse } else { Decision::Pass(end | (count + cost)) }
    }

    /// The state with an earlier charge of `cost`, which left `charged`, taken back; `None` once that window is over.
    #[inline(always)]
    #[must_use]
    pub fn refund(&self, state: u64, charged: u64, cost: u64) -> Option<u64> {
        let mask = self.count_mask();
        (state & !mask == charged & !mask && state & mask >= cost).then(|| state - cost)
    }

    /// Ticks until `cost` would pass if nothing else did; `None` if it never can.
    #[must_use]
    pub fn wait(&self, state: u64, now: Ticks, cost: u64) -> Option<Ticks> {
        let (end, count) = self.at(state, now);
        match () {
            () if cost > self.most => None,
            () if cost <= self.most.saturating_sub(count) => Some(0),
            () => Some(end.wrapping_sub(now)),
        }
    }

    /// The largest cost that would pass now, in units.
    #[must_use]
    pub fn remaining(&self, state: u64, now: Ticks) -> u64 {
        self.most.saturating_sub(self.at(state, now).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct Model {
        end: u128,
        count: u64,
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn every_verdict_is_that_of_the_obvious_model(count in 1u64..5_000, per_nanoseconds in 1_000_000u64..10_000_000_000, start in 1u64..1 << 60, arrivals in prop::collection::vec((0u64..2_000, 1u64..40), 1..400)) {
            let scale = TickScale::FINEST;
            let limiter = FixedWindow::new(Rate { count, per_nanoseconds }, scale);
            let quantum = 1u128 << limiter.count_bits;
            let (mut state, mut now) = (start, start);
            let mut model = Model { end: 0, count: 0 };
            for (gap, cost) in arrivals {
                now += gap * limiter.window / 1_000;
                if u128::from(now) >= model.end {
                    // The definition's window, its end on the next quantum.
                    model = Model { end: (u128::from(now) + u128::from(limiter.window)).div_ceil(quantum) * quantum, count: 0 };
                    if cost > count { model.end = 0; }
                }
                let expected = model.count + cost <= count;
                match limiter.decide(state, now, cost) {
                    Decision::Pass(next) => { prop_assert!(expected); model.count += cost; state = next; }
                    Decision::Refuse => prop_assert!(!expected),
                }
            }
        }

        #[test]
        fn refused_until_exactly_the_wait_time(count in 1u64..1_000, per_nanoseconds in 1_000_000u64..10_000_000_000, start: u64) {
            let limiter = FixedWindow::new(Rate { count, per_nanoseconds }, TickScale::FINEST);
            let Decision::Pass(state) = limiter.decide(start, start, count) else { panic!() };
            prop_assert_eq!(limiter.remaining(state, start), 0);
            let wait = limiter.wait(state, start, 1).unwrap();
            prop_assert!(wait >= limiter.window && wait < limiter.window + (1 << limiter.count_bits));
            prop_assert_eq!(limiter.decide(state, start.wrapping_add(wait - 1), 1), Decision::Refuse);
            prop_assert!(matches!(limiter.decide(state, start.wrapping_add(wait), 1), Decision::Pass(_)));
        }

        #[test]
        fn a_clock_that_jumps_back_opens_no_new_window(count in 1u64..1_000, start in 1u64 << 50..1 << 60, back in 0u64..1 << 49) {
            let limiter = FixedWindow::new(Rate::per_second(count), TickScale::FINEST);
            let Decision::Pass(state) = limiter.decide(start, start, count) else { panic!() };
            prop_assert_eq!(limiter.decide(state, start - back, 1), Decision::Refuse);
        }

        #[test]
        fn any_state_is_a_state(count in 1u64..1 << 32, state: u64, now: u64, cost: u64) {
            let limiter = FixedWindow::new(Rate::per_second(count), TickScale::FINEST);
            if let Decision::Pass(next) = limiter.decide(state, now, cost) {
                prop_assert!(next & ((1 << limiter.count_bits) - 1) <= count);
            }
        }
    }
}
