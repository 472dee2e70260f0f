//! One limit, with its state and its clock.

use core::time::Duration;

use super::policy::{Policy, PolicyError};

/// A source of time.
pub trait Clock {
    /// Nanoseconds since any fixed instant. If it runs backwards, no source passes more.
    fn nanoseconds(&self) -> u64;
}

impl<F: Fn() -> u64> Clock for F {
    fn nanoseconds(&self) -> u64 {
        self()
    }
}

/// The verdict on one cost at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether it conforms; it was charged, unless this was a peek.
    pub allowed: bool,
    /// The largest cost that would pass after this, in units.
    pub remaining: u64,
    /// The time until the cost would pass if nothing else did: zero if it passed, `None` if it exceeds the limit's
    /// size.
    pub retry_after: Option<Duration>,
    /// The time until the whole allowance is available if nothing else passes.
    pub reset_after: Duration,
}

/// A limit per time window. Costs are in the limit's unit; a cost of 0 always passes and charges nothing.
pub trait RateLimiter {
    /// The clock's reading, in nanoseconds.
    fn now(&self) -> u64;

    /// Whether `cost` would pass at `now`.
    fn conforms_at(&self, now: u64, cost: u64) -> bool;

    /// Charges `cost` if it passes at `now`; refused costs are not charged.
    fn charge_at(&mut self, now: u64, cost: u64) -> bool;

    /// The largest cost that would pass at `now`.
    fn remaining_at(&self, now: u64) -> u64;

    /// The time until `cost` would pass if nothing else did; `None` if it never can.
    fn retry_after_at(&self, now: u64, cost: u64) -> Option<Duration>;

    /// The time until the whole allowance is available.
    fn reset_after_at(&self, now: u64) -> Duration;

    /// Charges one unit if it passes.
    fn allowed(&mut self) -> bool {
        self.allowed_n(1)
    }

    /// Charges `cost` units if all of them pass.
    fn allowed_n(&mut self, cost: u64) -> bool {
        let now = self.now();
        self.charge_at(now, cost)
    }

    /// Like `allowed_n`, with the remaining allowance.
    fn decide(&mut self, cost: u64) -> Outcome {
        let now = self.now();
        let allowed = self.charge_at(now, cost);
        Outcome {
            allowed,
            remaining: self.remaining_at(now),
            retry_after: if allowed {
                Some(Duration::ZERO)
            } else {
                self.retry_after_at(now, cost)
            },
            reset_after: self.reset_after_at(now),
        }
    }

    /// The verdict of `decide`, without charging.
    fn peek(&self, cost: u64) -> Outcome {
        let now = self.now();
        Outcome {
            allowed: self.conforms_at(now, cost),
            remaining: self.remaining_at(now),
            retry_after: self.retry_after_at(now, cost),
            reset_after: self.reset_after_at(now),
        }
    }

    /// The largest cost that would pass now.
    fn remaining(&self) -> u64 {
        self.remaining_at(self.now())
    }

    /// The time until `cost` would pass if nothing else did; `None` if it never can.
    fn retry_after(&self, cost: u64) -> Option<Duration> {
        self.retry_after_at(self.now(), cost)
    }

    /// The time until the whole allowance is available if nothing else passes.
    fn reset_after(&self) -> Duration {
        self.reset_after_at(self.now())
    }
}

/// A policy with its state and a clock: `WORDS` is at least the policy's [`Policy::words`], 1 for buckets and fixed
/// windows, 2 for sliding windows, N + 1 for a log of N.
#[derive(Clone, Debug)]
pub struct Limiter<C, const WORDS: usize> {
    policy: Policy,
    state: [u64; WORDS],
    clock: C,
}

impl<C: Clock, const WORDS: usize> Limiter<C, WORDS> {
    /// A limiter without passed units.
    ///
    /// # Errors
    ///
    /// When `WORDS` is too small for the policy.
    pub fn new(policy: Policy, clock: C) -> Result<Self, PolicyError> {
        let needed = policy.words();
        if needed > WORDS {
            return Err(PolicyError::TooFewWords { needed });
        }
        let mut state = [0; WORDS];
        policy.open(&mut state[..needed], clock.nanoseconds());
        Ok(Self {
            policy,
            state,
            clock,
        })
    }
}

impl<C: Clock, const WORDS: usize> RateLimiter for Limiter<C, WORDS> {
    fn now(&self) -> u64 {
        self.clock.nanoseconds()
    }

    fn conforms_at(&self, now: u64, cost: u64) -> bool {
        self.policy.conforms(&self.state, now, cost)
    }

    fn charge_at(&mut self, now: u64, cost: u64) -> bool {
        self.policy.charge(&mut self.state, now, cost)
    }

    fn remaining_at(&self, now: u64) -> u64 {
        self.policy.remaining(&self.state, now)
    }

    fn retry_after_at(&self, now: u64, cost: u64) -> Option<Duration> {
        self.policy
            .wait(&self.state, now, cost)
            .map(Duration::from_nanos)
    }

    fn reset_after_at(&self, now: u64) -> Duration {
        Duration::from_nanos(self.policy.reset(&self.state, now))
    }
}

impl<L: RateLimiter + ?Sized> RateLimiter for &mut L {
    fn now(&self) -> u64 {
        (**self).now()
    }

    fn conforms_at(&self, now: u64, cost: u64) -> bool {
        (**self).conforms_at(now, cost)
    }

    fn charge_at(&mut self, now: u64, cost: u64) -> bool {
        (**self).charge_at(now, cost)
    }

    fn remaining_at(&self, now: u64) -> u64 {
        (**self).remaining_at(now)
    }

    fn retry_after_at(&self, now: u64, cost: u64) -> Option<Duration> {
        (**self).retry_after_at(now, cost)
    }

    fn reset_after_at(&self, now: u64) -> Duration {
        (**self).reset_after_at(now)
    }
}
