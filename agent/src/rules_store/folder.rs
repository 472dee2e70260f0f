//! A folder: a local one, a network file system, or a checkout.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use host::read;
use host::replace::{Survives, replace};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::libc;

use super::store::{Found, MOST_BYTES, SETTLES, Store, StoreError};

/// The permissions of a new object, less the umask.
const MODE: u32 = 0o666;
/// The end of the name of the file that writers lock.
const LOCK: &str = ".lock";

/// How long a change waits for another writer: one that has stopped stops no other.
const PATIENCE: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(20);

pub(super) struct Folder {
    path: PathBuf,
    /// Whether the last change was made while no other was.
    is_locked: bool,
}

impl Folder {
    pub(super) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            is_locked: true,
        }
    }

    fn text(&self, name: &str) -> Result<Option<String>, StoreError> {
        match read::read_text(&self.path.join(name), MOST_BYTES) {
            Ok(text) => Ok(Some(text)),
            // Not that of a folder which is not mounted.
            Err(error) if error.is_missing() && self.path.is_dir() => Ok(None),
            Err(error) if error.is_of_content() => Err(StoreError::Invalid {
                name: name.to_owned(),
                reason: error.reason(),
            }),
            Err(_) if !self.path.is_dir() => Err(self.no_folder()),
            Err(error) => Err(StoreError::Unavailable(error.to_string())),
        }
    }

    fn no_folder(&self) -> StoreError {
        let folder = self.path.display();
        StoreError::Unavailable(format!("{folder} is no folder; create or mount it"))
    }

    fn prepare(&self, name: &str) -> Result<PathBuf, StoreError> {
        let path = self.path.join(name);
        if !self.path.is_dir() {
            return Err(self.no_folder());
        }
        let folder = path.parent().unwrap_or(&self.path);
        fs::create_dir_all(folder).map_err(|error| not_written(folder, &error))?;
        Ok(path)
    }
}

impl Store for Folder {
    fn read(&mut self, name: &str, tag: Option<&str>) -> Result<Found, StoreError> {
        Ok(Found::of_text(self.text(name)?, tag))
    }

    fn write(&mut self, name: &str, text: &str) -> Result<(), StoreError> {
        let path = self.prepare(name)?;
        let written = replace(&path, MODE, Survives::PowerLoss, |file| {
            file.write_all(text.as_bytes())
        });
        written.map_err(|error| not_written(&path, &error))
    }

    fn change(
        &mut self,
        name: &str,
        change: &mut dyn FnMut(Option<&str>) -> Result<String, StoreError>,
    ) -> Result<(), StoreError> {
        let path = self.prepare(&format!("{name}{LOCK}"))?;
        let lock = lock(&path)?;
        self.is_locked = lock.is_some();
        let before = self.text(name)?;
        let text = change(before.as_deref())?;
        self.write(name, &text)
    }

    fn settles(&self) -> Option<Duration> {
        (!self.is_locked).then_some(SETTLES)
    }

    fn list(&mut self, folder: &str) -> Result<Vec<String>, StoreError> {
        let path = self.path.join(folder);
        let failed = |error: io::Error| {
            StoreError::Unavailable(format!("reading {} failed: {error}", path.display()))
        };
        let entries = match fs::read_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.path.is_dir() => {
                return Ok(Vec::new());
            }
            entries => entries.map_err(failed)?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            names.extend(name.to_str().map(str::to_owned));
        }
        Ok(names)
    }
}

/// Waits for other writers of this host, and of others where the file system has locks for them. `None` without locks, and
/// behind a writer that keeps the lock: then one of two reports at once may be lost, which is sent again.
fn lock(path: &Path) -> Result<Option<Flock<File>>, StoreError> {
    // Other writers may have put a link or a FIFO there.
    let opened = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path);
    let mut file = opened.map_err(|error| not_written(path, &error))?;
    let until = Instant::now() + PATIENCE;
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(Some(lock)),
            Err((file, Errno::EWOULDBLOCK)) if Instant::now() < until => file,
            Err(_) => return Ok(None),
        };
        thread::sleep(STEP);
    }
}

fn not_written(path: &Path, error: &io::Error) -> StoreError {
    let message = format!("writing {} failed: {error}", path.display());
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            StoreError::ReadOnly(format!("{message}; let this host write there"))
        }
        _ => StoreError::ReadOnly(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_read_as_they_were_written() {
        let root = tempfile::tempdir().unwrap();
        let mut folder = Folder::new(root.path());
        assert_eq!(folder.read("web/index", None), Ok(Found::Missing));
        assert_eq!(folder.list("web/reports"), Ok(Vec::new()));
        folder.write("web/reports/a", "one").unwrap();
        folder.write("web/index", "two").unwrap();
        let Ok(Found::Object(object)) = folder.read("web/index", None) else {
            panic!("no object");
        };
        assert_eq!(object.text, "two");
        let again = folder.read("web/index", object.tag.as_deref());
        assert_eq!(again, Ok(Found::Unchanged));
        assert_eq!(folder.list("web/reports"), Ok(vec!["a".to_owned()]));
    }

    #[test]
    fn no_change_of_several_writers_is_lost() {
        let root = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let path = root.path();
                scope.spawn(move || {
                    let mut folder = Folder::new(path);
                    for nth in 0..20 {
                        let mut add = |before: Option<&str>| {
                            Ok(format!("{}{writer}.{nth}\n", before.unwrap_or_default()))
                        };
                        folder.change("web/index", &mut add).unwrap();
                    }
                });
            }
        });
        let text = fs::read_to_string(root.path().join("web/index")).unwrap();
        assert_eq!(text.lines().count(), 80, "{text}");
    }

    #[test]
    fn a_lock_that_is_kept_delays_a_change_and_a_link_is_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let mut folder = Folder::new(root.path());
        let mut one = |_: Option<&str>| Ok("one".to_owned());
        folder.change("web/index", &mut one).unwrap();
        assert_eq!(folder.settles(), None);
        let path = root.path().join("web/index.lock");
        let kept = lock(&path).unwrap().unwrap();
        folder.change("web/index", &mut one).unwrap();
        assert_eq!(folder.settles(), Some(SETTLES));
        drop(kept);
        folder.change("web/index", &mut one).unwrap();
        assert_eq!(folder.settles(), None);
        fs::remove_file(&path).unwrap();
        let other = root.path().join("other");
        std::os::unix::fs::symlink(&other, &path).unwrap();
        assert!(folder.change("web/index", &mut one).is_err());
        assert!(!other.exists());
        fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(folder.change("web/index", &mut one).is_err());
    }

    #[test]
    fn an_object_that_is_no_bounded_text_is_invalid() {
        let root = tempfile::tempdir().unwrap();
        let mut folder = Folder::new(root.path());
        fs::write(root.path().join("bytes"), [0xff]).unwrap();
        fs::create_dir(root.path().join("folder")).unwrap();
        let large = File::create(root.path().join("large")).unwrap();
        large.set_len(MOST_BYTES + 1).unwrap();
        for name in ["bytes", "folder", "large"] {
            let error = folder.read(name, None).unwrap_err();
            assert!(matches!(error, StoreError::Invalid { .. }), "{error}");
        }
    }

    #[test]
    fn a_folder_that_is_missing_is_no_empty_store() {
        let mut folder = Folder::new(Path::new("/nonexistent/rules"));
        let error = folder.read("web/index", None).unwrap_err();
        assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
        assert!(folder.write("web/index", "").is_err());
    }
}
