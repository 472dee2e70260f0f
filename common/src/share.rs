//! One host's share of a limit that many hosts keep together.
//!
//! Rate and burst are scaled alike, so that a bucket's tolerance, the time its burst takes at its rate, stays what it
//! is: a state is an instant, and means the same under any share. Only the emission interval and the largest cost
//! change, and a changed interval alters nothing but what is charged from then on. Windows and logs keep their length
//! and scale their count.
//!
//! Error bound: shares that add up to the whole hold, together, no more than the whole's burst, and refill at no more
//! than its rate plus one part in a thousand of a unit each, which is what lets an n-th of n units be one unit. A bucket
//! that is full keeps being full when its share grows: what moves from host to host may bring at most the burst of what
//! moved along.

use crate::limiter::{FixedWindow, SlidingLog, SlidingWindow, TokenBucket};
use crate::rule::{Algorithm, Rule};

/// A part of a limit, in billionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(u64);

impl Share {
    /// How many parts the whole has.
    pub const PARTS: u64 = 1_000_000_000;
    /// All of it.
    pub const WHOLE: Self = Self(Self::PARTS);
    /// None of it: nothing passes.
    pub const NOTHING: Self = Self(0);

    /// So many billionths; no more than all of them.
    #[must_use]
    pub const fn of_parts(parts: u64) -> Self {
        Self(if parts < Self::PARTS { parts } else { Self::PARTS })
    }

    /// An equal share for each of so many hosts.
    #[must_use]
    pub const fn one_of(hosts: u64) -> Self {
        Self(Self::PARTS / if hosts == 0 { 1 } else { hosts })
    }

    /// In billionths.
    #[must_use]
    pub const fn parts(self) -> u64 {
        self.0
    }

    /// As a factor from 0 to 1.
    #[must_use]
    pub fn factor(self) -> f64 {
        self.0 as f64 / Self::PARTS as f64
    }

    /// So much of `units`, rounded down, but for a thousandth of a unit that rounding elsewhere may have lost.
    #[must_use]
    pub fn units(self, units: u64) -> u64 {
        let parts = u128::from(units) * u128::from(self.0) + u128::from(Self::PARTS / 1_000);
        u64::try_from(parts / u128::from(Self::PARTS)).unwrap_or(u64::MAX).min(units)
    }
}

impl TokenBucket {
    /// The bucket of a host that has this share of it.
    #[must_use]
    pub fn at_share(&self, share: Share) -> Self {
        let shift = self.emission_shift & 63;
        let burst = share.units(self.burst);
        if share >= Share::WHOLE {
            return *self;
        }
        if burst == 0 {
            return Self { burst, ..*self };
        }
        // A share of 0 has a burst of 0, so this divides by more than that.
        let scaled = (u128::from(self.emission) * u128::from(Share::PARTS)).div_ceil(u128::from(share.0));
        // The burst has to fit whole into the tolerance. The product of the two stays below the tolerance's 2^63.
        let fitting = (u128::from(self.tolerance) << shift) / u128::from(burst);
        let emission = u64::try_from(scaled.min(fitting)).unwrap_or(u64::MAX).max(self.emission);
        Self { emission, burst, ..*self }
    }
}

impl FixedWindow {
    /// The window of a host that has this share of it.
    #[must_use]
    pub fn at_share(&self, share: Share) -> Self {
        Self { most: share.units(self.most), ..*self }
    }
}

impl SlidingWindow {
    /// The window of a host that has this share of it.
    #[must_use]
    pub fn at_share(&self, share: Share) -> Self {
        Self { most: share.units(self.most), ..*self }
    }
}

impl SlidingLog {
    /// The log of a host that has this share of it: its first places. Each is taken once in T whatever the share was, so
    /// what passes is bounded by the places there are; places that come back are used as the head reaches them.
    #[must_use]
    pub fn at_share(&self, share: Share) -> Self {
        Self { most: share.units(u64::from(self.most)) as u32, ..*self }
    }
}

