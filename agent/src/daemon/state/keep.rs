//! Saves the state while the agent runs, and provides it after a reboot.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use decide::SavedRequests;
use host::Moment;
use host::PROGRAM;

use super::file::Saved;
use super::journal::{self, BanJournal};
use super::restore::Restore;
use super::{StateDirectory, StateError};

/// The interval of saves. Changes since the last one are lost with a power failure.
const EVERY: Duration = Duration::from_secs(20);

/// The state file of a running agent.
#[derive(Debug)]
pub struct Keeping {
    directory: StateDirectory,
    /// Whether saving has ended. Locked while the file is written, so that the last save is final.
    is_closed: Mutex<bool>,
    trouble: Mutex<Trouble>,
    journal: Option<Arc<BanJournal>>,
}

#[derive(Debug, Default)]
struct Trouble {
    /// Errors of the directory or an earlier boot's file.
    found: Vec<String>,
    /// Why the last save failed.
    failure: Option<String>,
    /// The keys of requests that the last save left out.
    left_out: Option<String>,
}

impl Keeping {
    /// Prepares the directory, and reads an earlier agent's state. Errors are in [`Keeping::notes`].
    #[must_use]
    pub fn open(directory: StateDirectory) -> (Self, Option<Restore>) {
        let mut found = Vec::new();
        let prepared = directory.prepare();
        found.extend(prepared.err().map(|error| {
            format!("the state is not saved over reboots, and {PROGRAM} try is refused: {error}")
        }));
        let saved = Saved::read(&directory).unwrap_or_else(|damaged| {
            found.push(format!(
                "{damaged}; bans, counters and slow limits start over"
            ));
            None
        });
        let changes = journal::read(&directory);
        let last = journal::last(saved.as_ref(), &changes);
        let journal = BanJournal::start(directory.clone(), last).map_err(|error| {
            found.push(format!(
                "a kill loses the owners of new bans: starting a thread failed: {error}"
            ));
        });
        let restore = Restore::new(saved, changes, Moment::now());
        let trouble = Mutex::new(Trouble {
            found,
            ..Trouble::default()
        });
        (
            Self {
                directory,
                is_closed: Mutex::new(false),
                trouble,
                journal: journal.ok().map(Arc::new),
            },
            restore,
        )
    }

    /// The journal of bans.
    #[must_use]
    pub fn journal(&self) -> Option<Arc<BanJournal>> {
        self.journal.clone()
    }

    /// Notes for the operator.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let trouble = self.trouble();
        trouble
            .found
            .iter()
            .chain(&trouble.failure)
            .chain(&trouble.left_out)
            .cloned()
            .collect()
    }

    fn trouble(&self) -> MutexGuard<'_, Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_closed(&self) -> MutexGuard<'_, bool> {
        self.is_closed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Saves at intervals, on a separate thread, until it is closed.
    pub fn start(self: &Arc<Self>, snapshot: impl Fn() -> Option<Saved> + Send + 'static) {
        let keeping = Arc::clone(self);
        let work = move || {
            while !*keeping.is_closed() {
                if let Some(saved) = snapshot() {
                    keeping.save(&saved);
                }
                thread::sleep(EVERY);
            }
        };
        if let Err(error) = thread::Builder::new()
            .name("weir-state".to_owned())
            .spawn(work)
        {
            self.trouble().found.push(format!(
                "the state is not saved: starting a thread failed: {error}"
            ));
        }
    }

    /// Saves once more, and ends.
    pub fn close(&self, saved: Option<&Saved>) {
        if let Some(saved) = saved {
            self.save(saved);
        }
        *self.is_closed() = true;
    }

    fn save(&self, saved: &Saved) {
        self.save_by(|| saved.write(&self.directory), saved.journaled);
        let left_out = saved.requests.as_ref().and_then(SavedRequests::note);
        self.trouble().left_out = left_out;
    }

    fn save_by(&self, write: impl FnOnce() -> Result<(), StateError>, journaled: u64) {
        let is_closed = self.is_closed();
        if *is_closed {
            return;
        }
        let failure = write().err().map(|error| {
            format!(
                "the state is not saved, and a reboot would restore an older one or none: {error}"
            )
        });
        if let (None, Some(journal)) = (&failure, &self.journal) {
            journal.saved(journaled);
        }
        // Writing may take a disk seconds, during which the notes must stay readable.
        let mut trouble = self.trouble();
        if let (Some(failure), None) = (&failure, &trouble.failure) {
            tracing::warn!("{failure}");
        }
        trouble.failure = failure;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn notes_are_read_while_a_disk_hangs() {
        let folder = tempfile::tempdir().unwrap();
        let (keeping, _) = Keeping::open(StateDirectory::at(folder.path()));
        let (began, has_begun) = channel();
        let (end, is_over) = channel::<()>();
        thread::scope(|scope| {
            let keeping = &keeping;
            scope.spawn(move || {
                let hang = || {
                    began.send(()).unwrap();
                    is_over.recv().unwrap();
                    let source = std::io::ErrorKind::StorageFull.into();
                    Err(StateError::Write {
                        path: "state".into(),
                        source,
                    })
                };
                keeping.save_by(hang, 0);
            });
            has_begun.recv().unwrap();
            assert_eq!(keeping.notes(), Vec::<String>::new());
            end.send(()).unwrap();
        });
        assert_eq!(keeping.notes().len(), 1);
    }
}
