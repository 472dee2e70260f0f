//! The memory that is left in each cgroup of the agent and on the host.
//!
//! The kernel charges BPF maps to the cgroup of the process that creates them. It kills a process of a cgroup that
//! reaches `memory.max` without reclaimable memory, which maps never are. Above `memory.high` it only slows processes
//! down: that is reported, but never a reason to reject a policy.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use api::memory::Limit;
use config::human;
use host::mounts;

/// All limits on a process's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Limits that kill.
    pub limits: Vec<Limit>,
    /// Limits that slow down.
    pub high: Vec<Limit>,
    /// Files that could not be read.
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
const V2: Files = Files {
    max: "memory.max",
    high: Some("memory.high"),
    current: "memory.current",
    inactive: "inactive_file",
};

/// The unit that the package installs.
const UNIT: &str = "weir.service";

/// The unit's limit in the output of `systemctl show`; `None` if there is no such unit, or no limit.
fn memory_max(shown: &str) -> Option<u64> {
    let value = |name: &str| {
        shown
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    };
    value("LoadState").filter(|state| *state == "loaded")?;
    value("MemoryMax")?
        .parse()
        .ok()
        .filter(|bytes| *bytes < UNLIMITED)
}

/// A v1 limit above this means none: the kernel's default is the highest multiple of a page.
const UNLIMITED: u64 = 1 << 62;

impl Room {
    /// The limits of this process.
    #[must_use]
    pub fn now() -> Self {
        Self::of(Path::new("/proc"))
    }

    /// The limits of the process of this `/proc`. A file that cannot be read sets no limit, and adds a note.
    #[must_use]
    pub fn of(proc: &Path) -> Self {
        let mut room = Self::default();
        if let Err(error) = room.read_cgroups(proc) {
            room.notes.push(format!(
                "the memory limit of this process's cgroup is not known, and not checked: {error}"
            ));
        }
        match host(proc) {
            Ok(limit) => room.limits.push(limit),
            Err(error) => {
                room.notes.push(format!(
                    "the host's free memory is not known, and not checked: {error}"
                ));
            }
        }
        room
    }

    /// The limits of the host.
    #[must_use]
    pub fn of_host() -> Self {
        let limits = Self::now()
            .limits
            .into_iter()
            .filter(|limit| limit.cgroup.is_none())
            .collect();
        Self {
            limits,
            ..Self::default()
        }
    }

    /// The limits of an agent under weir.service, if it is installed: the host's, and the unit's `MemoryMax`.
    #[must_use]
    pub fn of_service() -> Self {
        let mut room = Self::of_host();
        let asked = Command::new("systemctl")
            .args(["show", UNIT, "--property=LoadState,MemoryMax"])
            .output();
        // Without systemd there is no unit.
        let limit = asked
            .ok()
            .and_then(|answer| memory_max(&String::from_utf8_lossy(&answer.stdout)));
        room.limits
            .extend(limit.map(|bytes| Limit::new(Some(Path::new(UNIT)), "MemoryMax", bytes, 0)));
        room
    }

    /// The limit that leaves the least.
    #[must_use]
    pub fn tightest(&self) -> Option<&Limit> {
        self.limits.iter().min_by_key(|limit| limit.left_bytes)
    }

    /// Notes for the operator about a change that takes `bytes`.
    #[must_use]
    pub fn notes_on(&self, bytes: u64) -> Vec<String> {
        let slows = self.high.iter().find(|limit| bytes > limit.left_bytes);
        let slows = slows.map(|limit| {
            format!(
                "a change of {} was slowed down by the kernel: {limit}",
                human::size(bytes)
            )
        });
        self.notes.iter().cloned().chain(slows).collect()
    }

    fn read_cgroups(&mut self, proc: &Path) -> io::Result<()> {
        let path = proc.join("self/mountinfo");
        let mounts = mounts(&path).map_err(|error| named(&path, &error))?;
        for line in read(&proc.join("self/cgroup"))?.lines() {
            let mut fields = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(path)) =
                (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let is_memory = |options: &str| options.split(',').any(|option| option == "memory");
            let (files, root) = if controllers.is_empty() {
                (&V2, mounts.iter().find(|mount| mount.kind == "cgroup2"))
            } else if is_memory(controllers) {
                (
                    &V1,
                    mounts
                        .iter()
                        .find(|mount| mount.kind == "cgroup" && mount.has_option("memory")),
                )
            } else {
                continue;
            };
            let Some(root) = root.map(|mount| &mount.point) else {
                continue;
            };
            // A path outside of the mounted hierarchy begins with `/..`: its nearest readable part is the mount itself.
            let own = root.join(path.trim_start_matches('/'));
            for directory in own
                .ancestors()
                .take_while(|directory| directory.starts_with(root))
            {
                self.read_limits(directory, files)?;
            }
        }
        Ok(())
    }

    fn read_limits(&mut self, directory: &Path, files: &Files) -> io::Result<()> {
        for file in std::iter::once(files.max).chain(files.high) {
            // Missing at the root, and where the controller is not enabled.
            let Some(bytes) = limit(&directory.join(file))? else {
                continue;
            };
            let used = number(&read(&directory.join(files.current))?).unwrap_or(0);
            let statistics = read(&directory.join("memory.stat"))?;
            let inactive = statistics
                .lines()
                .find_map(|line| number(line.strip_prefix(files.inactive)?))
                .unwrap_or(0);
            let limit = Limit::new(Some(directory), file, bytes, used.saturating_sub(inactive));
            if file == files.max {
                &mut self.limits
            } else {
                &mut self.high
            }
            .push(limit);
        }
        Ok(())
    }
}

