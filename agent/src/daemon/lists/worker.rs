//! The thread that waits for intervals, changes of files, and replies.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Weak;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use config::policy::{BanList, ListSource};
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};

use super::set::BanLists;
use super::source::Content;

/// A file is written in several steps: it is read after this long without a change.
const QUIET: Duration = Duration::from_millis(200);
/// Files that keep changing are read after this long all the same.
const BUSY: Duration = Duration::from_secs(2);
/// The most time without a look at the lists.
const LONGEST: Duration = Duration::from_secs(3600);

/// A message to the thread.
pub(super) enum Message {
    /// Something changed in a folder with a list.
    FilesChanged,
    /// The result of a request.
    Fetched(BanList, Result<Content, String>),
    /// The lists have been replaced.
    Replaced,
}

/// Starts the thread, which ends with the lists.
pub(super) fn start(lists: Weak<BanLists>, messages: Receiver<Message>) {
    let run = move || while turn(&lists, &messages).is_some() {};
    if let Err(error) = thread::Builder::new().name("weir-lists".to_owned()).spawn(run) {
        tracing::error!("starting the thread of ban lists failed: {error}; they are read only by agent reload");
    }
}

/// Waits for one message or the next interval; `None` at the end.
fn turn(lists: &Weak<BanLists>, messages: &Receiver<Message>) -> Option<()> {
    let due = lists.upgrade()?.next_due();
    let wait = due.map_or(LONGEST, |due| due.saturating_duration_since(Instant::now()).min(LONGEST));
    let message = match messages.recv_timeout(wait) {
        Ok(message) => Some(message),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => return None,
    };
    match message {
        None | Some(Message::Replaced) => lists.upgrade()?.refresh(),
        Some(Message::Fetched(list, content)) => lists.upgrade()?.fetched(&list, content),
        Some(Message::FilesChanged) => {
            let until = Instant::now() + BUSY;
            while Instant::now() < until {
                match messages.recv_timeout(QUIET) {
                    Ok(Message::FilesChanged | Message::Replaced) => {}
                    Ok(Message::Fetched(list, content)) => lists.upgrade()?.fetched(&list, content),
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => return None,
                }
            }
            lists.upgrade()?.files_changed();
        }
    }
    Some(())
}

/// The folders of lists in files, and of the targets of links.
pub(super) fn folders<'s>(sources: impl Iterator<Item = &'s ListSource>) -> BTreeSet<PathBuf> {
    let files = sources.filter_map(|source| match source {
        ListSource::File(path) => Some(path),
        ListSource::Url(_) => None,
    });
    let both = files.flat_map(|path| [Some(path.clone()), path.canonicalize().ok()]);
    both.flatten().filter_map(|path| Some(path.parent()?.to_owned())).filter(|folder| folder.is_dir()).collect()
}

/// Watches folders.
pub(super) fn watch(folders: &BTreeSet<PathBuf>, wake: Sender<Message>) -> notify::Result<RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Reads are events, too.
        if !event.is_ok_and(|event| event.kind.is_access()) {
            // The agent may have ended.
            let _ = wake.send(Message::FilesChanged);
        }
    })?;
    folders.iter().try_for_each(|folder| watcher.watch(folder, RecursiveMode::NonRecursive))?;
    Ok(watcher)
}
