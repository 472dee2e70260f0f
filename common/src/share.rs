//! One host's share of a limit that several hosts enforce together.
//!
//! Rate and burst are scaled alike, so that a bucket's tolerance, the time of its burst at its rate, is constant: a
//! state is an instant with the same meaning under any share. Only the emission interval and the largest cost change,
//! and a changed interval affects only later charges. Windows and logs keep their length and scale their count.
//!
//! Error bound: shares that add up to the whole have at most the whole's burst together, and refill at most at its rate
//! plus a thousandth of a unit each, so that an n-th of n units can be one unit. A full bucket stays full when its
//! share grows: a share that moves between hosts may add at most its burst.

/// A part of a limit, in billionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(u64);

impl Share {
    /// The number of parts of the whole.
    pub const PARTS: u64 = 1_000_000_000;
    /// All of it.
    pub const WHOLE: Self = Self(Self::PARTS);
    /// Nothing passes.
    pub const NOTHING: Self = Self(0);

    /// This many billionths, at most all.
    #[must_use]
    pub const fn of_parts(parts: u64) -> Self {
        Self(if parts < Self::PARTS {
            parts
        } else {
            Self::PARTS
        })
    }

    /// An equal share for each of `hosts`.
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

    /// The share of `units`, rounded down, with a tolerance of a thousandth of a unit for earlier rounding.
    #[must_use]
    pub fn units(self, units: u64) -> u64 {
        let parts = u128::from(units) * u128::from(self.0) + u128::from(Self::PARTS / 1_000);
        u64::try_from(parts / u128::from(Self::PARTS))
            .unwrap_or(u64::MAX)
            .min(units)
    }

    /// The units of the other hosts, rounded down, if each passes as many of its share as this one, which passes `units`.
    #[must_use]
    pub fn others(self, units: u64) -> u64 {
        let parts = u128::from(units) * u128::from(Self::PARTS - self.0);
        u64::try_from(parts.checked_div(u128::from(self.0)).unwrap_or(0)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::{Costs, Decision, FixedWindow, Rate, RateAlgorithm, TokenBucket};
    use crate::rule::Rule;
    use crate::time::TickScale;
    use proptest::prelude::*;

    proptest! {
        /// Hosts with constant demand that share a bucket pass no more than the bucket, and less only by the rounding
        /// to whole units.
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
                    // The units that pass in the span, computed directly.
                    passed += bucket.burst + (u128::from(span) << bucket.emission_shift).div_euclid(u128::from(bucket.emission)) as u64;
                }
            }
            prop_assert!(bursts <= burst);
            prop_assert!(rate <= 1.0 + 0.001 * shares.len() as f64, "{rate}");
            let most = burst as f64 + 0.5 * per_second as f64 * (1.0 + 0.001 * shares.len() as f64);
            prop_assert!(passed as f64 <= most + shares.len() as f64, "{passed} of {most}");
        }

        /// A state has the same meaning under any share: refused units pass once the share grows, and a share that
        /// shrinks reverts nothing that has passed.
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
            // Never more than a full bucket of the new share, for any state.
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
            let bucket = TokenBucket::new(
                Rate::per_second(hosts),
                hosts,
                Costs::Single,
                TickScale::FINEST,
            );
            let own = bucket.at_share(share);
            assert_eq!(own.burst, 1);
            assert!(
                matches!(own.decide(1 << 40, 1 << 40, 1), Decision::Pass(_)),
                "{hosts}"
            );
            assert_eq!(
                FixedWindow::new(Rate::per_second(hosts), TickScale::FINEST)
                    .at_share(share)
                    .most,
                1
            );
        }
    }

    #[test]
    fn nothing_passes_without_a_share() {
        let bucket = TokenBucket::new(Rate::per_second(10), 10, Costs::Single, TickScale::FINEST);
        for share in [Share::NOTHING, Share::of_parts(1)] {
            assert_eq!(bucket.at_share(share).decide(7, 7, 1), Decision::Refuse);
        }
        let window = FixedWindow::new(Rate::per_second(10), TickScale::FINEST);
        assert_eq!(
            window.at_share(Share::NOTHING).decide(7, 7, 1),
            Decision::Refuse
        );
        let rule = Rule::EMPTY.with(bucket);
        assert_eq!(rule.at_share(Share::NOTHING).most, 0);
        assert_eq!(rule.at_share(Share::WHOLE), rule);
    }
}
