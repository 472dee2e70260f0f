//! The document that `weir top` displays.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::group::GroupStatus;
use crate::heavy_prefixes::HeavyPrefixes;
use crate::limit::LimitStatus;
use crate::source::{BansRow, TopRow};
use crate::status::Status;

/// The most sources in one document: more than the lines of a screen; the reply has some 100 kB.
pub const MOST_SOURCES: usize = 500;

/// The request for a view.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ViewQuery {
    pub sort: Sort,
    /// Only sources in this prefix.
    pub within: Option<String>,
    /// The number of sources, at most [`MOST_SOURCES`].
    pub most: usize,
    /// Also prefixes with at least this share of the packets, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefixes: Option<f64>,
}

/// The order of sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sort {
    /// By the current rate of refused packets.
    #[default]
    ThrottledRate,
    /// By the current rate of passed packets.
    PassedRate,
    /// By the total of refused packets.
    Throttled,
    /// By the total of passed packets.
    Passed,
}

/// The document that `weir top` displays.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct View {
    /// The agent's clock in seconds, for rates between two documents.
    pub at_seconds: f64,
    /// The document of `weir status`.
    pub status: Status,
    /// The document of `weir limits`.
    pub limits: Vec<LimitStatus>,
    /// The rate that each limit on packets allows one key, in its units per second; without limits with `rate = "fair"`.
    pub allowed_per_second: BTreeMap<String, f64>,
    /// The first matching sources.
    pub sources: Vec<SourceLoad>,
    /// The number of matching sources.
    pub matching: u64,
    /// The number of sources that the kernel samples: the busiest and the refused.
    pub remembered: u64,
    /// The document of `weir groups`.
    pub groups: Vec<GroupStatus>,
    /// The document of `weir top --by prefix`, if the query has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefixes: Option<HeavyPrefixes>,
}

/// One source under one limit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SourceLoad {
    /// The row of `weir top --once`.
    #[serde(flatten)]
    pub row: TopRow,
    /// `null` until the source has been sampled twice.
    pub passed_per_second: Option<f64>,
    /// Packets refused, or that would have been refused; `null` until the source has been sampled twice.
    pub throttled_per_second: Option<f64>,
}

/// `GET /live.json`: the document of the live page.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LiveDocument {
    /// `weir status`, `limits` and `groups`, and the busiest sources.
    #[serde(flatten)]
    pub view: View,
    /// The age of `sources`, `bans`, `keys` of limits and `sources.tracked` of `status`: they are read less often than the
    /// rest if the table of sources is large.
    pub sources_age_seconds: f64,
    /// The first bans of `weir bans`.
    pub bans: Vec<BansRow>,
}

/// The most bans in a [`LiveDocument`].
pub const MOST_BANS: usize = 100;
