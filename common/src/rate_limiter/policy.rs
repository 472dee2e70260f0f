//! One rate of one algorithm, on words of state that one thread owns.
//!
//! The kernel changes these words by compare-and-swap; here the owner has exclusive access and writes them. Verdicts
//! are those of [`crate::limiter`].

mod debt;

use core::fmt;

use crate::limiter::{Algorithm, AnyLimiter, Costs, Instants, Rate};
use crate::share::Share;
use crate::time::{TickScale, Ticks, is_alive};

/// An invalid policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyError {
    /// The window has too few ticks for the count: use a bucket for rates this high.
    WindowTooShort,
    /// A log of more instants than it can hold: use a sliding window.
    LogTooLong(Algorithm),
    /// The state does not fit.
    TooFewWords {
        /// The number of words it needs.
        needed: usize,
    },
}

impl fmt::Display for PolicyError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WindowTooShort => formatter.write_str(
                "the window is too short for its count: use a token bucket for rates this high",
            ),
            Self::LogTooLong(algorithm) => {
                let (noun, most) = (algorithm.noun(), algorithm.largest_count());
                write!(
                    formatter,
                    "a {noun} holds at most {most} instants: use a sliding window"
                )
            }
            Self::TooFewWords { needed } => {
                write!(formatter, "the policy needs {needed} words of state")
            }
        }
    }
}

impl core::error::Error for PolicyError {}

/// One rate of one algorithm. Rates and bursts of 0 are treated as 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    limiter: AnyLimiter,
    scale: TickScale,
    /// Buckets: the interval of refills in nanoseconds; 0: continuous.
    step: u64,
    /// Buckets: how far ahead of now the state of a new key is.
    opening: Ticks,
    /// Words of state: those of the whole limit, regardless of the share.
    words: usize,
}

impl Policy {
    /// The policy of any algorithm. Those without a burst ignore it.
    ///
    /// # Errors
    ///
    /// When the algorithm cannot count so much, or not in so short a window.
    pub fn new(algorithm: Algorithm, rate: Rate, burst: u64) -> Result<Self, PolicyError> {
        if rate.count > algorithm.largest_count() {
            return Err(PolicyError::LogTooLong(algorithm));
        }
        let policy = Self::unchecked(algorithm, rate, burst);
        if policy.limiter.is_precise() {
            Ok(policy)
        } else {
            Err(PolicyError::WindowTooShort)
        }
    }

    /// A bucket of `burst` units, full at first, refilled continuously at `rate`.
    #[must_use]
    pub fn token_bucket(rate: Rate, burst: u64) -> Self {
        Self::unchecked(Algorithm::TokenBucket, rate, burst)
    }

    /// A queue of `burst` units that drains at `rate`.
    #[must_use]
    pub fn leaky_bucket(rate: Rate, burst: u64) -> Self {
        Self::unchecked(Algorithm::LeakyBucket, rate, burst)
    }

    /// `rate`'s count in each window, which starts with the first unit after the last one ended.
    ///
    /// # Errors
    ///
    /// When the count's bits would make the window longer by more than a thousandth.
    pub fn fixed_window(rate: Rate) -> Result<Self, PolicyError> {
        Self::new(Algorithm::FixedWindow, rate, 1)
    }

    /// `rate`'s count in this window and the weighed part of the previous one.
    ///
    /// # Errors
    ///
    /// When the window has fewer ticks than the count.
    pub fn sliding_window(rate: Rate) -> Result<Self, PolicyError> {
        Self::new(Algorithm::SlidingWindow, rate, 1)
    }

    /// `rate`'s count in any window, exactly.
    ///
    /// # Errors
    ///
    /// When the count is above [`LARGEST_LOG`](crate::limiter::sliding_log::LARGEST_LOG).
    pub fn sliding_log(rate: Rate) -> Result<Self, PolicyError> {
        Self::new(Algorithm::SlidingLog, rate, 1)
    }

    fn unchecked(algorithm: Algorithm, rate: Rate, burst: u64) -> Self {
        let (rate, burst) = (at_least_one(rate), burst.max(1));
        let scale = TickScale::for_longest_life(algorithm.longest_life(rate, burst));
        let limiter =
            AnyLimiter::new(algorithm, rate, burst, Costs::Many, scale).with_room_for_debt();
        Self {
            limiter,
            scale,
            step: 0,
            opening: 0,
            words: limiter.words(),
        }
    }

    /// The policy of a host with this share; states are valid under any share.
    #[must_use]
    pub fn at_share(self, share: Share) -> Self {
        Self {
            limiter: self.limiter.at_share(share),
            ..self
        }
    }

    /// A bucket that starts with `initial` units; other algorithms are unchanged.
    #[must_use]
    pub fn with_initial(mut self, initial: u64) -> Self {
        self.opening = self.limiter.opening(initial);
        self
    }

    /// A bucket that is refilled at every multiple of `nanoseconds` on the clock; other algorithms are unchanged. It
    /// never passes more than the continuous bucket of the same rate.
    #[must_use]
    pub fn refilled_every(mut self, nanoseconds: u64) -> Self {
        if self.limiter.is_bucket() {
            self.step = nanoseconds;
        }
        self
    }

