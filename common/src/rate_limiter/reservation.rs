//! Units that are charged before the work and settled after it.

use crate::limiter::Refund;

/// Charged units whose final number is not known yet. [`RateLimiter::commit`] and [`RateLimiter::release`] take it, so that
/// it is settled once; dropped, its units stay charged.
///
/// [`RateLimiter::commit`]: super::RateLimiter::commit
/// [`RateLimiter::release`]: super::RateLimiter::release
#[derive(Debug, PartialEq, Eq)]
#[must_use = "its units stay charged"]
pub struct Reservation {
    pub(super) at: u64,
    pub(super) charged: u64,
    /// When a bucket has made up for it, if nothing is returned before.
    pub(super) ends: u64,
}

impl Reservation {
    /// The reserved units.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.charged
    }

    /// What `used` units leave unused.
    pub(super) const fn refund(&self, used: u64) -> Refund {
        Refund {
            at: self.at,
            charged: self.charged,
            used,
            ends: Some(self.ends),
        }
    }
}
