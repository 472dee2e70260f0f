//! Messages to the thread of ban lists, and those about changes of files.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc::Sender;

use config::policy::{BanList, ListSource};
use notify::RecommendedWatcher;

use super::source::{Content, Failure};
use crate::files;

/// A message to the thread.
pub(super) enum Message {
    /// Something changed in a folder with a list.
    FilesChanged,
    /// The result of a request.
    Fetched(Box<BanList>, Result<Content, Failure>),
    /// The lists have been replaced.
    Replaced,
}

/// The folders of lists in files, and of the targets of links.
pub(super) fn folders(sources: impl Iterator<Item = ListSource>) -> BTreeSet<PathBuf> {
    let paths = sources.filter_map(|source| match source {
        ListSource::File(path) => Some(path),
        ListSource::Url(_) | ListSource::Geo(_) => None,
    });
    files::folders(paths.collect::<Vec<_>>().iter().map(PathBuf::as_path))
}

/// Watches folders.
pub(super) fn watch(
    folders: &BTreeSet<PathBuf>,
    wake: Sender<Message>,
) -> notify::Result<RecommendedWatcher> {
    files::watch(folders, move || {
        // The agent may have ended.
        let _ = wake.send(Message::FilesChanged);
    })
}
