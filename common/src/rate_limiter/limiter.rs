//! One limit, with its state and its clock.

use core::time::Duration;

use super::policy::{Policy, PolicyError};
use super::reservation::Reservation;
use crate::limiter::Refund;

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
    /// Whether it conforms only to what a soft or elastic limit passes above its rate.
    pub over: bool,
    /// The largest cost that would pass after this, in units.
    pub remaining: u64,
    /// The units by which forced charges exceed the limit, rounded up; a log does not count them.
    pub debt: u64,
    /// The time until the cost would pass if nothing else did: zero if it passed, `None` if it exceeds the limit's
    /// size.
    pub retry_after: Option<Duration>,
    /// The time until the whole allowance is available if nothing else passes.
    pub reset_after: Duration,
    /// The rate that decides.
    pub tier: DecidingTier,
}

/// Of several rates, the one that decides: of a refusal the one with the longest wait, else the one with the fewest units left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecidingTier {
    /// Its number; the first is 0. A combination of limiters is one rate.
    pub nth: usize,
    /// The largest cost that it would pass, in units.
    pub remaining: u64,
    /// The time until its whole allowance is available if nothing else passes.
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

    /// Charges `cost` at `now`, whether it passes or not.
    fn force_at(&mut self, now: u64, cost: u64);

    /// Returns the unused units of a charge, as far as they still count.
    fn refund_at(&mut self, now: u64, refund: Refund);

    /// The units by which forced charges exceed the limit at `now`.
    fn debt_at(&self, now: u64) -> u64;

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
        let retry_after = if allowed {
            Some(Duration::ZERO)
        } else {
            self.retry_after_at(now, cost)
        };
        self.outcome_at(now, allowed, retry_after)
    }

    /// Charges `cost`, whether it passes or not: use that is reported after the work. It may take the allowance below
    /// zero; later costs are refused until it has come back.
    fn force(&mut self, cost: u64) -> Outcome {
        let now = self.now();
        self.force_at(now, cost);
        self.outcome_at(now, true, Some(Duration::ZERO))
    }

    /// Returns units that were charged and not used: the newest, as far as they still count.
    fn refund(&mut self, cost: u64) -> Outcome {
        let now = self.now();
        self.refund_at(now, Refund::newest(cost, now));
        self.outcome_at(now, true, Some(Duration::ZERO))
    }

    /// Charges `cost` for work whose use is known later, if it passes.
    ///
    /// # Errors
    ///
    /// The refusal; nothing is charged then.
    fn reserve(&mut self, cost: u64) -> Result<Reservation, Outcome> {
        let now = self.now();
        if self.charge_at(now, cost) {
            let left = self.reset_after_at(now).as_nanos();
            Ok(Reservation {
                at: now,
                charged: cost,
                ends: now.saturating_add(u64::try_from(left).unwrap_or(u64::MAX)),
            })
        } else {
            let retry_after = self.retry_after_at(now, cost);
            Err(self.outcome_at(now, false, retry_after))
        }
    }

    /// Settles a reservation by what was used: less is returned, as far as it still counts; more is forced.
    fn commit(&mut self, reservation: Reservation, used: u64) -> Outcome {
        let now = self.now();
        self.refund_at(now, reservation.refund(used));
        self.force_at(now, used.saturating_sub(reservation.charged));
        self.outcome_at(now, true, Some(Duration::ZERO))
    }

    /// Returns a reservation whose work was not done.
    fn release(&mut self, reservation: Reservation) -> Outcome {
        self.commit(reservation, 0)
    }

    /// The outcome with this verdict.
    fn outcome_at(&self, now: u64, allowed: bool, retry_after: Option<Duration>) -> Outcome {
        let (remaining, reset_after) = (self.remaining_at(now), self.reset_after_at(now));
        Outcome {
            allowed,
            over: false,
            remaining,
            debt: self.debt_at(now),
            retry_after,
            reset_after,
            tier: DecidingTier {
                nth: 0,
                remaining,
                reset_after,
            },
        }
    }

    /// The verdict of `decide`, without charging.
    fn peek(&self, cost: u64) -> Outcome {
        let now = self.now();
        self.outcome_at(
            now,
            self.conforms_at(now, cost),
            self.retry_after_at(now, cost),
        )
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

    fn force_at(&mut self, now: u64, cost: u64) {
        self.policy.force(&mut self.state, now, cost);
    }

    fn refund_at(&mut self, now: u64, refund: Refund) {
        self.policy.refund(&mut self.state, now, refund);
    }

    fn debt_at(&self, now: u64) -> u64 {
        self.policy.debt(&self.state, now)
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

    fn force_at(&mut self, now: u64, cost: u64) {
        (**self).force_at(now, cost);
    }

    fn refund_at(&mut self, now: u64, refund: Refund) {
        (**self).refund_at(now, refund);
    }

    fn debt_at(&self, now: u64) -> u64 {
        (**self).debt_at(now)
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
