//! Rules of streams in effect with the host's own file: their trial, confirmation and rollback.
//!
//! One stream at a time is on trial. A change of the rules of another one is made beside it, and the trial begins again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::policy::FleetRules;
use datapath::memory::Lasting;
use rollout::host::Rules;
use rollout::merge::Replaced;

use super::error::ReloadError;
use super::live::Cause;
use super::on_trial::{By, Trial};
use super::source::{Source, version_of};
use crate::daemon::Agent;
use crate::daemon::packets::Purpose;
use crate::daemon::rollout::{Returned, RulesError, RulesTrial};

/// The name of a trial of rules, in place of a file.
fn label(stream: &str, rules: &Rules) -> PathBuf {
    version_of(stream, rules).into()
}

fn failed(error: &ReloadError) -> RulesError {
    RulesError::Failed(error.lines().join("; "))
}

impl Agent {
    /// Puts rules of a stream on trial, for `time` at most.
    ///
    /// # Errors
    ///
    /// When that fails, or another config or stream is on trial; nothing has changed then.
    pub(crate) fn try_rules(
        &self,
        stream: &str,
        rules: &Rules,
        time: Duration,
    ) -> Result<(), RulesError> {
        let Ok(_one) = self.changing().lock() else {
            return Err(RulesError::Later);
        };
        let began = Instant::now();
        let before = {
            let live = self.changing().live();
            if live.trial.is_some() {
                return Err(RulesError::Later);
            }
            live.source.clone()
        };
        let file = label(stream, rules);
        let result = self
            .with_other_rules(&before, stream, Some(rules))
            .and_then(|tried| {
                let databases = self.databases_of(&tried.config)?;
                self.apply(&tried, databases, None, Purpose::Change(Lasting::Trial))
            });
        let outcome = result.as_ref().map(|_| ()).map_err(failed);
        if outcome.is_ok() {
            self.changing().live().trial = Some(Trial {
                file: file.clone(),
                by: By::Stream {
                    stream: stream.to_owned(),
                    version: rules.version,
                },
                time,
                ends: Instant::now() + time,
                before,
                failing: None,
            });
            self.changing().trial_began.notify_one();
        }
        self.conclude(Cause::Fleet, Some(&file), began, result);
        outcome
    }

    /// The trial of a version that was begun, and was not seen to end.
    pub(crate) fn rules_trial(&self, stream: &str, version: u64) -> RulesTrial {
        // The end of a trial and its signal are under this lock.
        let one = self.changing().lock();
        if self.rules_trial_ends(stream, version).is_some() {
            RulesTrial::Lasts
        } else if one.is_err() || self.rollout.has_ended_trial(stream, version) {
            RulesTrial::Ended
        } else {
            RulesTrial::Removed
        }
    }

    /// When the trial of a version ends, unless it is confirmed; `None` without that trial. A reload moves the end.
    pub(crate) fn rules_trial_ends(&self, stream: &str, version: u64) -> Option<Instant> {
        let live = self.changing().live();
        let trial = live.trial.as_ref();
        let trial = trial.filter(|trial| trial.is_of(stream, version));
        trial.map(|trial| trial.ends)
    }

    /// Keeps a version of a stream whose trial ends at `ends`.
    ///
    /// # Errors
    ///
    /// When its trial has ended, also if its rollback has failed. [`RulesError::Later`] when a reload has begun the trial again
    /// or removed the stream, and when the agent is stopping.
    pub(crate) fn confirm_rules(
        &self,
        stream: &str,
        version: u64,
        ends: Option<Instant>,
    ) -> Result<(), RulesError> {
        let Ok(_one) = self.changing().lock() else {
            return Err(RulesError::Later);
        };
        let mut live = self.changing().live();
        let is_it = |trial: &Trial| trial.is_of(stream, version) && trial.failing.is_none();
        match live.trial.take() {
            Some(trial) if is_it(&trial) && Some(trial.ends) == ends => {
                tracing::info!("{} stays in effect", trial.file.display());
                return Ok(());
            }
            other => live.trial = other,
        }
        let mut streams = live
            .config()
            .fleet
            .iter()
            .flat_map(FleetRules::streams)
            .map(|followed| &followed.rules.stream);
        let is_followed = streams.any(|followed| followed == stream);
        if live.trial.as_ref().is_some_and(is_it) || !is_followed {
            return Err(RulesError::Later);
        }
        Err(RulesError::Failed("their trial has ended".to_owned()))
    }

    /// Ends the trial of a stream's rules, if there is one, and returns to these rules; without rules, to none of the stream.
    ///
    /// # Errors
    ///
    /// When an operator has a config on trial, or the rules cannot be put in effect. A trial that cannot be rolled back is
    /// no error: its rollback is tried again.
    pub(crate) fn return_to_rules(
        &self,
        stream: &str,
        rules: Option<&Rules>,
    ) -> Result<Returned, RulesError> {
        let Ok(_one) = self.changing().lock() else {
            return Err(RulesError::Later);
        };
        let (now, trial) = {
            let live = self.changing().live();
            let trial = live.trial.as_ref().map(|trial| OnTrial {
                stream: trial.stream().map(str::to_owned),
                file: trial.file.clone(),
                before: trial.before.clone(),
                is_failing: trial.failing.is_some(),
            });
            (live.source.clone(), trial)
        };
        match trial {
            Some(OnTrial { stream: None, .. }) => Err(RulesError::Later),
            Some(trial) if trial.stream.as_deref() == Some(stream) => {
                let before = self.with_rules_if_possible(&now, stream, rules)?;
                if let Some(trial) = &mut self.changing().live().trial {
                    trial.before = before.clone();
                }
                // A rollback that has failed is tried again by itself.
                if !trial.is_failing {
                    self.roll_back(Cause::FleetEnded, &before, &trial.file);
                }
                Ok(Returned::Changed)
            }
            _ if now.rules.get(stream).map(|rules| &**rules) == rules => Ok(Returned::Unchanged),
            trial => self.replace_rules(&now, stream, rules, trial),
        }
    }

