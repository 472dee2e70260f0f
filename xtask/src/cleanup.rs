//! Removes the leftovers of interrupted tests: network namespaces with their processes, pinned programs and maps, and
//! cgroups.
//!
//! Only names of tests are touched: `weir-t`, at most one more letter, and the ID of the process that made it, or
//! `weir-t` and a dash. Those of running tests are skipped.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const PREFIX: &str = "weir-t";
/// How long a process may take to end after each signal.
const PATIENCE: Duration = Duration::from_secs(2);

/// Removes every leftover; returns what was removed, or an error that names what could not be removed.
pub fn run() -> Result<Vec<String>> {
    Places::of_this_machine().clean()
}

/// The locations of leftovers.
struct Places {
    namespaces: PathBuf,
    pins: PathBuf,
    hierarchies: Vec<PathBuf>,
}

#[derive(Default)]
struct Report {
    removed: Vec<String>,
    failed: Vec<String>,
}

impl Places {
    fn of_this_machine() -> Self {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        Self {
            namespaces: "/run/netns".into(),
            pins: "/sys/fs/bpf".into(),
            hierarchies: cgroup_mounts(&mounts),
        }
    }

    fn clean(&self) -> Result<Vec<String>> {
        let mut report = Report::default();
        for namespace in leftovers(&self.namespaces) {
            report.add("namespace", &namespace, remove_namespace(&namespace));
        }
        for pin in leftovers(&self.pins) {
            report.add("pins", &pin, remove_pins(&pin));
        }
        for cgroup in self
            .hierarchies
            .iter()
            .flat_map(|hierarchy| leftovers(hierarchy))
        {
            report.add("cgroup", &cgroup, remove_cgroup(&cgroup));
        }
        if !report.failed.is_empty() {
            bail!("cleaning up after the tests: {}", report.failed.join("; "));
        }
        Ok(report.removed)
    }
}

impl Report {
    fn add(&mut self, kind: &str, path: &Path, outcome: io::Result<usize>) {
        match outcome {
            Ok(0) => self.removed.push(format!("{kind} {}", path.display())),
            Ok(ended) => self.removed.push(format!(
                "{kind} {}, with {ended} processes in it",
                path.display()
            )),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => self
                .failed
                .push(format!("removing {kind} {}: {error}", path.display())),
        }
    }
}

/// The entries of a folder with the name of a test that has ended.
fn leftovers(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let is_leftover = |name: &OsString| {
        name.to_str()
            .is_some_and(|name| is_of_a_test(name) && !is_in_use(name))
    };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| is_leftover(&entry.file_name()))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

fn is_of_a_test(name: &str) -> bool {
    name == PREFIX
        || name
            .strip_prefix(PREFIX)
            .is_some_and(|rest| rest.starts_with('-'))
        || maker(name).is_some()
}

/// Whether the process ID in a name is that of a running test program of cargo.
fn is_in_use(name: &str) -> bool {
    let program =
        maker(name).and_then(|process| fs::read_link(format!("/proc/{process}/exe")).ok());
    program.is_some_and(|program| {
        program
            .parent()
            .is_some_and(|folder| folder.ends_with("deps"))
    })
}

/// The process ID in a name.
fn maker(name: &str) -> Option<u32> {
    let rest = name.strip_prefix(PREFIX)?;
    let rest = rest
        .strip_prefix(|letter: char| letter.is_ascii_lowercase())
        .unwrap_or(rest);
    let end = rest.bytes().take_while(u8::is_ascii_digit).count();
    rest[..end].parse().ok()
}

/// The roots of the cgroup hierarchies among lines of /proc/self/mounts.
fn cgroup_mounts(mounts: &str) -> Vec<PathBuf> {
    let fields = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    fields
        .filter(|fields| {
            fields
                .get(2)
                .is_some_and(|kind| matches!(*kind, "cgroup" | "cgroup2"))
        })
        .filter_map(|fields| fields.get(1).map(PathBuf::from))
        .collect()
}

/// Ends the processes in a namespace and removes its name, and with it the contents.
fn remove_namespace(name: &Path) -> io::Result<usize> {
    let ended = end(&processes_in(name)?);
    match umount2(name, MntFlags::MNT_DETACH) {
        // Only the name exists: its mount is in another mount namespace, or gone.
        Ok(()) | Err(Errno::EINVAL) => {}
        Err(error) => return Err(error.into()),
    }
    fs::remove_file(name)?;
    Ok(ended)
}

/// The processes in a namespace; none if it is that of the machine itself.
fn processes_in(name: &Path) -> io::Result<BTreeSet<i32>> {
    let identity = |path: &Path| {
        path.metadata()
            .map(|metadata| (metadata.dev(), metadata.ino()))
    };
    let namespace = identity(name)?;
    let of_process =
        |process: &str| identity(&Path::new("/proc").join(process).join("ns/net")).ok();
    if ["1", "self"]
        .iter()
        .any(|process| of_process(process) == Some(namespace))
    {
        return Ok(BTreeSet::new());
    }
    let names = fs::read_dir("/proc")?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names
        .filter(|name| of_process(name) == Some(namespace))
        .filter_map(|name| name.parse().ok())
        .collect())
}

