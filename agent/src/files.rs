//! Files that others replace: whether they have changed.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use host::read::{ReadError, RegularFile};
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;
use tokio::time::timeout;

/// A file is written in several steps: it is read after this long without a change.
const QUIET: Duration = Duration::from_millis(200);
/// Folders that keep changing are looked at after this long all the same.
const BUSY: Duration = Duration::from_secs(2);

/// Identifies the content of a file: device, inode, size, and the time of its last change in nanoseconds.
pub type Fingerprint = (u64, u64, u64, i128);

/// Reads a file of at most `most` bytes; `None` if it still has the known fingerprint.
///
/// # Errors
///
/// When it cannot be read, is too large or is not a regular file.
pub fn read(
    path: &Path,
    known: Option<Fingerprint>,
    most: u64,
) -> Result<(Option<Vec<u8>>, Fingerprint), ReadError> {
    let file = RegularFile::open(path)?;
    let found = fingerprint_of(file.metadata());
    if known == Some(found) {
        return Ok((None, found));
    }
    Ok((Some(file.read(most)?), found))
}

/// The fingerprint of a file; `None` if it is missing.
#[must_use]
pub fn fingerprint(path: &Path) -> Option<Fingerprint> {
    path.metadata().ok().map(|about| fingerprint_of(&about))
}

fn fingerprint_of(about: &std::fs::Metadata) -> Fingerprint {
    let changed = i128::from(about.mtime()) * 1_000_000_000 + i128::from(about.mtime_nsec());
    (about.dev(), about.ino(), about.len(), changed)
}

/// The folders of files, and of the targets of links.
pub fn folders<'p>(files: impl Iterator<Item = &'p Path>) -> BTreeSet<PathBuf> {
    let both = files.flat_map(|path| [Some(path.to_owned()), path.canonicalize().ok()]);
    both.flatten()
        .filter_map(|path| Some(path.parent()?.to_owned()))
        .filter(|folder| folder.is_dir())
        .collect()
}

/// Watches folders, since files are replaced rather than written.
///
/// # Errors
///
/// When the kernel refuses.
pub fn watch(
    folders: &BTreeSet<PathBuf>,
    changed: impl Fn() + Send + 'static,
) -> notify::Result<RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Reads are events, too.
        if !event.is_ok_and(|event| event.kind.is_access()) {
            changed();
        }
    })?;
    folders
        .iter()
        .try_for_each(|folder| watcher.watch(folder, RecursiveMode::NonRecursive))?;
    Ok(watcher)
}

/// Waits for a change, then until there is none for a while.
pub async fn quiet(changed: &Notify) {
    changed.notified().await;
    let until = Instant::now() + BUSY;
    while Instant::now() < until && timeout(QUIET, changed.notified()).await.is_ok() {}
}
