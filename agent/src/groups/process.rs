//! What /proc says of a process. A process may end at any moment: what cannot be read any more is `None`.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A process that was there a moment ago.
#[derive(Clone, Debug)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    folder: PathBuf,
}

/// Where a process is in one hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The hierarchy's controllers, separated by commas; empty for the unified one.
    pub controllers: String,
    /// The cgroup's path from the hierarchy's root.
    pub path: String,
}

impl Process {
    /// The process `pid` of the /proc at `proc`.
    #[must_use]
    pub fn new(proc: &Path, pid: u32) -> Self {
        Self { pid, folder: proc.join(pid.to_string()) }
    }

    /// All processes there are.
    #[must_use]
    pub fn all(proc: &Path) -> Vec<Self> {
        let entries = fs::read_dir(proc).into_iter().flatten().flatten();
        entries.filter_map(|entry| Some(Self::new(proc, entry.file_name().to_str()?.parse().ok()?))).collect()
    }

    /// Its executable; `None` for the kernel's own threads, which belong in no group.
    #[must_use]
    pub fn exe(&self) -> Option<PathBuf> {
        let path = fs::read_link(self.folder.join("exe")).ok()?;
        // An executable that was replaced on disk is still the one that was meant.
        let bytes = path.as_os_str().as_bytes();
        Some(bytes.strip_suffix(b" (deleted)").map_or_else(|| path.clone(), |bytes| OsStr::from_bytes(bytes).into()))
    }

    /// The user it runs as.
    #[must_use]
    pub fn user(&self) -> Option<u32> {
        fs::metadata(&self.folder).ok().map(|metadata| metadata.uid())
    }

    /// Its arguments, joined by spaces.
    #[must_use]
    pub fn command(&self) -> Option<String> {
        let bytes = fs::read(self.folder.join("cmdline")).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        Some(text.trim_end_matches('\0').replace('\0', " "))
    }

    /// Where it is in each hierarchy.
    #[must_use]
    pub fn cgroups(&self) -> Vec<Membership> {
        let text = fs::read_to_string(self.folder.join("cgroup")).unwrap_or_default();
        let line = |line: &str| {
            let mut parts = line.splitn(3, ':').skip(1);
            Some(Membership { controllers: parts.next()?.to_owned(), path: parts.next()?.to_owned() })
        };
        text.lines().filter_map(line).collect()
    }

    /// Its parent, and when it started, in jiffies since boot: the number of a process that has ended is given out again,
    /// its start is not.
    #[must_use]
    pub fn parent_and_start(&self) -> Option<(u32, u64)> {
        let text = fs::read_to_string(self.folder.join("stat")).ok()?;
        // The name, in parentheses, may hold anything; what follows the last one does not.
        let mut fields = text.rsplit_once(')')?.1.split_whitespace();
        Some((fields.nth(1)?.parse().ok()?, fields.nth(17)?.parse().ok()?))
    }

    /// The processes it has forked and not yet lost.
    #[must_use]
    pub fn children(&self) -> Vec<u32> {
        let tasks = fs::read_dir(self.folder.join("task")).into_iter().flatten().flatten();
        let texts = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        texts.flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_what_it_is() {
        let own = Process::new(Path::new("/proc"), std::process::id());
        assert_eq!(own.exe(), std::env::current_exe().ok());
        assert_eq!(own.user(), Some(nix::unistd::geteuid().as_raw()));
        assert!(own.command().unwrap().contains("weir"));
        assert!(!own.cgroups().is_empty());
        assert_eq!(own.parent_and_start().unwrap().0, std::os::unix::process::parent_id());
        assert!(Process::all(Path::new("/proc")).iter().any(|process| process.pid == own.pid));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(own.children().contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
