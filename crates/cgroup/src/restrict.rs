//! The restrictions that a process would lose by leaving its cgroup: limits, BPF programs, and an owner that manages
//! it.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::tree::Tree;

/// The file of a limit, and the start of its default content; see [`limit_in`].
const FILES: [(&str, &str); 28] = [
    ("cpu.max", "max"),
    ("cpu.idle", "0"),
    ("cpu.weight", "100"),
    ("memory.high", "max"),
    ("memory.max", "max"),
    ("memory.swap.max", "max"),
    ("pids.max", "max"),
    ("io.max", ""),
    ("cpuset.cpus", ""),
    ("cpuset.mems", ""),
    ("cgroup.freeze", "0"),
    ("cpu.uclamp.max", "max"),
    ("memory.swap.high", "max"),
    ("memory.zswap.max", "max"),
    ("io.weight", "100"),
    ("io.bfq.weight", "100"),
    ("io.prio.class", "no-change"),
    ("rdma.max", "max"),
    ("misc.max", "max"),
    ("dmem.max", "max"),
    // Version 1.
    ("cpu.cfs_quota_us", "-1"),
    ("memory.limit_in_bytes", "none"),
    ("memory.memsw.limit_in_bytes", "none"),
    ("blkio.throttle.read_bps_device", ""),
    ("blkio.throttle.write_bps_device", ""),
    ("blkio.throttle.read_iops_device", ""),
    ("blkio.throttle.write_iops_device", ""),
    ("devices.list", "a *:* rwm"),
];

/// The least value that means "no limit" in v1: the largest number of whole pages is above it.
const NO_LIMIT_V1: u64 = 1 << 62;

/// The content of a limit's file as text; `None` if it limits nothing.
#[must_use]
pub fn limit_in(file: &str, content: &str) -> Option<String> {
    let known = FILES
        .iter()
        .find(|(name, _)| *name == file)
        .map(|(_, default)| *default);
    let default = known.or_else(|| is_of_huge_pages(file).then_some("max"))?;
    let content = content.trim();
    let first = content.lines().next().unwrap_or("");
    let is_default = match file {
        "cpu.max" => first.starts_with(default),
        "memory.limit_in_bytes" | "memory.memsw.limit_in_bytes" => {
            first.parse::<u64>().is_ok_and(|bytes| bytes >= NO_LIMIT_V1)
        }
        // A weight above the default is an advantage, not a restriction.
        "cpu.weight" => first.parse::<u64>().is_ok_and(|weight| weight >= 100),
        // One line for each disk, `default` first.
        "io.weight" | "io.bfq.weight" => {
            let weights = content
                .lines()
                .filter_map(|line| line.split(' ').next_back()?.parse::<u64>().ok());
            weights.min().is_none_or(|weight| weight >= 100)
        }
        // One line for each device: its name, then values or `key=value`.
        "rdma.max" | "misc.max" | "dmem.max" => {
            let mut values = content.lines().flat_map(|line| line.split(' ').skip(1));
            values.all(|value| value.split('=').next_back() == Some(default))
        }
        _ => first == default,
    };
    (!is_default).then(|| format!("{file} {first}"))
}

/// The limits on the cgroup in this directory.
#[must_use]
pub fn limits(directory: &Path) -> Vec<String> {
    let read = |file: &str| limit_in(file, &fs::read_to_string(directory.join(file)).ok()?);
    let names = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let huge_pages: BTreeSet<String> = names.filter(|name| is_of_huge_pages(name)).collect();
    let files = FILES
        .iter()
        .map(|(file, _)| *file)
        .chain(huge_pages.iter().map(String::as_str));
    files.filter_map(read).collect()
}

/// Whether the file is a limit on huge pages of one size: `hugetlb.2MB.max`, `hugetlb.2MB.rsvd.max`.
fn is_of_huge_pages(file: &str) -> bool {
    file.starts_with("hugetlb.") && file.ends_with(".max")
}

/// Limits on processes that a process does not lose by leaving its cgroup.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeptTasks {
    /// The service manager's default, which scopes have as well.
    pub default: Option<u64>,
    /// The group's own: it replaces one that is at least as high.
    pub own: Option<u64>,
}

