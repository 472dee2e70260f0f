//! From a group's limits to the files of its cgroup: one function a controller, each for both versions.
//!
//! A limit that the config does not have is written as the kernel's default, so that a limit taken out of the config
//! is taken out of a cgroup that an earlier agent made.

use std::fs;
use std::path::{Path, PathBuf};

use super::disk;
use super::error::GroupsError;
use super::tree::{Controller, Tree, Version, write};
use crate::config::policy_group::{CpuShare, Group};

/// One value of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Setting {
    file: &'static str,
    value: String,
    origin: Origin,
}

/// Why a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// The config has it.
    Wanted,
    /// It is the default, which needs no writing where the kernel has no such file.
    Default,
}

fn setting(file: &'static str, wanted: Option<String>, default: &str) -> Setting {
    match wanted {
        Some(value) => Setting { file, value, origin: Origin::Wanted },
        None => Setting { file, value: default.to_owned(), origin: Origin::Default },
    }
}

/// Puts a group's limits in force, each that can be. Returns what could not; the others stand.
pub fn apply(tree: &Tree, sys: &Path, group: &Group) -> Vec<GroupsError> {
    let mut problems = Vec::new();
    let mut on = |controller: Controller, what: Option<&'static str>, settings: &dyn Fn(Version) -> Vec<Setting>| match (
        tree.directory(&group.name, controller),
        what,
    ) {
        (Some((version, directory)), _) => problems.extend(write_all(&directory, &settings(version))),
        (None, Some(what)) => {
            let name = controller.name_v2().unwrap_or_else(|| controller.name_v1());
            problems.push(GroupsError::NoController { controller: name, what });
        }
        (None, None) => {}
    };
    let cpu_is_wanted = group.cpu.max.is_some() || group.cpu.weight.is_some();
    on(Controller::Cpu, cpu_is_wanted.then_some("cpu"), &|version| cpu(group, version));
    let memory_is_wanted = group.memory != crate::config::policy_group::Memory::default();
    on(Controller::Memory, memory_is_wanted.then_some("memory"), &|version| memory(group, version));
    on(Controller::Pids, group.pids.map(|_| "pids"), &|_| {
        vec![setting("pids.max", group.pids.map(|pids| pids.to_string()), "max")]
    });
    if let Some(cpus) = &group.cpus {
        on(Controller::Cpuset, Some("cpus"), &|_| vec![setting("cpuset.cpus", Some(cpus.to_string()), "")]);
    } else if tree.version(Controller::Cpuset) == Some(Version::V2) {
        on(Controller::Cpuset, None, &|_| vec![setting("cpuset.cpus", None, "\n")]);
    }
    problems.extend(io(tree, sys, group));
    problems.extend(cannot(tree, group));
    problems
}

/// What no file will hold: what version 1 cannot do, and what no CPU has. Needs no cgroup to be there.
pub fn cannot(tree: &Tree, group: &Group) -> Vec<GroupsError> {
    let mut problems = Vec::new();
    if let Some(share) = group.cpu.max
        && share.percent() > host_percent() as f64
    {
        problems.push(GroupsError::MoreThanHost { percent: share.percent(), host: host_percent() });
    }
    if tree.version(Controller::Memory) == Some(Version::V1) {
        let mut old = |cannot| problems.push(GroupsError::OldVersion { controller: "memory", cannot });
        if group.memory.high.is_some() {
            old("has no memory.high: memory high is not held");
        }
        if group.memory.swap_max.is_some() && group.memory.max.is_none() {
            old("counts swap only together with memory: swap_max without max is not held");
        }
    }
    if tree.version(Controller::Io) == Some(Version::V1)
        && group.io.iter().any(|io| io.write.is_some() || io.write_ops.is_some())
    {
        let cannot = "holds only direct and synchronous writes: those through the page cache are not held";
        problems.push(GroupsError::OldVersion { controller: "io", cannot });
    }
    problems
}

/// The controllers and disks that a group wants and the host has not.
pub fn missing(tree: &Tree, sys: &Path, group: &Group) -> Vec<GroupsError> {
    let memory_is_wanted = group.memory != crate::config::policy_group::Memory::default();
    let wanted = [
        (Controller::Cpu, group.cpu.max.is_some() || group.cpu.weight.is_some(), "cpu", "cpu"),
        (Controller::Memory, memory_is_wanted, "memory", "memory"),
        (Controller::Pids, group.pids.is_some(), "pids", "pids"),
        (Controller::Cpuset, group.cpus.is_some(), "cpuset", "cpus"),
        (Controller::Io, !group.io.is_empty(), "io", "io"),
    ];
    let lacks = |(one, is_wanted, controller, what)| {
        let is_missing = is_wanted && tree.version(one).is_none();
        is_missing.then_some(GroupsError::NoController { controller, what })
    };
    let disks = group.io.iter().filter_map(|io| disk::resolve(sys, &io.device).err());
    wanted.into_iter().filter_map(lacks).chain(disks).collect()
}

/// Percent of one CPU that all of the host's together have.
#[must_use]
pub fn host_percent() -> u64 {
    // Online, not only those that the agent itself may run on.
    let online = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN).ok().flatten();
    online.and_then(|count| u64::try_from(count).ok()).unwrap_or(1) * 100
}

