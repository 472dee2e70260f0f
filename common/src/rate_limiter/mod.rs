//! Limits for programs, without an agent: a limit per time window that is asked `allowed()`.
//!
//! The arithmetic is that of [`crate::limiter`], the same that runs in the kernel; here are the state beside it, the
//! clock that it is given, and tiers. No allocation, no operating system, no clock of its own.
//!
//! ```
//! use core::cell::Cell;
//! use core::time::Duration;
//! use common::limiter::Rate;
//! use common::rate_limiter::{Limiter, Policy, RateLimiter};
//!
//! // Any function that tells nanoseconds is a clock; this one is moved by hand.
//! let time = Cell::new(0);
//! let clock = || time.get();
//!
//! // Three at once, one more every second.
//! let mut logins = Limiter::<_, 1>::new(Policy::token_bucket(Rate::per_second(1), 3), clock)?;
//! assert!(logins.allowed() && logins.allowed_n(2));
//! assert!(!logins.allowed());
//! assert_eq!(logins.retry_after(1), Some(Duration::from_secs(1)));
//!
//! time.set(1_000_000_000);
//! assert!(logins.allowed());
//! # Ok::<(), common::rate_limiter::PolicyError>(())
//! ```
//!
//! Tiers are several limits as one: a cost is charged to all of them, or to none if one refuses.
//!
//! ```
//! use common::limiter::Rate;
//! use common::rate_limiter::{Limiter, Policy, RateLimiter, Tiers};
//!
//! let clock = || 0;
//! let rate = |count: u64, seconds: u64| Rate { count, per_nanoseconds: seconds * 1_000_000_000 };
//! let mut ten_in_5s = Limiter::<_, 2>::new(Policy::sliding_window(rate(10, 5))?, clock)?;
//! let mut twelve_an_hour = Limiter::<_, 13>::new(Policy::sliding_log(rate(12, 3_600))?, clock)?;
//! let mut both = Tiers::<&mut dyn RateLimiter, 2>([&mut ten_in_5s, &mut twelve_an_hour]);
//!
//! assert!(both.allowed_n(10));
//! assert!(!both.allowed());
//! // The hour was not charged for what the five seconds refused.
//! assert_eq!(twelve_an_hour.remaining(), 2);
//! # Ok::<(), common::rate_limiter::PolicyError>(())
//! ```
//!
//! Threads share a limiter behind a lock; for a limit per key, with many threads and a bound on memory, the agent's
//! library has a store (`weir::decide::Store`).

mod policy;
#[cfg(test)]
mod tests;
mod tiers;

pub use policy::{Policy, PolicyError};
pub use tiers::Tiers;

use core::time::Duration;

/// Where the time comes from.
pub trait Clock {
    /// Nanoseconds since any fixed instant. Should it run backwards, nobody gains by it.
    fn nanoseconds(&self) -> u64;
}

impl<F: Fn() -> u64> Clock for F {
    fn nanoseconds(&self) -> u64 {
        self()
    }
}

/// What a limit says of one cost at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether it conforms (and, unless it was only looked at, was charged).
    pub allowed: bool,
    /// The largest cost that would pass after this, in units.
    pub remaining: u64,
    /// Until the cost would pass if nothing else did: zero if it did pass, `None` if it is more than the limit ever
    /// holds.
    pub retry_after: Option<Duration>,
    /// Until the whole allowance is back if nothing else passes.
    pub reset_after: Duration,
}

/// A limit per time window. Costs are in the limit's unit; a cost of 0 always passes and charges nothing.
pub trait RateLimiter {
    /// The clock's reading, in nanoseconds.
    fn now(&self) -> u64;

    /// Whether `cost` would pass at `now`.
    fn conforms_at(&self, now: u64, cost: u64) -> bool;

    /// Charges `cost` if it passes at `now`; what is refused is not charged.
    fn charge_at(&mut self, now: u64, cost: u64) -> bool;

    /// The largest cost that would pass at `now`.
    fn remaining_at(&self, now: u64) -> u64;

    /// Until `cost` would pass if nothing else did; `None` if it never can.
    fn retry_after_at(&self, now: u64, cost: u64) -> Option<Duration>;

    /// Until the whole allowance is back.
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

    /// As `allowed_n`, and what is left after it.
    fn decide(&mut self, cost: u64) -> Outcome {
        let now = self.now();
        let allowed = self.charge_at(now, cost);
        Outcome {
            allowed,
            remaining: self.remaining_at(now),
            retry_after: if allowed { Some(Duration::ZERO) } else { self.retry_after_at(now, cost) },
            reset_after: self.reset_after_at(now),
        }
    }

    /// What `decide` would say of the cost, without charging it.
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

    /// Until `cost` would pass if nothing else did; `None` if it never can.
    fn retry_after(&self, cost: u64) -> Option<Duration> {
        self.retry_after_at(self.now(), cost)
    }

    /// Until the whole allowance is back if nothing else passes.
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
    /// A limiter that has passed nothing yet.
    ///
    /// # Errors
    ///
    /// When `WORDS` are too few for the policy.
    pub fn new(policy: Policy, clock: C) -> Result<Self, PolicyError> {
        let needed = policy.words();
        if needed > WORDS {
            return Err(PolicyError::TooFewWords { needed });
        }
        let mut state = [0; WORDS];
        policy.open(&mut state[..needed], clock.nanoseconds());
        Ok(Self { policy, state, clock })
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
        self.policy.wait(&self.state, now, cost).map(Duration::from_nanos)
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
