//! The config in effect, and the lock for changing it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use api::allowance::Allowance;
use api::event::seconds_since_1970;
use api::reload::{LastReload, TrialStatus};
use api::status::LeftOut;
use config::Changes;
use config::policy::Config;
use datapath::memory::Lasting;

use super::error::ReloadError;
use super::on_trial::{By, Trial};
use super::source::Source;
use crate::daemon::packets::Purpose;
use crate::geo::Databases;
use crate::operators::Operators;
use crate::protect::{Detected, Found};

/// The cause of a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The start of the agent.
    Start,
    /// SIGHUP.
    Signal,
    /// `weir reload`.
    Command,
    /// The file has changed.
    Watch,
    /// `weir try`.
    Try,
    /// A database of `[geo]` has changed.
    Geo,
    /// A list of a class has changed.
    Lists,
    /// The addresses of `protect` have changed.
    Protected,
    /// Exemptions for a while have changed.
    Allowances,
    /// An unconfirmed trial.
    TrialEnded,
    /// `weir revert`.
    Revert,
    /// Rules of the fleet.
    Fleet,
    /// The rules of the fleet before those on trial.
    FleetEnded,
    /// Other rules of the fleet that are confirmed.
    FleetReturned,
}

impl Cause {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Signal => "signal",
            Self::Command => "command",
            Self::Watch => "watch",
            Self::Try => "try",
            Self::Geo => "geo",
            Self::Lists => "lists",
            Self::Protected => "protected",
            Self::Allowances => "allowances",
            Self::TrialEnded => "trial-ended",
            Self::Revert => "revert",
            Self::Fleet => "fleet",
            Self::FleetEnded | Self::FleetReturned => "fleet-ended",
        }
    }

    pub(super) const fn ends_a_trial(self) -> bool {
        matches!(self, Self::TrialEnded | Self::Revert | Self::FleetEnded)
    }
}

/// A config that was put in effect.
#[derive(Default)]
pub(super) struct Applied {
    /// Notes for the operator.
    pub notes: Vec<String>,
    pub changes: Changes,
}

/// The config in effect.
#[derive(Debug)]
pub struct Live {
    pub(super) source: Source,
    pub(super) found: Found,
    pub(super) detected: Vec<Detected>,
    /// Exemptions for a while, those in effect.
    pub(super) allowances: Vec<Allowance>,
    /// Those that the next change puts in effect.
    pub(super) ordered_allowances: Vec<Allowance>,
    /// Those of the classes and ban lists in effect.
    pub(super) databases: Databases,
    /// The SSH sessions from which commands came.
    pub(super) operators: Operators,
    /// The file's text at the last reading, to detect changes.
    pub(super) seen: Option<String>,
    pub(super) last: Option<LastReload>,
    pub(super) trial: Option<Trial>,
}

impl Live {
    /// The initial config. `seen` is the text of its file, which differs from that of `source` after an unconfirmed
    /// trial; `watch` must not put it in effect.
    #[must_use]
    pub fn new(
        source: Source,
        seen: Option<String>,
        (found, detected, allowances): (Found, Vec<Detected>, Vec<Allowance>),
        operators: Operators,
        databases: Databases,
    ) -> Self {
        Self {
            source,
            found,
            detected,
            ordered_allowances: allowances.clone(),
            allowances,
            databases,
            operators,
            seen,
            last: None,
            trial: None,
        }
    }

    /// Records that the file was invalid when the agent started, and that another config is in effect.
    pub fn start_failed(&mut self, file: &Path, errors: Vec<String>) {
        // It is read again when its text changes.
        self.seen = config::read_text(file).ok();
        self.last = Some(LastReload {
            at: seconds_since_1970(),
            ok: false,
            cause: Cause::Start.word().to_owned(),
            file: Some(file.display().to_string()),
            seconds: 0.0,
            errors,
            notes: Vec::new(),
        });
    }

    /// Records that a trial had not been confirmed when the earlier agent ended.
    pub fn trial_ended(&mut self, file: Option<&Path>, note: String) {
        self.last = Some(LastReload {
            at: seconds_since_1970(),
            ok: true,
            cause: Cause::Start.word().to_owned(),
            file: file.map(|file| file.display().to_string()),
            seconds: 0.0,
            errors: Vec::new(),
            notes: vec![note],
        });
    }

