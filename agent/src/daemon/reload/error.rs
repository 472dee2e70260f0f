//! Errors of reloads and trials.

use std::time::Duration;

use config::{ConfigError, units};
use datapath::compile::CompileError;
use decide::EngineError;
use host::PROGRAM;
use thiserror::Error;

use crate::daemon::state::StateError;

fn typed(time: Duration) -> String {
    units::time_text(time.as_nanos().try_into().unwrap_or(u64::MAX))
}

/// A config was not applied; the one in effect is unchanged.
#[derive(Debug, Error)]
pub enum ReloadError {
    /// The agent has no config file.
    #[error(
        "this agent runs without a config file, on built-in limits: start it with --config FILE"
    )]
    NoFile,
    /// A reload that names another file.
    #[error(
        "this agent runs with {own}, not with {named}: {PROGRAM} reload --diff {named} compares it, {PROGRAM} try {named} puts it in \
         effect"
    )]
    OtherFile { own: String, named: String },
    /// The config is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// It exceeds a limit of the kernel program.
    #[error(transparent)]
    Policy(#[from] CompileError),
    /// A change that requires a restart.
    #[error("{0} cannot be changed while the agent runs: put it back, or restart the agent")]
    NeedsRestart(String),
    /// A database is missing, without which networks or countries have no prefixes.
    #[error("{0}")]
    Geo(String),
    /// Limits on requests cannot be enforced.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Limits on packets cannot be enforced.
    #[error("{0}")]
    Packets(String),
    /// A trial is in progress.
    #[error(
        "a config is on trial: confirm it ({PROGRAM} confirm), end it ({PROGRAM} revert), or wait {0} s until it ends"
    )]
    OnTrial(u64),
    /// Rules of the fleet are on trial.
    #[error(
        "{0} is on trial: wait until this host's health confirms it, or end it with {PROGRAM} revert, which other hosts take for a failure"
    )]
    RulesOnTrial(String),
    /// The agent is stopping.
    #[error("the agent is stopping: nothing was changed")]
    Stopping,
    /// A trial is over, and cannot be rolled back yet.
    #[error(
        "rolling back a trial failed and is tried again: {PROGRAM} status shows why; {PROGRAM} confirm keeps the config on trial"
    )]
    RollbackFailing,
    /// A trial of rules is over, and cannot be rolled back yet.
    #[error(
        "rolling back rules of the fleet failed and is tried again: {PROGRAM} status shows why"
    )]
    RulesRollbackFailing,
    /// There is no trial to end.
    #[error("no config is on trial: {PROGRAM} try FILE --for 60s starts a trial")]
    NoTrial,
    /// The trial's duration is out of range.
    #[error("invalid --for {}: a trial lasts from 1s to 24h; write --for 60s", typed(*.0))]
    Time(Duration),
    /// The record for a rollback cannot be written.
    #[error("starting the trial failed: {0}")]
    Record(#[from] StateError),
}

impl ReloadError {
    /// Whether the fix is another config or command line.
    pub(super) const fn is_of_the_config(&self) -> bool {
        matches!(
            self,
            Self::Config(_)
                | Self::Policy(_)
                | Self::NeedsRestart(_)
                | Self::Geo(_)
                | Self::Time(_)
                | Self::OtherFile { .. }
                | Self::Engine(EngineError::Policy { .. })
        )
    }

    /// One line per error.
    pub(super) fn lines(&self) -> Vec<String> {
        match self {
            Self::Config(ConfigError::Invalid(report)) => {
                report.errors.iter().map(ToString::to_string).collect()
            }
            other => vec![other.to_string()],
        }
    }
}
