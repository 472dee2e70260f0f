//! Bounded reads of files that operators name: configs, lists, databases, secrets.

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::libc;
use thiserror::Error;

/// The largest file of a secret, in bytes.
const LONGEST_SECRET: u64 = 4 << 10;
/// The name of standard input on the command line.
const STANDARD_INPUT: &str = "-";

/// A file cannot be read.
#[derive(Debug, Error)]
#[error("reading {name} failed: {problem}{}", fix(problem))]
pub struct ReadError {
    /// The path, or "standard input".
    name: String,
    problem: Problem,
}

#[derive(Debug, Error)]
enum Problem {
    #[error("{0}")]
    Io(io::Error),
    /// The kind of file that it is.
    #[error("it is {0}, not a regular file")]
    NotRegular(&'static str),
    #[error("it is larger than {}", bound(*.0))]
    TooLarge(u64),
    #[error("it is not UTF-8 text")]
    NotText,
    #[error("it is not one line of printable ASCII characters without spaces")]
    NotSecret,
}

impl ReadError {
    fn new(path: &Path, problem: Problem) -> Self {
        Self {
            name: path.display().to_string(),
            problem,
        }
    }

    /// The error without what to do, for callers that know better.
    #[must_use]
    pub fn without_fix(&self) -> String {
        format!("reading {} failed: {}", self.name, self.problem)
    }

    /// Why it cannot be read, without its name.
    #[must_use]
    pub fn reason(&self) -> String {
        self.problem.to_string()
    }

    /// Whether it is larger than the bound.
    #[must_use]
    pub const fn is_too_large(&self) -> bool {
        matches!(self.problem, Problem::TooLarge(_))
    }

    /// Whether it is there and is not what it should be: too large, no text, no regular file, or not readable by this user.
    #[must_use]
    pub fn is_of_content(&self) -> bool {
        match &self.problem {
            Problem::Io(error) => error.kind() == io::ErrorKind::PermissionDenied,
            _ => true,
        }
    }

    /// Whether there is no such file.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(&self.problem, Problem::Io(error) if matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
        ))
    }
}

fn fix(problem: &Problem) -> &'static str {
    match problem {
        Problem::Io(error) => match error.kind() {
            io::ErrorKind::NotFound => "; create it, or name another file",
            io::ErrorKind::PermissionDenied => "; allow this user to read it",
            _ => "",
        },
        Problem::NotRegular(_) => "; name a regular file",
        Problem::TooLarge(_) => "; name a smaller file",
        Problem::NotText => "; save it as UTF-8",
        Problem::NotSecret => "; write only the secret into it",
    }
}

/// A bound as text: bounds are whole KiB or MiB.
fn bound(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        _ if bytes >= 1 << 10 => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

/// A regular file, open for reading.
#[derive(Debug)]
pub struct RegularFile {
    name: PathBuf,
    file: File,
    metadata: Metadata,
}

impl RegularFile {
    /// Opens a file. Never blocks: a FIFO without a writer is an error, as is everything that may have no end.
    ///
    /// # Errors
    ///
    /// When it cannot be opened, or is not a regular file.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let fail = |problem| ReadError::new(path, problem);
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path);
        let file = opened.map_err(|error| {
            // Sockets and some devices cannot be opened, with errors that do not say so.
            let other = path.metadata().ok().and_then(|found| not_regular(&found));
            fail(other.unwrap_or(Problem::Io(error)))
        })?;
        // Of what is open: the path may lead elsewhere by now.
        let metadata = file.metadata().map_err(|error| fail(Problem::Io(error)))?;
        match not_regular(&metadata) {
            Some(problem) => Err(fail(problem)),
            None => Ok(Self {
                name: path.to_owned(),
                file,
                metadata,
            }),
        }
    }

    /// Of the open file.
    #[must_use]
    pub const fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Whether it begins with these bytes.
    #[must_use]
    pub fn starts_with(&self, bytes: &[u8]) -> bool {
        let mut start = vec![0; bytes.len()];
        self.file.read_exact_at(&mut start, 0).is_ok() && start == bytes
    }

    /// Reads the whole file.
    ///
    /// # Errors
    ///
    /// When it has more than `most` bytes, or a read fails.
    pub fn read(self, most: u64) -> Result<Vec<u8>, ReadError> {
        // The length is a hint: a file may grow meanwhile, and files of the kernel have none.
        let expected = self.metadata.len().min(most) + 1;
        bounded(self.file, expected, most).map_err(|problem| ReadError::new(&self.name, problem))
    }
}

