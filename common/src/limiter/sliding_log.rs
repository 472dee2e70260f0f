//! Sliding log: the instants themselves.
//!
//! State: a ring of N words, each the instant at which the unit that took it leaves the window, and one word that tells
//! the oldest place of the ring and when the newest leaves. A unit may only take a place whose instant has passed.
//! That alone bounds what passes to N in any T, exactly, on any number of CPUs: N places, each taken once in T.
//!
//! Error bound: none on what passes. The place to look at first is a hint that can be stale by as many places as CPUs
//! are taking one at this instant, so a few places are looked at; a unit may be refused wrongly only if more than
//! [`LOOK_AHEAD`] CPUs take a place of one key in the same few nanoseconds.

use super::Rate;
use crate::time::{TickScale, Ticks, is_alive};

/// The most units a log holds.
pub const LARGEST_LOG: u64 = 1024;

/// How many places are looked at from the hint on.
pub const LOOK_AHEAD: u32 = 4;

/// A log of `most` instants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    /// The window's length T in ticks.
    pub window: Ticks,
    /// N: how many places the ring has, 1 to [`LARGEST_LOG`].
    pub most: u32,
    /// Low bits of the head that hold the place to look at first.
    pub place_bits: u32,
}

impl SlidingLog {
    /// Fewer than `rate.count` ≤ [`LARGEST_LOG`] in the last `rate.per_nanoseconds`.
    #[must_use]
    pub fn new(rate: Rate, scale: TickScale) -> Self {
        let most = u32::try_from(rate.count.min(LARGEST_LOG)).unwrap_or(1);
        Self { window: scale.ticks(rate.per_nanoseconds).max(1), most, place_bits: u32::BITS - most.leading_zeros() }
    }

    #[inline(always)]
    fn mask(&self) -> u64 {
        (1 << (self.place_bits & 63)) - 1
    }

    /// The place of the ring to look at `ahead` places from the oldest that the head names.
    #[inline(always)]
    #[must_use]
    pub fn place(&self, head: u64, ahead: u32) -> u32 {
        // The head may be any word: what it names is wrapped into the ring by comparing, once.
        let first = (head & self.mask()) as u32;
        let place = if first < self.most { first } else { 0 } + ahead;
        if place < self.most { place } else { place - self.most }
    }

    /// How many places there are to look at.
    #[inline(always)]
    #[must_use]
    pub fn places(&self) -> u32 {
        if self.most < LOOK_AHEAD { self.most } else { LOOK_AHEAD }
    }

    /// What to put into a place that holds `instant`, by compare-and-swap, if it may be taken at `now`.
    #[inline(always)]
    #[must_use]
    pub fn take(&self, instant: u64, now: Ticks) -> Option<u64> {
        // 0 is a place that was never taken, whatever the clock says.
        if instant != 0 && is_alive(instant, now) { None } else { Some(now.wrapping_add(self.window) | 1) }
    }

    /// The head after `place` was taken: the next place is the oldest, and the log matters until the new unit leaves.
    #[inline(always)]
    #[must_use]
    pub fn advance(&self, head: u64, place: u32, now: Ticks) -> u64 {
        let mask = self.mask();
        let until = now.wrapping_add(self.window).wrapping_add(mask + 1) & !mask;
        let until = if is_alive(head & !mask, until) { head & !mask } else { until };
        let next = if place + 1 < self.most { place + 1 } else { 0 };
        until | u64::from(next)
    }

    /// How many more would pass now, over the whole ring.
    #[must_use]
    pub fn remaining(&self, ring: impl Iterator<Item = u64>, now: Ticks) -> u64 {
        ring.take(self.most as usize).filter(|instant| self.take(*instant, now).is_some()).count() as u64
    }

    /// Ticks until one more would pass.
    #[must_use]
    pub fn wait(&self, ring: impl Iterator<Item = u64>, now: Ticks) -> Ticks {
        ring.take(self.most as usize)
            .map(|instant| if self.take(instant, now).is_some() { 0 } else { instant.wrapping_sub(now) })
            .min()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn decide(limiter: &SlidingLog, head: &mut u64, ring: &mut [u64], now: Ticks) -> bool {
        for ahead in 0..limiter.places() {
            let place = limiter.place(*head, ahead);
            if let Some(instant) = limiter.take(ring[place as usize], now) {
                ring[place as usize] = instant;
                *head = limiter.advance(*head, place, now);
                return true;
            }
        }
        false
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn every_verdict_is_that_of_a_queue_of_instants(count in 1u64..=LARGEST_LOG, per_nanoseconds in 1_000u64..10_000_000_000, start in 0u64..1 << 60, gaps in prop::collection::vec(0u64..4_000, 1..600)) {
            let limiter = SlidingLog::new(Rate { count, per_nanoseconds }, TickScale::FINEST);
            let (mut head, mut ring) = (start, vec![0; count as usize]);
            let mut queue = VecDeque::new();
            let mut now = start;
            for gap in gaps {
                now += gap * limiter.window / (1_000 * count.min(200));
                // An instant is kept to the odd tick.
                while queue.front().is_some_and(|at: &u64| (at + limiter.window) | 1 <= now) { queue.pop_front(); }
                let expected = (queue.len() as u64) < count;
                prop_assert_eq!(limiter.remaining(ring.iter().copied(), now), count - queue.len() as u64);
                if !expected {
                    let wait = limiter.wait(ring.iter().copied(), now);
                    prop_assert!(!decide(&limiter, &mut head.clone(), &mut ring.clone(), now + wait - 1));
                    prop_assert!(decide(&limiter, &mut head.clone(), &mut ring.clone(), now + wait));
                }
                prop_assert_eq!(decide(&limiter, &mut head, &mut ring, now), expected);
                if expected { queue.push_back(now); }
                prop_assert!(is_alive(head, now));
            }
        }

        #[test]
        fn any_head_names_a_place_of_the_ring(count in 1u64..=LARGEST_LOG, head: u64, ahead in 0u32..LOOK_AHEAD) {
            let limiter = SlidingLog::new(Rate::per_second(count), TickScale::FINEST);
            prop_assert!(limiter.place(head, ahead.min(limiter.most - 1)) < limiter.most);
        }
    }
}
