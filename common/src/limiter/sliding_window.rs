//! Sliding window: the previous window, weighed by its share that is still in view.
//!
//! Source: the two-counter approximation of a sliding window as popularised by Cloudflare, "How we built rate limiting
//! capable of scaling to millions of domains", 2017. Windows are aligned to multiples of T on the monotonic clock.
//!
//! State: two words, for even and odd windows. Each has a label of its window (the instant at which its count becomes
//! irrelevant), the count, and a seal. The first packet of a window seals the previous one, which never counts again: a
//! CPU whose clock reading is still in the old window finds the seal and uses the new one. So a count cannot change
//! after it was weighed, and passed units are exact on any number of CPUs. A CPU that reads one word before and the other
//! one after another CPU has begun a window decides again; one that is late by more than a window is refused.
//!
//! Error bound against the definition: exact while N·T in ticks fits into 62 bits (N = 1,000 with T up to 39 hours);
//! beyond that the share is rounded up by at most 2⁻²², so that never more passes. Compared with a sliding log, the
//! definition itself errs by assuming that the previous window was evenly filled.

use super::migration::Instants;
use super::moves::Moves;
use super::parameters::{Parameters, Parametric};
use super::rate::{Costs, Rate};
use super::rate_algorithm::{RateAlgorithm, bits_for_debt};
use super::refund::Refund;
use super::shared::{CHARGE_TRIES, Charge, SharedCharge, SharedState, Swap, refund_word};
use crate::share::Share;
use crate::time::{TickScale, Ticks, is_alive};

/// A sliding window of `most` units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    /// The window's length T in ticks.
    pub window: Ticks,
    /// N, in units.
    pub most: u64,
    /// The number of low bits of a word for the count and, lowest, the seal.
    pub low_bits: u32,
    /// The right shift of T before it is multiplied by a count.
    pub share_shift: u32,
}

/// One of the two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// The word of windows with an even number.
    Even,
    /// The word of windows with an odd number.
    Odd,
}