fn not_regular(found: &Metadata) -> Option<Problem> {
    (!found.is_file()).then(|| Problem::NotRegular(kind(found.file_type())))
}

fn kind(kind: FileType) -> &'static str {
    if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

fn bounded(source: impl Read, expected: u64, most: u64) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::new();
    // Growing by doubling would temporarily take up to three times the memory.
    let reserved = bytes.try_reserve_exact(usize::try_from(expected).unwrap_or(usize::MAX));
    reserved.map_err(|_| Problem::Io(io::ErrorKind::OutOfMemory.into()))?;
    let read = source.take(most + 1).read_to_end(&mut bytes);
    read.map_err(Problem::Io)?;
    if bytes.len() as u64 > most {
        return Err(Problem::TooLarge(most));
    }
    Ok(bytes)
}

/// Reads a regular file of at most `most` bytes.
///
/// # Errors
///
/// When it cannot be read, is not a regular file, or is larger.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>, ReadError> {
    RegularFile::open(path)?.read(most)
}

/// Reads a regular file of at most `most` bytes as text.
///
/// # Errors
///
/// As for [`read`], and when it is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> Result<String, ReadError> {
    let bytes = read(path, most)?;
    String::from_utf8(bytes).map_err(|_| ReadError::new(path, Problem::NotText))
}

/// Reads a file with one secret. Spaces and line ends around it are ignored.
///
/// # Errors
///
/// As for [`read_text`], and when it is empty, or has more than one word.
pub fn read_secret(path: &Path) -> Result<String, ReadError> {
    let text = read_text(path, LONGEST_SECRET)?;
    let secret = text.trim();
    if secret.is_empty() || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(ReadError::new(path, Problem::NotSecret));
    }
    Ok(secret.to_owned())
}

/// The name of an argument in messages: its path, or "standard input" for `-`.
#[must_use]
pub fn argument_name(path: &Path) -> String {
    if path == Path::new(STANDARD_INPUT) {
        "standard input".to_owned()
    } else {
        path.display().to_string()
    }
}

/// Reads an argument of a command: a file of at most `most` bytes, a pipe such as `<(command)`, or standard input for `-`.
/// Waits for the writer of a FIFO, as `cat` does. The agent itself reads by [`read`].
///
/// # Errors
///
/// When it cannot be read, is a directory, or is larger.
pub fn read_argument(path: &Path, most: u64) -> Result<Vec<u8>, ReadError> {
    let read = || {
        if path == Path::new(STANDARD_INPUT) {
            return bounded(io::stdin().lock(), 0, most);
        }
        let file = File::open(path).map_err(Problem::Io)?;
        let metadata = file.metadata().map_err(Problem::Io)?;
        if metadata.is_dir() {
            return Err(Problem::NotRegular(kind(metadata.file_type())));
        }
        bounded(file, metadata.len().min(most) + 1, most)
    };
    read().map_err(|problem| ReadError {
        name: argument_name(path),
        problem,
    })
}

