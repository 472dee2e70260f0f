//! What is told of reloads and trials.

use serde::{Deserialize, Serialize};

use crate::config::Changes;

/// `last_reload` of `agent status --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastReload {
    /// When, in seconds since 1970.
    pub at: f64,
    /// Whether the config is in force.
    pub ok: bool,
    /// `start` (the file was invalid, and the last valid config is in effect), `signal`, `command`, `watch`, `try`,
    /// `trial-ended` or `revert`.
    pub cause: String,
    /// The file; `null` for the built-in limits.
    pub file: Option<String>,
    /// How long it took.
    pub seconds: f64,
    /// Why it is not in force: each thing that is wrong.
    pub errors: Vec<String>,
    /// What an operator should know.
    pub notes: Vec<String>,
}

/// `trial` of `agent status --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialStatus {
    /// The config that is in force for a time.
    pub file: String,
    /// Until the one before is again.
    pub ends_in_seconds: f64,
    /// Whether its time is over and rolling back has failed so far.
    #[serde(default)]
    pub rollback_failing: bool,
    /// The attempts to roll back, while they fail.
    #[serde(default)]
    pub rollback: Option<RollbackStatus>,
}

/// `trial.rollback` of `agent status --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RollbackStatus {
    /// How many have failed.
    pub attempts: u64,
    /// Since the first one.
    pub failing_for_seconds: f64,
    /// Until the next one.
    pub next_attempt_in_seconds: f64,
    /// Why the last one failed.
    pub error: String,
}

/// What came of `agent reload`, `agent try` or `agent revert`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reloaded {
    /// Whether it is in force.
    pub ok: bool,
    /// Whether it is not since the config is wrong.
    pub wrong_config: bool,
    /// How long it took.
    pub milliseconds: u64,
    /// Each thing that is wrong.
    pub errors: Vec<String>,
    /// What an operator should know.
    pub notes: Vec<String>,
    /// What differs from the config before.
    #[serde(default)]
    pub changes: Changes,
}

/// What came of `agent confirm`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confirmed {
    /// The config that stays in force.
    pub file: String,
    /// What else there is to do.
    pub note: Option<String>,
}
