//! Sliding window: the window before, weighed by the share of it still in view.
//!
//! Source: the two-counter approximation of a sliding window as popularised by Cloudflare, "How we built rate limiting
//! capable of scaling to millions of domains", 2017. Windows are aligned to multiples of T on the monotonic clock.
//!
//! State: two words, one for even and one for odd windows. Each holds a label that names its window (and is the instant
//! at which its count no longer matters), the count, and a seal. The first packet of a window seals the window before,
//! which never counts again: a CPU whose clock reading is still in the old window finds the seal and moves on. So the
//! count that is weighed cannot change after it was weighed, and what passes is exact on any number of CPUs.
//!
//! Error bound against the definition: exact while N·T fits 62 bits in ticks (N = 1,000 with T up to 39 hours); beyond
//! that the share is rounded up to 2⁻²² at the coarsest, so that never more passes. Against a true sliding log the
//! definition itself errs by assuming that the window before was evenly filled.

use super::Rate;
use crate::time::{TickScale, Ticks};

/// A sliding window of `most` units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    /// The window's length T in ticks.
    pub window: Ticks,
    /// N, in units.
    pub most: u64,
    /// Low bits of a word that hold the count and, lowest, the seal.
    pub low_bits: u32,
    /// How many bits T is shifted right before it is multiplied by a count.
    pub share_shift: u32,
}

/// Which of the two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// That of windows with an even number.
    Even,
    /// That of windows with an odd number.
    Odd,
}

/// What to do next; after a `Replace` of either kind that lost its race, look at both words again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Seal the window before by replacing `from` with `to`, then look again.
    Seal {
        /// The word to replace.
        word: Word,
        /// What it has to hold still.
        from: u64,
        /// What it shall hold.
        to: u64,
    },
    /// It conforms: replace `from` with `to`.
    Pass {
        /// The word to replace.
        word: Word,
        /// What it has to hold still.
        from: u64,
        /// What it shall hold.
        to: u64,
    },
    /// It does not.
    Refuse,
}

const SEAL: u64 = 1;

impl SlidingWindow {
    /// `rate.count` units in any `rate.per_nanoseconds`, by the approximation.
    #[must_use]
    pub fn new(rate: Rate, scale: TickScale) -> Self {
        let window = scale.ticks(rate.per_nanoseconds).max(1);
        let count_bits = u64::BITS - rate.count.leading_zeros();
        let window_bits = u64::BITS - window.leading_zeros();
        Self {
            window,
            most: rate.count,
            low_bits: count_bits + 1,
            share_shift: (count_bits + window_bits).saturating_sub(62),
        }
    }

    /// Whether the labels of neighbouring windows differ, which the algorithm needs: T in ticks is at least 2^`low_bits`.
    #[must_use]
    pub const fn is_representable(&self) -> bool {
        self.low_bits < 63 && self.window >> self.low_bits > 0
    }

    #[inline(always)]
    fn low_mask(&self) -> u64 {
        (1 << (self.low_bits & 63)) - 1
    }

    /// The label of the window that starts at `start`: the first quantum at or after the end of the window after it.
    #[inline(always)]
    fn label(&self, start: Ticks) -> u64 {
        let mask = self.low_mask();
        start.wrapping_add(2 * self.window).wrapping_add(mask) & !mask
    }

    /// Whether the content of a word is of the window that has `label`.
    #[inline(always)]
    fn belongs(&self, word: u64, label: u64) -> bool {
        word & !self.low_mask() == label
    }

    #[inline(always)]
    fn count(&self, word: u64) -> u64 {
        (word & self.low_mask()) >> 1
    }