/// Reads an argument of a command as text.
///
/// # Errors
///
/// As for [`read_argument`], and when it is not UTF-8.
pub fn read_text_argument(path: &Path, most: u64) -> Result<String, ReadError> {
    let bytes = read_argument(path, most)?;
    String::from_utf8(bytes).map_err(|_| ReadError {
        name: argument_name(path),
        problem: Problem::NotText,
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixListener;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use nix::sys::stat::Mode;
    use nix::unistd::{Uid, mkfifo, setfsuid};

    use super::*;

    fn error(path: &Path) -> String {
        let error = read(path, 4 << 10).unwrap_err().to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
        error
    }

    #[test]
    fn only_regular_files_are_read_and_none_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let [fifo, socket] = ["fifo", "socket"].map(|name| folder.path().join(name));
        mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        let _server = UnixListener::bind(&socket).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        for (path, what) in [
            (fifo.as_path(), "a FIFO"),
            (socket.as_path(), "a socket"),
            (folder.path(), "a directory"),
            (Path::new("/dev/zero"), "a device"),
            (link.as_path(), "a device"),
        ] {
            let text = error(path);
            let words = format!("it is {what}, not a regular file; name a regular file");
            assert!(text.ends_with(&words), "{text}");
            assert!(read_secret(path).is_err());
        }
    }

    #[test]
    fn a_file_has_at_most_its_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, [b'a'; 4 << 10]).unwrap();
        assert_eq!(read(&path, 4 << 10).unwrap(), [b'a'; 4 << 10]);
        fs::write(&path, [b'a'; (4 << 10) + 1]).unwrap();
        let text = error(&path);
        assert!(
            text.ends_with("it is larger than 4 KiB; name a smaller file"),
            "{text}"
        );
        // A file of the kernel, whose length is 0.
        let boot = Path::new("/proc/sys/kernel/random/boot_id");
        assert_eq!(boot.metadata().unwrap().len(), 0);
        assert_eq!(read(boot, 37).unwrap().len(), 37);
        assert!(read(boot, 36).is_err());
    }

    #[test]
    fn a_file_that_grows_without_end_is_read_up_to_its_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut file = File::create(&path).unwrap();
        let opened = RegularFile::open(&path).unwrap();
        // It has grown beyond the bound since it was opened.
        file.write_all(&[b'a'; 5 << 10]).unwrap();
        assert_eq!(opened.metadata().len(), 0);
        assert!(opened.read(4 << 10).is_err());
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                // Bounded for a reader that is not.
                for _ in 0..4_096 {
                    if is_done.load(Ordering::Relaxed) {
                        break;
                    }
                    file.write_all(&[b'a'; 16 << 10]).unwrap();
                }
            });
            let text = error(&path);
            is_done.store(true, Ordering::Relaxed);
            assert!(text.contains("larger than 4 KiB"), "{text}");
        });
    }

    #[test]
    fn an_unreadable_and_a_missing_file_are_errors_that_say_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "a").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o000)).unwrap();
        let text = thread::scope(|scope| {
            let reading = scope.spawn(|| {
                // Of this thread only: without root's right to read everything.
                setfsuid(Uid::from_raw(65_534));
                error(&path)
            });
            reading.join().unwrap()
        });
        assert!(
            text.ends_with("Permission denied (os error 13); allow this user to read it"),
            "{text}"
        );
        let missing = read(&folder.path().join("missing"), 1).unwrap_err();
        assert!(missing.is_missing(), "{missing}");
        assert!(
            missing
                .to_string()
                .ends_with("; create it, or name another file")
        );
        // Regular, and without content at its start.
        let broken = read(Path::new("/proc/self/mem"), 1).unwrap_err();
        assert!(broken.reason().contains("os error 5"), "{broken}");
        assert!(!broken.is_missing());
    }

    #[test]
    fn a_secret_is_one_word() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        fs::write(&path, " s3cret\n").unwrap();
        assert_eq!(read_secret(&path).unwrap(), "s3cret");
        for content in ["", "\n", "two words", "a\r\nX-Other: b", "schlüssel"] {
            fs::write(&path, content).unwrap();
            let text = read_secret(&path).unwrap_err().to_string();
            assert!(text.contains("not one line of printable ASCII"), "{text}");
            assert!(!text.contains("words") && !text.contains("Other"), "{text}");
        }
        fs::write(&path, [b'a'; (4 << 10) + 1]).unwrap();
        let text = read_secret(&path).unwrap_err().to_string();
        assert!(text.contains("larger than 4 KiB"), "{text}");
        fs::write(&path, [0xff]).unwrap();
        let text = read_secret(&path).unwrap_err().to_string();
        assert!(text.contains("not UTF-8 text; save it as UTF-8"), "{text}");
    }

    #[test]
    fn an_argument_may_be_a_pipe_and_has_a_bound_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| fs::write(&fifo, "192.0.2.1\n").unwrap());
            assert_eq!(read_text_argument(&fifo, 10).unwrap(), "192.0.2.1\n");
        });
        let text = read_argument(Path::new("/dev/zero"), 1 << 20)
            .unwrap_err()
            .to_string();
        assert!(text.contains("larger than 1 MiB"), "{text}");
        let text = read_argument(folder.path(), 1).unwrap_err().to_string();
        assert!(text.contains("a directory"), "{text}");
    }
}
