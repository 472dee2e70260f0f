//! The five algorithms, one file each: the policy's fields, the state, `decide` and the source with its error bound.
//!
//! All are pure functions of *(state, policy, now, cost)*. Those with one word of state return the word to put in its
//! place by compare-and-swap; the caller owns that loop. `cost` is in the limit's unit: 1 for packets, connections and
//! requests, the frame's length for bytes.

pub mod carry;
pub mod fixed_window;
pub mod leaky_bucket;
pub mod sliding_log;
pub mod sliding_window;
pub mod token_bucket;

pub use fixed_window::FixedWindow;
pub use leaky_bucket::LeakyBucket;
pub use sliding_log::SlidingLog;
pub use sliding_window::SlidingWindow;
pub use token_bucket::TokenBucket;

/// What an algorithm with one word of state says of one cost at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It conforms. Replace the state by this; if somebody else changed it meanwhile, decide again on what they left.
    Pass(u64),
    /// It does not, and the state stays as it is: a refusal charges nothing.
    Refuse,
}

/// A rate as the policy gives it: `count` units in each `per_nanoseconds`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Units, at least 1.
    pub count: u64,
    /// The span they are counted over, in nanoseconds, at least 1.
    pub per_nanoseconds: u64,
}

impl Rate {
    /// `count` a second.
    #[must_use]
    pub const fn per_second(count: u64) -> Self {
        Self { count, per_nanoseconds: 1_000_000_000 }
    }

    /// How long `units` take at this rate, in nanoseconds, rounded up.
    #[must_use]
    pub fn nanoseconds_for(self, units: u64) -> u128 {
        (u128::from(units) * u128::from(self.per_nanoseconds)).div_ceil(u128::from(self.count))
    }
}
