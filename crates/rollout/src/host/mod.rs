//! The rollout on one host: inputs of store, health and clocks; outputs for the agent. Without I/O.
//!
//! The agent calls [`Host::take_request`] when [`Host::next_at`] has come, and [`Host::step`] with every input. Outputs are
//! carried out in their order. [`Output::Save`] comes before the change that it records, so that an agent that is killed at
//! any instant starts with confirmed rules.

mod follow;
mod machine;
mod pace;
mod requests;
mod saved;
mod taking;
#[cfg(test)]
mod tests;
mod trial;
mod withdrawals;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use thiserror::Error;

use crate::board::{Board, Failure, Report};
use crate::health::Unhealthy;
use crate::refusal::Refusal;
use crate::rules::Rights;

pub use crate::health::CHECK;
pub use machine::Host;
pub use pace::RENEWAL;
pub use saved::{Rules, Saved};

/// How often a host begins with a version when its agent ends during the bake.
pub const MOST_ATTEMPTS: u32 = 2;

/// `[fleet]` of the host's own file, as far as it concerns one stream.
#[derive(Clone, Debug)]
pub struct Settings {
    pub host: String,
    pub labels: BTreeMap<String, String>,
    pub stream: String,
    /// The time between two requests to the store.
    pub every: Duration,
    /// The tables and limits that its releases may set.
    pub rights: Rights,
}

/// Both clocks at an instant.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// May be set forwards and back. Only the expiry of releases that have not begun depends on it.
    pub wall: SystemTime,
    /// Since any instant before; never set. All periods are measured by it.
    pub monotonic: Duration,
}

/// The newest release of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Head {
    /// The store has none.
    Missing,
    /// That of [`Host::known`].
    Unchanged,
    /// Any other signed release, also when it was refused before.
    Is(String),
}

/// The contents of the store.
#[derive(Clone, Debug)]
pub struct Reply {
    pub head: Head,
    /// The signed aborts that are in the store.
    pub aborts: Vec<String>,
    /// The reports on the version of `head`.
    pub board: Board,
}

/// A request to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Read the stream; [`Input::Replied`] follows.
    Read,
    /// Replace this host's report; [`Input::Reported`] follows.
    Report(Box<Report>),
}

/// An input of the store, of the health checks, or of the agent.
#[derive(Clone, Debug)]
pub enum Input {
    Replied(Box<Reply>),
    /// The store has this host's report.
    Reported(Box<Report>),
    /// The store is available, and refuses this host's report.
    NotWritten(Box<Report>),
    /// The request failed.
    StoreFailed(String),
    /// [`Output::Try`] or [`Output::Merge`] is done, or is not possible.
    Tried(Result<(), String>),
    /// [`Output::Try`] waits for the trial of another stream or of an operator. Repeated while it waits.
    Waits,
    /// [`Output::Confirm`] is done.
    Confirmed,
    /// The health since the bake began. Every [`CHECK`] while rules are on trial.
    Health(Result<(), Unhealthy>),
    /// The operator changed the host's own file.
    FileChanged,
    /// Other keys count, or the stream has other rights.
    TrustChanged,
}

/// A task for the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Save [`Host::saved`] before the following outputs.
    Save,
    /// Merge these rules into the host's file, check the result, and put it in effect on trial.
    Try(Rules),
    /// Save [`Host::if_confirmed`], keep the rules on trial, and pass [`Input::Confirmed`]. If one of the two fails, the next
    /// check requests it again.
    Confirm,
    /// Put these in effect, or the host's file alone.
    RollBack(Option<Rules>),
    /// Merge the rules on trial into the changed file, and begin the bake again.
    Merge,
    Event(Event),
}

/// A message for the operator.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Event {
    #[error("the store of the fleet's rules is unavailable: {0}; the rules in effect stay")]
    StoreDown(String),
    #[error("the store of the fleet's rules is available again")]
    StoreUp,
    #[error("a document of the store is refused: {0}; the rules in effect stay")]
    Refused(Refusal),
    #[error("version {version} of the fleet's rules is on trial")]
    Begun { version: u64 },
    #[error("version {version} of the fleet's rules is confirmed")]
    Confirmed { version: u64 },
    #[error("version {version} of the fleet's rules is stopped: {reason}")]
    Stopped { version: u64, reason: Stop },
    #[error(
        "version {version} of the fleet's rules waits for its canaries: none has begun, or those on trial do not report any more; publish the next version, which has other canaries"
    )]
    Stalled { version: u64 },
}

/// Why a host does not have a version in effect.
#[derive(Clone, Debug, PartialEq, Eq, Error, serde::Serialize, serde::Deserialize)]
#[serde(tag = "cause", rename_all = "kebab-case")]
pub enum Stop {
    /// By this host's health.
    #[error("{reason}; correct the rules, and publish the next version")]
    Unhealthy { reason: String },
    #[error("not in effect: {reason}")]
    NotApplied { reason: String },
    #[error("the agent ended twice while they were on trial")]
    Interrupted,
    #[error("canary {} failed: {}", .0.host, .0.reason)]
    CanaryFailed(Failure),
    #[error("{publisher} aborted it: {reason}")]
    Aborted { publisher: String, reason: String },
    #[error("two documents have this version; publish one of them as the next version")]
    Conflict,
    #[error("its key does not count any more; publish it with another key")]
    KeyRemoved,
    #[error("a newer version was published")]
    Superseded,
}

impl Stop {
    /// Whether this host found the fault, so that other hosts must not begin.
    #[must_use]
    pub const fn is_own(&self) -> bool {
        matches!(
            self,
            Self::Unhealthy { .. } | Self::NotApplied { .. } | Self::Interrupted | Self::Conflict
        )
    }
}
