//! One rate of one algorithm, deciding on words of state that one thread holds.
//!
//! Where the kernel changes the same words by compare-and-swap, the holder here has them to itself, so that the next
//! word is simply written. Verdicts are those of [`crate::limiter`].

use core::fmt;

use crate::limiter::carry;
use crate::limiter::sliding_log::LARGEST_LOG;
use crate::limiter::sliding_window::{Step, Word};
use crate::limiter::token_bucket::Costs;
use crate::limiter::{Decision, FixedWindow, LeakyBucket, Rate, SlidingLog, SlidingWindow, TokenBucket};
use crate::share::Share;
use crate::time::{TickScale, Ticks, is_alive};

/// A policy that cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyError {
    /// The window has too few ticks for the count: use a bucket for rates this high.
    WindowTooShort,
    /// A log of more than [`LARGEST_LOG`] instants: use a sliding window.
    LogTooLong,
    /// The state does not fit.
    TooFewWords {
        /// How many words it needs.
        needed: usize,
    },
}

impl fmt::Display for PolicyError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WindowTooShort => {
                formatter.write_str("the window is too short for its count: use a token bucket for rates this high")
            }
            Self::LogTooLong => {
                write!(formatter, "a sliding log holds at most {LARGEST_LOG} instants: use a sliding window")
            }
            Self::TooFewWords { needed } => write!(formatter, "the policy needs {needed} words of state"),
        }
    }
}

impl core::error::Error for PolicyError {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Bucket(TokenBucket),
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
}

/// One rate of one algorithm. Rates and bursts of 0 are taken for 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    algorithm: Algorithm,
    scale: TickScale,
    /// Buckets: refilled at multiples of so many nanoseconds only; 0: continuously.
    step: u64,
    /// Buckets: how far ahead of now the state of a new key lies.
    opening: Ticks,
    /// Words of state: those of the whole limit, whatever share of it this is.
    words: usize,
}

impl Policy {
    /// A bucket of `burst` units, full at first, refilled continuously at `rate`.
    #[must_use]
    pub fn token_bucket(rate: Rate, burst: u64) -> Self {
        let (rate, burst) = (at_least_one(rate), burst.max(1));
        let scale = TickScale::for_longest_life(rate.nanoseconds_for(burst));
        Self::new(Algorithm::Bucket(TokenBucket::new(rate, burst, Costs::Many, scale)), scale)
    }

    /// A queue of `burst` units that flows out at `rate`.
    #[must_use]
    pub fn leaky_bucket(rate: Rate, burst: u64) -> Self {
        let (rate, burst) = (at_least_one(rate), burst.max(1));
        let scale = TickScale::for_longest_life(rate.nanoseconds_for(burst));
        Self::new(Algorithm::Bucket(LeakyBucket::new(rate, burst, Costs::Many, scale).0), scale)
    }

    /// `rate`'s count in each window, which starts with the first unit after the last one ended.
    ///
    /// # Errors
    ///
    /// When counting would make the window longer by more than a thousandth.
    pub fn fixed_window(rate: Rate) -> Result<Self, PolicyError> {
        let rate = at_least_one(rate);
        let scale = window_scale(rate);
        let window = FixedWindow::new(rate, scale);
        if window.count_bits > 50 || window.window >> (window.count_bits + 10) == 0 {
            return Err(PolicyError::WindowTooShort);
        }
        Ok(Self::new(Algorithm::FixedWindow(window), scale))
    }

    /// `rate`'s count in this window and the share of the last that is still in view.
    ///
    /// # Errors
    ///
    /// When the window has fewer ticks than the count.
    pub fn sliding_window(rate: Rate) -> Result<Self, PolicyError> {
        let rate = at_least_one(rate);
        let scale = window_scale(rate);
        let window = SlidingWindow::new(rate, scale);
        if !window.is_representable() {
            return Err(PolicyError::WindowTooShort);
        }
        Ok(Self::new(Algorithm::SlidingWindow(window), scale))
    }

    /// `rate`'s count in any window, exactly.
    ///
    /// # Errors
    ///
    /// When the count is above [`LARGEST_LOG`].
    pub fn sliding_log(rate: Rate) -> Result<Self, PolicyError> {
        let rate = at_least_one(rate);
        if rate.count > LARGEST_LOG {
            return Err(PolicyError::LogTooLong);
        }
        let scale = window_scale(rate);
        Ok(Self::new(Algorithm::SlidingLog(SlidingLog::new(rate, scale)), scale))
    }

    fn new(algorithm: Algorithm, scale: TickScale) -> Self {
        let words = match &algorithm {
            Algorithm::Bucket(_) | Algorithm::FixedWindow(_) => 1,
            Algorithm::SlidingWindow(_) => 2,
            Algorithm::SlidingLog(log) => 1 + log.most as usize,
        };
        Self { algorithm, scale, step: 0, opening: 0, words }
    }