    /// Decides on `cost` at `now` from both words.
    #[inline(always)]
    #[must_use]
    pub fn step(&self, even: u64, odd: u64, now: Ticks, cost: u64) -> Step {
        // A window of 0 is none of ours; a division that cannot fail needs no panic.
        let Some(number) = now.checked_div(self.window) else { return Step::Refuse };
        let start = number * self.window;
        let this = self.view(even, odd, number, start, now - start);
        // A window that is sealed is over, by the clock of another CPU: this instant belongs to the next one's start.
        let (word, current, previous, label, before, elapsed) = if self.belongs(this.1, this.3) && this.1 & SEAL != 0 {
            self.view(even, odd, number.wrapping_add(1), start.wrapping_add(self.window), 0)
        } else {
            this
        };

        let previous_count = if self.belongs(previous, before) {
            if previous & SEAL == 0 {
                return Step::Seal { word: other(word), from: previous, to: previous | SEAL };
            }
            self.count(previous)
        } else {
            // Nothing passed in the window before. Say so under its label, or a late CPU might still count there.
            return Step::Seal { word: other(word), from: previous, to: before | SEAL };
        };
        let count = if self.belongs(current, label) { self.count(current) } else { 0 };
        if cost == 0 || cost > self.most || count > self.most {
            return Step::Refuse;
        }
        // passed + before × share < N for a cost of 1; for more, the sum before the last unit. The share in view is
        // rounded up and T down, and neither product can reach 2⁶³ by the choice of the shift.
        let shift = self.share_shift & 63;
        let whole = self.window >> shift;
        let in_view = (self.window - elapsed + ((1 << shift) - 1)) >> shift;
        let used = (count + cost - 1) * whole + previous_count * in_view;
        if used < self.most * whole {
            Step::Pass { word, from: current, to: label | ((count + cost) << 1) }
        } else {
            Step::Refuse
        }
    }

    /// (word of the window, its content, content of the other, its label, the label before, elapsed).
    #[inline(always)]
    fn view(
        &self,
        even: u64,
        odd: u64,
        number: u64,
        start: Ticks,
        elapsed: Ticks,
    ) -> (Word, u64, u64, u64, u64, Ticks) {
        let (word, current, previous) = if number & 1 == 0 { (Word::Even, even, odd) } else { (Word::Odd, odd, even) };
        (word, current, previous, self.label(start), self.label(start.wrapping_sub(self.window)), elapsed)
    }

    /// The words of a key that has passed nothing.
    #[must_use]
    pub const fn fresh(now: Ticks) -> u64 {
        now & !SEAL
    }

    /// A word with an earlier charge of `cost`, which left `charged`, taken back; `None` once that window is sealed.
    #[inline(always)]
    #[must_use]
    pub fn refund(&self, state: u64, charged: u64, cost: u64) -> Option<u64> {
        let mask = self.low_mask();
        (state & !mask == charged & !mask && state & SEAL == 0 && self.count(state) >= cost)
            .then(|| state - (cost << 1))
    }

    /// (passed in this window, passed in the one before, ticks left of this window).
    fn counts(&self, even: u64, odd: u64, now: Ticks) -> (u64, u64, Ticks) {
        let number = now / self.window;
        let start = number * self.window;
        let (_, current, previous, label, before, elapsed) = self.view(even, odd, number, start, now - start);
        let of = |word: u64, label: u64| if self.belongs(word, label) { self.count(word) } else { 0 };
        (of(current, label), of(previous, before), self.window - elapsed)
    }

    /// (what is in view at `now`, in units times the window's length; that length).
    pub(super) fn in_view(&self, [even, odd]: [u64; 2], now: Ticks) -> (u128, Ticks) {
        let (count, before, left) = self.counts(even, odd, now);
        (u128::from(count) * u128::from(self.window) + u128::from(before) * u128::from(left), self.window)
    }

    /// Both words of a key that has passed `count` in the window at hand, and nothing in the one before.
    pub(super) fn opened_with(&self, count: u64, now: Ticks) -> [u64; 2] {
        if count == 0 {
            return [Self::fresh(now); 2];
        }
        let number = now / self.window;
        let start = number * self.window;
        let this = self.label(start) | count << 1;
        let before = self.label(start.wrapping_sub(self.window)) | SEAL;
        if number & 1 == 0 { [this, before] } else { [before, this] }
    }

