//! A config on trial: in effect for a time, and rolled back unless it is confirmed.
//!
//! A rollback that fails leaves the trial in effect. It is tried again until it succeeds or the trial is confirmed, and
//! nothing reports it as done before.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Applied, Cause, Confirmed, Record, ReloadError, Reloaded, RollbackStatus, Source, TrialStatus};
use crate::applications::Agent;
use crate::config::{self, ConfigError};
use crate::events::{Event, What};
use crate::memory::Lasting;

/// The shortest and the longest trial.
pub const TRIALS: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(24 * 3600);

/// How long after a failed rollback the next attempt follows: at first, and at most; it doubles from one to the next.
const RETRY: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(30);

/// A config on trial.
#[derive(Debug)]
pub(super) struct Trial {
    pub file: PathBuf,
    pub ends: Instant,
    pub before: Source,
    /// Present from the first failed rollback on.
    pub failing: Option<Failing>,
}

/// A rollback that has failed.
#[derive(Debug)]
pub(super) struct Failing {
    attempts: u64,
    since: Instant,
    next: Instant,
    error: String,
}

impl Trial {
    /// When the next rollback is due.
    fn due(&self) -> Instant {
        self.failing.as_ref().map_or(self.ends, |failing| failing.next)
    }

    /// Why nothing else can take its place now.
    pub(super) fn obstacle(&self) -> ReloadError {
        match self.failing {
            Some(_) => ReloadError::RollbackFailing,
            None => {
                let left = self.ends.saturating_duration_since(Instant::now());
                ReloadError::OnTrial(left.as_secs_f64().ceil() as u64)
            }
        }
    }

    pub(super) fn status(&self) -> TrialStatus {
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

    /// Notes a failed attempt. Returns how long it is until the next one.
    fn failed(&mut self, error: String) -> Duration {
        let now = Instant::now();
        let (attempts, since) = match &self.failing {
            Some(failing) => (failing.attempts + 1, failing.since),
            None => (1, now),
        };
        let wait = RETRY.start().saturating_mul(1 << (attempts - 1).min(16)).min(*RETRY.end());
        self.failing = Some(Failing { attempts, since, next: now + wait, error });
        wait
    }
}

impl Agent {
    /// Puts a config in effect for a time: `text`, as it was read from `file`, or what this agent reads there.
    ///
    /// # Errors
    ///
    /// When it cannot be; nothing is changed then.
    pub fn try_config(&self, file: &Path, text: Option<String>, time: Duration, operator: Option<IpAddr>) -> Reloaded {
        let _one = self.changing().one();
        let began = Instant::now();
        let result = self.begin_trial(file, text, time, operator);
        if result.is_ok() {
            self.changing().trial_began.notify_one();
        }
        self.told(Cause::Try, Some(file), began, result)
    }

    fn begin_trial(
        &self,
        file: &Path,
        text: Option<String>,
        time: Duration,
        operator: Option<IpAddr>,
    ) -> Result<Applied, ReloadError> {
        if !TRIALS.contains(&time) {
            return Err(ReloadError::Time);
        }
        if let Some(trial) = &self.changing().live().trial {
            return Err(trial.obstacle());
        }
        let tried = match text {
            Some(text) => {
                let loaded = config::parse(file, &text).map_err(ConfigError::Invalid)?;
                Source { config: loaded.config, text: Some(text) }
            }
            None => Source::read(file)?.0,
        };
        let before = self.changing().live().source.clone();
        // Before anything is changed: whenever the agent is killed, the next one knows what to roll back to.
        let record = Record { tried: tried.text.clone(), before: before.text.clone() };
        let earlier = Record::read(&before.config.agent).ok().flatten();
        record.write(&before.config.agent)?;
        match self.apply(&tried, operator, Lasting::Trial) {
            Ok(applied) => {
                let trial = Trial { file: file.to_owned(), ends: Instant::now() + time, before, failing: None };
                self.changing().live().trial = Some(trial);
                Ok(applied)
            }
            Err(error) => {
                // What was written a moment ago can be written again.
                let _ = match earlier {
                    Some(earlier) => earlier.write(&before.config.agent),
                    None => Record::forget(&before.config.agent),
                };
                Err(error)
            }
        }
    }

