//! `weir top --by prefix --json`.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

/// The least share of the packets that makes a prefix heavy, unless another is queried.
pub const SHARE: f64 = 0.01;
/// The shares that may be queried.
pub const SHARES: RangeInclusive<f64> = 0.001..=1.0;
/// The error for any other.
pub const WRONG_SHARE: &str = "invalid --share: from 0.1% to 100%";

/// The prefixes from which large shares of the packets come, by a sample of the last seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeavyPrefixes {
    /// The time in which the sample was taken; 0 just after the first query.
    pub seconds: f64,
    /// One in this many packets was sampled, at the smallest sample of that time; 1: all were.
    pub one_in: u32,
    pub samples: u64,
    /// Samples that are left out, with all others of the same 50 ms, since the agent could not read them in time.
    pub lost: u64,
    /// The least own share of a prefix in the list, from 0 to 1.
    pub least_share: f64,
    /// With a probability of 95 %, no share of any prefix differs by more than this from its share of all packets.
    pub error: f64,
    pub packets_per_second: f64,
    pub bytes_per_second: f64,
    pub throttled_per_second: f64,
    /// The sources in the sample: there are at least as many.
    pub sources: u64,
    /// The share of the packets that come from no prefix in the list.
    pub elsewhere: f64,
    /// The largest own share first.
    pub prefixes: Vec<HeavyPrefix>,
}

/// A prefix with a large share of the packets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeavyPrefix {
    pub prefix: String,
    /// Its share of all packets, from 0 to 1.
    pub share: f64,
    /// The same without the prefixes of the list within it.
    pub own_share: f64,
    /// With a probability of 95 %, `share` differs by at most this from its share of all packets.
    pub margin: f64,
    pub packets_per_second: f64,
    pub bytes_per_second: f64,
    pub throttled_per_second: f64,
    /// The sources in the sample: it has at least as many.
    pub sources: u64,
}
