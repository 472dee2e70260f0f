//! Atomic replacement of files.
//!
//! The new content is written beside the file and renamed to it, so that a reader or a crash finds the old file or the new
//! one. The new file is locked while it is written. A writer that finds an unlocked one removes it: its writer was killed.

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use nix::libc;
use rustix::fs::{FlockOperation, flock};

/// Names of the new file that are tried.
const ATTEMPTS: u32 = 100;
/// The bytes of the file's name in the new file's, whose suffix must fit into the 255 of a name.
const LONGEST_NAME: usize = 240;

/// The failures that new content survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survives {
    /// A power failure: the file and its folder are synchronized.
    PowerLoss,
    /// The end of the process, at any instant. For files that a reboot makes void.
    Kill,
}

/// Replaces a file with what `write` writes. A symbolic link is replaced, and its target unchanged.
///
/// The new file has the old one's permissions, and its owner where this process may set it; `mode`, less the umask, if
/// there is none. In folders where everybody may create files, such as /tmp, the owner is this process.
///
/// # Errors
///
/// When it cannot be written; the old file then stays, unless only synchronizing the folder has failed.
pub fn replace(
    path: &Path,
    mode: u32,
    survives: Survives,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let mut next = Next::beside(path, mode)?;
    if let Some(old) = path.symlink_metadata().ok().filter(Metadata::is_file) {
        // Before the content: nobody else may read it for a moment.
        keep_access(&next.file, &old, is_public(folder(path)))?;
    }
    write(&mut next.file)?;
    if survives == Survives::PowerLoss {
        next.file.sync_all()?;
    }
    next.rename(path)?;
    match survives {
        Survives::PowerLoss => synchronize(folder(path)),
        Survives::Kill => Ok(()),
    }
}

/// Checks that a file can be created beside `path`, which is not changed.
///
/// # Errors
///
/// When it cannot.
pub fn check(path: &Path) -> io::Result<()> {
    Next::beside(path, 0o600).map(drop)
}

/// Makes renames and removals in a folder durable.
pub(crate) fn synchronize(folder: &Path) -> io::Result<()> {
    match File::open(folder) {
        Ok(folder) => folder.sync_all(),
        // A folder may be written without the right to read it; then the file system decides when.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        Err(error) => Err(error),
    }
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// Whether everybody may create files in a folder.
fn is_public(folder: &Path) -> bool {
    fs::metadata(folder).is_ok_and(|folder| folder.mode() & 0o002 != 0)
}

/// Gives a new file the owner and the permissions of the old one.
fn keep_access(file: &File, old: &Metadata, is_public: bool) -> io::Result<()> {
    let new = file.metadata()?;
    let mut mode = old.mode() & 0o777;
    if is_public && new.uid() != old.uid() {
        // The new content is not for the owner of the old file.
        mode &= new.mode();
    } else if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
        let is_kept = fchown(file, Some(old.uid()), Some(old.gid())).is_ok();
        if !is_kept && new.gid() != old.gid() && fchown(file, None, Some(old.gid())).is_err() {
            // Another group than the old file's must not read it.
            mode &= !0o070;
        }
    }
    file.set_permissions(Permissions::from_mode(mode))
}

/// A new file beside another one. Locked; removed when dropped, unless it has been renamed.
struct Next {
    path: PathBuf,
    file: File,
    is_renamed: bool,
}

