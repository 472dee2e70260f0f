//! The databases of `[geo]` while the agent runs: their files are watched, and classes and lists follow them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::policy::Config;
use datapath::memory::Lasting;
use notify::RecommendedWatcher;
use tokio::sync::Notify;

use super::error::ReloadError;
use super::live::Cause;
use crate::daemon::Agent;
use crate::daemon::events::{Event, EventKind, EventLog};
use crate::files;
use crate::geo::{DatabaseChange, Databases};

/// A file is written in several steps: it is read after this long without a change.
const QUIET: Duration = Duration::from_millis(200);
/// Folders that keep changing are looked at after this long all the same.
const BUSY: Duration = Duration::from_secs(2);
/// The interval at which files are compared without a report of a change: folders may appear later.
const PERIOD: Duration = Duration::from_secs(60);

/// Follows the databases' files until it is dropped.
pub async fn follow_databases(agent: Arc<Agent>) {
    let changed = Arc::new(Notify::new());
    // The folders, and `None` if watching them failed.
    let mut watched: Option<(BTreeSet<PathBuf>, Option<RecommendedWatcher>)> = None;
    loop {
        let files: Vec<PathBuf> = agent.changing().live().databases().files().map(Path::to_owned).collect();
        if files.is_empty() {
            watched = None;
            agent.changing().databases_replaced.notified().await;
            continue;
        }
        let folders = files::folders(files.iter().map(PathBuf::as_path));
        if watched.as_ref().is_none_or(|(before, _)| *before != folders) {
            let wake = Arc::clone(&changed);
            let watcher = files::watch(&folders, move || wake.notify_one());
            if let Err(error) = &watcher {
                let period = humantime::format_duration(PERIOD);
                tracing::warn!("watching the databases of [geo] failed: {error}; they are compared every {period}");
            }
            watched = Some((folders, watcher.ok()));
            // For changes before watching started.
            changed.notify_one();
        }
        tokio::select! {
            () = quiet(&changed) => {}
            () = agent.changing().databases_replaced.notified() => {}
            () = tokio::time::sleep(PERIOD) => {}
        }
        let agent = Arc::clone(&agent);
        // A panic in the task has been reported, and has changed nothing here.
        let _ = tokio::task::spawn_blocking(move || agent.read_databases_if_changed()).await;
    }
}

/// Waits for a change, then until there is none for a while.
async fn quiet(changed: &Notify) {
    changed.notified().await;
    let until = tokio::time::Instant::now() + BUSY;
    while tokio::time::Instant::now() < until && tokio::time::timeout(QUIET, changed.notified()).await.is_ok() {}
}

impl Agent {
    /// Reads the databases that a config uses; contents in effect stay where a file cannot be used.
    pub(super) fn read_databases(&self, config: &Config) -> Databases {
        let before = self.changing().live().databases().clone();
        Databases::read(config, &before)
    }

    /// The same for a config that an operator puts in effect.
    ///
    /// # Errors
    ///
    /// When a network or country that was not requested before has no prefixes, because a file cannot be used.
    pub(super) fn databases_of(&self, config: &Config) -> Result<Databases, ReloadError> {
        let before = self.changing().live().databases().clone();
        let databases = Databases::read(config, &before);
        match databases.lacking(&before) {
            Some(problem) => Err(ReloadError::Geo(problem)),
            None => Ok(databases),
        }
    }

    /// Puts the databases in effect again if their files have changed. A file that cannot be used changes nothing.
    fn read_databases_if_changed(&self) {
        let _one = self.changing().one();
        let (source, before, is_trial) = {
            let live = self.changing().live();
            if live.databases().are_current() {
                return;
            }
            (live.source.clone(), live.databases().clone(), live.trial.is_some())
        };
        let next = Databases::read(&source.config, &before);
        let classes = &source.config.classes;
        if before.classes(classes) == next.classes(classes) {
            self.lists().replace(&source.config, &next);
            report_changes(self.events(), &next.changes(&before));
            self.changing().live().databases = next;
            return;
        }
        let began = Instant::now();
        let lasting = if is_trial { Lasting::Trial } else { Lasting::Indefinite };
        let result = self.apply(&source, next.clone(), None, lasting);
        if let Err(error) = &result {
            // Until its file changes again, or a reload.
            let kept = before.kept(&next, &error.lines().join("; "));
            report_changes(self.events(), &kept.changes(&before));
            self.changing().live().databases = kept;
        }
        self.told(Cause::Geo, self.file(), began, result);
    }
}

/// Logs changes of databases, and makes events of them.
pub fn report_changes(events: &EventLog, changes: &[DatabaseChange]) {
    for change in changes {
        let (kind, verdict, prefixes, reason) = match change {
            DatabaseChange::Updated { kind, prefixes, summary } => {
                tracing::info!("[geo] {}: {summary}", kind.key());
                (kind, EventKind::GeoUpdated, prefixes, summary)
            }
            DatabaseChange::Failed { kind, prefixes, note } => {
                tracing::error!("{note}");
                (kind, EventKind::GeoFailed, prefixes, note)
            }
        };
        let source = Some(format!("geo {}", kind.key()));
        events.push(Event { source, ..Event::now(verdict, *prefixes, reason.clone()) });
    }
}
