//! The state of a trial.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use api::reload::{RollbackStatus, TrialStatus};
use host::backoff::Backoff;

use super::error::ReloadError;
use super::source::Source;

/// The pauses before the next rollback attempt.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// The origin of a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// `weir try`.
    Operator,
    /// This version of a stream of the fleet is on trial.
    Stream { stream: String, version: u64 },
}

/// A config on trial.
#[derive(Debug)]
pub struct Trial {
    pub file: PathBuf,
    pub by: By,
    /// How long it may last.
    pub time: Duration,
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
    /// The stream whose rules are on trial; `None`: an operator's config is.
    pub fn stream(&self) -> Option<&str> {
        match &self.by {
            By::Operator => None,
            By::Stream { stream, .. } => Some(stream),
        }
    }

    /// Whether a version of a stream is on trial.
    pub fn is_of(&self, stream: &str, version: u64) -> bool {
        let by = By::Stream {
            stream: stream.to_owned(),
            version,
        };
        self.by == by
    }

    /// Begins again, as the bake of rules does when another text of the host's file is put in effect.
    pub fn begin_again(&mut self, before: Source) {
        self.before = before;
        self.ends = Instant::now() + self.time;
    }

    /// The instant of the next rollback attempt.
    pub fn due(&self) -> Instant {
        self.failing
            .as_ref()
            .map_or(self.ends, |failing| failing.next)
    }

    /// Why no other config can be put in effect now.
    pub fn obstacle(&self) -> ReloadError {
        match (self.failing.is_some(), &self.by) {
            (true, By::Operator) => ReloadError::RollbackFailing,
            (true, By::Stream { .. }) => ReloadError::RulesRollbackFailing,
            (false, By::Stream { .. }) => {
                ReloadError::RulesOnTrial(self.file.display().to_string())
            }
            (false, By::Operator) => {
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
            stream: self.stream().map(str::to_owned),
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_trial_that_begins_again_has_its_whole_time() {
        let source = |text: &str| {
            let text = format!("[agent]\ninterfaces = [\"eth0\"]\nallow_empty = true\n{text}");
            Source::parse(Path::new("limits.toml"), text).unwrap().0
        };
        let time = Duration::from_secs(80);
        let mut trial = Trial {
            file: "rules".into(),
            by: By::Stream {
                stream: "web".to_owned(),
                version: 1,
            },
            time,
            ends: Instant::now(),
            before: source(""),
            failing: None,
        };
        let began = Instant::now();
        trial.begin_again(source("# of the operator\n"));
        assert!(trial.due() >= began + time);
        assert!(trial.before.text.unwrap().contains("of the operator"));
    }
}