/// The next step. If a replacement fails because of a race, decide again on both words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Seal the previous window by replacing `from` with `to`, then decide again.
    Seal {
        /// The word to replace.
        word: Word,
        /// Its expected value.
        from: u64,
        /// Its new value.
        to: u64,
    },
    /// It conforms: replace `from` with `to`.
    Pass {
        /// The word to replace.
        word: Word,
        /// Its expected value.
        from: u64,
        /// Its new value.
        to: u64,
    },
    /// It does not conform.
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

    /// The label of the window that starts at `start`: the first quantum at or after the end of the next window.
    #[inline(always)]
    fn label(&self, start: Ticks) -> u64 {
        let mask = self.low_mask();
        start.wrapping_add(2 * self.window).wrapping_add(mask) & !mask
    }

    /// Whether a word is of the window with this label.
    #[inline(always)]
    fn belongs(&self, word: u64, label: u64) -> bool {
        word & !self.low_mask() == label
    }

    /// Whether a word may not be replaced by another: it is of a later window, or sealed. The two words were not read at
    /// the same instant.
    #[inline(always)]
    fn is_later(&self, from: u64, to: u64) -> bool {
        let window = !self.low_mask() | SEAL;
        is_alive(from & window, to & window)
    }

    #[inline(always)]
    fn count(&self, word: u64) -> u64 {
        (word & self.low_mask()) >> 1
    }

    /// Decides on `cost` at `now` from both words.
    #[inline(always)]
    #[must_use]
    pub fn step(&self, even: u64, odd: u64, now: Ticks, cost: u64) -> Step {
        // passed + previous × share < N for a cost of 1; for more, the sum before the last unit. The share in view is
        // rounded up and T down, and the shift ensures that no product reaches 2⁶³.
        self.step_by([even, odd], now, cost, |before_last, previous, left| {
            let shift = self.share_shift & 63;
            let whole = self.window >> shift;
            let in_view = (left + ((1 << shift) - 1)) >> shift;
            before_last * whole + previous * in_view < self.most * whole
        })
    }

    /// The same where products may have more than 64 bits: exact for any count.
    fn step_exactly(&self, words: [u64; 2], now: Ticks, cost: u64) -> Step {
        let wide = u128::from;
        self.step_by(words, now, cost, |before_last, previous, left| {
            wide(before_last) * wide(self.window) + wide(previous) * wide(left)
                < wide(self.most) * wide(self.window)
        })
    }

    /// Decides by whether units conform: (those of this window before the last one, those of the previous window, the
    /// ticks for which it is still in view).
    #[inline(always)]
    fn step_by(
        &self,
        [even, odd]: [u64; 2],
        now: Ticks,
        cost: u64,
        conforms: impl Fn(u64, u64, Ticks) -> bool,
    ) -> Step {
        // A window of 0 is invalid; checked division avoids a panic.
        let Some(number) = now.checked_div(self.window) else {
            return Step::Refuse;
        };
        let start = number * self.window;
        let this = self.view(even, odd, number, start, now - start);
        // Another CPU has sealed this window: treat this instant as the start of the next one.
        let (word, current, previous, label, before, elapsed) =
            if self.belongs(this.1, this.3) && this.1 & SEAL != 0 {
                self.view(
                    even,
                    odd,
                    number.wrapping_add(1),
                    start.wrapping_add(self.window),
                    0,
                )
            } else {
                this
            };

        let previous_count = if self.belongs(previous, before) {
            if previous & SEAL == 0 {
                return Step::Seal {
                    word: word.other(),
                    from: previous,
                    to: previous | SEAL,
                };
            }
            self.count(previous)
        } else {
            // The previous window is empty. Seal it under its label, or a late CPU might still count there.
            return Step::Seal {
                word: word.other(),
                from: previous,
                to: before | SEAL,
            };
        };
        let count = if self.belongs(current, label) {
            self.count(current)
        } else {
            0
        };
        if cost == 0 || cost > self.most || count > self.most {
            return Step::Refuse;
        }
        if conforms(count + cost - 1, previous_count, self.window - elapsed) {
            Step::Pass {
                word,
                from: current,
                to: label | ((count + cost) << 1),
            }
        } else {
            Step::Refuse
        }
    }

    /// (word of the window, its value, value of the other word, its label, the previous label, elapsed time).
    #[inline(always)]
    fn view(
        &self,
        even: u64,
        odd: u64,
        number: u64,
        start: Ticks,
        elapsed: Ticks,
    ) -> (Word, u64, u64, u64, u64, Ticks) {
        let (word, current, previous) = if number & 1 == 0 {
            (Word::Even, even, odd)
        } else {
            (Word::Odd, odd, even)
        };
        (
            word,
            current,
            previous,
            self.label(start),
            self.label(start.wrapping_sub(self.window)),
            elapsed,
        )
    }

    /// The words of a key without passed units.
    #[must_use]
    pub const fn fresh(now: Ticks) -> u64 {
        now & !SEAL
    }

    /// A word without an earlier charge of `cost`, which left `charged`; `None` once that window is sealed.
    #[inline(always)]
    #[must_use]
    pub fn refund(&self, state: u64, charged: u64, cost: u64) -> Option<u64> {
        let mask = self.low_mask();
        (state & !mask == charged & !mask && state & SEAL == 0 && self.count(state) >= cost)
            .then(|| state - (cost << 1))
    }

    /// Both words with `cost` added to the window of `now`, even if it is sealed or full. A word of a later window
    /// stays.
    #[must_use]
    pub fn charge_beyond(&self, [even, odd]: [u64; 2], now: Ticks, cost: u64) -> [u64; 2] {
        let number = now / self.window;
        let start = number * self.window;
        let (word, current, _, label, ..) = self.view(even, odd, number, start, now - start);
        let most = self.low_mask() >> 1;
        let charged = if self.belongs(current, label) {
            let count = self.count(current).saturating_add(cost).min(most);
            current & !self.low_mask() | count << 1 | current & SEAL
        } else if is_alive(current & !self.low_mask(), label) {
            current
        } else {
            label | cost.min(most) << 1
        };
        if word == Word::Even {
            [charged, odd]
        } else {
            [even, charged]
        }
    }

    /// (passed in this window, passed in the previous one, remaining ticks of this window).
    fn counts(&self, even: u64, odd: u64, now: Ticks) -> (u64, u64, Ticks) {
        let number = now / self.window;
        let start = number * self.window;
        let (_, current, previous, label, before, elapsed) =
            self.view(even, odd, number, start, now - start);
        let of = |word: u64, label: u64| {
            if self.belongs(word, label) {
                self.count(word)
            } else {
                0
            }
        };
        (
            of(current, label),
            of(previous, before),
            self.window - elapsed,
        )
    }

    /// (units in view at `now`, times the window's length; that length).
    fn in_view(&self, [even, odd]: [u64; 2], now: Ticks) -> (u128, Ticks) {
        let (count, before, left) = self.counts(even, odd, now);
        (
            u128::from(count) * u128::from(self.window) + u128::from(before) * u128::from(left),
            self.window,
        )
    }

    /// Both words of a key that has passed `count` in the current window, and `before` in the previous one.
    fn opened_with(&self, count: u64, before: u64, now: Ticks) -> [u64; 2] {
        if count == 0 && before == 0 {
            return [Self::fresh(now); 2];
        }
        let number = now / self.window;
        let start = number * self.window;
        let this = self.label(start) | count << 1;
        let before = self.label(start.wrapping_sub(self.window)) | before << 1 | SEAL;
        if number & 1 == 0 {
            [this, before]
        } else {
            [before, this]
        }
    }

    /// The largest cost that would pass now, in units.
    #[must_use]
    pub fn remaining(&self, even: u64, odd: u64, now: Ticks) -> u64 {
        let (count, before, left) = self.counts(even, odd, now);
        let window = u128::from(self.window);
        let before = u128::from(before) * u128::from(left);
        // Only the sum before the last unit must be below N, so a fraction of a unit suffices.
        if before + u128::from(count) * window >= u128::from(self.most) * window {
            return 0;
        }
        u64::try_from(u128::from(self.most) - u128::from(count) - before / window)
            .unwrap_or(u64::MAX)
    }

    /// Ticks until `cost` would pass if nothing else did; `None` if it never can.
    #[must_use]
    pub fn wait(&self, even: u64, odd: u64, now: Ticks, cost: u64) -> Option<Ticks> {
        if cost == 0 || cost > self.most {
            return None;
        }
        let (count, before, left) = self.counts(even, odd, now);
        // In this window: count + cost - 1 + previous × left′/T < N for the first left′ ≤ left.
        let wait_within = |count: u64, before: u64, left: Ticks| -> Option<Ticks> {
            let free = self
                .most
                .checked_sub(count + cost - 1)
                .filter(|free| *free > 0)?;
            if before == 0 {
                return Some(0);
            }
            let most_left = u64::try_from(
                (u128::from(free) * u128::from(self.window) - 1) / u128::from(before),
            )
            .unwrap_or(u64::MAX);
            Some(left.saturating_sub(most_left)).filter(|wait| *wait < left)
        };
        // Else in the next window, where this one's count is weighed; else in the one after it.
        wait_within(count, before, left)
            .or_else(|| wait_within(0, count, self.window).map(|wait| left + wait))
            .or(Some(left + self.window))
    }
}

