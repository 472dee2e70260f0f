//! A trial: a config in effect for a limited time, and rolled back unless it is confirmed.
//!
//! If a rollback fails, the trial's config stays in effect. The rollback is retried until it succeeds or the trial is
//! confirmed, and reported as done only then.

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use api::reload::{Confirmed, Reloaded};
use config::human;
use datapath::memory::Lasting;
use host::PROGRAM;

use super::apply::not_made;
use super::error::ReloadError;
use super::last_valid::keep_as_last_valid;
use super::live::{Applied, Cause};
use super::on_trial::{By, Trial};
use super::record::Record;
use super::source::{Source, is_same_file};
use crate::daemon::Agent;
use crate::daemon::events::{Event, EventKind};
use crate::daemon::packets::Purpose;
use crate::daemon::rollout::Signal;

/// The shortest and the longest trial.
pub const TRIALS: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(24 * 3600);

impl Agent {
    /// Puts a config on trial: `text`, as read from `file`, or the file's present text.
    ///
    /// # Errors
    ///
    /// When that fails; nothing has changed then.
    pub fn try_config(
        &self,
        file: &Path,
        text: Option<String>,
        time: Duration,
        operator: Option<IpAddr>,
    ) -> Reloaded {
        self.alone(|| {
            let began = Instant::now();
            let result = self.begin_trial(file, text, time, operator);
            if result.is_ok() {
                self.changing().trial_began.notify_one();
            }
            self.conclude(Cause::Try, Some(file), began, result)
        })
    }

    fn begin_trial(
        &self,
        file: &Path,
        text: Option<String>,
        time: Duration,
        operator: Option<IpAddr>,
    ) -> Result<Applied, ReloadError> {
        if !TRIALS.contains(&time) {
            return Err(ReloadError::Time(time));
        }
        if let Some(trial) = &self.changing().live().trial {
            return Err(trial.obstacle());
        }
        let text = match text {
            Some(text) => text,
            None => config::read_text(file)?,
        };
        let tried = self.read_with_rules(file, text)?;
        let databases = self.databases_of(&tried.config)?;
        let before = self.changing().live().source.clone();
        // Before any change, so that if the agent is killed, the next one knows the previous config.
        let record = Record {
            tried: tried.text.clone(),
            before: before.text.clone(),
            is_rolled_back: false,
        };
        let earlier = Record::read(&before.config.agent).ok().flatten();
        record.write(&before.config.agent)?;
        match self.apply(&tried, databases, operator, Purpose::Change(Lasting::Trial)) {
            Ok(applied) => {
                let trial = Trial {
                    file: file.to_owned(),
                    by: By::Operator,
                    time,
                    ends: Instant::now() + time,
                    before,
                    failing: None,
                };
                self.changing().live().trial = Some(trial);
                Ok(applied)
            }
            Err(error) => {
                // Restores the earlier record; the directory has just been writable.
                let _ = match earlier {
                    Some(earlier) => earlier.write(&before.config.agent),
                    None => Record::forget(&before.config.agent),
                };
                Err(error)
            }
        }
    }

    /// Keeps the config on trial.
    ///
    /// # Errors
    ///
    /// When there is no trial, or the confirmation cannot be recorded for the next agent; the trial continues then.
    pub fn confirm(&self) -> Result<Confirmed, String> {
        let _one = self.changing().lock().map_err(|error| error.to_string())?;
        let mut live = self.changing().live();
        if live
            .trial
            .as_ref()
            .is_some_and(|trial| trial.stream().is_some())
        {
            return Err(format!(
                "the rules of the fleet are on trial, and this host's health confirms them: {PROGRAM} revert ends the trial"
            ));
        }
        if live.trial.is_some() {
            let forgotten = Record::forget(&live.source.config.agent);
            forgotten.map_err(|error| {
                format!("confirming the trial failed: {error}; the trial continues")
            })?;
        }
        let Some(trial) = live.trial.take() else {
            return Err(format!(
                "no config is on trial: start one with {PROGRAM} try FILE --for 60s"
            ));
        };
        let own = self.file().map(|file| file.display().to_string());
        let file = trial.file.display().to_string();
        let is_own = self
            .file()
            .is_some_and(|own| is_same_file(own, &trial.file));
        let note = match own {
            _ if is_own => keep_as_last_valid(&live.source),
            Some(own) => Some(format!(
                "it is in effect until the next reload or start, which read {own}: to keep it, copy {file} there"
            )),
            None => Some(format!(
                "it is in effect until the agent ends: to keep it, start it with --config {file}"
            )),
        };
        drop(live);
        // The file may have other keys of the fleet.
        self.rollout.signal(Signal::Reloaded);
        tracing::info!("{file} is confirmed: its trial is over, and it stays in effect");
        Ok(Confirmed { file, note })
    }

