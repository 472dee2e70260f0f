//! Messages to the thread of ban lists, and those about changes of files.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc::Sender;

use config::policy::{BanList, ListSource};
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};

use super::source::Content;

/// A message to the thread.
pub(super) enum Message {
    /// Something changed in a folder with a list.
    FilesChanged,
    /// The result of a request.
    Fetched(BanList, Result<Content, String>),
    /// The lists have been replaced.
    Replaced,
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