impl Rule {
    /// The row of a host that has this share of the rule. Nothing but `interval` and `most` differ.
    #[must_use]
    pub fn at_share(&self, share: Share) -> Self {
        if self.is_bucket() {
            let bucket = self.token_bucket().at_share(share);
            return Self { interval: bucket.emission, most: bucket.burst, ..*self };
        }
        let most = match self.algorithm {
            kind if kind == Algorithm::FixedWindow as u8 => self.fixed_window().at_share(share).most,
            kind if kind == Algorithm::SlidingWindow as u8 => self.sliding_window().at_share(share).most,
            _ => u64::from(self.sliding_log().at_share(share).most),
        };
        Self { most, ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::token_bucket::Costs;
    use crate::limiter::{Decision, Rate};
    use crate::time::TickScale;
    use proptest::prelude::*;

    proptest! {
        /// Hosts that share a bucket and are all asked all the time pass no more than the bucket, and no less but for
        /// what rounding to whole units keeps from each.
        #[test]
        fn shares_together_are_the_whole(per_second in 10u64..100_000, burst in 1u64..10_000, cuts in prop::collection::vec(1u64..1_000, 1..8), many: bool) {
            let scale = TickScale::FINEST;
            let costs = if many { Costs::Many } else { Costs::Single };
            let whole = TokenBucket::new(Rate::per_second(per_second), burst, costs, scale);
            let all: u64 = cuts.iter().sum();
            let shares: Vec<Share> = cuts.iter().map(|cut| Share::of_parts(Share::PARTS * cut / all)).collect();
            let span = scale.ticks(500_000_000);
            let (mut passed, mut bursts, mut rate) = (0u64, 0, 0.0);
            for share in &shares {
                let bucket = whole.at_share(*share);
                prop_assert!(bucket.charge(bucket.burst) <= whole.tolerance);
                prop_assert_eq!(bucket.tolerance, whole.tolerance);
                bursts += bucket.burst;
                if bucket.burst > 0 {
                    rate += whole.emission as f64 / bucket.emission as f64;
                    // What passes in the span, without walking it.
                    passed += bucket.burst + (u128::from(span) << bucket.emission_shift).div_euclid(u128::from(bucket.emission)) as u64;
                }
            }
            prop_assert!(bursts <= burst);
            prop_assert!(rate <= 1.0 + 0.001 * shares.len() as f64, "{rate}");
            let most = burst as f64 + 0.5 * per_second as f64 * (1.0 + 0.001 * shares.len() as f64);
            prop_assert!(passed as f64 <= most + shares.len() as f64, "{passed} of {most}");
        }

        /// A state means the same under any share: what was refused is refused no longer once its share grows, and a
        /// share that shrinks takes back nothing that has passed.
        #[test]
        fn a_state_outlives_its_share(burst in 2u64..1_000, before in 1u64..1_000_000_000, after in 1u64..1_000_000_000, taken in 0u64..1_000) {
            let whole = TokenBucket::new(Rate::per_second(1_000), burst, Costs::Many, TickScale::FINEST);
            let now = 1u64 << 40;
            let mut state = now;
            let first = whole.at_share(Share::of_parts(before));
            for _ in 0..taken {
                if let Decision::Pass(next) = first.decide(state, now, 1) { state = next; }
            }
            let second = whole.at_share(Share::of_parts(after));
            // Never more than a full bucket of the new share, whatever the state.
            prop_assert!(second.remaining(state, now) <= second.burst);
            if let Decision::Pass(next) = second.decide(state, now, second.burst) {
                prop_assert!(next.wrapping_sub(now) <= whole.tolerance);
            }
        }
    }

    #[test]
    fn an_nth_of_n_units_is_one_unit() {
        for hosts in 1..=100u64 {
            let share = Share::one_of(hosts);
            let bucket = TokenBucket::new(Rate::per_second(hosts), hosts, Costs::Single, TickScale::FINEST);
            let own = bucket.at_share(share);
            assert_eq!(own.burst, 1);
            assert!(matches!(own.decide(1 << 40, 1 << 40, 1), Decision::Pass(_)), "{hosts}");
            assert_eq!(FixedWindow::new(Rate::per_second(hosts), TickScale::FINEST).at_share(share).most, 1);
        }
    }

    #[test]
    fn nothing_passes_without_a_share() {
        let bucket = TokenBucket::new(Rate::per_second(10), 10, Costs::Single, TickScale::FINEST);
        for share in [Share::NOTHING, Share::of_parts(1)] {
            assert_eq!(bucket.at_share(share).decide(7, 7, 1), Decision::Refuse);
        }
        let window = FixedWindow::new(Rate::per_second(10), TickScale::FINEST);
        assert_eq!(window.at_share(Share::NOTHING).decide(7, 7, 1), Decision::Refuse);
        let rule = Rule::EMPTY.with_token_bucket(bucket);
        assert_eq!(rule.at_share(Share::NOTHING).most, 0);
        assert_eq!(rule.at_share(Share::WHOLE), rule);
    }
}