fn read(path: &Path) -> io::Result<String> {
    fs::read_to_string(path).map_err(|error| named(path, &error))
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("reading {}: {error}", path.display()))
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
        let value = text
            .lines()
            .find_map(|line| number(line.strip_prefix(name)?.strip_suffix("kB")?));
        value.ok_or_else(|| io::Error::other(format!("{} has no {name}", path.display())))
    };
    let (all, available) = (
        kibibytes("MemTotal:")? << 10,
        kibibytes("MemAvailable:")? << 10,
    );
    Ok(Limit::new(
        None,
        "MemAvailable in /proc/meminfo",
        all,
        all.saturating_sub(available),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fake host whose files are in a folder.
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

    const MEMORY: (&str, &str) = (
        "proc/meminfo",
        "MemTotal:  8388608 kB\nMemFree: 1 kB\nMemAvailable:  4194304 kB\n",
    );
    const V2_MOUNT: (&str, &str) = (
        "proc/self/mountinfo",
        "30 1 0:26 / ROOT/cg rw - cgroup2 cgroup2 rw\n",
    );

    #[test]
    fn the_tightest_of_all_cgroups_above_counts_and_inactive_files_are_free() {
        let host = Host::new(&[
            MEMORY,
            V2_MOUNT,
            ("proc/self/cgroup", "0::/system.slice/weir.service\n"),
            ("cg/system.slice/weir.service/memory.max", "max\n"),
            ("cg/system.slice/weir.service/memory.high", "1000\n"),
            ("cg/system.slice/weir.service/memory.current", "900\n"),
            (
                "cg/system.slice/weir.service/memory.stat",
                "anon 5\ninactive_file 100\n",
            ),
            ("cg/system.slice/memory.max", "1048576\n"),
            ("cg/system.slice/memory.current", "524288\n"),
            (
                "cg/system.slice/memory.stat",
                "inactive_file 24288\nactive_file 3\n",
            ),
        ]);
        let room = host.room();
        assert_eq!(room.notes, Vec::<String>::new());
        let tightest = room.tightest().unwrap();
        assert_eq!(
            (tightest.limit_bytes, tightest.left_bytes),
            (1_048_576, 548_576)
        );
        let text = tightest.to_string();
        assert!(
            text.contains("cg/system.slice has 536 KiB left of memory.max = 1 MiB"),
            "{text}"
        );
        assert_eq!((room.high.len(), room.high[0].left_bytes), (1, 200));
    }

    #[test]
    fn on_a_hybrid_host_the_hierarchy_with_the_controller_counts() {
        let mounts = "30 1 0:26 / ROOT/cg/unified rw - cgroup2 cgroup2 rw\n31 1 0:27 / ROOT/cg/memory rw - cgroup cgroup rw,memory\n";
        let host = Host::new(&[
            MEMORY,
            ("proc/self/mountinfo", mounts),
            (
                "proc/self/cgroup",
                "9:cpu:/x\n4:memory:/a/b\n0::/user.slice\n",
            ),
            ("cg/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("cg/memory/a/memory.limit_in_bytes", "1000000\n"),
            ("cg/memory/a/memory.usage_in_bytes", "400000\n"),
            (
                "cg/memory/a/memory.stat",
                "inactive_file 7\ntotal_inactive_file 100000\n",
            ),
            (
                "cg/memory/a/b/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
        ]);
        let room = host.room();
        assert_eq!(
            room.tightest().map(|limit| limit.left_bytes),
            Some(700_000),
            "{room:?}"
        );
        assert_eq!(room.limits.len(), 2);
    }

    #[test]
    fn without_a_limit_the_host_counts_and_what_cannot_be_read_is_noted() {
        let room = Host::new(&[MEMORY, V2_MOUNT, ("proc/self/cgroup", "0::/../other\n")]).room();
        assert_eq!(
            (room.tightest().unwrap().left_bytes, room.notes.len()),
            (4 << 30, 0)
        );
        let room = Host::new(&[MEMORY]).room();
        assert_eq!((room.limits.len(), room.notes.len()), (1, 1), "{room:?}");
        let room = Host::new(&[("proc/meminfo", "MemTotal: 5 kB\n")]).room();
        assert_eq!((room.tightest(), room.notes.len()), (None, 2), "{room:?}");
    }

    #[test]
    fn the_units_limit_is_read_from_what_systemctl_shows() {
        assert_eq!(
            memory_max("LoadState=loaded\nMemoryMax=1073741824\n"),
            Some(1 << 30)
        );
        assert_eq!(
            memory_max("MemoryMax=1073741824\nLoadState=loaded\n"),
            Some(1 << 30)
        );
        for none in [
            "LoadState=loaded\nMemoryMax=infinity\n",
            "LoadState=not-found\nMemoryMax=1024\n",
            "",
        ] {
            assert_eq!(memory_max(none), None);
        }
        assert_eq!(
            memory_max("LoadState=loaded\nMemoryMax=18446744073709551615\n"),
            None
        );
    }
}
