//! Exemptions for a while, which operators make with `agent allow`.

use serde::{Deserialize, Serialize};

/// The longest exemption: a hundred years. `never_limit` has those without an end.
pub const LONGEST_SECONDS: u64 = 100 * 366 * 86_400;

/// An exempt address or prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allowance {
    /// The address or prefix.
    pub cidr: String,
    /// The user or program that ordered it.
    pub owner: String,
    #[serde(default)]
    pub reason: Option<String>,
    /// When it was ordered, in seconds since 1970.
    pub since: u64,
    /// When it ends, in seconds since 1970.
    pub until: u64,
}

/// The result of `agent allow`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allowed {
    /// The number of prefixes that are exempt now.
    pub allowed: u64,
    /// Exemptions of the same prefixes, which these replace.
    #[serde(default)]
    pub replaced: Vec<Allowance>,
    /// Notes for the operator.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// The result of `agent disallow`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
