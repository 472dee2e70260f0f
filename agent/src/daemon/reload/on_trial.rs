//! The state of a trial.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use api::reload::{RollbackStatus, TrialStatus};
use host::backoff::Backoff;

use super::error::ReloadError;
use super::source::Source;

/// The pauses before the next rollback attempt.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// A config on trial.
#[derive(Debug)]
pub struct Trial {
    pub file: PathBuf,
    pub ends: Instant,
    pub before: Source,
    /// Present from the first failed rollback on.
    pub failing: Option<Failing>,
}

/// A rollback that has failed.
#[derive(Debug)]
pub struct Failing {
    pub attempts: u64,
    since: Instant,
    next: Instant,
    error: String,
}

impl Trial {
    /// The instant of the next rollback attempt.
    pub fn due(&self) -> Instant {
        self.failing
            .as_ref()
            .map_or(self.ends, |failing| failing.next)
    }

    /// Why no other config can be put in effect now.
    pub fn obstacle(&self) -> ReloadError {
        match self.failing {
            Some(_) => ReloadError::RollbackFailing,
            None => {
                let left = self.ends.saturating_duration_since(Instant::now());
                ReloadError::OnTrial(left.as_secs_f64().ceil() as u64)
            }
        }
    }

    pub fn status(&self) -> TrialStatus {
        let now = Instant::now();
        let rollback = self.failing.as_ref().map(|failing| RollbackStatus {
            attempts: failing.attempts,
            failing_for_seconds: now.saturating_duration_since(failing.since).as_secs_f64(),
            next_attempt_in_seconds: failing.next.saturating_duration_since(now).as_secs_f64(),
            error: failing.error.clone(),
        });
        TrialStatus {
            file: self.file.display().to_string(),
            ends_in_seconds: self.ends.saturating_duration_since(now).as_secs_f64(),
            rollback_failing: rollback.is_some(),
            rollback,
        }
    }

    /// Records a failed attempt. Returns the time until the next one.
    pub fn failed(&mut self, error: String) -> Duration {
        let now = Instant::now();
        let (attempts, since) = match &self.failing {
            Some(failing) => (failing.attempts + 1, failing.since),
            None => (1, now),
        };
        let wait = PAUSES.pause(u32::try_from(attempts).unwrap_or(u32::MAX));
        self.failing = Some(Failing {
            attempts,
            since,
            next: now + wait,
            error,
        });
        wait
    }
}
