//! Fixed window: a count that restarts with each window.
//!
//! The window starts with the first unit after the last window ended. So a source that was idle cannot pass twice the
//! limit around a wall-clock boundary. Across the end of a busy window, up to 2·N can pass within less than T, which is
//! inherent in the algorithm (a sliding window avoids it).
//!
//! State: the window's end in the high bits, the passed units in the low bits. Error bound: passed units are exact; a
//! window is longer than T by less than 2^`count_bits` ticks (32 ns at N = 1,000, 34 ms at N = 10⁹ bytes), never
//! shorter.

use super::Decision;
use super::migration::Instants;
use super::moves::Moves;
use super::parameters::{Parameters, Parametric};
use super::rate::{Costs, Rate};
use super::rate_algorithm::{RateAlgorithm, bits_for_debt};
use super::refund::Refund;
use super::shared::{Charge, SharedCharge, SharedState, Swap, charge_word, refund_word};
use crate::share::Share;
use crate::time::{TickScale, Ticks, is_alive};

/// A fixed window of `most` units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    /// The window's length T in ticks.
    pub window: Ticks,
    /// N, the units that pass in a window; below 2^`count_bits`.
    pub most: u64,
    /// The number of low bits of the state for the count.
    pub count_bits: u32,
}

impl FixedWindow {
    /// `rate.count` units in each window of `rate.per_nanoseconds`.
    #[must_use]
    pub fn new(rate: Rate, scale: TickScale) -> Self {
        let window = scale.ticks(rate.per_nanoseconds).max(1);
        Self {
            window,
            most: rate.count,
            count_bits: u64::BITS - rate.count.leading_zeros(),
        }
    }

    #[inline(always)]
    fn count_mask(&self) -> u64 {
        (1 << (self.count_bits & 63)) - 1
    }

    /// A state as (the window's end, passed units).
    fn parts(&self, state: u64) -> (Ticks, u64) {
        (state & !self.count_mask(), state & self.count_mask())
    }

    /// The state of a window that ends at `end`, rounded up to the state's resolution.
    fn state(&self, end: Ticks, count: u64) -> u64 {
        end.wrapping_add(self.count_mask()) & !self.count_mask() | count
    }