    /// The largest cost that would pass now, in units.
    #[must_use]
    pub fn remaining(&self, even: u64, odd: u64, now: Ticks) -> u64 {
        let (count, before, left) = self.counts(even, odd, now);
        let window = u128::from(self.window);
        let before = u128::from(before) * u128::from(left);
        // The sum before the last unit has only to be below N, so a fraction of a unit is as good as a whole one.
        if before + u128::from(count) * window >= u128::from(self.most) * window {
            return 0;
        }
        u64::try_from(u128::from(self.most) - u128::from(count) - before / window).unwrap_or(u64::MAX)
    }

    /// Ticks until `cost` would pass if nothing else did; `None` if it never can.
    #[must_use]
    pub fn wait(&self, even: u64, odd: u64, now: Ticks, cost: u64) -> Option<Ticks> {
        if cost == 0 || cost > self.most {
            return None;
        }
        let (count, before, left) = self.counts(even, odd, now);
        // In this window: count + cost - 1 + before × left′/T < N for the first left′ ≤ left.
        let wait_within = |count: u64, before: u64, left: Ticks| -> Option<Ticks> {
            let free = self.most.checked_sub(count + cost - 1).filter(|free| *free > 0)?;
            if before == 0 {
                return Some(0);
            }
            let most_left = u64::try_from((u128::from(free) * u128::from(self.window) - 1) / u128::from(before))
                .unwrap_or(u64::MAX);
            Some(left.saturating_sub(most_left)).filter(|wait| *wait < left)
        };
        // Else in the next, where what this one passed is weighed; else in the one after, where nothing is.
        wait_within(count, before, left)
            .or_else(|| wait_within(0, count, self.window).map(|wait| left + wait))
            .or(Some(left + self.window))
    }
}

