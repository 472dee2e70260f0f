//! Follows the symbolic links of programs in matchers, on threads of their own: a file system that does not respond, as NFS
//! without its server, blocks whoever looks at a path on it.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::error::GroupsError;
use super::matcher::trusted_target;
use super::threads;

/// The interval at which symbolic links are followed again. A path that takes longer is reported.
const FOLLOW: Duration = Duration::from_secs(5);
pub const THREAD: &str = "groups-links";

/// The file that a path leads to; see [`trusted_target`].
pub type Target = Option<PathBuf>;

/// The paths that are being followed.
#[derive(Debug)]
pub struct Links {
    jobs: Vec<Job>,
    /// When the last job began.
    began: Option<Instant>,
    /// Follows one path; tests supply their own.
    pub follow: fn(&Path) -> Target,
    /// The reported paths.
    pub noted: BTreeSet<PathBuf>,
}

/// A thread that follows paths one after another.
#[derive(Debug)]
struct Job {
    left: VecDeque<PathBuf>,
    /// When the first path left was begun.
    since: Instant,
    targets: Receiver<Target>,
}

impl Default for Links {
    fn default() -> Self {
        Self {
            jobs: Vec::new(),
            began: None,
            follow: trusted_target,
            noted: BTreeSet::new(),
        }
    }
}

impl Links {
    /// Begins to follow these paths if the interval has passed, except those that a thread still waits for: there are at
    /// most as many threads as such paths, and one. Returns the result of starting a thread, if it was tried.
    pub fn begin(
        &mut self,
        paths: impl Iterator<Item = PathBuf>,
    ) -> Option<Result<(), GroupsError>> {
        if self.began.is_some_and(|began| began.elapsed() < FOLLOW) {
            return None;
        }
        let waiting: BTreeSet<&PathBuf> = self
            .jobs
            .iter()
            .filter_map(|job| job.left.front())
            .collect();
        let left: BTreeSet<PathBuf> = paths.filter(|path| !waiting.contains(path)).collect();
        self.began = Some(Instant::now());
        if left.is_empty() {
            return None;
        }
        let (sender, targets) = channel();
        let (follow, paths) = (self.follow, left.clone());
        let started = threads::start(THREAD, move || {
            for path in paths {
                if sender.send(follow(&path)).is_err() {
                    return;
                }
            }
        });
        if started.is_err() {
            // The paths lead where they led before.
            return Some(started);
        }
        // The newest first: the others may wait for ever.
        let job = Job {
            left: left.into_iter().collect(),
            since: Instant::now(),
            targets,
        };
        self.jobs.insert(0, job);
        Some(started)
    }

    /// The same for another config: paths that a thread still waits for start no second thread.
    pub fn for_another_config(self) -> Self {
        Self {
            began: None,
            noted: BTreeSet::new(),
            ..self
        }
    }

    /// The targets that are known by now, and at most after `patience`.
    pub fn take(&mut self, patience: Duration) -> Vec<(PathBuf, Target)> {
        let deadline = Instant::now() + patience;
        let mut found = Vec::new();
        self.jobs.retain_mut(|job| {
            while !job.left.is_empty() {
                let rest = deadline.saturating_duration_since(Instant::now());
                match job.targets.recv_timeout(rest) {
                    Ok(target) => {
                        found.extend(job.left.pop_front().map(|path| (path, target)));
                        job.since = Instant::now();
                    }
                    Err(RecvTimeoutError::Timeout) => return true,
                    Err(RecvTimeoutError::Disconnected) => return false,
                }
            }
            false
        });
        found
    }

    /// The paths and threads as they would be later.
    #[cfg(test)]
    pub fn age(&mut self, time: Duration) {
        self.began = self.began.map(|began| began - time);
        self.jobs.iter_mut().for_each(|job| job.since -= time);
    }

    /// The threads that follow paths.
    #[cfg(test)]
    pub fn threads(&self) -> usize {
        self.jobs.len()
    }

    /// The paths whose file system does not respond.
    pub fn silent(&self) -> BTreeSet<PathBuf> {
        let silent = self.jobs.iter().filter(|job| job.since.elapsed() >= FOLLOW);
        silent.filter_map(|job| job.left.front().cloned()).collect()
    }
}