    /// The instant of the next rollback attempt of the trial in progress.
    pub fn rollback_due(&self) -> Option<Instant> {
        self.changing().live().trial.as_ref().map(Trial::due)
    }

    /// Rolls back an expired trial.
    pub fn end_trial_if_due(&self) {
        let Ok(_one) = self.changing().lock() else {
            return;
        };
        let due = {
            let live = self.changing().live();
            let due = live
                .trial
                .as_ref()
                .filter(|trial| trial.due() <= Instant::now());
            due.map(|trial| (trial.before.clone(), trial.file.clone()))
        };
        if let Some((before, tried)) = due {
            self.roll_back(Cause::TrialEnded, &before, &tried);
        }
    }

    /// Ends the trial in progress early.
    pub fn revert(&self) -> Reloaded {
        self.alone(|| {
            let trial = self
                .changing()
                .live()
                .trial
                .as_ref()
                .map(|trial| (trial.before.clone(), trial.file.clone()));
            match trial {
                Some((before, tried)) => self.roll_back(Cause::Revert, &before, &tried),
                None => not_made(&ReloadError::NoTrial),
            }
        })
    }

    pub(super) fn roll_back(&self, cause: Cause, before: &Source, tried: &Path) -> Reloaded {
        let began = Instant::now();
        let by = {
            let live = self.changing().live();
            live.trial.as_ref().map(|trial| trial.by.clone())
        };
        let of_stream = match by {
            Some(By::Stream { stream, version }) => Some((stream, version)),
            _ => None,
        };
        let tried_text = self.changing().live().source.text.clone();
        // As at a start, a missing database is no reason to fail.
        let databases = self.read_databases(&before.config);
        let result = self.apply(before, databases, None, Purpose::Rollback).map(|mut applied| {
            // Also of another file, which the operator may have copied over the agent's own.
            let record = Record {
                tried: tried_text,
                before: before.text.clone(),
                is_rolled_back: true,
            };
            let is_other = record.tried != record.before;
            let own = self.file().filter(|own| is_same_file(tried, own));
            if let Some(own) = own.filter(|_| is_other) {
                applied.notes.push(format!(
                    "{} still has the config that was on trial: it is not in effect, and a restart does not change that; {PROGRAM} reload or {PROGRAM} try puts it in effect",
                    own.display()
                ));
            }
            // A trial of rules does not outlive the agent.
            if of_stream.is_none() && let Err(error) = record.write(&before.config.agent) {
                applied.notes.push(format!("recording the end of the trial failed: {error}"));
            }
            applied
        });
        match &result {
            Err(error) => self.rollback_failed(tried, &error.lines().join("; ")),
            Ok(_) if cause == Cause::TrialEnded => {
                let reason = format!(
                    "the trial of {} was not confirmed: rolled back to the previous config",
                    tried.display()
                );
                self.events()
                    .push(Event::now(EventKind::TrialRolledBack, 1, reason));
            }
            Ok(_) => {}
        }
        let reloaded = self.conclude(cause, Some(tried), began, result);
        // Also when it failed: it is over, and its rollback is tried again.
        if let Some((stream, version)) = of_stream.filter(|_| cause != Cause::FleetEnded) {
            let reason = match cause {
                Cause::Revert => format!("an operator ended their trial with {PROGRAM} revert"),
                _ => "their trial was not confirmed in time".to_owned(),
            };
            self.rollout.signal(Signal::Ended {
                stream,
                version,
                reason,
            });
        }
        reloaded
    }

    fn rollback_failed(&self, tried: &Path, error: &str) {
        let wait = self
            .changing()
            .live()
            .trial
            .as_mut()
            .map(|trial| trial.failed(error.to_owned()));
        let Some(wait) = wait else { return };
        // It waits for the end of the trial, which may be far away.
        self.changing().trial_began.notify_one();
        let reason = format!(
            "the trial of {} is over, and rolling back failed; it stays in effect, and the next attempt follows in {}: {error}",
            tried.display(),
            human::time(wait)
        );
        let attempts = self
            .changing()
            .live()
            .trial
            .as_ref()
            .and_then(|trial| Some(trial.failing.as_ref()?.attempts));
        tracing::error!("{reason}");
        self.events().push(Event::now(
            EventKind::TrialRollbackFailed,
            attempts.unwrap_or(1),
            reason,
        ));
    }
}