#[inline(always)]
const fn other(word: Word) -> Word {
    match word {
        Word::Even => Word::Odd,
        Word::Odd => Word::Even,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Runs the steps as one CPU does.
    fn decide(limiter: &SlidingWindow, words: &mut [u64; 2], now: Ticks, cost: u64) -> bool {
        for _ in 0..4 {
            match limiter.step(words[0], words[1], now, cost) {
                Step::Seal { word, from, to } => {
                    assert_eq!(words[word as usize], from);
                    words[word as usize] = to;
                }
                Step::Pass { word, from, to } => {
                    assert_eq!(words[word as usize], from);
                    words[word as usize] = to;
                    return true;
                }
                Step::Refuse => return false,
            }
        }
        panic!("did not come to a decision");
    }

    fn limiter(count: u64, per_nanoseconds: u64) -> SlidingWindow {
        let limiter = SlidingWindow::new(Rate { count, per_nanoseconds }, TickScale::FINEST);
        assert!(limiter.is_representable());
        limiter
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn every_verdict_is_that_of_the_definition(count in 1u64..2_000, per_nanoseconds in 1_000_000u64..100_000_000_000, start in 1u64..1 << 60, arrivals in prop::collection::vec((0u64..3_000, 1u64..20), 1..300)) {
            let limiter = limiter(count, per_nanoseconds);
            prop_assert_eq!(limiter.share_shift, 0);
            let mut words = [SlidingWindow::fresh(start); 2];
            let mut passed: std::collections::HashMap<u64, u64> = Default::default();
            let mut now = start;
            for (gap, cost) in arrivals {
                now += gap * limiter.window / (500 * count).min(3_000);
                let number = now / limiter.window;
                let before = u128::from(number.checked_sub(1).and_then(|n| passed.get(&n)).copied().unwrap_or(0));
                let this = u128::from(passed.get(&number).copied().unwrap_or(0));
                let window = u128::from(limiter.window);
                let left = window - u128::from(now % limiter.window);
                let expected = cost <= count && (this + u128::from(cost) - 1) * window + before * left < u128::from(count) * window;
                let remaining = limiter.remaining(words[0], words[1], now);
                prop_assert!(expected || cost > remaining);
                prop_assert_eq!(decide(&limiter, &mut words, now, cost), expected);
                if expected { *passed.entry(number).or_default() += cost; }
            }
        }

        /// Where N·T does not fit, the share is rounded: never more, and less by no more than one part in a million.
        #[test]
        fn large_limits_err_on_the_safe_side(count in 1u64 << 24..1 << 32, before in 0u64..1 << 32, spent in 0u64..1 << 32, at in 0u64..1_000_000) {
            let limiter = limiter(count, 3_600_000_000_000);
            let (before, spent) = (before % count, spent % count);
            let number = 10;
            let now = number * limiter.window + (u128::from(limiter.window) * u128::from(at) / 1_000_000) as u64;
            let start = number * limiter.window;
            let even = limiter.label(start) | (spent << 1);
            let odd = limiter.label(start - limiter.window) | (before << 1) | SEAL;
            let window = u128::from(limiter.window);
            let left = window - u128::from(now - start);
            let used = u128::from(spent) * window + u128::from(before) * left;
            match limiter.step(even, odd, now, 1) {
                Step::Pass { .. } => prop_assert!(used < u128::from(count) * window),
                Step::Refuse => prop_assert!(used + u128::from(before) * (window >> 20) >= u128::from(count) * window),
                Step::Seal { .. } => prop_assert!(false, "sealed already"),
            }
        }

        #[test]
        fn refused_until_exactly_the_wait_time(count in 1u64..1_000, per_nanoseconds in 1_000_000u64..10_000_000_000, start in 1u64 << 40..1 << 60, offset in 0u64..1_000, cost in 1u64..1_000) {
            let limiter = limiter(count, per_nanoseconds);
            let cost = cost.min(count);
            let mut words = [SlidingWindow::fresh(start); 2];
            while decide(&limiter, &mut words, start, 1) {}
            let now = start + offset * limiter.window / 1_000;
            while decide(&limiter, &mut words, now, 1) {}
            let wait = limiter.wait(words[0], words[1], now, cost).unwrap();
            if wait > 0 {
                let mut copy = words;
                prop_assert!(!decide(&limiter, &mut copy, now + wait - 1, cost));
            }
            let mut copy = words;
            prop_assert!(decide(&limiter, &mut copy, now + wait, cost));
        }

        /// A CPU that is late by a window counts in the new one, with the whole of the old in view.
        #[test]
        fn a_late_clock_gains_nothing(count in 1u64..1_000, start in 1u64 << 50..1 << 60, late in 0u64..1 << 20) {
            let limiter = limiter(count, 1_000_000_000);
            let boundary = (start / limiter.window + 1) * limiter.window;
            let mut words = [SlidingWindow::fresh(boundary - 1); 2];
            let mut passed = 0;
            while decide(&limiter, &mut words, boundary - 1, 1) { passed += 1; }
            prop_assert_eq!(passed, count);
            // Another CPU opens the new window far in, where some of the old is out of view …
            let within = boundary + limiter.window / 2;
            while decide(&limiter, &mut words, within, 1) { passed += 1; }
            // … and the late one, still before the boundary, gets nothing of the old window and no more of the new.
            prop_assert!(!decide(&limiter, &mut words, boundary - 1 - late, 1) || count == 1);
            prop_assert!(passed <= count + count.div_ceil(2));
        }

        #[test]
        fn any_state_is_a_state(count in 1u64..1 << 30, even: u64, odd: u64, now: u64, cost: u64) {
            let limiter = limiter(count, 1_000_000_000);
            if let Step::Pass { to, .. } = limiter.step(even, odd, now, cost) {
                prop_assert!(limiter.count(to) <= count);
            }
        }
    }
}
