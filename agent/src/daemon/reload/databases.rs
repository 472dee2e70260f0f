//! The databases of `[geo]` and the lists of classes while the agent runs: classes and ban lists follow them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::human;
use config::policy::Config;
use notify::RecommendedWatcher;
use tokio::sync::Notify;

use super::error::ReloadError;
use super::live::Cause;
use crate::allowances;
use crate::daemon::Agent;
use crate::daemon::events::{Event, EventKind, EventLog};
use crate::files;
use crate::geo::{DatabaseChange, Databases};
use crate::protect;

/// The interval at which files are compared without a report of a change: folders may appear later.
const PERIOD: Duration = Duration::from_secs(60);

/// Follows the databases' files until it is dropped.
pub async fn follow_databases(agent: Arc<Agent>) {
    let changed = Arc::new(Notify::new());
    // The folders, and `None` if watching them failed.
    let mut watched: Option<(BTreeSet<PathBuf>, Option<RecommendedWatcher>)> = None;
    loop {
        let files: Vec<PathBuf> = agent
            .changing()
            .live()
            .databases()
            .files()
            .map(Path::to_owned)
            .collect();
        if files.is_empty() {
            watched = None;
            tokio::select! {
                () = agent.changing().databases_replaced.notified() => continue,
                () = agent.lists().of_classes_changed.notified() => {}
            }
            read_if_changed(&agent).await;
            continue;
        }
        let folders = files::folders(files.iter().map(PathBuf::as_path));
        if watched
            .as_ref()
            .is_none_or(|(before, _)| *before != folders)
        {
            let wake = Arc::clone(&changed);
            let watcher = files::watch(&folders, move || wake.notify_one());
            if let Err(error) = &watcher {
                let period = human::time(PERIOD);
                tracing::warn!(
                    "watching the databases of [geo] failed: {error}; they are compared every {period}"
                );
            }
            watched = Some((folders, watcher.ok()));
            // For changes before watching started.
            changed.notify_one();
        }
        tokio::select! {
            () = files::quiet(&changed) => {}
            () = agent.changing().databases_replaced.notified() => {}
            () = agent.lists().of_classes_changed.notified() => {}
            () = tokio::time::sleep(PERIOD) => {}
        }
        read_if_changed(&agent).await;
    }
}

async fn read_if_changed(agent: &Arc<Agent>) {
    let agent = Arc::clone(agent);
    // A panic in the task has been reported, and has changed nothing here.
    let _ = tokio::task::spawn_blocking(move || agent.read_databases_if_changed()).await;
}

impl Agent {
    /// Reads the databases that a config uses; contents in effect stay where a file cannot be used.
    pub(super) fn read_databases(&self, config: &Config) -> Databases {
        let before = self.changing().live().databases().clone();
        Databases::read(config, &before, self.lists().of_classes(config))
    }

    /// The same for a config that an operator puts in effect.
    ///
    /// # Errors
    ///
    /// When a network or country that was not requested before has no prefixes, because a file cannot be used.
    pub(super) fn databases_of(&self, config: &Config) -> Result<Databases, ReloadError> {
        let before = self.changing().live().databases().clone();
        let databases = Databases::read(config, &before, self.lists().of_classes(config));
        match databases.lacking(&before) {
            Some(problem) => Err(ReloadError::Geo(problem)),
            None => Ok(databases),
        }
    }

    /// Puts the databases and lists in effect again if they have changed. A file that cannot be used changes nothing.
    fn read_databases_if_changed(&self) {
        let Ok(_one) = self.changing().lock() else {
            return;
        };
        let (source, before, purpose) = {
            let live = self.changing().live();
            (
                live.source.clone(),
                live.databases().clone(),
                live.purpose(),
            )
        };
        let lists = self.lists().of_classes(&source.config);
        let has_same_lists = before.lists().are(&lists);
        if has_same_lists && before.are_current() {
            return;
        }
        // A content that could not be put in effect is not tried again.
        let lists = if has_same_lists {
            before.lists().clone()
        } else {
            lists
        };
        let next = Databases::read(&source.config, &before, lists);
        if before.have_same_prefixes(&next, &source.config) {
            let (detected, allowances) = {
                let live = self.changing().live();
                (live.detected().to_vec(), live.allowances.clone())
            };
            let allowed = allowances::applied(Config::clone(&source.config), &allowances);
            let effective = protect::applied(allowed, &detected);
            self.lists().replace(&effective, &next);
            report_changes(self.events(), &next.changes(&before));
            self.changing().live().databases = next;
            return;
        }
        let began = Instant::now();
        let result = self.apply(&source, next.clone(), None, purpose);
        if let Err(error) = &result {
            // Until its file changes again, or a reload.
            let kept = before.kept(&next, &error.lines().join("; "));
            report_changes(self.events(), &kept.changes(&before));
            self.changing().live().databases = kept;
        }
        let cause = if has_same_lists {
            Cause::Geo
        } else {
            Cause::Lists
        };
        self.conclude(cause, self.file(), began, result);
    }
}

/// Logs changes of databases and failures of lists, and makes events of them.
pub fn report_changes(events: &EventLog, changes: &[DatabaseChange]) {
    for change in changes {
        let (source, verdict, prefixes, reason) = match change {
            DatabaseChange::Updated {
                kind,
                prefixes,
                summary,
            } => {
                tracing::info!("[geo] {}: {summary}", kind.key());
                (
                    format!("geo {}", kind.key()),
                    EventKind::GeoUpdated,
                    prefixes,
                    summary,
                )
            }
            DatabaseChange::Failed {
                kind,
                prefixes,
                note,
            } => {
                tracing::error!("{note}");
                (
                    format!("geo {}", kind.key()),
                    EventKind::GeoFailed,
                    prefixes,
                    note,
                )
            }
            DatabaseChange::ListFailed {
                list,
                prefixes,
                note,
            } => {
                tracing::error!("{note}");
                (
                    format!("list {list}"),
                    EventKind::ListFailed,
                    prefixes,
                    note,
                )
            }
        };
        events.push(Event {
            source: Some(source),
            ..Event::now(verdict, *prefixes, reason.clone())
        });
    }
}