    /// The same policy for a host that has this share of it; states go on under any share.
    #[must_use]
    pub fn at_share(mut self, share: Share) -> Self {
        self.algorithm = match self.algorithm {
            Algorithm::Bucket(bucket) => Algorithm::Bucket(bucket.at_share(share)),
            Algorithm::FixedWindow(window) => Algorithm::FixedWindow(window.at_share(share)),
            Algorithm::SlidingWindow(window) => Algorithm::SlidingWindow(window.at_share(share)),
            Algorithm::SlidingLog(log) => Algorithm::SlidingLog(log.at_share(share)),
        };
        self
    }

    /// A bucket that holds `initial` units at first instead of all; other algorithms stay as they are.
    #[must_use]
    pub fn with_initial(mut self, initial: u64) -> Self {
        if let Algorithm::Bucket(bucket) = self.algorithm {
            // Not the charge of what is missing: both are rounded up, and the initial units have to fit whole.
            self.opening = bucket.tolerance - bucket.charge(initial.min(bucket.burst));
        }
        self
    }

    /// A bucket that is refilled in steps, at every multiple of `nanoseconds` on the clock, by what flowed in since the
    /// last; other algorithms stay as they are. Never more than the continuous bucket of the same rate.
    #[must_use]
    pub fn refilled_every(mut self, nanoseconds: u64) -> Self {
        if matches!(self.algorithm, Algorithm::Bucket(_)) {
            self.step = nanoseconds;
        }
        self
    }

    /// The largest cost that can ever pass, in units.
    #[must_use]
    pub const fn most(&self) -> u64 {
        match &self.algorithm {
            Algorithm::Bucket(bucket) => bucket.burst,
            Algorithm::FixedWindow(window) => window.most,
            Algorithm::SlidingWindow(window) => window.most,
            Algorithm::SlidingLog(log) => log.most as u64,
        }
    }

    /// How many words of state it needs.
    #[must_use]
    pub const fn words(&self) -> usize {
        self.words
    }

    /// Whether a key that is new has less than one that has its whole allowance back, so that forgetting matters.
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
        let now = self.ticks(now);
        words.fill(match self.algorithm {
            Algorithm::SlidingWindow(_) => SlidingWindow::fresh(now),
            _ => now.wrapping_add(self.opening),
        });
        if let Algorithm::SlidingLog(_) = self.algorithm {
            // A place of 0 was never taken, whatever the clock says.
            words[1..].fill(0);
        }
    }

    /// Writes into `words`, which are those of a key that is new, what a key of another policy has used: in proportion.
    /// Nothing if that policy is of another algorithm.
    pub fn carry(&self, old: &Self, old_words: &[u64], words: &mut [u64], now: u64) {
        let instants = carry::Instants { from: old.ticks(now), to: self.ticks(now) };
        match (&old.algorithm, &self.algorithm) {
            (Algorithm::Bucket(old), Algorithm::Bucket(new)) => {
                words[0] = carry::bucket(old, new, old_words[0], instants);
            }
            (Algorithm::FixedWindow(old), Algorithm::FixedWindow(new)) => {
                words[0] = carry::fixed_window(old, new, old_words[0], instants);
            }
            (Algorithm::SlidingWindow(old), Algorithm::SlidingWindow(new)) => {
                words.copy_from_slice(&carry::sliding_window(old, new, [old_words[0], old_words[1]], instants));
            }
            (Algorithm::SlidingLog(old), Algorithm::SlidingLog(new)) => {
                let mut taken = [0; LARGEST_LOG as usize];
                let places = old_words.len() - 1;
                taken[..places].copy_from_slice(&old_words[1..]);
                let (head, ring) = words.split_at_mut(1);
                head[0] = carry::sliding_log(old, new, &mut taken[..places], ring, instants);
            }
            _ => {}
        }
    }

    /// Whether `cost` would pass at `now`.
    #[must_use]
    pub fn conforms(&self, words: &[u64], now: u64, cost: u64) -> bool {
        if cost == 0 {
            return true;
        }
        let now = self.ticks(now);
        match &self.algorithm {
            Algorithm::Bucket(bucket) => bucket.decide(words[0], now, cost) != Decision::Refuse,
            Algorithm::FixedWindow(window) => window.decide(words[0], now, cost) != Decision::Refuse,
            Algorithm::SlidingWindow(window) => charge_sliding_window(window, &mut [words[0], words[1]], now, cost),
            Algorithm::SlidingLog(log) => log_wait(log, words, now, cost) == Some(0),
        }
    }

    /// Charges `cost` at `now` if it passes.
    #[inline]
    pub fn charge(&self, words: &mut [u64], now: u64, cost: u64) -> bool {
        if cost == 0 {
            return true;
        }
        let now = self.ticks(now);
        match &self.algorithm {
            Algorithm::Bucket(bucket) => replace(&mut words[0], |state| bucket.decide(state, now, cost)),
            Algorithm::FixedWindow(window) => replace(&mut words[0], |state| window.decide(state, now, cost)),
            Algorithm::SlidingWindow(window) => charge_sliding_window(window, words, now, cost),
            Algorithm::SlidingLog(log) => charge_log(log, words, now, cost),
        }
    }

    /// The largest cost that would pass at `now`.
    #[must_use]
    pub fn remaining(&self, words: &[u64], now: u64) -> u64 {
        let now = self.ticks(now);
        match &self.algorithm {
            Algorithm::Bucket(bucket) => bucket.remaining(words[0], now),
            Algorithm::FixedWindow(window) => window.remaining(words[0], now),
            Algorithm::SlidingWindow(window) => window.remaining(words[0], words[1], now),
            Algorithm::SlidingLog(log) => log.remaining(words[1..].iter().copied(), now),
        }
    }

    /// Nanoseconds until `cost` would pass if nothing else did; `None` if it never can.
    #[must_use]
    pub fn wait(&self, words: &[u64], now: u64, cost: u64) -> Option<u64> {
        if cost == 0 {
            return Some(0);
        }
        let ticks = self.ticks(now);
        let wait = match &self.algorithm {
            Algorithm::Bucket(bucket) => bucket.wait(words[0], ticks, cost),
            Algorithm::FixedWindow(window) => window.wait(words[0], ticks, cost),
            Algorithm::SlidingWindow(window) => window.wait(words[0], words[1], ticks, cost),
            Algorithm::SlidingLog(log) => log_wait(log, words, ticks, cost),
        };
        wait.map(|wait| self.until(wait, now))
    }

    /// Nanoseconds until the whole allowance is back.
    #[must_use]
    pub fn reset(&self, words: &[u64], now: u64) -> u64 {
        let ticks = self.ticks(now);
        let ahead = self.heads(words).map(|head| if is_alive(head, ticks) { head.wrapping_sub(ticks) } else { 0 });
        self.until(ahead.max().unwrap_or(0), now)
    }

    /// Whether forgetting the state would change a verdict at `now` or later.
    #[must_use]
    pub fn is_alive(&self, words: &[u64], now: u64) -> bool {
        let now = self.ticks(now);
        self.heads(words).any(|head| is_alive(head, now))
    }

    /// The words that, read as instants, tell when the state has decayed.
    fn heads<'w>(&self, words: &'w [u64]) -> impl Iterator<Item = u64> + use<'w> {
        let heads = if let Algorithm::SlidingWindow(_) = self.algorithm { 2 } else { 1 };
        words.iter().take(heads).copied()
    }

    /// What `ticks` from the instant of `now` on are in nanoseconds from `now` itself on, at the next step.
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
        per_nanoseconds: if rate.per_nanoseconds == 0 { 1 } else { rate.per_nanoseconds },
    }
}

