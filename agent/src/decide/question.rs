//! What is asked, what is answered, and why there may be no answer.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use common::rate_limiter::Outcome;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::formula::FormulaError;
use super::waiting::Wait;
use crate::config::request_key::{SOURCE, entry_name};

/// What is asked: one limit, one key, one cost.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// The limit's name.
    pub limit: String,
    /// Its entries and their values.
    #[serde(default)]
    pub key: BTreeMap<String, String>,
    /// The client's address, for its class and for limits by source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<IpAddr>,
    /// The kind of request; its formula says what it costs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// What the formula is over.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, f64>,
    /// The cost itself, in units; 1 if neither it nor a request is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<u64>,
    /// Look, and charge nothing.
    #[serde(default)]
    pub peek: bool,
    /// How long the request may wait in the limit's line until it conforms; without it, it is refused at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
}

impl Question {
    /// The client's address, wherever it is given, IPv4-mapped as IPv4.
    pub(super) fn address(&self) -> Result<Option<IpAddr>, DecideError> {
        let mut in_key = None;
        for (_, text) in self.key.iter().filter(|(entry, _)| entry_name(entry) == SOURCE) {
            let address = text.parse::<IpAddr>().map_err(|_| DecideError::Source(text.clone()))?.to_canonical();
            match in_key.replace(address) {
                Some(other) if other != address => return Err(DecideError::Source(format!("{other}, {address}"))),
                _ => {}
            }
        }
        let apart = self.source.map(|address| address.to_canonical());
        match (in_key, apart) {
            (Some(one), Some(other)) if one != other => Err(DecideError::Source(format!("{one}, {other}"))),
            (one, other) => Ok(one.or(other)),
        }
    }
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Whether the request may go on.
    pub allowed: bool,
    /// The limit that was asked about.
    pub limit: String,
    /// The largest cost that would pass now.
    pub remaining: u64,
    /// Until this cost would pass if nothing else did; 0 if it passed; `null` if it never can.
    pub retry_after_seconds: Option<f64>,
    /// Until the whole allowance is back if nothing else passes.
    pub reset_after_seconds: f64,
    /// How long it waited in line, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_seconds: Option<f64>,
    /// The `RateLimit-Policy` of the caller's class, if it is limited.
    #[serde(skip)]
    pub(super) policy: Option<Arc<str>>,
}

impl Answer {
    pub(super) fn new(name: &str, outcome: Outcome) -> Self {
        Self {
            allowed: outcome.allowed,
            limit: name.to_owned(),
            remaining: outcome.remaining,
            retry_after_seconds: outcome.retry_after.map(|wait| wait.as_secs_f64()),
            reset_after_seconds: outcome.reset_after.as_secs_f64(),
            waited_seconds: None,
            policy: None,
        }
    }

    /// The same of one that waited.
    pub(super) fn after(self, waited: Duration) -> Self {
        Self { waited_seconds: Some(waited.as_secs_f64()), ..self }
    }
}

/// Why there is no answer. Nothing was charged.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum DecideError {
    /// No such limit.
    #[error("there is no limit {name:?} on requests: {help}")]
    UnknownLimit {
        /// What was asked for.
        name: String,
        /// What there is.
        help: String,
    },
    /// An entry is missing.
    #[error("limit {limit:?} counts by {entry:?}, and the key has none: {help}")]
    MissingEntry {
        /// The limit.
        limit: String,
        /// The entry.
        entry: String,
        /// What to write.
        help: &'static str,
    },
    /// An entry too many.
    #[error("limit {limit:?} does not count by {entry:?}: leave it out")]
    UnknownEntry {
        /// The limit.
        limit: String,
        /// The entry.
        entry: String,
    },
    /// The limit is for another value.
    #[error("limit {limit:?} is for {entry} alone, and the key has {value:?}")]
    OtherValue {
        /// The limit.
        limit: String,
        /// The entry and its value.
        entry: String,
        /// What was asked for.
        value: String,
    },
    /// The source is no address, or two different ones.
    #[error("the source {0:?} is not an address: write it as 203.0.113.9 or 2001:db8::9, once")]
    Source(String),
    /// No such request.
    #[error("there is no request {name:?}: {help}")]
    UnknownRequest {
        /// What was asked for.
        name: String,
        /// What there is.
        help: String,
    },
    /// A request and a cost, or parameters without a request.
    #[error("{0}")]
    Cost(&'static str),
    /// A peek cannot wait.
    #[error("peek conflicts with wait: a peek charges nothing, so that there is nothing to wait for; remove one")]
    PeekWaits,
    /// It waited when the agent ended.
    #[error("the agent ends: ask again once it has restarted")]
    Ending,
    /// The formula has no cost for these parameters.
    #[error("request {request:?}: {error}")]
    Formula {
        /// The request.
        request: String,
        /// Why.
        error: FormulaError,
    },
}