/// Gives a group more or less CPU time than its config says, while it is elastic.
///
/// # Errors
///
/// When the kernel refuses.
pub fn set_cpu_max(tree: &Tree, group: &str, share: CpuShare) -> Result<(), GroupsError> {
    let Some((version, directory)) = tree.directory(group, Controller::Cpu) else { return Ok(()) };
    let setting = cpu_max(Some(share), version);
    write(&directory.join(setting.file), &setting.value)
}

fn write_all(directory: &Path, settings: &[Setting]) -> Vec<GroupsError> {
    let needs_writing = |setting: &&Setting| setting.origin == Origin::Wanted || directory.join(setting.file).exists();
    let written =
        settings.iter().filter(needs_writing).map(|setting| write(&directory.join(setting.file), &setting.value));
    written.filter_map(Result::err).collect()
}

fn cpu_max(share: Option<CpuShare>, version: Version) -> Setting {
    let quota = share.map(|share| share.quota_microseconds());
    let period = CpuShare::PERIOD_MICROSECONDS;
    match version {
        Version::V2 => setting("cpu.max", quota.map(|quota| format!("{quota} {period}")), &format!("max {period}")),
        Version::V1 => setting("cpu.cfs_quota_us", quota.map(|quota| quota.to_string()), "-1"),
    }
}

fn cpu(group: &Group, version: Version) -> Vec<Setting> {
    let max = cpu_max(group.cpu.max, version);
    match version {
        Version::V2 => vec![max, setting("cpu.weight", group.cpu.weight.map(|weight| weight.to_string()), "100")],
        Version::V1 => {
            let period = group.cpu.max.map(|_| CpuShare::PERIOD_MICROSECONDS.to_string());
            // The kernel's own conversion: 1,024 shares are a weight of 100.
            let shares = group.cpu.weight.map(|weight| (u64::from(weight) * 1_024 / 100).max(2).to_string());
            vec![setting("cpu.cfs_period_us", period, "100000"), max, setting("cpu.shares", shares, "1024")]
        }
    }
}

fn memory(group: &Group, version: Version) -> Vec<Setting> {
    let memory = &group.memory;
    let bytes = |value: Option<u64>| value.map(|value| value.to_string());
    match version {
        Version::V2 => vec![
            setting("memory.high", bytes(memory.high), "max"),
            setting("memory.swap.max", bytes(memory.swap_max), "max"),
            setting("memory.max", bytes(memory.max), "max"),
        ],
        Version::V1 => {
            let both = memory.max.zip(memory.swap_max).map(|(max, swap)| max + swap);
            vec![
                // Memory and swap together may at no moment be below memory alone.
                setting("memory.memsw.limit_in_bytes", None, "-1"),
                setting("memory.limit_in_bytes", bytes(memory.max), "-1"),
                setting("memory.memsw.limit_in_bytes", bytes(both), "-1"),
            ]
        }
    }
}

/// The files of one disk's limits under v1, in the order of [`Io`]'s fields.
///
/// [`Io`]: crate::config::policy_group::Io
const DISK_FILES: [&str; 4] = [
    "blkio.throttle.read_bps_device",
    "blkio.throttle.write_bps_device",
    "blkio.throttle.read_iops_device",
    "blkio.throttle.write_iops_device",
];

fn io(tree: &Tree, sys: &Path, group: &Group) -> Vec<GroupsError> {
    let mut problems = Vec::new();
    let mut wanted: Vec<(String, [Option<u64>; 4])> = Vec::new();
    for io in &group.io {
        match disk::resolve(sys, &io.device) {
            Ok(disk) => wanted.push((disk, [io.read, io.write, io.read_ops, io.write_ops])),
            Err(error) => problems.push(error),
        }
    }
    let Some((version, directory)) = tree.directory(&group.name, Controller::Io) else {
        if !group.io.is_empty() {
            problems.push(GroupsError::NoController { controller: "io", what: "io" });
        }
        return problems;
    };
    let mut put = |path: PathBuf, value: String| problems.extend(write(&path, &value).err());
    match version {
        Version::V2 => {
            let path = directory.join("io.max");
            for disk in forgotten(&path, &wanted) {
                put(path.clone(), format!("{disk} rbps=max wbps=max riops=max wiops=max"));
            }
            for (disk, limits) in &wanted {
                let [read, write, read_ops, write_ops] =
                    limits.map(|limit| limit.map_or_else(|| "max".to_owned(), |limit| limit.to_string()));
                put(path.clone(), format!("{disk} rbps={read} wbps={write} riops={read_ops} wiops={write_ops}"));
            }
        }
        Version::V1 => {
            for (nth, file) in DISK_FILES.iter().enumerate() {
                let path = directory.join(file);
                for disk in forgotten(&path, &wanted) {
                    put(path.clone(), format!("{disk} 0"));
                }
                for (disk, limits) in &wanted {
                    put(path.clone(), format!("{disk} {}", limits[nth].unwrap_or(0)));
                }
            }
        }
    }
    problems
}

/// The disks that a file has limits for and the config has not.
fn forgotten(path: &Path, wanted: &[(String, [Option<u64>; 4])]) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let disks = text.lines().filter_map(|line| line.split_whitespace().next());
    disks.filter(|disk| wanted.iter().all(|(wanted, _)| wanted != disk)).map(str::to_owned).collect()
}