    /// The window of `state` at `now`, as (end, count); a new one if it has ended.
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
        // count ≤ most for every state that this function writes, so that nothing wraps; any other state refuses.
        if cost > self.most.saturating_sub(count) {
            Decision::Refuse
        } else {
            Decision::Pass(end | (count + cost))
        }
    }

    /// The state without an earlier charge of `cost`, which left `charged`; `None` once that window has ended.
    #[inline(always)]
    #[must_use]
    pub fn refund(&self, state: u64, charged: u64, cost: u64) -> Option<u64> {
        let mask = self.count_mask();
        (state & !mask == charged & !mask && state & mask >= cost).then(|| state - cost)
    }

    /// A state whose window has ended becomes the window that started at `begun`, with count 0; others stay. Hosts
    /// whose windows start at multiples of T on one clock agree on them without communication. The multiples are not in
    /// ticks, which wrap.
    #[must_use]
    pub fn aligned(&self, state: u64, now: Ticks, begun: Ticks) -> u64 {
        let (end, _) = self.parts(state);
        if is_alive(end, now) {
            state
        } else {
            self.state(begun.wrapping_add(self.window), 0)
        }
    }

    /// An [`Self::aligned`] state with `cost` added, even beyond the limit. The units were consumed elsewhere by
    /// `until`, which is not in the future. Units of an earlier window are ignored.
    #[must_use]
    pub fn charge_beyond(&self, aligned: u64, until: Ticks, cost: u64) -> u64 {
        let (end, count) = self.parts(aligned);
        let is_before = is_alive(
            end.wrapping_sub(self.window)
                .wrapping_sub(self.count_mask()),
            until,
        );
        end | if is_before {
            count
        } else {
            count.saturating_add(cost).min(self.count_mask())
        }
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

impl Parametric for FixedWindow {
    const NAME: &'static str = "fixed-window";

    #[inline(always)]
    fn from_parameters(parameters: Parameters) -> Self {
        Self {
            window: parameters.interval,
            most: parameters.most,
            count_bits: u32::from(parameters.shift),
        }
    }

    fn parameters(&self) -> Parameters {
        Parameters {
            interval: self.window,
            most: self.most,
            shift: self.count_bits as u8,
            ..Parameters::default()
        }
    }
}

impl RateAlgorithm for FixedWindow {
    const MOVES: Moves = Moves::Nowhere;

    fn build(rate: Rate, _: u64, _: Costs, scale: TickScale) -> Self {
        Self::new(rate, scale)
    }

    /// Counting makes the window longer by less than a thousandth.
    fn is_precise(&self) -> bool {
        self.count_bits <= 50 && self.window >> (self.count_bits + 10) > 0
    }

    /// Counts up to 2²⁵ where the window is then longer by less than 2⁻¹⁵ of itself, and 2²⁵ ticks: 1 ms.
    fn with_room_for_debt(&self) -> Self {
        Self {
            count_bits: self.count_bits.max(bits_for_debt(self.window)),
            ..*self
        }
    }

    fn without_room_for_debt(&self) -> Self {
        Self {
            count_bits: u64::BITS - self.most.leading_zeros(),
            ..*self
        }
    }

    fn on_states_of(&self, larger: &Self) -> Self {
        Self {
            count_bits: if larger.is_precise() {
                larger.count_bits
            } else {
                self.count_bits
            },
            ..*self
        }
    }

    fn at_share(&self, share: Share) -> Self {
        Self {
            most: share.units(self.most),
            ..*self
        }
    }

    fn conforms(&self, words: &[u64], now: Ticks, cost: u64) -> bool {
        self.decide(words[0], now, cost) != Decision::Refuse
    }

    #[inline]
    fn charge(&self, words: &mut [u64], now: Ticks, cost: u64) -> bool {
        self.decide(words[0], now, cost).write(&mut words[0])
    }

    /// Counts up to 2^`count_bits`: a window beyond that is as exhausted as it can be.
    fn charge_beyond(&self, words: &mut [u64], until: Ticks, cost: u64) {
        words[0] = self.charge_beyond(words[0], until, cost);
    }

    fn force(&self, words: &mut [u64], now: Ticks, cost: u64) {
        let (end, count) = self.at(words[0], now);
        words[0] = end | count.saturating_add(cost).min(self.count_mask());
    }

    /// Nothing once their window has ended. Windows are told apart to 2^`count_bits` ticks. A count that is as high as it
    /// can be stays: the units beyond it are not known.
    fn refund(&self, words: &mut [u64], now: Ticks, refund: Refund) {
        let (end, count) = self.parts(words[0]);
        let (own_end, _) = self.parts(self.state(refund.at.wrapping_add(self.window), 0));
        let has_ended = !is_alive(end, now) || is_alive(end, own_end);
        if !has_ended && count < self.count_mask() {
            words[0] = end | count.saturating_sub(refund.units());
        }
    }

    fn debt(&self, words: &[u64], now: Ticks) -> u64 {
        self.at(words[0], now).1.saturating_sub(self.most)
    }

    fn remaining(&self, words: &[u64], now: Ticks) -> u64 {
        self.remaining(words[0], now)
    }

    fn wait(&self, words: &[u64], now: Ticks, cost: u64) -> Option<Ticks> {
        self.wait(words[0], now, cost)
    }

    fn alignable_window(&self) -> Option<Ticks> {
        Some(self.window)
    }

    fn align(&self, words: &mut [u64], now: Ticks, begun: Ticks) {
        words[0] = self.aligned(words[0], now, begun);
    }

    /// The count stays, and the rest of the window keeps its share.
    fn migrate(&self, old: &Self, old_words: &[u64], words: &mut [u64], now: Instants) {
        let (end, count) = old.parts(old_words[0]);
        words[0] = match now.ahead(end, old.window, self.window) {
            Some(ahead) => self.state(now.to.wrapping_add(ahead), count.min(self.count_mask())),
            None => now.to,
        };
    }

    /// Counts of the same window add up.
    fn merge(&self, current: u64, then: u64, last: u64, _: Ticks) -> u64 {
        let ((end, count), (last_end, last_count)) = (self.parts(current), self.parts(last));
        if end != last_end {
            return if is_alive(last_end, end) {
                last
            } else {
                current
            };
        }
        let (then_end, then_count) = self.parts(then);
        let before = if then_end == last_end { then_count } else { 0 };
        end | (count + last_count.saturating_sub(before)).min(self.count_mask())
    }
}

impl SharedCharge for FixedWindow {
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
        refund_word(state, 0, |word| self.refund(word, charged.left(), cost));
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
                    // The window by definition, its end at the next quantum.
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

        /// The windows of two hosts end together wherever they start on the clock, and units from elsewhere count in
        /// the window in which they were consumed.
        #[test]
        fn aligned_windows_end_together(count in 2u64..1_000, start in 1u64 << 50..1 << 60, after in 0u64..1 << 45, cost in 1u64..1_000) {
            let limiter = FixedWindow::new(Rate { count, per_nanoseconds: 10_000_000_000 }, TickScale::FINEST);
            let start = start / limiter.window * limiter.window;
            let later = start + after % (limiter.window - (1 << limiter.count_bits));
            let aligned = |state, now| limiter.aligned(state, now, now - now % limiter.window);
            let (one, other) = (aligned(0, start), aligned(0, later));
            prop_assert_eq!(one, other);
            prop_assert_eq!(aligned(one, later), one);
            let charged = limiter.charge_beyond(aligned(later, later), start, cost);
            prop_assert_eq!(limiter.remaining(charged, later), count.saturating_sub(cost));
            let next = aligned(one, start + limiter.window + (1 << limiter.count_bits));
            prop_assert_ne!(next, one);
            prop_assert_eq!(limiter.charge_beyond(aligned(next, start + limiter.window), start, cost), next, "history");
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

    proptest! {
        #[test]
        fn a_fixed_window_keeps_its_count(old_count in 1u64..5_000, new_count in 1u64..5_000, seconds in 1u64..100, used in 0.0f64..=1.0, later in 0.0f64..0.9) {
            let rate = |count, seconds| Rate { count, per_nanoseconds: seconds * 1_000_000_000 };
            let old = FixedWindow::new(rate(old_count, 10), TickScale::FINEST);
            let new = FixedWindow::new(rate(new_count, seconds), TickScale::FINEST);
            let used = (used * old_count as f64) as u64;
            let mut now = Instants { from: 1 << 46, to: 1 << 46 };
            let mut state = now.from;
            if used > 0 {
                let Decision::Pass(next) = old.decide(state, now.from, used) else { panic!("there is room") };
                state = next;
            }
            let elapsed = (later * old.window as f64) as u64;
            now = Instants { from: now.from + elapsed, to: now.to + elapsed };
            let mut carried = [0];
            new.migrate(&old, &[state], &mut carried, now);
            let carried = carried[0];
            prop_assert_eq!(new.remaining(carried, now.to), new_count.saturating_sub(used));
            if used >= new_count {
                let wait = new.wait(carried, now.to, 1).unwrap() as f64;
                let wanted = (1.0 - later) * new.window as f64;
                prop_assert!((wait - wanted).abs() <= 1e-4 * new.window as f64 + 1e5, "{wait} of {wanted}");
            }
        }
    }

    #[test]
    fn counts_of_one_window_add_up_and_those_of_another_do_not() {
        let window = FixedWindow::new(Rate::per_second(100), TickScale::FINEST);
        let label = |nth: u64| nth << window.count_bits;
        assert_eq!(
            window.merge(label(9) + 12, label(9) + 10, label(9) + 15, 0),
            label(9) + 17
        );
        assert_eq!(
            window.merge(label(9) + 12, 0, label(9) + 15, 0),
            label(9) + 27
        );
        assert_eq!(
            window.merge(label(10) + 2, label(9) + 10, label(9) + 15, 0),
            label(10) + 2
        );
    }
}
