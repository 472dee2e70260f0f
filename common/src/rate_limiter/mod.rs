//! Limits for programs without an agent, with the method `allowed()`.
//!
//! The arithmetic is that of [`crate::limiter`], which also runs in the kernel; this module adds the state, a clock and
//! tiers. No allocation, no operating system, no built-in clock.
//!
//! ```
//! use core::cell::Cell;
//! use core::time::Duration;
//! use common::limiter::Rate;
//! use common::rate_limiter::{Limiter, Policy, RateLimiter};
//!
//! // Any function that returns nanoseconds is a clock; the test advances this one.
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
//! Tiers combine several limits: a cost is charged to all of them, or to none if one refuses.
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
//! Use may be known only after the work: a reservation is settled by it, and a forced charge may take the allowance below
//! zero.
//!
//! ```
//! use common::limiter::Rate;
//! use common::rate_limiter::{Limiter, Policy, RateLimiter};
//!
//! let clock = || 0;
//! let mut tokens = Limiter::<_, 1>::new(Policy::token_bucket(Rate::per_second(10), 100), clock)?;
//! let reservation = tokens.reserve(30).expect("30 of 100 pass");
//! assert_eq!(tokens.remaining(), 70);
//! assert_eq!(tokens.commit(reservation, 12).remaining, 88);
//!
//! let outcome = tokens.force(5_000);
//! assert_eq!((outcome.remaining, outcome.debt), (0, 4_912));
//! assert!(!tokens.allowed());
//! # Ok::<(), common::rate_limiter::PolicyError>(())
//! ```
//!
//! Threads can share a limiter behind a lock. For a limit per key, with many threads and bounded memory, the agent's
//! library has a store (`decide::StateStore`).

mod limiter;
mod policy;
mod reservation;
#[cfg(test)]
mod tests;
mod tiers;

pub use limiter::{Clock, DecidingTier, Limiter, Outcome, RateLimiter};
pub use policy::{Policy, PolicyError};
pub use reservation::Reservation;
pub use tiers::Tiers;