fn window_scale(rate: Rate) -> TickScale {
    // A sliding window's count matters for as long again.
    TickScale::for_longest_life(2 * u128::from(rate.per_nanoseconds))
}

#[inline]
fn replace(word: &mut u64, decide: impl FnOnce(u64) -> Decision) -> bool {
    match decide(*word) {
        Decision::Pass(next) => {
            *word = next;
            true
        }
        Decision::Refuse => false,
    }
}

fn charge_sliding_window(window: &SlidingWindow, words: &mut [u64], now: Ticks, cost: u64) -> bool {
    loop {
        // A seal is set at most once a window, so this ends with the second look.
        let (word, to, passes) = match window.step(words[0], words[1], now, cost) {
            Step::Refuse => return false,
            Step::Seal { word, to, .. } => (word, to, false),
            Step::Pass { word, to, .. } => (word, to, true),
        };
        words[if word == Word::Even { 0 } else { 1 }] = to;
        if passes {
            return true;
        }
    }
}

/// Ticks until `cost` places may be taken. The ring is in the order of its instants, from the head's place on.
fn log_wait(log: &SlidingLog, words: &[u64], now: Ticks, cost: u64) -> Option<Ticks> {
    let cost = u32::try_from(cost).ok().filter(|cost| *cost <= log.most)?;
    let waits = (0..cost).map(|ahead| {
        let instant = words[1 + log.place(words[0], ahead) as usize];
        if log.take(instant, now).is_some() { 0 } else { instant.wrapping_sub(now) }
    });
    waits.max()
}

fn charge_log(log: &SlidingLog, words: &mut [u64], now: Ticks, cost: u64) -> bool {
    if log_wait(log, words, now, cost) != Some(0) {
        return false;
    }
    for _ in 0..cost {
        let place = log.place(words[0], 0);
        let cell = 1 + place as usize;
        if let Some(instant) = log.take(words[cell], now) {
            words[cell] = instant;
            words[0] = log.advance(words[0], place, now);
        }
    }
    true
}
