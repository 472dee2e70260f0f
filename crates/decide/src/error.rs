//! Errors of requests.

use config::{FormulaError, human};
use thiserror::Error;

/// The longest text of a client that an error repeats, in columns.
const LONGEST_QUOTED: usize = 64;

/// An invalid request; nothing was charged.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum DecideError {
    #[error("unknown limit on requests {:?}: {help}", quoted(name))]
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
        "unknown entry {:?} in the key, which limit {limit:?} does not count by: leave it out",
        quoted(entry)
    )]
    UnknownEntry { limit: String, entry: String },
    /// The limit fixes another value.
    #[error(
        "limit {limit:?} is for {entry} only, and the key has {:?}: use another limit",
        quoted(value)
    )]
    OtherValue {
        limit: String,
        entry: String,
        value: String,
    },
    /// The source is not an address, or the key has another one.
    #[error(
        "invalid source {:?}: write one address as 203.0.113.9 or 2001:db8::9",
        quoted(.0)
    )]
    Source(String),
    #[error("unknown request {:?}: {help}", quoted(name))]
    UnknownRequest {
        name: String,
        /// The available names.
        help: String,
    },
    #[error("{0}")]
    Cost(&'static str),
    /// Two fields, or a field without another one that it needs.
    #[error("{0}")]
    Fields(&'static str),
    #[error("missing limit: name a limit, or commit or release a reservation")]
    MissingLimit,
    #[error(
        "unknown reservation {:?}: it was committed or released, its time is over, or the agent has restarted",
        quoted(.0)
    )]
    UnknownReservation(String),
    #[error(
        "{most} reservations are open, and there is no room for more: nothing was charged; commit or release some, or raise [decide] max_reservations"
    )]
    ReservationsFull { most: usize },
    #[error(
        "{most} reservations of this key are open, the most for one key: nothing was charged; commit or release some, or raise [decide] max_reservations_per_key"
    )]
    ReservationsOfKeyFull { most: usize },
    /// The system has no randomness.
    #[error("reading random numbers from the kernel failed: {0}")]
    Randomness(getrandom::Error),
    /// The agent stopped while the request waited.
    #[error("the agent is stopping: repeat the request once it has restarted")]
    Ending,
    #[error("request {request:?}: {error}")]
    Formula {
        request: String,
        error: FormulaError,
    },
}

/// A client's text, of which a long one is cut.
pub(super) fn quoted(text: &str) -> String {
    human::cut(text, LONGEST_QUOTED)
}
