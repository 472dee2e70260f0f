//! Saves the state while the agent runs, and hands it out after a reboot.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::clock::Moment;
use super::file::Saved;
use super::{StateDirectory, StateError};

/// How often the state is saved. What happened since is lost with the host's power.
const EVERY: Duration = Duration::from_secs(20);

/// What an earlier boot left.
#[derive(Clone, Debug)]
pub struct Restore {
    /// What was saved.
    pub saved: Saved,
    /// The present on the clock that it was saved by.
    pub then: u64,
    /// The present on this boot's monotonic clock.
    pub now: u64,
}

/// The state file of a running agent.
#[derive(Debug)]
pub struct Keeping {
    directory: StateDirectory,
    /// Whether nothing is saved any more. Held while the file is written: the last save is the one that stays.
    is_closed: Mutex<bool>,
    trouble: Mutex<Trouble>,
}

#[derive(Debug, Default)]
struct Trouble {
    /// What is wrong with the directory or a file of an earlier boot.
    found: Vec<String>,
    /// Why the last save failed.
    failure: Option<String>,
}

impl Keeping {
    /// Prepares the directory, and reads what an earlier boot left. Whatever is wrong is in [`Keeping::notes`].
    #[must_use]
    pub fn open(directory: StateDirectory) -> (Self, Option<Restore>) {
        let mut found = Vec::new();
        let prepared = directory.prepare();
        found.extend(
            prepared.err().map(|error| format!("nothing survives a reboot, and no config can be tried: {error}")),
        );
        let saved = Saved::read(&directory).unwrap_or_else(|damaged| {
            found.push(damaged.to_string());
            None
        });
        let now = Moment::now();
        let restore = saved.and_then(|saved| {
            let at = saved.at.clone().filter(|at| at.boot != now.boot)?;
            Some(Restore { saved, then: at.continued(&now), now: now.monotonic })
        });
        let trouble = Mutex::new(Trouble { found, failure: None });
        (Self { directory, is_closed: Mutex::new(false), trouble }, restore)
    }

    /// What an operator should know.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let trouble = self.trouble();
        trouble.found.iter().chain(&trouble.failure).cloned().collect()
    }

    fn trouble(&self) -> MutexGuard<'_, Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_closed(&self) -> MutexGuard<'_, bool> {
        self.is_closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Saves from time to time, on a thread of its own, until it is closed.
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
        if let Err(error) = thread::Builder::new().name("weir-state".to_owned()).spawn(work) {
            self.trouble().found.push(format!("the state is not saved: starting a thread failed: {error}"));
        }
    }

    /// Saves once more, and then never again.
    pub fn close(&self, saved: Option<&Saved>) {
        if let Some(saved) = saved {
            self.save(saved);
        }
        *self.is_closed() = true;
    }

    fn save(&self, saved: &Saved) {
        let is_closed = self.is_closed();
        if *is_closed {
            return;
        }
        let failure = saved.write(&self.directory).err().map(|error: StateError| {
            format!("the state is not saved, and a reboot would restore an older one or none: {error}")
        });
        // A disk may take seconds to write the file, for which nobody who reads the notes is kept waiting.
        let mut trouble = self.trouble();
        if let (Some(failure), None) = (&failure, &trouble.failure) {
            eprintln!("note: {failure}");
        }
        trouble.failure = failure;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read as _;
    use std::time::Instant;

    #[test]
    fn notes_are_read_while_a_disk_hangs() {
        let folder = tempfile::tempdir().unwrap();
        let (keeping, _) = Keeping::open(StateDirectory::at(folder.path()));
        // Opened for writing, it blocks until somebody reads.
        let next = folder.path().join("state.next");
        nix::unistd::mkfifo(&next, nix::sys::stat::Mode::S_IRWXU).unwrap();
        thread::scope(|scope| {
            let saving = scope.spawn(|| keeping.save(&Saved::default()));
            let until = Instant::now() + Duration::from_secs(60);
            while keeping.is_closed.try_lock().is_ok() {
                assert!(Instant::now() < until && !saving.is_finished(), "nothing was saved");
                thread::yield_now();
            }
            assert_eq!(keeping.notes(), Vec::<String>::new());
            assert!(!saving.is_finished());
            File::open(&next).unwrap().read_to_end(&mut Vec::new()).unwrap();
        });
        // A pipe cannot be synchronized.
        assert_eq!(keeping.notes().len(), 1);
    }
}
