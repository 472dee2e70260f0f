//! Questions: the client's address, and errors.

use std::net::IpAddr;

use api::decide::Question;
use config::FormulaError;
use config::request_key::{SOURCE, entry_name};
use thiserror::Error;

/// The client's address from `source` or the key; IPv4-mapped as IPv4.
pub(super) fn address(question: &Question) -> Result<Option<IpAddr>, DecideError> {
    let mut in_key = None;
    for (_, text) in question.key.iter().filter(|(entry, _)| entry_name(entry) == SOURCE) {
        let address = text.parse::<IpAddr>().map_err(|_| DecideError::Source(text.clone()))?.to_canonical();
        match in_key.replace(address) {
            Some(other) if other != address => return Err(DecideError::Source(format!("{other}, {address}"))),
            _ => {}
        }
    }
    let apart = question.source.map(|address| address.to_canonical());
    match (in_key, apart) {
        (Some(one), Some(other)) if one != other => Err(DecideError::Source(format!("{one}, {other}"))),
        (one, other) => Ok(one.or(other)),
    }
}

/// An invalid request; nothing was charged.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum DecideError {
    #[error("unknown limit on requests {name:?}: {help}")]
    UnknownLimit {
        name: String,
        /// The available names.
        help: String,
    },
    #[error("missing entry {entry:?} in the key, which limit {limit:?} counts by: {help}")]
    MissingEntry {
        limit: String,
        entry: String,
        /// The fix.
        help: &'static str,
    },
    #[error("unknown entry {entry:?} in the key, which limit {limit:?} does not count by: leave it out")]
    UnknownEntry { limit: String, entry: String },
    /// The limit fixes another value.
    #[error("limit {limit:?} is for {entry} only, and the key has {value:?}: use another limit")]
    OtherValue { limit: String, entry: String, value: String },
    /// The source is not an address, or the key has another one.
    #[error("invalid source {0:?}: write one address as 203.0.113.9 or 2001:db8::9")]
    Source(String),
    #[error("unknown request {name:?}: {help}")]
    UnknownRequest {
        name: String,
        /// The available names.
        help: String,
    },
    #[error("{0}")]
    Cost(&'static str),
    #[error("peek conflicts with wait: a peek charges nothing; remove one of them")]
    PeekWaits,
    /// The agent stopped while the request waited.
    #[error("the agent is stopping: repeat the request once it has restarted")]
    Ending,
    #[error("request {request:?}: {error}")]
    Formula { request: String, error: FormulaError },
}