    /// The largest cost that can ever pass, in units.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.limiter.most()
    }

    /// The number of words of state.
    #[must_use]
    pub const fn words(&self) -> usize {
        self.words
    }

    /// Whether a new key has less than its whole allowance, so that removing a full key changes verdicts.
    #[must_use]
    pub const fn opens_short(&self) -> bool {
        self.opening > 0
    }

    #[inline]
    fn instant(&self, nanoseconds: u64) -> u64 {
        match nanoseconds.checked_rem(self.step) {
            Some(since) => nanoseconds - since,
            None => nanoseconds,
        }
    }

    #[inline]
    fn ticks(&self, nanoseconds: u64) -> Ticks {
        self.scale.ticks(self.instant(nanoseconds))
    }

    /// Writes the state of a key that is new at `now`.
    pub fn open(&self, words: &mut [u64], now: u64) {
        self.limiter
            .open(words, self.ticks(now).wrapping_add(self.opening));
    }

    /// Migrates the used units of a key of another policy into `words` of a new key. Nothing if that
    /// policy has another algorithm.
    pub fn carry(&self, old: &Self, old_words: &[u64], words: &mut [u64], now: u64) {
        self.carry_between(old, old_words, words, now, now);
    }

    /// Like [`Policy::carry`], for an old state with another clock, which reads `from` when this one reads `to`.
    pub fn carry_between(
        &self,
        old: &Self,
        old_words: &[u64],
        words: &mut [u64],
        from: u64,
        to: u64,
    ) {
        let instants = Instants {
            from: old.ticks(from),
            to: self.ticks(to),
        };
        self.limiter
            .migrate(&old.limiter, old_words, words, instants);
    }

    /// Whether `cost` would pass at `now`.
    #[must_use]
    pub fn conforms(&self, words: &[u64], now: u64, cost: u64) -> bool {
        cost == 0 || self.limiter.conforms(words, self.ticks(now), cost)
    }

    /// Charges `cost` at `now` if it passes.
    #[inline]
    pub fn charge(&self, words: &mut [u64], now: u64, cost: u64) -> bool {
        cost == 0 || self.limiter.charge(words, self.ticks(now), cost)
    }

    /// The largest cost that would pass at `now`.
    #[must_use]
    pub fn remaining(&self, words: &[u64], now: u64) -> u64 {
        self.limiter.remaining(words, self.ticks(now))
    }

    /// Nanoseconds until `cost` would pass if nothing else did; `None` if it never can.
    #[must_use]
    pub fn wait(&self, words: &[u64], now: u64, cost: u64) -> Option<u64> {
        if cost == 0 {
            return Some(0);
        }
        self.limiter
            .wait(words, self.ticks(now), cost)
            .map(|wait| self.until(wait, now))
    }

    /// Nanoseconds until the whole allowance is available.
    #[must_use]
    pub fn reset(&self, words: &[u64], now: u64) -> u64 {
        let ticks = self.ticks(now);
        let ahead = self.heads(words).map(|head| {
            if is_alive(head, ticks) {
                head.wrapping_sub(ticks)
            } else {
                0
            }
        });
        self.until(ahead.max().unwrap_or(0), now)
    }

    /// Nanoseconds until a unit of the allowance is available, on average over the places of a log. Without a log, as
    /// [`Policy::reset`].
    #[must_use]
    pub fn average_reset(&self, words: &[u64], now: u64) -> u64 {
        let ring = words
            .get(self.limiter.state_words()..)
            .filter(|ring| !ring.is_empty());
        let Some(ring) = ring else {
            return self.reset(words, now);
        };
        let ticks = self.ticks(now);
        let ahead = ring.iter().filter(|place| is_alive(**place, ticks));
        let sum: u128 = ahead
            .map(|place| u128::from(place.wrapping_sub(ticks)))
            .sum();
        self.until((sum / ring.len() as u128) as u64, now)
    }

    /// Whether removing the state would change a verdict at `now` or later.
    #[must_use]
    pub fn is_alive(&self, words: &[u64], now: u64) -> bool {
        let now = self.ticks(now);
        self.heads(words).any(|head| is_alive(head, now))
    }

    /// The words that, as instants, show when the state has decayed.
    fn heads<'w>(&self, words: &'w [u64]) -> impl Iterator<Item = u64> + use<'w> {
        words.iter().take(self.limiter.state_words()).copied()
    }

    /// Converts `ticks` from the instant of `now` on to nanoseconds from `now` on, rounded up to the next refill.
    fn until(&self, ticks: Ticks, now: u64) -> u64 {
        let nanoseconds = self.scale.nanoseconds(ticks);
        if nanoseconds == 0 || self.step == 0 {
            return nanoseconds;
        }
        let steps = nanoseconds.div_ceil(self.step).saturating_mul(self.step);
        steps.saturating_sub(now - self.instant(now))
    }
}

const fn at_least_one(rate: Rate) -> Rate {
    Rate {
        count: if rate.count == 0 { 1 } else { rate.count },
        per_nanoseconds: if rate.per_nanoseconds == 0 {
            1
        } else {
            rate.per_nanoseconds
        },
    }
}
