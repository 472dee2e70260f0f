//! A config on trial: in force for a time, and gone back from unless it is confirmed.

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{Cause, Confirmed, Record, ReloadError, Reloaded, Source, Trial};
use crate::applications::Agent;

/// The shortest and the longest trial.
pub const TRIALS: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(24 * 3600);

impl Agent {
    /// Puts a config in force for a time.
    ///
    /// # Errors
    ///
    /// When it cannot be; nothing is changed then.
    pub fn try_config(&self, file: &Path, time: Duration, operator: Option<IpAddr>) -> Reloaded {
        let _one = self.changing().one();
        let began = Instant::now();
        let result = self.begin_trial(file, time, operator);
        if result.is_ok() {
            self.changing().trial_began.notify_one();
        }
        self.told(Cause::Try, Some(file), began, result)
    }

    fn begin_trial(&self, file: &Path, time: Duration, operator: Option<IpAddr>) -> Result<Vec<String>, ReloadError> {
        if !TRIALS.contains(&time) {
            return Err(ReloadError::Time);
        }
        if let Some(trial) = self.changing().live().trial() {
            return Err(ReloadError::OnTrial(trial.ends_in_seconds.ceil() as u64));
        }
        let (tried, _) = Source::read(file)?;
        let before = self.changing().live().source.clone();
        // Before anything is changed: whenever the agent is killed, the next one knows what to go back to.
        let record = Record { tried: tried.text.clone(), before: before.text.clone() };
        let earlier = Record::read(&before.config.agent);
        record.write(&before.config.agent)?;
        match self.apply(&tried, operator) {
            Ok(notes) => {
                let trial = Trial { file: file.to_owned(), ends: Instant::now() + time, before };
                self.changing().live().trial = Some(trial);
                Ok(notes)
            }
            Err(error) => {
                match earlier {
                    // What was written a moment ago can be written again.
                    Some(earlier) => drop(earlier.write(&before.config.agent)),
                    None => Record::forget(&before.config.agent),
                }
                Err(error)
            }
        }
    }

    /// Keeps the config that is on trial.
    ///
    /// # Errors
    ///
    /// When none is.
    pub fn confirm(&self) -> Result<Confirmed, String> {
        let _one = self.changing().one();
        let mut live = self.changing().live();
        let Some(trial) = live.trial.take() else {
            return Err("no config is on trial: start one with agent try FILE --for 60s".to_owned());
        };
        Record::forget(&live.source.config.agent);
        let own = self.file().map(|file| file.display().to_string());
        let file = trial.file.display().to_string();
        let is_own = self.file().is_some_and(|own| is_same_file(own, &trial.file));
        let note = match own {
            _ if is_own => None,
            Some(own) => Some(format!(
                "it is in force until the next reload or start, which read {own}: to keep it, copy {file} there"
            )),
            None => Some(format!("it is in force until the agent ends: to keep it, start it with --config {file}")),
        };
        Ok(Confirmed { file, note })
    }

    /// When the trial in progress ends.
    pub fn trial_ends(&self) -> Option<Instant> {
        self.changing().live().trial.as_ref().map(|trial| trial.ends)
    }

    /// Goes back to what was in force before a trial whose time is over.
    pub fn end_trial_if_due(&self) {
        let _one = self.changing().one();
        let due = {
            let live = self.changing().live();
            let due = live.trial.as_ref().filter(|trial| trial.ends <= Instant::now());
            due.map(|trial| (trial.before.clone(), trial.file.clone()))
        };
        let Some((before, tried)) = due else { return };
        let began = Instant::now();
        let result = self.apply(&before, None).map(|mut notes| {
            if let Some(own) = self.file()
                && is_same_file(&tried, own)
            {
                notes.push(format!(
                    "{} is still what was on trial: it is not in force, and will not be after a restart either, until agent reload or agent try",
                    own.display()
                ));
            }
            notes
        });
        self.told(Cause::TrialEnded, Some(&tried), began, result);
    }
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    real(one) == real(other)
}
