//! Several limits combined.

use core::time::Duration;

use super::RateLimiter;
use crate::limiter::Refund;

/// Limits that must all pass a cost: it is charged to all of them, or to none. The first one's clock is used.
#[derive(Clone, Debug)]
pub struct Tiers<L, const N: usize>(pub [L; N]);

impl<L: RateLimiter, const N: usize> RateLimiter for Tiers<L, N> {
    fn now(&self) -> u64 {
        self.0.first().map_or(0, L::now)
    }

    fn conforms_at(&self, now: u64, cost: u64) -> bool {
        self.0.iter().all(|tier| tier.conforms_at(now, cost))
    }

    fn charge_at(&mut self, now: u64, cost: u64) -> bool {
        // Nothing else can change them between the check and the charge, and the instant is the same.
        self.conforms_at(now, cost) && self.0.iter_mut().all(|tier| tier.charge_at(now, cost))
    }

    fn force_at(&mut self, now: u64, cost: u64) {
        self.0.iter_mut().for_each(|tier| tier.force_at(now, cost));
    }

    fn refund_at(&mut self, now: u64, refund: Refund) {
        self.0
            .iter_mut()
            .for_each(|tier| tier.refund_at(now, refund));
    }

    fn debt_at(&self, now: u64) -> u64 {
        self.0
            .iter()
            .map(|tier| tier.debt_at(now))
            .max()
            .unwrap_or(0)
    }

    fn remaining_at(&self, now: u64) -> u64 {
        self.0
            .iter()
            .map(|tier| tier.remaining_at(now))
            .min()
            .unwrap_or(u64::MAX)
    }

    fn retry_after_at(&self, now: u64, cost: u64) -> Option<Duration> {
        // Each tier passes from its own wait on, so all do from the longest.
        self.0.iter().try_fold(Duration::ZERO, |longest, tier| {
            Some(longest.max(tier.retry_after_at(now, cost)?))
        })
    }

    fn reset_after_at(&self, now: u64) -> Duration {
        self.0
            .iter()
            .map(|tier| tier.reset_after_at(now))
            .max()
            .unwrap_or_default()
    }
}
