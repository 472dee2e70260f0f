//! Triggers of reloads while the agent runs: a signal, changes of the file, the end of a trial.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use host::PROGRAM;
use notify::RecommendedWatcher;
use tokio::signal::unix::Signal;
use tokio::sync::Notify;

use super::live::Cause;
use crate::daemon::Agent;
use crate::files;

/// Handles all triggers until it is dropped.
pub async fn changes(agent: Arc<Agent>, mut hang_up: Signal) {
    let changed = Arc::new(Notify::new());
    let mut watcher = None;
    loop {
        // A reload may have enabled `watch`, and a removed folder may exist again.
        let is_watching = agent.changing().live().config().agent.watch;
        match (is_watching, &watcher, agent.file()) {
            (true, None, Some(file)) => match watch(file, Arc::clone(&changed)) {
                Ok(made) => {
                    watcher = Some(made);
                    // For changes before watching started.
                    changed.notify_one();
                }
                Err(error) => {
                    tracing::error!(
                        "watching {} failed: {error}; changes take effect on {PROGRAM} reload only",
                        file.display()
                    );
                }
            },
            (false, Some(_), _) => watcher = None,
            _ => {}
        }
        tokio::select! {
            _ = hang_up.recv() => blocking(&agent, |agent| drop(agent.reload(Cause::Signal, None))).await,
            () = files::quiet(&changed) => blocking(&agent, Agent::reload_if_changed).await,
            () = rollback_is_due(&agent) => blocking(&agent, Agent::end_trial_if_due).await,
        }
    }
}

/// A change may take seconds, during which other requests must be served.
async fn blocking(agent: &Arc<Agent>, work: impl FnOnce(&Agent) + Send + 'static) {
    let agent = Arc::clone(agent);
    // A panic in the task has been reported, and has changed nothing here.
    let _ = tokio::task::spawn_blocking(move || work(&agent)).await;
}

async fn rollback_is_due(agent: &Agent) {
    loop {
        match agent.rollback_due() {
            Some(due) => {
                tokio::select! {
                    () = tokio::time::sleep_until(due.into()) => {}
                    // A new trial may end earlier.
                    () = agent.changing().trial_began.notified() => {}
                }
                // It may have been confirmed meanwhile, and another one started.
                if agent
                    .rollback_due()
                    .is_some_and(|due| due <= Instant::now())
                {
                    return;
                }
            }
            None => agent.changing().trial_began.notified().await,
        }
    }
}

/// Watches the folder of a file, since files are replaced rather than written, and that of its link target.
fn watch(file: &Path, changed: Arc<Notify>) -> notify::Result<RecommendedWatcher> {
    let absolute = std::path::absolute(file)?;
    let folders: BTreeSet<PathBuf> = [Some(absolute.clone()), absolute.canonicalize().ok()]
        .into_iter()
        .flatten()
        .filter_map(|file| Some(file.parent()?.to_owned()))
        .collect();
    files::watch(&folders, move || changed.notify_one())
}