    /// Keeps the config that is on trial.
    ///
    /// # Errors
    ///
    /// When none is, or when the next agent would not know that it was confirmed; the trial goes on then.
    pub fn confirm(&self) -> Result<Confirmed, String> {
        let _one = self.changing().one();
        let mut live = self.changing().live();
        if live.trial.is_some() {
            let forgotten = Record::forget(&live.source.config.agent);
            forgotten.map_err(|error| format!("the trial was not confirmed, and goes on: {error}"))?;
        }
        let Some(trial) = live.trial.take() else {
            return Err("no config is on trial: start one with agent try FILE --for 60s".to_owned());
        };
        let own = self.file().map(|file| file.display().to_string());
        let file = trial.file.display().to_string();
        let is_own = self.file().is_some_and(|own| is_same_file(own, &trial.file));
        let note = match own {
            _ if is_own => live.source.keep_as_last_valid(),
            Some(own) => Some(format!(
                "it is in force until the next reload or start, which read {own}: to keep it, copy {file} there"
            )),
            None => Some(format!("it is in force until the agent ends: to keep it, start it with --config {file}")),
        };
        Ok(Confirmed { file, note })
    }

    /// When the trial in progress is to be rolled back, for the first time or once more.
    pub fn rollback_due(&self) -> Option<Instant> {
        self.changing().live().trial.as_ref().map(Trial::due)
    }

    /// Rolls back to what was in effect before a trial whose time is over.
    pub fn end_trial_if_due(&self) {
        let _one = self.changing().one();
        let due = {
            let live = self.changing().live();
            let due = live.trial.as_ref().filter(|trial| trial.due() <= Instant::now());
            due.map(|trial| (trial.before.clone(), trial.file.clone()))
        };
        if let Some((before, tried)) = due {
            self.roll_back(Cause::TrialEnded, &before, &tried);
        }
    }

    /// Ends the trial in progress at once, as its time would.
    pub fn revert(&self) -> Reloaded {
        let _one = self.changing().one();
        let trial = self.changing().live().trial.as_ref().map(|trial| (trial.before.clone(), trial.file.clone()));
        match trial {
            Some((before, tried)) => self.roll_back(Cause::Revert, &before, &tried),
            None => Reloaded { errors: ReloadError::NoTrial.lines(), ..Reloaded::default() },
        }
    }

    fn roll_back(&self, cause: Cause, before: &Source, tried: &Path) -> Reloaded {
        let began = Instant::now();
        let result = self.apply(before, None, Lasting::Indefinite).map(|mut applied| {
            if let Some(own) = self.file()
                && is_same_file(tried, own)
            {
                applied.notes.push(format!(
                    "{} is still what was on trial: it is not in force, and will not be after a restart either, until agent reload or agent try",
                    own.display()
                ));
            }
            applied
        });
        if let Err(error) = &result {
            self.rollback_failed(tried, &error.lines().join("; "));
        }
        self.told(cause, Some(tried), began, result)
    }

    fn rollback_failed(&self, tried: &Path, error: &str) {
        let wait = self.changing().live().trial.as_mut().map(|trial| trial.failed(error.to_owned()));
        let Some(wait) = wait else { return };
        let reason = format!(
            "the trial of {} is over, and rolling back failed; it stays in effect, and the next attempt follows in {} s: {error}",
            tried.display(),
            wait.as_secs()
        );
        let attempts = self.changing().live().trial.as_ref().and_then(|trial| Some(trial.failing.as_ref()?.attempts));
        self.events().push(Event::now(What::TrialRollbackFailed, attempts.unwrap_or(1), reason));
    }
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    real(one) == real(other)
}