fn remove_pins(path: &Path) -> io::Result<usize> {
    let is_folder = path.symlink_metadata()?.is_dir();
    let outcome = if is_folder {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    };
    outcome.map(|()| 0)
}

/// Ends the processes in a cgroup and those below, and removes them from the leaves up. Their files belong to the
/// kernel and disappear with the folder.
fn remove_cgroup(folder: &Path) -> io::Result<usize> {
    let mut ended = 0;
    for entry in fs::read_dir(folder)?.flatten() {
        if entry.file_type()?.is_dir() {
            ended += remove_cgroup(&entry.path())?;
        }
    }
    let members = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    ended += end(&members
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect());
    let deadline = Instant::now() + PATIENCE;
    loop {
        match fs::remove_dir(folder) {
            // The kernel removes an ended process from its cgroup with a delay.
            Err(error) if error.kind() == ErrorKind::ResourceBusy && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(20));
            }
            outcome => return outcome.map(|()| ended),
        }
    }
}

/// Sends SIGTERM to processes, then SIGKILL; returns their number. Skips this program and its parents.
fn end(processes: &BTreeSet<i32>) -> usize {
    let spared = ancestry(std::process::id());
    let mut left: Vec<Pid> = processes
        .iter()
        .filter(|process| !spared.contains(process))
        .map(|process| Pid::from_raw(*process))
        .collect();
    let count = left.len();
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        for process in &left {
            // The process may have ended.
            let _ = kill(*process, signal);
        }
        let deadline = Instant::now() + PATIENCE;
        while !left.is_empty() && Instant::now() < deadline {
            left.retain(|process| is_running(*process));
            thread::sleep(Duration::from_millis(20));
        }
    }
    count
}

/// Whether a process runs; zombies do not.
fn is_running(process: Pid) -> bool {
    stat(process.as_raw()).is_some_and(|fields| fields.first().is_some_and(|state| state != "Z"))
}

/// A process, its parents, and always the first process.
fn ancestry(process: u32) -> BTreeSet<i32> {
    let mut line = BTreeSet::from([1]);
    let mut next = i32::try_from(process).ok();
    while let Some(process) = next.filter(|process| *process > 1) {
        line.insert(process);
        next = stat(process).and_then(|fields| fields.get(1)?.parse().ok());
    }
    line
}

/// State, parent and so on from /proc/PID/stat; the name before them may contain anything, also brackets.
fn stat(process: i32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    Some(
        text.rsplit_once(") ")?
            .1
            .split(' ')
            .map(str::to_owned)
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use std::process::{Command, id};

    use super::*;

    /// A folder of this test, removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("xtask-cleanup-{name}-{}", id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn only_what_bears_the_name_of_a_test_is_removed() {
        let folder = Folder::new("names");
        let make = |names: &[&str]| {
            for name in names {
                fs::create_dir_all(folder.0.join("pins").join(name)).unwrap();
                fs::create_dir_all(folder.0.join("cgroup").join(name)).unwrap();
            }
        };
        let (theirs, ours) = (
            ["weir", "weir-tables", "not-weir-t-a"],
            ["weir-t", "weir-t-a/b/c", "weir-tk99999999-a"],
        );
        make(&theirs);
        make(&ours);
        let places = Places {
            namespaces: folder.0.join("absent"),
            pins: folder.0.join("pins"),
            hierarchies: vec![folder.0.join("cgroup")],
        };
        assert_eq!(places.clean().unwrap().len(), 6);
        for part in ["pins", "cgroup"] {
            let left = fs::read_dir(folder.0.join(part))
                .unwrap()
                .flatten()
                .map(|entry| entry.file_name());
            assert_eq!(
                left.collect::<BTreeSet<_>>(),
                theirs.map(OsString::from).into_iter().collect()
            );
        }
    }

    #[test]
    fn remains_of_a_running_test_are_left_alone() {
        // This test is itself a program of cargo's in a folder `deps`.
        assert!(is_in_use(&format!("weir-t{}-a", id())));
        assert!(is_in_use(&format!("weir-tk{}-a", id())));
        assert!(!is_in_use("weir-t1-a"));
        assert!(!is_in_use("weir-t-a"));
    }

    #[test]
    fn processes_are_ended_and_the_parents_of_this_one_spared() {
        let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
        let processes = BTreeSet::from(
            [sleeper.id(), id(), std::os::unix::process::parent_id()]
                .map(|process| i32::try_from(process).unwrap()),
        );
        assert_eq!(end(&processes), 1);
        assert!(!sleeper.wait().unwrap().success());
    }

    #[test]
    fn hierarchies_are_found_among_the_mounts() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let expected = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/unified"].map(PathBuf::from);
        assert_eq!(cgroup_mounts(mounts), expected);
    }
}
