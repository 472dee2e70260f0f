//! What is left of the memory: in each cgroup that the agent is in, and on the host.
//!
//! The kernel charges BPF maps to the cgroup of the process that makes them, and kills a process of a cgroup that reaches
//! `memory.max` with nothing to reclaim, which a map never is. Above `memory.high` it only slows processes down: that is
//! reported, and refused nowhere.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Demand;
use crate::groups::mount;
use crate::human;

/// A limit on memory, and what is used of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The directory of the cgroup that sets it; `null` for the host's memory.
    pub cgroup: Option<PathBuf>,
    /// The file that says so.
    pub file: String,
    /// The limit.
    pub limit_bytes: u64,
    /// What is in use and cannot be reclaimed by dropping inactive files from the page cache.
    pub used_bytes: u64,
    /// What is not in use.
    pub left_bytes: u64,
}

impl Limit {
    fn new(cgroup: Option<&Path>, file: &str, limit_bytes: u64, used_bytes: u64) -> Self {
        let left_bytes = limit_bytes.saturating_sub(used_bytes);
        Self { cgroup: cgroup.map(Path::to_owned), file: file.to_owned(), limit_bytes, used_bytes, left_bytes }
    }

    /// Whether the cgroup is that of a systemd unit.
    pub(super) fn is_of_systemd(&self) -> bool {
        let kind = self.cgroup.as_ref().and_then(|path| path.extension());
        kind.is_some_and(|kind| kind == "service" || kind == "scope" || kind == "slice")
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (left, all) = (human::size(self.left_bytes), human::size(self.limit_bytes));
        match &self.cgroup {
            Some(path) => write!(formatter, "cgroup {} has {left} left of {} = {all}", path.display(), self.file),
            None => write!(formatter, "this host has {left} left of {all} ({})", self.file),
        }
    }
}

/// All limits on a process's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Limits that kill.
    pub limits: Vec<Limit>,
    /// Limits that slow down.
    pub high: Vec<Limit>,
    /// What could not be read.
    pub notes: Vec<String>,
}

/// The files of one version of cgroups.
struct Files {
    max: &'static str,
    high: Option<&'static str>,
    current: &'static str,
    inactive: &'static str,
}

const V1: Files = Files {
    max: "memory.limit_in_bytes",
    high: None,
    current: "memory.usage_in_bytes",
    inactive: "total_inactive_file",
};
const V2: Files =
    Files { max: "memory.max", high: Some("memory.high"), current: "memory.current", inactive: "inactive_file" };

/// A v1 limit above this is none: the kernel has the highest multiple of a page there.
const UNLIMITED: u64 = 1 << 62;

impl Room {
    /// Of this process.
    #[must_use]
    pub fn now() -> Self {
        Self::of(Path::new("/proc"))
    }

    /// Of the process that `proc` is shown to. A file that cannot be read sets no limit, and is noted.
    #[must_use]
    pub fn of(proc: &Path) -> Self {
        let mut room = Self::default();
        if let Err(error) = room.read_cgroups(proc) {
            room.notes
                .push(format!("the memory limit of this process's cgroup is not known, and not checked: {error}"));
        }
        match host(proc) {
            Ok(limit) => room.limits.push(limit),
            Err(error) => {
                room.notes.push(format!("the host's free memory is not known, and not checked: {error}"));
            }
        }
        room
    }

    /// Of the host alone.
    #[must_use]
    pub fn of_host() -> Self {
        let limits = Self::now().limits.into_iter().filter(|limit| limit.cgroup.is_none()).collect();
        Self { limits, ..Self::default() }
    }

    /// The limit that leaves the least.
    #[must_use]
    pub fn tightest(&self) -> Option<&Limit> {
        self.limits.iter().min_by_key(|limit| limit.left_bytes)
    }

    /// What an operator should know of a change that takes so much.
    #[must_use]
    pub fn notes_on(&self, demand: &Demand) -> Vec<String> {
        let slows = self.high.iter().find(|limit| demand.bytes() > limit.left_bytes);
        let slows = slows
            .map(|limit| format!("a change of {} was slowed down by the kernel: {limit}", human::size(demand.bytes())));
        self.notes.iter().cloned().chain(slows).collect()
    }

    fn read_cgroups(&mut self, proc: &Path) -> io::Result<()> {
        let mounts = read(&proc.join("self/mountinfo"))?;
        let mounts: Vec<_> = mounts.lines().filter_map(mount).collect();
        for line in read(&proc.join("self/cgroup"))?.lines() {
            let mut fields = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
                continue;
            };
            let is_memory = |options: &str| options.split(',').any(|option| option == "memory");
            let (files, root) = if controllers.is_empty() {
                (&V2, mounts.iter().find(|(kind, ..)| *kind == "cgroup2"))
            } else if is_memory(controllers) {
                (&V1, mounts.iter().find(|(kind, _, options)| *kind == "cgroup" && is_memory(options)))
            } else {
                continue;
            };
            let Some((_, root, _)) = root else { continue };
            // A path outside of what is mounted here begins with `/..`: what is mounted is the nearest that can be read.
            let own = root.join(path.trim_start_matches('/'));
            for directory in own.ancestors().take_while(|directory| directory.starts_with(root)) {
                self.read_limits(directory, files)?;
            }
        }
        Ok(())
    }

    fn read_limits(&mut self, directory: &Path, files: &Files) -> io::Result<()> {
        for file in std::iter::once(files.max).chain(files.high) {
            // Missing at the root, and where the controller is not enabled.
            let Some(bytes) = limit(&directory.join(file))? else { continue };
            let used = number(&read(&directory.join(files.current))?).unwrap_or(0);
            let statistics = read(&directory.join("memory.stat"))?;
            let inactive = statistics.lines().find_map(|line| number(line.strip_prefix(files.inactive)?)).unwrap_or(0);
            let limit = Limit::new(Some(directory), file, bytes, used.saturating_sub(inactive));
            if file == files.max { &mut self.limits } else { &mut self.high }.push(limit);
        }
        Ok(())
    }
}

