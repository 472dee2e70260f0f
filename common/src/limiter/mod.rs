//! The algorithms, one file each: the policy's fields, the state, `decide` and the source with its error bound.
//!
//! All are pure functions of *(state, policy, now, cost)*. Those with one word of state return the word to put in its
//! place by compare-and-swap. `cost` is in the limit's unit: 1 for packets, connections and requests, the frame's length
//! for bytes.
//!
//! An algorithm is a file that implements [`Parametric`] (its row), [`RateAlgorithm`] (its properties, and states that one
//! thread holds) and [`SharedCharge`] (states that several CPUs charge), and a line in the list of `algorithm.rs`.

mod algorithm;
mod decision;
pub mod fixed_window;
pub mod leaky_bucket;
mod migration;
mod moves;
mod parameters;
mod rate;
mod rate_algorithm;
mod refund;
mod shared;
pub mod sliding_log;
pub mod sliding_window;
pub mod token_bucket;

pub(crate) use algorithm::algorithms;
pub use algorithm::{Algorithm, AnyLimiter, Listed};
pub use decision::Decision;
pub use fixed_window::FixedWindow;
pub use leaky_bucket::LeakyBucket;
pub use migration::Instants;
pub use moves::Moves;
pub use parameters::{Parameters, Parametric};
pub use rate::{Costs, Rate};
pub use rate_algorithm::RateAlgorithm;
pub use refund::Refund;
pub(crate) use shared::charge_word;
pub use shared::{CHARGE_TRIES, Charge, SharedCharge, SharedState, Swap};
pub use sliding_log::SlidingLog;
pub use sliding_window::SlidingWindow;
pub use token_bucket::TokenBucket;
