//! Reads processes in /proc. A process may end at any moment: values that cannot be read are `None`.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::str::SplitWhitespace;

/// The most listings of a process's threads. The kernel ends a list early where a thread ends meanwhile.
const MOST_LISTINGS: usize = 100;

/// A process that may have ended.
#[derive(Clone, Debug)]
pub struct Process {
    pub pid: u32,
    folder: PathBuf,
}

/// A process's cgroup in one hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The hierarchy's controllers, separated by commas; empty for the unified one.
    pub controllers: String,
    /// The cgroup's path from the hierarchy's root.
    pub path: String,
}

/// Whether the process must never be moved: the agent, which could freeze or throttle itself, and process 1.
pub fn is_untouchable(pid: u32) -> bool {
    pid == std::process::id() || pid == 1
}

impl Process {
    /// The process `pid` of the /proc at `proc`.
    #[must_use]
    pub fn new(proc: &Path, pid: u32) -> Self {
        Self {
            pid,
            folder: proc.join(pid.to_string()),
        }
    }

    /// A file of the process. Users choose names and arguments, which need not be UTF-8.
    fn text(&self, file: &str) -> Option<String> {
        Some(String::from_utf8_lossy(&fs::read(self.folder.join(file)).ok()?).into_owned())
    }

    /// All processes.
    #[must_use]
    pub fn all(proc: &Path) -> Vec<Self> {
        let entries = fs::read_dir(proc).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| Some(Self::new(proc, entry.file_name().to_str()?.parse().ok()?)))
            .collect()
    }

    /// Its executable; `None` for kernel threads, which belong to no group.
    #[must_use]
    pub fn exe(&self) -> Option<PathBuf> {
        let path = fs::read_link(self.folder.join("exe")).ok()?;
        // An executable that was replaced on disk still matches.
        let bytes = path.as_os_str().as_bytes();
        Some(
            bytes
                .strip_suffix(b" (deleted)")
                .map_or_else(|| path.clone(), |bytes| OsStr::from_bytes(bytes).into()),
        )
    }

    /// The ID of its user.
    #[must_use]
    pub fn user(&self) -> Option<u32> {
        fs::metadata(&self.folder)
            .ok()
            .map(|metadata| metadata.uid())
    }

    /// Its arguments, joined by spaces.
    #[must_use]
    pub fn command(&self) -> Option<String> {
        Some(
            self.text("cmdline")?
                .trim_end_matches('\0')
                .replace('\0', " "),
        )
    }

    /// Its cgroup in each hierarchy.
    #[must_use]
    pub fn cgroups(&self) -> Vec<Membership> {
        let text = self.text("cgroup").unwrap_or_default();
        let line = |line: &str| {
            let mut parts = line.splitn(3, ':').skip(1);
            Some(Membership {
                controllers: parts.next()?.to_owned(),
                path: parts.next()?.to_owned(),
            })
        };
        text.lines().filter_map(line).collect()
    }

    /// Its parent, and its start in jiffies since boot, which distinguishes it from a later process with the same ID.
    #[must_use]
    pub fn parent_and_start(&self) -> Option<(u32, u64)> {
        let text = self.text("stat")?;
        let mut fields = stat_fields(&text)?;
        Some((fields.nth(1)?.parse().ok()?, fields.nth(17)?.parse().ok()?))
    }

    /// Its living children: those of each of its threads.
    #[must_use]
    pub fn children(&self) -> BTreeSet<u32> {
        let mut children = BTreeSet::new();
        for _ in 0..MOST_LISTINGS {
            let before = self.threads();
            let tasks: Vec<PathBuf> = fs::read_dir(self.folder.join("task"))
                .into_iter()
                .flatten()
                .flatten()
                .map(|task| task.path().join("children"))
                .collect();
            let texts = tasks.iter().map(fs::read_to_string).filter_map(Result::ok);
            for text in texts {
                children.extend(
                    text.split_whitespace()
                        .filter_map(|pid| pid.parse::<u32>().ok()),
                );
            }
            if before.is_none_or(|before| before == tasks.len()) && before == self.threads() {
                break;
            }
        }
        children
    }

    /// The number of its threads.
    fn threads(&self) -> Option<usize> {
        stat_fields(&self.text("stat")?)?.nth(17)?.parse().ok()
    }
}

/// The fields of `stat` behind the name in parentheses, which may contain anything; they contain no parenthesis.
fn stat_fields(text: &str) -> Option<SplitWhitespace<'_>> {
    Some(text.rsplit_once(')')?.1.split_whitespace())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::tests::without_new_processes;

    #[test]
    fn this_process_is_what_it_is() {
        let own = Process::new(Path::new("/proc"), std::process::id());
        assert_eq!(own.exe(), std::env::current_exe().ok());
        assert_eq!(own.user(), Some(nix::unistd::geteuid().as_raw()));
        assert!(own.command().unwrap().contains("cgroup"));
        assert!(!own.cgroups().is_empty());
        assert_eq!(
            own.parent_and_start().unwrap().0,
            std::os::unix::process::parent_id()
        );
        assert!(
            Process::all(Path::new("/proc"))
                .iter()
                .any(|process| process.pid == own.pid)
        );
        let guard = without_new_processes();
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        drop(guard);
        assert!(own.children().contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// The kernel's list of threads ends early where one of them ends meanwhile.
    #[test]
    fn children_are_found_while_threads_end() {
        const THREADS: u64 = 300;
        let own = Process::new(Path::new("/proc"), std::process::id());
        for _ in 0..5 {
            let (own, _guard) = (own.clone(), without_new_processes());
            let ending: Vec<_> = (0..THREADS)
                .map(|nth| {
                    std::thread::spawn(move || {
                        std::thread::sleep(Duration::from_micros(20_000 + 200 * nth));
                    })
                })
                .collect();
            // A child of a thread that is behind them in the list.
            let last = std::thread::spawn(move || {
                let mut child = std::process::Command::new("sleep")
                    .arg("60")
                    .spawn()
                    .unwrap();
                while !ending.iter().all(std::thread::JoinHandle::is_finished) {
                    assert!(own.children().contains(&child.id()));
                }
                child.kill().unwrap();
                child.wait().unwrap();
            });
            last.join().unwrap();
        }
    }

    #[test]
    fn a_process_that_names_itself_and_its_cgroup_in_no_encoding_hides_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |file: &str, text: &[u8]| fs::write(folder.path().join("7").join(file), text).unwrap();
        fs::create_dir(folder.path().join("7")).unwrap();
        write("cmdline", b"sh\0nightly\0\xff\0");
        write(
            "cgroup",
            b"0::/user.slice/user-7.slice/user@7.service/\xff\n",
        );
        write(
            "stat",
            &[b"7 (\xff) x) S 3 ", "0 ".repeat(17).as_bytes(), b"500 0\n"].concat(),
        );
        let process = Process::new(folder.path(), 7);
        assert!(process.command().unwrap().starts_with("sh nightly "));
        assert!(
            process.cgroups()[0]
                .path
                .starts_with("/user.slice/user-7.slice/user@7.service/")
        );
        assert_eq!(process.parent_and_start(), Some((3, 500)));
    }
}