fn read(path: &Path) -> io::Result<String> {
    fs::read_to_string(path)
        .map_err(|error| io::Error::new(error.kind(), format!("reading {}: {error}", path.display())))
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

fn limit(path: &Path) -> io::Result<Option<u64>> {
    match read(path) {
        Ok(text) => Ok(number(&text).filter(|bytes| *bytes < UNLIMITED)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn host(proc: &Path) -> io::Result<Limit> {
    let path = proc.join("meminfo");
    let text = read(&path)?;
    let kibibytes = |name: &str| {
        let value = text.lines().find_map(|line| number(line.strip_prefix(name)?.strip_suffix("kB")?));
        value.ok_or_else(|| io::Error::other(format!("{} has no {name}", path.display())))
    };
    let (all, available) = (kibibytes("MemTotal:")? << 10, kibibytes("MemAvailable:")? << 10);
    Ok(Limit::new(None, "MemAvailable in /proc/meminfo", all, all.saturating_sub(available)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host whose files are in a folder.
    struct Host(tempfile::TempDir);

    impl Host {
        fn new(files: &[(&str, &str)]) -> Self {
            let host = Self(tempfile::tempdir().unwrap());
            let root = host.0.path().display().to_string();
            for (path, text) in files {
                let path = host.0.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text.replace("ROOT", &root)).unwrap();
            }
            host
        }

        fn room(&self) -> Room {
            Room::of(&self.0.path().join("proc"))
        }
    }

    const MEMORY: (&str, &str) = ("proc/meminfo", "MemTotal:  8388608 kB\nMemFree: 1 kB\nMemAvailable:  4194304 kB\n");
    const V2_MOUNT: (&str, &str) = ("proc/self/mountinfo", "30 1 0:26 / ROOT/cg rw - cgroup2 cgroup2 rw\n");

    #[test]
    fn the_tightest_of_all_cgroups_above_counts_and_inactive_files_are_free() {
        let host = Host::new(&[
            MEMORY,
            V2_MOUNT,
            ("proc/self/cgroup", "0::/system.slice/weir.service\n"),
            ("cg/system.slice/weir.service/memory.max", "max\n"),
            ("cg/system.slice/weir.service/memory.high", "1000\n"),
            ("cg/system.slice/weir.service/memory.current", "900\n"),
            ("cg/system.slice/weir.service/memory.stat", "anon 5\ninactive_file 100\n"),
            ("cg/system.slice/memory.max", "1048576\n"),
            ("cg/system.slice/memory.current", "524288\n"),
            ("cg/system.slice/memory.stat", "inactive_file 24288\nactive_file 3\n"),
        ]);
        let room = host.room();
        assert_eq!(room.notes, Vec::<String>::new());
        let tightest = room.tightest().unwrap();
        assert_eq!((tightest.limit_bytes, tightest.left_bytes), (1_048_576, 548_576));
        let text = tightest.to_string();
        assert!(text.contains("cg/system.slice has 536 KiB left of memory.max = 1 MiB"), "{text}");
        assert_eq!((room.high.len(), room.high[0].left_bytes), (1, 200));
    }

    #[test]
    fn on_a_hybrid_host_the_hierarchy_with_the_controller_counts() {
        let mounts = "30 1 0:26 / ROOT/cg/unified rw - cgroup2 cgroup2 rw\n31 1 0:27 / ROOT/cg/memory rw - cgroup cgroup rw,memory\n";
        let host = Host::new(&[
            MEMORY,
            ("proc/self/mountinfo", mounts),
            ("proc/self/cgroup", "9:cpu:/x\n4:memory:/a/b\n0::/user.slice\n"),
            ("cg/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("cg/memory/a/memory.limit_in_bytes", "1000000\n"),
            ("cg/memory/a/memory.usage_in_bytes", "400000\n"),
            ("cg/memory/a/memory.stat", "inactive_file 7\ntotal_inactive_file 100000\n"),
            ("cg/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n"),
        ]);
        let room = host.room();
        assert_eq!(room.tightest().map(|limit| limit.left_bytes), Some(700_000), "{room:?}");
        assert_eq!(room.limits.len(), 2);
    }

    #[test]
    fn without_a_limit_the_host_counts_and_what_cannot_be_read_is_noted() {
        let room = Host::new(&[MEMORY, V2_MOUNT, ("proc/self/cgroup", "0::/../other\n")]).room();
        assert_eq!((room.tightest().unwrap().left_bytes, room.notes.len()), (4 << 30, 0));
        let room = Host::new(&[MEMORY]).room();
        assert_eq!((room.limits.len(), room.notes.len()), (1, 1), "{room:?}");
        let room = Host::new(&[("proc/meminfo", "MemTotal: 5 kB\n")]).room();
        assert_eq!((room.tightest(), room.notes.len()), (None, 2), "{room:?}");
    }
}
