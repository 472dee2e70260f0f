//! Why a config cannot take the place of the one in force.

use thiserror::Error;

use crate::compile::CompileError;
use crate::config::ConfigError;
use crate::decide::EngineError;
use crate::state::StateError;

/// A config that cannot take the place of the one in force; that is in force as it was.
#[derive(Debug, Error)]
pub enum ReloadError {
    /// There is nothing to read.
    #[error("this agent runs without a config file, on built-in limits: start it with --config FILE")]
    NoFile,
    /// It is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// More than the kernel's rows can say.
    #[error(transparent)]
    Policy(#[from] CompileError),
    /// What can only be changed by starting anew.
    #[error("{0} cannot be changed while the agent runs: put it back, or restart the agent")]
    NeedsRestart(String),
    /// The kernel does not tell which interfaces there are.
    #[error("reading this host's interfaces failed: {0}")]
    Interfaces(std::io::Error),
    /// Limits on requests cannot be kept.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Limits on packets cannot be held.
    #[error("{0}")]
    Packets(String),
    /// A trial is in progress.
    #[error("a config is on trial: confirm it (agent confirm), or wait until the trial ends in {0} s")]
    OnTrial(u64),
    /// A trial is over, and cannot be rolled back yet.
    #[error(
        "rolling back from a trial fails and is tried again: agent status says why; agent confirm keeps the config on trial"
    )]
    RollbackFailing,
    /// There is no trial to end.
    #[error("no config is on trial: agent try FILE --for 60s starts a trial")]
    NoTrial,
    /// A trial of no or too long a time.
    #[error("a trial lasts from 1s to 24h: write --for 60s")]
    Time,
    /// What is to be gone back to cannot be written down.
    #[error("the trial was not begun: {0}")]
    Record(#[from] StateError),
}

impl ReloadError {
    /// Whether the config itself is wrong.
    pub(super) const fn is_of_the_config(&self) -> bool {
        matches!(self, Self::Config(_) | Self::Policy(_) | Self::Time)
    }

    /// Each thing that is wrong, in a line.
    pub(super) fn lines(&self) -> Vec<String> {
        match self {
            Self::Config(ConfigError::Invalid(report)) => report.errors.iter().map(ToString::to_string).collect(),
            other => vec![other.to_string()],
        }
    }
}
