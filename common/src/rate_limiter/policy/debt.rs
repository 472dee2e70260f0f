//! Unconditional charges, and refunds.
//!
//! A forced charge is use that is reported after the work: it is never refused, and later costs are refused until the
//! allowance has come back by the algorithm's definition. Hosts that share a limit pass units independently and charge each other's afterwards. Such a charge is never
//! refused: it may push a state beyond its tolerance, so that the excess is paid back.

use super::Policy;
use crate::limiter::Refund;

impl Policy {
    /// Starts an expired fixed window at a multiple of its length by the clock of `now`, as [`FixedWindow::aligned`]
    /// does; other states are unchanged.
    ///
    /// [`FixedWindow::aligned`]: crate::limiter::FixedWindow::aligned
    pub fn align(&self, words: &mut [u64], now: u64) {
        if let Some(window) = self.limiter.alignable_window() {
            let length = self.scale.whole_nanoseconds(window).max(1);
            self.limiter
                .align(words, self.ticks(now), self.ticks(now - now % length));
        }
    }

    /// Charges `cost`, regardless of the state. `words` are a key's, at least opened. The units were consumed elsewhere
    /// by `until`, which is not after `now`.
    ///
    /// The debt of buckets is only bounded by the clock's horizon. Windows count up to 2²⁴ or more where they last a
    /// minute or longer, and a log up to N: beyond that they are exhausted anyway.
    pub fn charge_beyond(&self, words: &mut [u64], now: u64, until: u64, cost: u64) {
        if cost == 0 {
            return;
        }
        self.align(words, now);
        self.limiter.charge_beyond(words, self.ticks(until), cost);
    }

    /// Charges `cost` at `now`, regardless of the state. The bound of the debt is that of [`Policy::charge_beyond`].
    pub fn force(&self, words: &mut [u64], now: u64, cost: u64) {
        if cost > 0 {
            self.limiter.force(words, self.ticks(now), cost);
        }
    }

    /// Returns the unused units of a charge, as far as they still count: a bucket is at most full, and units of a window
    /// or a log that has passed are returned already. In any span, no more passes than the limit allows and what is
    /// returned in it.
    ///
    /// Buckets: right to a tick. Windows: two windows are told apart to 1 ms. Logs: nothing is returned while a unit
    /// counts that was forced in beyond N.
    pub fn refund(&self, words: &mut [u64], now: u64, refund: Refund) {
        let at = self.ticks(refund.at.min(now));
        let ends = refund.ends.map(|ends| self.ticks(ends));
        self.limiter
            .refund(words, self.ticks(now), Refund { at, ends, ..refund });
    }

    /// The same policy with states of versions that had no room for debts in windows; [`Policy::carry`] migrates them.
    #[must_use]
    pub fn without_room_for_debt(&self) -> Self {
        Self {
            limiter: self.limiter.without_room_for_debt(),
            ..*self
        }
    }

    /// Units that are charged beyond the limit, rounded up; 0 for a log.
    #[must_use]
    pub fn debt(&self, words: &[u64], now: u64) -> u64 {
        self.limiter.debt(words, self.ticks(now))
    }

    /// Returns `cost` to a bucket that was charged too much; it is at most full. Other algorithms are unchanged.
    pub fn give_back(&self, words: &mut [u64], now: u64, cost: u64) {
        self.limiter.give_back(words, self.ticks(now), cost);
    }

    /// The refill in this time, in units; infinite for algorithms without a continuous refill.
    #[must_use]
    pub fn refilled_in(&self, nanoseconds: u64) -> f64 {
        self.limiter.refilled_in(self.scale.ticks(nanoseconds))
    }

    /// Whether the allowance is refilled continuously.
    #[must_use]
    pub const fn is_bucket(&self) -> bool {
        self.limiter.is_bucket()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::Rate;

    /// By the time of day, although its nanoseconds do not fit into a word of ticks.
    #[test]
    fn fixed_windows_of_many_hosts_begin_at_multiples_of_their_length() {
        const SECOND: u64 = 1_000_000_000;
        for seconds in [1, 10, 3_600, 86_400, 7 * 86_400] {
            let policy = Policy::fixed_window(Rate {
                count: 100,
                per_nanoseconds: seconds * SECOND,
            })
            .unwrap();
            for now in [
                1_790_000_000 * SECOND,
                1_790_000_123 * SECOND + 5,
                4_000_000_001 * SECOND,
            ] {
                let mut words = [0];
                policy.open(&mut words, now);
                policy.align(&mut words, now);
                policy.charge(&mut words, now, 100);
                let left = seconds * SECOND - now % (seconds * SECOND);
                let wait = policy.wait(&words, now, 1).unwrap();
                assert!(
                    wait.abs_diff(left) <= 1_048_576,
                    "{seconds} s at {now}: {wait} of {left}"
                );
            }
        }
    }
}
