//! What `agent top` shows, in one document.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{LimitStatus, Status, TopRow};
use crate::groups::GroupStatus;

/// The most sources in one document: more than a screen has lines, and an answer of some 100 kB.
pub const MOST_SOURCES: usize = 500;

/// What is to be shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ViewQuery {
    /// Which sources come first.
    pub sort: Sort,
    /// Only those in this prefix.
    pub within: Option<String>,
    /// How many, at most [`MOST_SOURCES`].
    pub most: usize,
}

/// Which sources come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sort {
    /// Those that are refused most, now.
    #[default]
    ThrottledRate,
    /// Those of which most passes, now.
    PassedRate,
    /// Those that were refused most, in all.
    Throttled,
    /// Those of which most passed, in all.
    Passed,
}

/// What `agent top` shows.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct View {
    /// By the agent's clock, in seconds: for rates between two documents.
    pub at_seconds: f64,
    /// As `agent status` has it.
    pub status: Status,
    /// As `agent limits` has them.
    pub limits: Vec<LimitStatus>,
    /// What each limit on packets allows one key, in its units a second.
    pub allowed_per_second: BTreeMap<String, f64>,
    /// The first of those that match.
    pub sources: Vec<SourceLoad>,
    /// How many match.
    pub matching: u64,
    /// How many the kernel remembers: the busiest and the refused.
    pub remembered: u64,
    /// As `agent groups` has them.
    pub groups: Vec<GroupStatus>,
}

/// One source under one limit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SourceLoad {
    /// As `agent top --once` has it.
    #[serde(flatten)]
    pub row: TopRow,
    /// Packets that would have been refused, were the limit not only observed; sampled.
    pub would_throttle_packets: u64,
    /// `null` until it has been looked at twice.
    pub passed_per_second: Option<f64>,
    /// Refused, or would have been; `null` until it has been looked at twice.
    pub throttled_per_second: Option<f64>,
}
