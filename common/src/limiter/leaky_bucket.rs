//! Leaky bucket, as a virtual finish time.
//!
//! Source: J. Turner, "New directions in communications", IEEE Communications Magazine 24(10), 1986, in the form of
//! ITU-T I.371's continuous-state leaky bucket, the mirror of its virtual scheduling: the level of the bucket is the
//! time from now to the finish time. It therefore shares the token bucket's arithmetic and error bound; in addition it
//! computes the departure of a packet that is delayed instead of refused.

use super::Decision;
use super::parameters::{Parameters, Parametric};
use super::rate::{Costs, Rate};
use super::token_bucket::TokenBucket;
use crate::time::{TickScale, Ticks};

/// A leaky bucket: constant outflow, a queue of `burst`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeakyBucket(pub TokenBucket);

impl LeakyBucket {
    /// A bucket that leaks at `rate` and overflows at `burst` units.
    #[must_use]
    pub fn new(rate: Rate, burst: u64, costs: Costs, scale: TickScale) -> Self {
        Self(TokenBucket::new(rate, burst, costs, scale))
    }

    /// Decides on `cost` at `now`: it passes if its finish time is within the queue.
    #[inline(always)]
    #[must_use]
    pub fn decide(&self, state: u64, now: Ticks, cost: u64) -> Decision {
        self.0.decide(state, now, cost)
    }

    /// The departure of a packet of `cost`, given the state after its charge: when everything before it has leaked out,
    /// or at once. Less than the tolerance after the charge.
    #[inline(always)]
    #[must_use]
    pub fn departure(&self, charged: u64, cost: u64) -> Ticks {
        charged.wrapping_sub(self.0.charge(cost))
    }
}

/// Evaluated as a [`TokenBucket`].
impl Parametric for LeakyBucket {
    const NAME: &'static str = "leaky-bucket";
    const CAN_SHAPE: bool = true;

    #[inline(always)]
    fn from_parameters(parameters: Parameters) -> Self {
        Self(TokenBucket::from_parameters(parameters))
    }

    fn parameters(&self) -> Parameters {
        self.0.parameters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Departures are in order, an emission interval apart while there is a queue, and never later than the length
        /// of the queue.
        #[test]
        fn the_outflow_is_constant_and_in_order(per_second in 1u64..10_000_000, burst in 1u64..500, start in 0u64..1 << 60, gaps in prop::collection::vec(0u64..3_000, 1..400)) {
            let scale = TickScale::FINEST;
            let bucket = LeakyBucket::new(Rate::per_second(per_second), burst, Costs::Single, scale);
            let emission = bucket.0.emission;
            let (mut state, mut now) = (start, start);
            let mut last: Option<Ticks> = None;
            for gap in gaps {
                now += gap * emission / 1_000;
                if let Decision::Pass(next) = bucket.decide(state, now, 1) {
                    let departure = bucket.departure(next, 1);
                    prop_assert!(departure >= now && departure - now <= (burst - 1) * emission);
                    if let Some(last) = last { prop_assert!(departure - last >= emission); }
                    if departure > now { prop_assert_eq!(departure, last.unwrap() + emission); }
                    last = Some(departure);
                    state = next;
                } else {
                    // Overflow: the queue holds more than burst - 1 whole units.
                    prop_assert!(state - now > (burst - 1) * emission);
                }
            }
        }
    }
}