impl Word {
    #[inline(always)]
    const fn other(self) -> Self {
        match self {
            Self::Even => Self::Odd,
            Self::Odd => Self::Even,
        }
    }

    /// Its place in the state.
    #[inline(always)]
    const fn offset(self) -> u32 {
        match self {
            Self::Even => 0,
            Self::Odd => 1,
        }
    }
}

impl Parametric for SlidingWindow {
    const NAME: &'static str = "sliding-window";

    #[inline(always)]
    fn from_parameters(parameters: Parameters) -> Self {
        Self {
            window: parameters.interval,
            most: parameters.most,
            low_bits: u32::from(parameters.shift),
            share_shift: u32::from(parameters.share_shift),
        }
    }

    fn parameters(&self) -> Parameters {
        Parameters {
            interval: self.window,
            tolerance: 0,
            most: self.most,
            shift: self.low_bits as u8,
            share_shift: self.share_shift as u8,
        }
    }
}

impl RateAlgorithm for SlidingWindow {
    const WORDS: u32 = 2;
    const MOVES: Moves = Moves::Inherit;
    const PARTIAL_WINDOWS: u32 = 3;

    fn build(rate: Rate, _: u64, _: Costs, scale: TickScale) -> Self {
        Self::new(rate, scale)
    }

    fn is_representable(&self) -> bool {
        self.is_representable()
    }

    /// Counts up to 2²⁴ where the labels then have a resolution of 2⁻¹⁵ of a window, and of 2²⁵ ticks: 1 ms.
    fn with_room_for_debt(&self) -> Self {
        Self {
            low_bits: self.low_bits.max(bits_for_debt(self.window)),
            ..*self
        }
    }

    fn without_room_for_debt(&self) -> Self {
        Self {
            low_bits: u64::BITS - self.most.leading_zeros() + 1,
            ..*self
        }
    }

    fn on_states_of(&self, larger: &Self) -> Self {
        Self {
            low_bits: larger.low_bits,
            share_shift: larger.share_shift,
            ..*self
        }
    }

    fn at_share(&self, share: Share) -> Self {
        Self {
            most: share.units(self.most),
            ..*self
        }
    }

    fn open(&self, words: &mut [u64], now: Ticks) {
        words.fill(Self::fresh(now));
    }

    fn conforms(&self, words: &[u64], now: Ticks, cost: u64) -> bool {
        self.charge(&mut [words[0], words[1]], now, cost)
    }

    fn charge(&self, words: &mut [u64], now: Ticks, cost: u64) -> bool {
        loop {
            // A seal is set at most once a window, so this ends with the second look.
            let (word, to, passes) = match self.step_exactly([words[0], words[1]], now, cost) {
                Step::Refuse => return false,
                Step::Seal { word, to, .. } => (word, to, false),
                Step::Pass { word, to, .. } => (word, to, true),
            };
            words[word.offset() as usize] = to;
            if passes {
                return true;
            }
        }
    }

