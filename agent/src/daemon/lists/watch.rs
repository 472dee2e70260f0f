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
    Fetched(BanList, Result<Content, Failure>),
    /// The lists have been replaced.
    Replaced,
}

/// The folders of lists in files, and of the targets of links.
pub(super) fn folders<'s>(sources: impl Iterator<Item = &'s ListSource>) -> BTreeSet<PathBuf> {
    files::folders(sources.filter_map(|source| match source {
        ListSource::File(path) => Some(path.as_path()),
        ListSource::Url(_) | ListSource::Geo(_) => None,
    }))
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
