//! The state directory, and atomic replacement of its files.

use std::fmt::Display;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::{AccessFlags, access};
use thiserror::Error;

use crate::read;
use crate::replace::{Survives, replace, synchronize};

/// For the owner only: configs and keys contain other people's addresses.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// The state directory or a file in it cannot be used.
#[derive(Debug, Error)]
pub enum StateError {
    /// The directory cannot be created or written.
    #[error("the state directory {} cannot be written: {source}; {}", path.display(), help(source))]
    Directory { path: PathBuf, source: io::Error },
    /// Another agent writes there.
    #[error(
        "the state directory {} is in use by another agent (process {process}): stop it, or name another directory with [agent] state_dir",
        path.display()
    )]
    InUse {
        path: PathBuf,
        /// The other agent's process ID.
        process: String,
    },
    /// A file cannot be written.
    #[error("writing {} failed: {source}; {}", path.display(), help(source))]
    Write { path: PathBuf, source: io::Error },
}

fn help(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free some space there, or name another directory with [agent] state_dir"
        }
        io::ErrorKind::FileTooLarge => "the file of before stays",
        _ => "name a directory that can be written with [agent] state_dir",
    }
}

/// A file of the state directory cannot be used.
#[derive(Debug, Error)]
#[error("{} cannot be used: {reason}; {aside}", path.display())]
pub struct Damaged {
    path: PathBuf,
    reason: String,
    /// Whether the file was renamed, as a clause.
    aside: String,
}

/// Renames a file that cannot be used to `NAME.damaged`. Returns the outcome as a clause of a message.
fn set_aside(path: &Path) -> String {
    let mut damaged = path.as_os_str().to_owned();
    damaged.push(".damaged");
    let damaged = PathBuf::from(damaged);
    let name = damaged.file_name().unwrap_or_default().display();
    match fs::rename(path, &damaged) {
        Ok(()) => format!("it was renamed to {name}"),
        Err(error) => format!("renaming it to {name} failed: {error}"),
    }
}

/// Reads what an earlier agent wrote into a file of at most `most` bytes; `None` if it is missing.
///
/// # Errors
///
/// When it cannot be read or parsed. It is then renamed to `NAME.damaged`: it is reported once, and no later write
/// replaces it.
pub fn read_saved<T, E: Display>(
    path: &Path,
    most: u64,
    parse: impl FnOnce(&[u8]) -> Result<T, E>,
) -> Result<Option<T>, Damaged> {
    let reason = match read::read(path, most) {
        Ok(bytes) => match parse(&bytes) {
            Ok(saved) => return Ok(Some(saved)),
            Err(error) => error.to_string(),
        },
        Err(error) if error.is_missing() => return Ok(None),
        Err(error) => error.reason(),
    };
    Err(Damaged {
        path: path.to_owned(),
        reason,
        aside: set_aside(path),
    })
}

/// The file that is locked while an agent uses the directory; it contains the agent's process ID.
const LOCK: &str = "lock";
/// The most bytes of a process ID.
const LONGEST_LOCK: u64 = 32;

