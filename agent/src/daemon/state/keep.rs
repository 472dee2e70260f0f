//! Saves the state while the agent runs, and provides it after a reboot.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use common::ban::Ban;

use super::file::{Saved, SavedBan};
use super::journal::{self, BanJournal};
use super::{StateDirectory, StateError};
use host::Moment;

/// The interval of saves. Changes since the last one are lost with a power failure.
const EVERY: Duration = Duration::from_secs(20);

/// The saved state of an earlier agent.
#[derive(Clone, Debug)]
pub struct Restore {
    /// Whether there was a reboot since. If not, the kernel still has its state.
    pub is_reboot: bool,
    pub saved: Saved,
    /// The present on the clock of the save.
    pub then: u64,
    /// The present on this boot's monotonic clock.
    pub now: u64,
}

impl Restore {
    /// State that was saved on this boot's clock.
    #[must_use]
    pub fn of_this_boot(saved: Saved) -> Self {
        let now = Moment::now().monotonic;
        Self {
            is_reboot: false,
            saved,
            then: now,
            now,
        }
    }

    /// The bans on this boot's clock that have not ended.
    pub fn bans(&self) -> impl Iterator<Item = SavedBan> + '_ {
        let shifted = |ban: &SavedBan| {
            let until = match ban.held.until {
                Ban::FOREVER => Ban::FOREVER,
                until if until > self.then => self.now.saturating_add(until - self.then),
                _ => return None,
            };
            let mut ban = ban.clone();
            ban.held.until = until;
            Some(ban)
        };
        self.saved.bans.iter().filter_map(shifted)
    }

    /// The bans and counters on this boot's clock, for an agent that has no limits on packets yet.
    #[must_use]
    pub fn parked(&self) -> Saved {
        Saved {
            at: Some(Moment::now()),
            bans: self.bans().collect(),
            table: None,
            requests: None,
            // Their times are on the clock of the save.
            escalations: if self.is_reboot {
                Vec::new()
            } else {
                self.saved.escalations.clone()
            },
            ..self.saved.clone()
        }
    }
}

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
}

impl Keeping {
    /// Prepares the directory, and reads an earlier agent's state. Errors are in [`Keeping::notes`].
    #[must_use]
    pub fn open(directory: StateDirectory) -> (Self, Option<Restore>) {
        let mut found = Vec::new();
        let prepared = directory.prepare();
        found.extend(prepared.err().map(|error| {
            format!("the state is not saved over reboots, and agent try is refused: {error}")
        }));
        let mut saved = Saved::read(&directory).unwrap_or_else(|damaged| {
            found.push(format!(
                "{damaged}; bans, counters and slow limits start over"
            ));
            None
        });
        if let Some(saved) = &mut saved {
            journal::replay(&directory, saved);
        }
        let journal = BanJournal::start(directory.clone()).map_err(|error| {
            found.push(format!(
                "a kill loses the owners of new bans: starting a thread failed: {error}"
            ));
        });
        let now = Moment::now();
        let restore = saved.and_then(|saved| {
            let at = saved.at.clone()?;
            let is_reboot = at.boot != now.boot;
            let then = if is_reboot {
                at.continued(&now)
            } else {
                now.monotonic
            };
            // If the kernel reports no boot ID, the clock may have restarted.
            (is_reboot || at.monotonic <= now.monotonic).then_some(Restore {
                is_reboot,
                saved,
                then,
                now: now.monotonic,
            })
        });
        let trouble = Mutex::new(Trouble {
            found,
            failure: None,
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
        self.save_by(|| saved.write(&self.directory), saved.snapshot);
    }

    fn save_by(&self, write: impl FnOnce() -> Result<(), StateError>, snapshot: u64) {
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
            journal.saved(snapshot);
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
