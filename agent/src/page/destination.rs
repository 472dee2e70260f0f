//! The file of a page, which is replaced as a whole.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use host::replace::{self, Survives, replace};
use thiserror::Error;

/// The permissions of a new page, less the umask.
const MODE: u32 = 0o666;

/// A page cannot be written.
#[derive(Debug, Error)]
pub enum PageError {
    #[error("cannot write {path:?}: {source}")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The path is that of a capture or a config.
    #[error("--html {path:?} is also read: name another file")]
    IsRead { path: PathBuf },
}

/// Where a page is written.
#[derive(Debug)]
pub enum Destination {
    /// Standard output: `-`.
    Standard,
    File(PathBuf),
}

impl Destination {
    /// A path, or `-` for standard output.
    ///
    /// # Errors
    ///
    /// When the file cannot be written, or is one of those that are `read`. Its content is not changed.
    pub fn new(path: &Path, read: &[&Path]) -> Result<Self, PageError> {
        if path == Path::new("-") {
            return Ok(Self::Standard);
        }
        let error = |source| PageError::Write {
            path: path.to_owned(),
            source,
        };
        let identity = |path: &Path| {
            fs::metadata(path)
                .ok()
                .map(|metadata| (metadata.dev(), metadata.ino()))
        };
        let own = identity(path);
        if own.is_some() && read.iter().any(|read| identity(read) == own) {
            return Err(PageError::IsRead {
                path: path.to_owned(),
            });
        }
        // Found now, and not when hours of packets have been read.
        match target(path).map_err(error)? {
            Target::Replaced => replace::check(path).map_err(error)?,
            // A pipe's reader would take this for the end.
            Target::Written
                if fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo()) => {}
            Target::Written => drop(OpenOptions::new().write(true).open(path).map_err(error)?),
        }
        Ok(Self::File(path.to_owned()))
    }

    /// Writes a page.
    ///
    /// # Errors
    ///
    /// When that fails; an existing regular file is then unchanged.
    pub fn write(&self, page: &str) -> Result<(), PageError> {
        match self {
            Self::Standard => {
                let mut out = io::stdout().lock();
                let written = out.write_all(page.as_bytes()).and_then(|()| out.flush());
                written.map_err(|source| PageError::Write {
                    path: "-".into(),
                    source,
                })
            }
            Self::File(path) => write(path, page).map_err(|source| PageError::Write {
                path: path.clone(),
                source,
            }),
        }
    }
}

/// How a path is written.
enum Target {
    /// By a new file that is renamed to it: a regular file, or none.
    Replaced,
    /// In place: a device, a pipe, or a symbolic link. The kernel decides whether a link may be followed
    /// (`fs.protected_symlinks`).
    Written,
}

fn target(path: &Path) -> io::Result<Target> {
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(found) if found.is_file() => Ok(Target::Replaced),
        Ok(_) => Ok(Target::Written),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Target::Replaced),
        Err(error) => Err(error),
    }
}

fn write(path: &Path, page: &str) -> io::Result<()> {
    match target(path)? {
        Target::Written => OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(path)?
            .write_all(page.as_bytes()),
        Target::Replaced => replace(path, MODE, Survives::PowerLoss, |file| {
            file.write_all(page.as_bytes())
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_page_replaces_a_file_as_a_whole_and_leaves_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page.html");
        for page in ["first, and longer", "second"] {
            let destination = Destination::new(&path, &[]).unwrap();
            assert!(
                page.starts_with("first")
                    || fs::read_to_string(&path).unwrap().starts_with("first")
            );
            destination.write(page).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), page);
        }
        let link = folder.path().join("link.html");
        std::os::unix::fs::symlink("page.html", &link).unwrap();
        Destination::new(&link, &[])
            .unwrap()
            .write("third")
            .unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "third");
        assert!(link.symlink_metadata().unwrap().is_symlink());
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        Destination::new(&path, &[])
            .unwrap()
            .write("fourth")
            .unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(names(folder.path()), ["link.html", "page.html"]);
    }

    #[test]
    fn a_page_never_replaces_what_is_read_nor_a_device() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("day.pcap"), folder.path().join("link"));
        fs::write(&path, "packets").unwrap();
        fs::hard_link(&path, &link).unwrap();
        let error = Destination::new(&link, &[Path::new("missing"), &path]).unwrap_err();
        assert!(error.to_string().contains("is also read"), "{error}");
        Destination::new(Path::new("/dev/null"), &[])
            .unwrap()
            .write("page")
            .unwrap();
        assert!(!Path::new("/dev/null").metadata().unwrap().is_file());
        assert_eq!(fs::read_to_string(&path).unwrap(), "packets");
    }

    #[test]
    fn a_page_that_cannot_be_written_is_an_error_at_the_start() {
        let folder = tempfile::tempdir().unwrap();
        for (path, words) in [
            ("missing/page.html", "No such file"),
            ("", "directory"),
            ("..", "directory"),
        ] {
            let path = folder.path().join(path);
            let error = Destination::new(&path, &[]).unwrap_err().to_string();
            assert!(
                error.contains(words) && error.contains(&format!("{path:?}")),
                "{error}"
            );
        }
        assert!(names(folder.path()).is_empty());
    }
}
