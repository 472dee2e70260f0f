//! `weir reload`, `weir try`, `weir confirm`, `weir revert`, and their part of `weir status`.

use serde::{Deserialize, Serialize};

use config::Changes;

/// `last_reload` of `weir status --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastReload {
    /// Seconds since 1970.
    pub at: f64,
    /// Whether the config is in effect.
    pub ok: bool,
    /// `start` (the file was invalid, and the last valid config is in effect), `signal`, `command`, `watch`, `try`,
    /// `trial-ended` or `revert`.
    pub cause: String,
    /// The file; `null` for the built-in limits.
    pub file: Option<String>,
    /// The duration of the reload.
    pub seconds: f64,
    /// The errors because of which the config is not in effect.
    pub errors: Vec<String>,
    /// Notes for the operator.
    pub notes: Vec<String>,
}

/// `trial` of `weir status --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialStatus {
    /// The config on trial.
    pub file: String,
    /// The stream of the fleet whose rules are on trial; `None`: a config of the operator.
    #[serde(default)]
    pub stream: Option<String>,
    /// Seconds until the rollback to the previous config.
    pub ends_in_seconds: f64,
    /// Whether the trial has expired and the rollback has failed so far.
    #[serde(default)]
    pub rollback_failing: bool,
    /// The failed attempts to roll back.
    #[serde(default)]
    pub rollback: Option<RollbackStatus>,
}

/// `trial.rollback` of `weir status --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RollbackStatus {
    /// Failed attempts.
    pub attempts: u64,
    /// Seconds since the first failed attempt.
    pub failing_for_seconds: f64,
    /// Seconds until the next attempt.
    pub next_attempt_in_seconds: f64,
    /// The reason of the last failure.
    pub error: String,
}

/// The result of `weir reload`, `weir try` or `weir revert`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reloaded {
    /// Whether the config is in effect.
    pub ok: bool,
    /// Whether it failed because the config is invalid.
    pub wrong_config: bool,
    /// The duration of the reload.
    pub milliseconds: u64,
    /// The errors.
    pub errors: Vec<String>,
    /// Notes for the operator.
    pub notes: Vec<String>,
    /// The differences from the previous config.
    #[serde(default)]
    pub changes: Changes,
}

/// The result of `weir confirm`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confirmed {
    /// The config that stays in effect.
    pub file: String,
    /// A further step for the operator.
    pub note: Option<String>,
}