    /// Ends the trial; `text` reads the file. Changes of it during an operator's trial are put in effect by an operator, not
    /// by `watch`, which puts those during a trial of rules in effect.
    pub(super) fn end_trial(&mut self, text: impl FnOnce() -> Option<String>) {
        let ended = self.trial.take();
        if ended.is_some_and(|trial| trial.by == By::Operator) {
            self.seen = text();
        }
    }

    /// The config as written by the operator.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.source.config
    }

    /// The limits that a start left out.
    #[must_use]
    pub fn left_out(&self) -> &[LeftOut] {
        &self.source.left_out
    }

    /// The result of the last reload.
    #[must_use]
    pub fn last(&self) -> Option<LastReload> {
        self.last.clone()
    }

    /// The exempt addresses that the agent detected.
    #[must_use]
    pub fn detected(&self) -> &[Detected] {
        &self.detected
    }

    /// The exemptions for a while.
    #[must_use]
    pub fn allowances(&self) -> &[Allowance] {
        &self.allowances
    }

    /// The databases of `[geo]`, and the lists of classes.
    #[must_use]
    pub const fn databases(&self) -> &Databases {
        &self.databases
    }

    /// The purpose of a change that is not by an operator.
    pub(super) const fn purpose(&self) -> Purpose {
        Purpose::Change(if self.trial.is_some() {
            Lasting::Trial
        } else {
            Lasting::Indefinite
        })
    }

    /// The config on trial.
    #[must_use]
    pub fn trial(&self) -> Option<TrialStatus> {
        self.trial.as_ref().map(Trial::status)
    }
}

/// Allows one change at a time, while the config in effect stays readable.
#[derive(Debug)]
pub struct Changing {
    live: Mutex<Live>,
    one: Mutex<()>,
    is_closed: AtomicBool,
    /// Woken when a trial starts, and when its rollback has failed.
    pub(crate) trial_began: tokio::sync::Notify,
    /// Woken when a config is put in effect, which may have other databases.
    pub(crate) databases_replaced: tokio::sync::Notify,
    /// Woken when a config is put in effect, which may name other stores.
    pub(crate) stores_replaced: tokio::sync::Notify,
    /// Woken when a config is put in effect, which may name other files with resolvers.
    pub(crate) resolvers_replaced: tokio::sync::Notify,
    /// Woken when exemptions for a while change.
    pub(crate) allowances_changed: tokio::sync::Notify,
}

impl Changing {
    #[must_use]
    pub fn new(live: Live) -> Self {
        Self {
            live: Mutex::new(live),
            one: Mutex::new(()),
            is_closed: AtomicBool::new(false),
            trial_began: tokio::sync::Notify::new(),
            databases_replaced: tokio::sync::Notify::new(),
            stores_replaced: tokio::sync::Notify::new(),
            resolvers_replaced: tokio::sync::Notify::new(),
            allowances_changed: tokio::sync::Notify::new(),
        }
    }

    /// The config in effect.
    pub fn live(&self) -> MutexGuard<'_, Live> {
        // All writes under the lock are single assignments.
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks changes.
    ///
    /// # Errors
    ///
    /// When the agent is stopping.
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, ()>, ReloadError> {
        let one = self.one.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_closed() {
            return Err(ReloadError::Stopping);
        }
        Ok(one)
    }

    /// Whether the agent is stopping. A change in progress that takes longer than the stop waits puts nothing in effect.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Allows no further change, also none that waits for its turn, and waits for the one in progress: nothing is attached or
    /// enforced after the end.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        drop(self.one.lock());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn the_end_of_a_trial_of_rules_hides_no_change_from_watch() {
        let text = "[agent]\ninterfaces = [\"eth0\"]\nallow_empty = true\n".to_owned();
        let (source, _) = Source::parse(Path::new("limits.toml"), text).unwrap();
        let of_stream = By::Stream {
            stream: "web".to_owned(),
            version: 1,
        };
        for (by, expected) in [(By::Operator, "edited"), (of_stream, "read")] {
            let mut live = Live::new(
                source.clone(),
                Some("read".to_owned()),
                (Found::default(), Vec::new(), Vec::new()),
                Operators::default(),
                Databases::default(),
            );
            live.trial = Some(Trial {
                file: "rules".into(),
                by: by.clone(),
                time: Duration::ZERO,
                ends: Instant::now(),
                before: source.clone(),
                failing: None,
            });
            live.end_trial(|| Some("edited".to_owned()));
            assert!(live.trial.is_none());
            assert_eq!(live.seen.as_deref(), Some(expected), "{by:?}");
        }
    }
}
