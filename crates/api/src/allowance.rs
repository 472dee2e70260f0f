//! Exemptions for a while, and limits raised for a while, which operators make with `weir allow`.

use serde::{Deserialize, Serialize};

/// The longest exemption: a hundred years. `never_limit` has those without an end.
pub const LONGEST_SECONDS: u64 = 100 * 366 * 86_400;
/// The largest factor; it has to be above 1.
pub const MOST_TIMES: f64 = 1_000_000.0;

/// An address or prefix that is exempt, or has more than the limits say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Allowance {
    /// The address or prefix.
    pub cidr: String,
    /// The factor on each limit's rate and burst; `None`: it is exempt from limits and bans.
    #[serde(default)]
    pub times: Option<f64>,
    /// The user or program that ordered it.
    pub owner: String,
    #[serde(default)]
    pub reason: Option<String>,
    /// When it was ordered, in seconds since 1970.
    pub since: u64,
    /// When it ends, in seconds since 1970.
    pub until: u64,
}

/// The result of `weir allow`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Allowed {
    /// The number of prefixes of the order.
    pub allowed: u64,
    /// Earlier orders for the same prefixes, which these replace.
    #[serde(default)]
    pub replaced: Vec<Allowance>,
    /// Notes for the operator.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// The result of `weir disallow`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Disallowed {
    /// The exemptions that ended.
    pub ended: Vec<Allowance>,
    /// Prefixes without one.
    #[serde(default)]
    pub unknown: Vec<String>,
    /// Notes for the operator.
    #[serde(default)]
    pub notes: Vec<String>,
}