impl KeptTasks {
    fn has(&self, limit: &str) -> bool {
        let tasks = limit
            .strip_prefix("pids.max ")
            .and_then(|it| it.parse().ok());
        tasks.is_some_and(|tasks: u64| {
            self.default == Some(tasks) || self.own.is_some_and(|own| own <= tasks)
        })
    }
}

/// The restrictions that a process would lose by leaving the cgroup in this directory, as text. `own_programs` are Weir's.
#[must_use]
pub fn restrictions(
    directory: &Path,
    kept: KeptTasks,
    own_programs: &BTreeSet<u32>,
) -> Vec<String> {
    let mut lost: Vec<String> = limits(directory)
        .into_iter()
        .filter(|limit| !kept.has(limit))
        .collect();
    if let Ok(metadata) = fs::metadata(directory)
        && !is_trusted(metadata.uid())
    {
        lost.push(format!(
            "the manager of user {}, who owns its cgroup",
            metadata.uid()
        ));
    }
    let programs = programs(directory).difference(own_programs).count();
    if programs > 0 {
        lost.push(format!(
            "{programs} BPF programs on its cgroup (firewall, device or socket rules)"
        ));
    }
    lost
}

/// `bpf_attach_type` of programs on cgroups, as of Linux 6.18; older kernels reject unknown ones.
const ATTACH_TYPES: [u32; 31] = [
    0, 1, 2, 3, 6, 8, 9, 10, 11, 12, 13, 14, 15, 18, 19, 20, 21, 22, 29, 30, 31, 32, 34, 43, 48,
    49, 50, 51, 52, 53, 54,
];
const BPF_PROG_QUERY: libc::c_long = 16;

/// `union bpf_attr` of BPF_PROG_QUERY.
#[repr(C)]
#[derive(Default)]
struct Query {
    target: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    ids: u64,
    count: u32,
    pad: u32,
    rest: [u64; 4],
}

/// The IDs of the BPF programs that are attached to the cgroup in this directory itself; empty outside of the unified
/// hierarchy, the only one with programs.
fn programs(directory: &Path) -> BTreeSet<u32> {
    let mut all = BTreeSet::new();
    let Ok(cgroup) = fs::File::open(directory) else {
        return all;
    };
    for attach_type in ATTACH_TYPES {
        let mut ids = [0u32; 64];
        let mut query = Query {
            target: cgroup.as_raw_fd().cast_unsigned(),
            attach_type,
            ids: ids.as_mut_ptr() as u64,
            count: ids.len() as u32,
            ..Query::default()
        };
        // SAFETY: `ids` has room for `count` numbers.
        let result = unsafe { bpf::syscall::call(BPF_PROG_QUERY, &mut query) };
        let found = (query.count as usize).min(ids.len());
        if result.is_ok() {
            all.extend(ids.into_iter().take(found).filter(|id| *id != 0));
        }
    }
    all
}

/// Whether a cgroup of this owner is no other user's: root's, or the agent's.
pub fn is_trusted(user: u32) -> bool {
    user == 0 || user == nix::unistd::geteuid().as_raw()
}

