//! Errors of requests.

use config::FormulaError;
use thiserror::Error;

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
    #[error(
        "unknown entry {entry:?} in the key, which limit {limit:?} does not count by: leave it out"
    )]
    UnknownEntry { limit: String, entry: String },
    /// The limit fixes another value.
    #[error("limit {limit:?} is for {entry} only, and the key has {value:?}: use another limit")]
    OtherValue {
        limit: String,
        entry: String,
        value: String,
    },
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
    Formula {
        request: String,
        error: FormulaError,
    },
}