    /// Replaces the rules of a stream that is not on trial, beside the trial of another one if there is one.
    fn replace_rules(
        &self,
        now: &Source,
        stream: &str,
        rules: Option<&Rules>,
        trial: Option<OnTrial>,
    ) -> Result<Returned, RulesError> {
        if trial.as_ref().is_some_and(|trial| trial.is_failing) {
            return Err(RulesError::Later);
        }
        let began = Instant::now();
        let source = self.with_rules_if_possible(now, stream, rules)?;
        if source.rules == now.rules {
            return Ok(Returned::Unchanged);
        }
        let before = match &trial {
            Some(trial) => Some(self.with_rules_if_possible(&trial.before, stream, rules)?),
            None => None,
        };
        let purpose = match before {
            Some(_) => Purpose::Change(Lasting::Trial),
            None => Purpose::Rollback,
        };
        let databases = self.read_databases(&source.config);
        let result = self.apply(&source, databases, None, purpose);
        let outcome = result.as_ref().map(|_| ()).map_err(failed);
        let mut returned = Returned::Changed;
        if let (Ok(()), Some(before), Some(trial)) =
            (&outcome, before, &mut self.changing().live().trial)
        {
            trial.begin_again(before);
            returned = Returned::BesideATrial;
        }
        let file = rules.map(|rules| label(stream, rules));
        let file = file.as_deref().or(self.file());
        self.conclude(Cause::FleetReturned, file, began, result);
        outcome.map(|()| returned)
    }

    /// A config with other rules of a stream; without any of it where it does not go with them, as at a start.
    fn with_rules_if_possible(
        &self,
        own: &Source,
        stream: &str,
        rules: Option<&Rules>,
    ) -> Result<Source, RulesError> {
        self.with_other_rules(own, stream, rules)
            .or_else(|error| {
                let lines = error.lines().join("; ");
                tracing::error!("{lines}; the file is in effect without the rules of {stream}");
                self.with_other_rules(own, stream, None)
            })
            .map_err(|error| failed(&error))
    }

    /// A config with other rules of a stream.
    fn with_other_rules(
        &self,
        own: &Source,
        stream: &str,
        rules: Option<&Rules>,
    ) -> Result<Source, ReloadError> {
        let file = self.file().ok_or(ReloadError::NoFile)?;
        let text = own.text.clone().ok_or(ReloadError::NoFile)?;
        let mut all = own.rules.clone();
        match rules {
            Some(rules) => all.insert(stream.to_owned(), Arc::new(rules.clone())),
            None => all.remove(stream),
        };
        Ok(Source::with_rules(file, text, &all)?.0)
    }

    /// The rules of a stream in effect.
    pub(crate) fn rules_in_effect(&self, stream: &str) -> Option<Arc<Rules>> {
        self.changing().live().source.rules.get(stream).cloned()
    }

    /// The rules of a stream that the host's file replaces, such as `limit web`.
    pub(crate) fn replaced_rules(&self, stream: &str) -> Vec<String> {
        let replaced = Arc::clone(&self.changing().live().source.replaced);
        let of_stream = |one: &&Replaced| one.stream == stream;
        let name = |one: &Replaced| format!("{} {}", one.table, one.name);
        replaced.iter().filter(of_stream).map(name).collect()
    }

    /// A config file with the rules in effect.
    pub(super) fn read_with_rules(&self, file: &Path, text: String) -> Result<Source, ReloadError> {
        let rules = self.changing().live().source.rules.clone();
        Ok(Source::with_rules(file, text, &rules)?.0)
    }

    /// The config of a rollback, if rules are on trial while another text of the host's file is put in effect; `None` also
    /// if that text does not follow their stream.
    pub(super) fn before_rules_on_trial(
        &self,
        file: &Path,
        text: &str,
    ) -> Result<Option<Source>, ReloadError> {
        let on_trial = {
            let live = self.changing().live();
            live.trial
                .as_ref()
                .and_then(|trial| Some((trial.stream()?.to_owned(), trial.before.rules.clone())))
        };
        let Some((stream, rules)) = on_trial else {
            return Ok(None);
        };
        let (before, _) = Source::with_rules(file, text.to_owned(), &rules)?;
        let fleet = before.config.fleet.iter();
        let mut streams = fleet.flat_map(FleetRules::streams);
        let is_followed = streams.any(|followed| followed.rules.stream == stream);
        drop(streams);
        Ok(is_followed.then_some(before))
    }
}

/// A trial in progress.
struct OnTrial {
    /// `None`: an operator's.
    stream: Option<String>,
    file: PathBuf,
    before: Source,
    is_failing: bool,
}