/// The user who owns the cgroup that contains `path`, unless it is root: the limits of a delegated cgroup itself belong to
/// its parent.
pub fn owner_above(tree: &Tree, path: &str) -> Option<u32> {
    let directories = tree.directories(path);
    let owners = directories
        .iter()
        .filter_map(|directory| fs::metadata(directory.parent()?).ok());
    owners
        .map(|metadata| metadata.uid())
        .find(|uid| !is_trusted(*uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unset_value_is_no_restriction() {
        for (file, content, expected) in [
            ("cpu.max", "max 100000\n", None),
            ("cpu.max", "50000 100000\n", Some("cpu.max 50000 100000")),
            ("cpu.weight", "100\n", None),
            ("cpu.weight", "200\n", None),
            ("cpu.weight", "20\n", Some("cpu.weight 20")),
            ("memory.max", "67108864\n", Some("memory.max 67108864")),
            ("memory.max", "max\n", None),
            ("cpuset.cpus", "\n", None),
            ("io.max", "", None),
            (
                "io.max",
                "254:0 rbps=5 wbps=max riops=max wiops=max\n",
                Some("io.max 254:0 rbps=5 wbps=max riops=max wiops=max"),
            ),
            ("memory.swap.high", "max\n", None),
            ("memory.swap.high", "0\n", Some("memory.swap.high 0")),
            ("memory.zswap.max", "0\n", Some("memory.zswap.max 0")),
            ("cpu.uclamp.max", "max\n", None),
            ("cpu.uclamp.max", "50.00\n", Some("cpu.uclamp.max 50.00")),
            ("io.weight", "default 100\n", None),
            ("io.weight", "default 200\n254:0 150\n", None),
            (
                "io.weight",
                "default 100\n254:0 10\n",
                Some("io.weight default 100"),
            ),
            (
                "io.bfq.weight",
                "default 1\n",
                Some("io.bfq.weight default 1"),
            ),
            ("io.prio.class", "no-change\n", None),
            ("io.prio.class", "idle\n", Some("io.prio.class idle")),
            ("rdma.max", "", None),
            ("rdma.max", "mlx4_0 hca_handle=max hca_object=max\n", None),
            (
                "rdma.max",
                "mlx4_0 hca_handle=2 hca_object=max\n",
                Some("rdma.max mlx4_0 hca_handle=2 hca_object=max"),
            ),
            ("misc.max", "sev max\nsev_es max\n", None),
            ("misc.max", "sev max\nsev_es 3\n", Some("misc.max sev max")),
            ("hugetlb.2MB.max", "max\n", None),
            (
                "hugetlb.2MB.rsvd.max",
                "0\n",
                Some("hugetlb.2MB.rsvd.max 0"),
            ),
            ("hugetlb.2MB.current", "5\n", None),
            ("memory.limit_in_bytes", "9223372036854771712\n", None),
            (
                "memory.limit_in_bytes",
                "4096\n",
                Some("memory.limit_in_bytes 4096"),
            ),
            ("devices.list", "a *:* rwm\n", None),
            (
                "devices.list",
                "c 1:3 rwm\n",
                Some("devices.list c 1:3 rwm"),
            ),
            ("cgroup.procs", "1\n", None),
        ] {
            assert_eq!(
                limit_in(file, content).as_deref(),
                expected,
                "{file} {content:?}"
            );
        }
    }

    #[test]
    fn limits_on_huge_pages_are_found_whatever_their_size() {
        let folder = tempfile::tempdir().unwrap();
        for (file, content) in [
            ("hugetlb.2MB.max", "max\n"),
            ("hugetlb.1GB.max", "0\n"),
            ("cgroup.procs", "1\n"),
        ] {
            fs::write(folder.path().join(file), content).unwrap();
        }
        assert_eq!(limits(folder.path()), ["hugetlb.1GB.max 0"]);
    }

    #[test]
    fn a_limit_on_processes_is_lost_only_to_a_group_with_a_higher_one() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("pids.max"), "50\n").unwrap();
        fs::write(folder.path().join("memory.max"), "4096\n").unwrap();
        let of = |own| {
            let kept = KeptTasks {
                own,
                ..KeptTasks::default()
            };
            restrictions(folder.path(), kept, &BTreeSet::new())
        };
        let both = ["memory.max 4096", "pids.max 50"];
        assert_eq!(of(None), both);
        assert_eq!(of(Some(51)), both);
        assert_eq!(of(Some(50)), both[..1]);
        assert_eq!(of(Some(1)), both[..1]);
    }

    #[test]
    fn a_default_is_no_restriction_and_an_owner_is_one() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("pids.max"), "4915\n").unwrap();
        let of = |default| {
            let kept = KeptTasks {
                default,
                ..KeptTasks::default()
            };
            restrictions(folder.path(), kept, &BTreeSet::new())
        };
        assert_eq!(of(Some(4915)), [""; 0]);
        assert_eq!(of(None), ["pids.max 4915"]);
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(folder.path(), Some(1234), None).unwrap();
            assert!(of(Some(4915))[0].contains("user 1234"));
        }
    }
}