impl Next {
    fn beside(path: &Path, mode: u32) -> io::Result<Self> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let name = &name.as_bytes()[..name.len().min(LONGEST_NAME)];
        for attempt in 0..ATTEMPTS {
            let suffix = match attempt {
                0 => ".next".to_owned(),
                _ => format!(".next-{attempt}"),
            };
            let next = path.with_file_name(OsString::from_vec([name, suffix.as_bytes()].concat()));
            remove_abandoned(&next);
            let created = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(mode)
                .open(&next);
            match created {
                // Until it was locked, another writer may have taken it for an abandoned one.
                Ok(file) if lock(&file) != Lock::Taken && is_at(&file, &next) => {
                    return Ok(Self {
                        path: next,
                        file,
                        is_renamed: false,
                    });
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn rename(&mut self, to: &Path) -> io::Result<()> {
        fs::rename(&self.path, to)?;
        self.is_renamed = true;
        Ok(())
    }
}

impl Drop for Next {
    fn drop(&mut self) {
        if !self.is_renamed {
            // The next writer removes it, if this fails.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lock {
    Own,
    Taken,
    /// The file system has no locks.
    None,
}

fn lock(file: &File) -> Lock {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Lock::Own,
        Err(rustix::io::Errno::WOULDBLOCK) => Lock::Taken,
        Err(_) => Lock::None,
    }
}

/// Whether a path leads to this file.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |found: &Metadata| (found.dev(), found.ino());
    let at = path.symlink_metadata();
    let own = file.metadata();
    own.is_ok_and(|own| at.is_ok_and(|at| identity(&own) == identity(&at)))
}

/// Removes a new file whose writer was killed.
fn remove_abandoned(path: &Path) {
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path);
    let Ok(file) = opened else { return };
    let is_own = file
        .metadata()
        .is_ok_and(|found| found.is_file() && found.uid() == rustix::process::geteuid().as_raw());
    if is_own && lock(&file) == Lock::Own && is_at(&file, path) {
        // While it is locked, no other writer removes or renames it.
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::env;
    use std::io::Write as _;
    use std::os::unix::fs::{chown, symlink};
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, ExitStatus};
    use std::thread;

    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    /// The file that a child process of a test replaces.
    const OF_CHILD: &str = "WEIR_TEST_REPLACED";

    fn write(path: &Path, content: &[u8]) -> io::Result<()> {
        replace(path, 0o600, Survives::PowerLoss, |file| {
            file.write_all(content)
        })
    }

    fn names(folder: &Path) -> BTreeSet<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    fn only(name: &str) -> BTreeSet<String> {
        BTreeSet::from([name.to_owned()])
    }

    /// Runs a test of this module in a process that replaces `path`, behind commands of the shell.
    fn child(test: &str, commands: &str, path: &Path) -> ExitStatus {
        let output = Command::new("sh")
            .args(["-c", &format!("{commands} exec \"$@\""), "sh"])
            .arg(env::current_exe().unwrap())
            .args(["--exact", &format!("replace::tests::{test}")])
            .env(OF_CHILD, path)
            .output();
        output.unwrap().status
    }

    #[test]
    fn a_killed_writer_leaves_the_old_file_whole() {
        if let Some(path) = env::var_os(OF_CHILD) {
            let _ = replace(Path::new(&path), 0o600, Survives::PowerLoss, |file| {
                file.write_all(b"half of")?;
                kill_process(getpid(), Signal::KILL).unwrap();
                Ok(())
            });
            panic!("the process still runs");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        write(&path, b"old").unwrap();
        for _ in 0..3 {
            let status = child("a_killed_writer_leaves_the_old_file_whole", "", &path);
            assert_eq!(status.signal(), Some(9), "{status}");
            assert_eq!(fs::read(&path).unwrap(), b"old");
            // One abandoned file, however often a writer is killed.
            assert_eq!(names(folder.path()).len(), 2, "{:?}", names(folder.path()));
        }
        write(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(names(folder.path()), only("file"));
    }

    #[test]
    fn a_full_disk_leaves_the_old_file_and_nothing_else() {
        if let Some(path) = env::var_os(OF_CHILD) {
            let error = write(Path::new(&path), &[b'a'; 64 << 10]).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EFBIG), "{error}");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        write(&path, b"old").unwrap();
        // Writing more than 4 or 8 KiB into a file fails, as the shell counts blocks.
        let limited = "trap '' XFSZ; ulimit -f 8;";
        let status = child(
            "a_full_disk_leaves_the_old_file_and_nothing_else",
            limited,
            &path,
        );
        assert!(status.success(), "{status}");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(folder.path()), only("file"));
    }

    #[test]
    fn permissions_and_owner_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let access = || {
            let found = path.metadata().unwrap();
            (found.mode() & 0o7777, found.uid(), found.gid())
        };
        write(&path, b"first").unwrap();
        let (mode, own, group) = access();
        assert_eq!(mode, 0o600);
        fs::set_permissions(&path, Permissions::from_mode(0o664)).unwrap();
        write(&path, b"second").unwrap();
        assert_eq!(access(), (0o664, own, group));
        if !rustix::process::geteuid().is_root() {
            return;
        }
        chown(&path, Some(65_534), Some(65_533)).unwrap();
        write(&path, b"third").unwrap();
        assert_eq!(access(), (0o664, 65_534, 65_533));
        // Where everybody may create files, its maker is not given what is written.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o1777)).unwrap();
        write(&path, b"fourth").unwrap();
        assert_eq!(access(), (0o600, own, group));
        assert_eq!(fs::read(&path).unwrap(), b"fourth");
    }

    #[test]
    fn a_symbolic_link_is_replaced_and_its_target_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let [path, target] = ["file", "target"].map(|name| folder.path().join(name));
        fs::write(&target, "target").unwrap();
        fs::set_permissions(&target, Permissions::from_mode(0o666)).unwrap();
        symlink("target", &path).unwrap();
        write(&path, b"new").unwrap();
        let found = path.symlink_metadata().unwrap();
        assert!(
            found.is_file() && found.mode() & 0o777 == 0o600,
            "{found:?}"
        );
        assert_eq!(fs::read(&target).unwrap(), b"target");
        // A link in the new file's place leads nowhere else either.
        symlink("target", folder.path().join("file.next")).unwrap();
        write(&path, b"newer").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"newer");
        assert_eq!(fs::read(&target).unwrap(), b"target");
    }

    #[test]
    fn a_file_that_cannot_be_replaced_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::create_dir_all(path.join("content")).unwrap();
        assert!(write(&path, b"new").is_err());
        assert_eq!(names(folder.path()), only("file"));
        assert!(write(&folder.path().join("missing/file"), b"new").is_err());
        assert!(check(&folder.path().join("missing/file")).is_err());
        check(&path).unwrap();
        assert_eq!(names(folder.path()), only("file"));
    }

    #[test]
    fn the_longest_name_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let name = "a".repeat(255);
        let path = folder.path().join(&name);
        write(&path, b"old").unwrap();
        write(&path, b"new").unwrap();
        assert_eq!(names(folder.path()), only(&name));
    }

    #[test]
    fn concurrent_writers_leave_one_whole_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let content = |writer: u8| vec![writer; 10_000];
        write(&path, &content(0)).unwrap();
        thread::scope(|scope| {
            for writer in 0..8 {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..50 {
                        let bytes = content(writer);
                        replace(path, 0o600, Survives::Kill, |file| {
                            bytes
                                .chunks(1_000)
                                .try_for_each(|part| file.write_all(part))
                        })
                        .unwrap();
                        let found = fs::read(path).unwrap();
                        assert_eq!(found, content(found[0]));
                    }
                });
            }
        });
        assert_eq!(names(folder.path()), only("file"));
    }
}
