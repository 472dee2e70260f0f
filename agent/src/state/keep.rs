//! Saves the state while the agent runs, and hands it out after a reboot.

use std::sync::{Arc, Mutex, PoisonError};
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
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    is_closed: bool,
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
        (Self { directory, inner: Mutex::new(Inner { found, ..Inner::default() }) }, restore)
    }

    /// What an operator should know.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.found.iter().chain(&inner.failure).cloned().collect()
    }

    /// Saves from time to time, on a thread of its own, until it is closed.
    pub fn start(self: &Arc<Self>, snapshot: impl Fn() -> Option<Saved> + Send + 'static) {
        let keeping = Arc::clone(self);
        let work = move || {
            while !keeping.inner.lock().unwrap_or_else(PoisonError::into_inner).is_closed {
                if let Some(saved) = snapshot() {
                    keeping.save(&saved);
                }
                thread::sleep(EVERY);
            }
        };
        if let Err(error) = thread::Builder::new().name("weir-state".to_owned()).spawn(work) {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            inner.found.push(format!("the state is not saved: starting a thread failed: {error}"));
        }
    }

    /// Saves once more, and then never again.
    pub fn close(&self, saved: Option<&Saved>) {
        if let Some(saved) = saved {
            self.save(saved);
        }
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).is_closed = true;
    }

    fn save(&self, saved: &Saved) {
        // Held while it is written: the last save is the one that stays.
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.is_closed {
            return;
        }
        let failure = saved.write(&self.directory).err().map(|error: StateError| {
            format!("the state is not saved, and a reboot would restore an older one or none: {error}")
        });
        if let (Some(failure), None) = (&failure, &inner.failure) {
            eprintln!("note: {failure}");
        }
        inner.failure = failure;
    }
}