    /// Counts up to 2^(`low_bits` − 1): a window beyond that is as exhausted as it can be.
    fn charge_beyond(&self, words: &mut [u64], until: Ticks, cost: u64) {
        let charged = self.charge_beyond([words[0], words[1]], until, cost);
        words[..2].copy_from_slice(&charged);
    }

    /// From the window of the charge, then from the one before it, as far as they still count. A count that is as high
    /// as it can be stays: the units beyond it are not known.
    fn refund(&self, words: &mut [u64], _: Ticks, refund: Refund) {
        let start = refund.at / self.window * self.window;
        let mut units = refund.units();
        for start in [start, start.wrapping_sub(self.window)] {
            let label = self.label(start);
            for word in &mut words[..2] {
                let count = self.count(*word);
                if self.belongs(*word, label) && count < self.low_mask() >> 1 {
                    let returned = count.min(units);
                    *word -= returned << 1;
                    units -= returned;
                }
            }
        }
    }

    fn debt(&self, words: &[u64], now: Ticks) -> u64 {
        let (in_view, window) = self.in_view([words[0], words[1]], now);
        let beyond = in_view.saturating_sub(u128::from(self.most) * u128::from(window));
        // The part of a unit that may be above N without a forced charge is no debt.
        u64::try_from(beyond / u128::from(window.max(1))).unwrap_or(u64::MAX)
    }

    fn remaining(&self, words: &[u64], now: Ticks) -> u64 {
        self.remaining(words[0], words[1], now)
    }

    fn wait(&self, words: &[u64], now: Ticks, cost: u64) -> Option<Ticks> {
        self.wait(words[0], words[1], now, cost)
    }

    /// Both counts stay in their windows. Where they do not fit, or windows have another length or another clock, the
    /// weighed count of both becomes the count of the current one.
    fn migrate(&self, old: &Self, old_words: &[u64], words: &mut [u64], now: Instants) {
        let most = self.low_mask() >> 1;
        let (count, before, _) = old.counts(old_words[0], old_words[1], now.from);
        if old.window == self.window && now.from == now.to && count.max(before) <= most {
            words[..2].copy_from_slice(&self.opened_with(count, before, now.to));
            return;
        }
        let (in_view, window) = old.in_view([old_words[0], old_words[1]], now.from);
        let count = in_view.div_ceil(u128::from(window.max(1)));
        let count = u64::try_from(count).unwrap_or(u64::MAX).min(most);
        words[..2].copy_from_slice(&self.opened_with(count, 0, now.to));
    }

    /// Counts of the same window add up; it is sealed if one copy is.
    fn merge(&self, current: u64, then: u64, last: u64, _: Ticks) -> u64 {
        let mask = self.low_mask();
        if current & !mask != last & !mask {
            return if is_alive(last & !mask, current & !mask) {
                last
            } else {
                current
            };
        }
        let before = if then & !mask == last & !mask {
            self.count(then)
        } else {
            0
        };
        let sum = (self.count(current) + self.count(last).saturating_sub(before)).min(mask >> 1);
        current & !mask | sum << 1 | (current | last) & SEAL
    }
}

impl SharedCharge for SlidingWindow {
    #[inline(always)]
    fn swap_shared<S: SharedState>(&self, state: &S, first: u64, now: Ticks, cost: u64) -> Swap {
        match self.step(first, state.load(1), now, cost) {
            Step::Pass { word, from, to } if !self.is_later(from, to) => Swap::Conforms {
                word: word.offset(),
                from,
                to,
            },
            Step::Refuse => Swap::Refused,
            _ => Swap::Several,
        }
    }

    #[inline(always)]
    fn charge_shared<S: SharedState>(&self, state: &S, now: Ticks, cost: u64) -> Charge {
        for _ in 0..CHARGE_TRIES {
            match self.step(state.load(0), state.load(1), now, cost) {
                Step::Refuse => return Charge::REFUSED,
                Step::Seal { word, from, to } if !self.is_later(from, to) => {
                    state.compare_exchange(word.offset(), from, to);
                }
                Step::Pass { word, from, to }
                    if !self.is_later(from, to)
                        && state.compare_exchange(word.offset(), from, to) == from =>
                {
                    return Charge::done(to);
                }
                _ => {}
            }
            if state.has_gone() {
                return Charge::LOST;
            }
        }
        Charge::LOST
    }

    #[inline(always)]
    fn refund_shared<S: SharedState>(&self, state: &S, charged: Charge, _: Ticks, cost: u64) {
        for side in 0..2 {
            refund_word(state, side, |word| self.refund(word, charged.left(), cost));
        }
    }
}

#[cfg(test)]
mod tests;