/// Locks a state directory until it is dropped or the agent ends.
#[derive(Debug)]
pub struct StateLock(#[expect(dead_code, reason = "held for what dropping it does")] Flock<File>);

/// A directory for Weir's files.
#[derive(Clone, Debug)]
pub struct StateDirectory(PathBuf);

impl StateDirectory {
    /// The directory at `path`, which need not exist.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Creates the directory if it is missing, and checks that it is writable.
    ///
    /// # Errors
    ///
    /// When it cannot be created or written.
    pub fn prepare(&self) -> Result<(), StateError> {
        let fail = |source| StateError::Directory {
            path: self.0.clone(),
            source,
        };
        DirBuilder::new()
            .recursive(true)
            .mode(DIRECTORY_MODE)
            .create(&self.0)
            .map_err(fail)?;
        access(&self.0, AccessFlags::W_OK | AccessFlags::X_OK).map_err(|errno| fail(errno.into()))
    }

    /// Locks the directory against other agents. `None` where it cannot be written, so that no agent uses it.
    ///
    /// # Errors
    ///
    /// When another agent has locked it.
    pub fn lock(&self) -> Result<Option<StateLock>, StateError> {
        let path = self.file(LOCK);
        let open = || {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(FILE_MODE)
                .open(&path)
        };
        let Some(file) = self.prepare().ok().and_then(|()| open().ok()) else {
            return Ok(None);
        };
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(mut lock) => {
                // If this fails, only another agent's error message lacks the process ID.
                let _ = lock
                    .set_len(0)
                    .and_then(|()| write!(lock, "{}", std::process::id()));
                Ok(Some(StateLock(lock)))
            }
            Err((_, Errno::EWOULDBLOCK)) => {
                let process = read::read_text(&path, LONGEST_LOCK)
                    .ok()
                    .filter(|process| !process.is_empty());
                let process = process.unwrap_or_else(|| "unknown".to_owned());
                Err(StateError::InUse {
                    path: self.0.clone(),
                    process,
                })
            }
            // The file system has no locks.
            Err(_) => Ok(None),
        }
    }

    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Replaces a file with the concatenated parts. After a power failure it is the old file or the new one.
    ///
    /// # Errors
    ///
    /// When the directory or the file cannot be written.
    pub fn replace(&self, name: &str, parts: &[&[u8]]) -> Result<(), StateError> {
        self.prepare()?;
        let path = self.file(name);
        let replaced = replace(&path, FILE_MODE, Survives::PowerLoss, |file| {
            parts.iter().try_for_each(|part| file.write_all(part))
        });
        replaced.map_err(|source| StateError::Write { path, source })
    }

    /// Reads a file by [`read_saved`].
    ///
    /// # Errors
    ///
    /// When it cannot be read or parsed; it is then renamed.
    pub fn read<T, E: Display>(
        &self,
        name: &str,
        most: u64,
        parse: impl FnOnce(&[u8]) -> Result<T, E>,
    ) -> Result<Option<T>, Damaged> {
        read_saved(&self.file(name), most, parse)
    }

    /// Removes a file; a missing file is no error.
    ///
    /// # Errors
    ///
    /// When it cannot be removed.
    pub fn remove(&self, name: &str) -> Result<(), StateError> {
        let fail = |source| StateError::Write {
            path: self.file(name),
            source,
        };
        match fs::remove_file(self.file(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result.and_then(|()| synchronize(&self.0)).map_err(fail),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_missing_directory_is_made_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDirectory::at(&folder.path().join("a/b"));
        state.replace("file", &[b"one ", b"two"]).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&folder.path().join("a/b")), 0o700);
        assert_eq!(mode(&state.file("file")), 0o600);
        assert_eq!(fs::read(state.file("file")).unwrap(), b"one two");
        state.replace("file", &[b"three"]).unwrap();
        assert_eq!(fs::read(state.file("file")).unwrap(), b"three");
        assert_eq!(fs::read_dir(folder.path().join("a/b")).unwrap().count(), 1);
        state.remove("file").unwrap();
        state.remove("file").unwrap();
        assert!(!state.file("file").exists());
    }

    #[test]
    fn a_file_that_cannot_be_used_is_renamed_and_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDirectory::at(folder.path());
        let read = || {
            state.read("state", 4, |bytes| match bytes {
                b"good" => Ok(1),
                _ => Err("it is bad"),
            })
        };
        assert_eq!(read().unwrap(), None);
        state.replace("state", &[b"good"]).unwrap();
        assert_eq!(read().unwrap(), Some(1));
        for (content, reason) in [("bad", "it is bad"), ("large", "it is larger than 4 B")] {
            state.replace("state", &[content.as_bytes()]).unwrap();
            let expected = format!(
                "{} cannot be used: {reason}; it was renamed to state.damaged",
                state.file("state").display()
            );
            assert_eq!(read().unwrap_err().to_string(), expected);
            let damaged = fs::read_to_string(state.file("state.damaged")).unwrap();
            assert_eq!(damaged, content);
            assert_eq!(read().unwrap(), None);
        }
        nix::unistd::mkfifo(&state.file("state"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let error = read().unwrap_err().to_string();
        assert!(
            error.contains("it is a FIFO") && error.contains("was renamed"),
            "{error}"
        );
    }

    #[test]
    fn a_file_is_reported_as_renamed_only_if_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDirectory::at(folder.path());
        state.replace("state", &[b"bad"]).unwrap();
        // A file cannot be renamed to a directory.
        fs::create_dir(state.file("state.damaged")).unwrap();
        let read = || state.read::<(), _>("state", 4, |_| Err("it is bad"));
        for _ in 0..2 {
            let error = read().unwrap_err().to_string();
            assert!(
                error.contains("; renaming it to state.damaged failed: "),
                "{error}"
            );
            assert!(state.file("state").exists());
        }
    }

    #[test]
    fn a_directory_is_locked_by_one_agent_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDirectory::at(folder.path());
        let lock = state.lock().unwrap();
        assert!(lock.is_some());
        let error = state.lock().unwrap_err().to_string();
        let process = format!("(process {})", std::process::id());
        assert!(
            error.contains(&process) && error.contains("[agent] state_dir"),
            "{error}"
        );
        drop(lock);
        assert!(state.lock().unwrap().is_some());
        assert!(
            StateDirectory::at(Path::new("/proc/weir/state"))
                .lock()
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_an_error_that_names_the_key() {
        for path in ["/proc/weir/state", "/dev/null/state"] {
            let error = StateDirectory::at(Path::new(path))
                .prepare()
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(path) && error.contains("[agent] state_dir"),
                "{error}"
            );
        }
    }
}
