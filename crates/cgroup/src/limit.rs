//! Converts a group's limits to the files of its cgroup: one function per controller, for both versions.
//!
//! A limit that the config lacks is written as the kernel's default. So a limit that is removed from the config is also
//! removed from a cgroup of an earlier agent.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use config::group::{CpuShare, Group, Memory, Size};

use super::disk;
use super::error::GroupsError;
use super::host_paths::Host;
use super::level::level;
use super::tree::{Controller, Tree, Version, write};

/// The value of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The file's name.
    pub file: &'static str,
    /// The group's value, or the default.
    pub value: String,
    /// The kernel's default.
    pub default: String,
    pub origin: Origin,
}

/// The reason why a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It is configured.
    Wanted,
    /// It is the default: it may be skipped if the kernel has no such file.
    Default,
}

fn setting(file: &'static str, wanted: Option<String>, default: &str) -> Setting {
    let (value, origin) = match wanted {
        Some(value) => (value, Origin::Wanted),
        None => (default.to_owned(), Origin::Default),
    };
    Setting {
        file,
        value,
        default: default.to_owned(),
        origin,
    }
}

/// The controllers that a group's limits need.
#[must_use]
pub fn controllers(group: &Group) -> BTreeSet<Controller> {
    let memory_is_wanted = group.memory != Memory::default();
    let wanted = [
        (
            Controller::Cpu,
            group.cpu.max.is_some() || group.cpu.weight.is_some(),
        ),
        (Controller::Memory, memory_is_wanted),
        (Controller::Pids, group.pids.is_some()),
        (Controller::Cpuset, group.cpus.is_some()),
        (Controller::Io, !group.io.is_empty()),
    ];
    wanted
        .into_iter()
        .filter(|(_, is_wanted)| *is_wanted)
        .map(|(controller, _)| controller)
        .collect()
}

/// The values of a group's limits for the cgroup at `path`, each with its directory; and those that cannot be written.
#[must_use]
pub fn settings(
    tree: &Tree,
    host: &Host,
    path: &str,
    group: &Group,
) -> (Vec<(PathBuf, Setting)>, Vec<GroupsError>) {
    let mut all = Vec::new();
    let (disks, mut problems) = disk::limits(host, group);
    let wanted = controllers(group);
    let mut on = |controller: Controller, settings: &dyn Fn(Version) -> Vec<Setting>| {
        if let Some((version, directory)) = tree.directory(path, controller) {
            all.extend(
                settings(version)
                    .into_iter()
                    .map(|setting| (directory.clone(), setting)),
            );
        } else if wanted.contains(&controller) {
            let name = controller.name_v2().unwrap_or_else(|| controller.name_v1());
            problems.push(GroupsError::NoController {
                controller: name,
                what: key(controller),
            });
        }
    };
    on(Controller::Cpu, &|version| cpu(group, version));
    on(Controller::Memory, &|version| memory(group, version));
    on(Controller::Pids, &|_| {
        vec![setting(
            "pids.max",
            group.pids.map(|pids| pids.to_string()),
            "max",
        )]
    });
    let cpus = group.cpus.as_ref().map(ToString::to_string);
    if cpus.is_some() || tree.version(Controller::Cpuset) == Some(Version::V2) {
        on(Controller::Cpuset, &|_| {
            vec![setting("cpuset.cpus", cpus.clone(), "\n")]
        });
    }
    on(Controller::Io, &|version| io(&disks, version));
    (all, problems)
}

/// The files of a group's limits on the cgroup at `path`.
#[must_use]
pub fn wanted(tree: &Tree, host: &Host, path: &str, group: &Group) -> Vec<(PathBuf, Setting)> {
    let (mut settings, _) = settings(tree, host, path, group);
    settings.retain(|(_, setting)| setting.origin == Origin::Wanted);
    settings
        .into_iter()
        .map(|(directory, setting)| (directory.join(setting.file), setting))
        .collect()
}

/// The config key that needs a controller.
const fn key(controller: Controller) -> &'static str {
    match controller {
        Controller::Cpu | Controller::CpuAccounting => "cpu",
        Controller::Memory => "memory",
        Controller::Io => "io",
        Controller::Pids => "pids",
        Controller::Cpuset => "cpus",
        Controller::Freezer => "freeze",
    }
}

/// Sets a group's limits on a cgroup of Weir. Returns the failures; the other limits are in effect.
pub fn apply(tree: &Tree, host: &Host, path: &str, group: &Group) -> Vec<GroupsError> {
    let (settings, mut problems) = settings(tree, host, path, group);
    for (directory, setting) in forgotten(tree, path, &settings).into_iter().chain(settings) {
        let file = directory.join(setting.file);
        if setting.origin == Origin::Wanted || file.exists() {
            problems.extend(write(&file, &setting.value).err());
        }
    }
    problems
}

/// Limits that no file supports: those that v1 lacks, and CPUs beyond the host's. Requires no cgroup.
pub fn cannot(tree: &Tree, group: &Group) -> Vec<GroupsError> {
    let mut problems = Vec::new();
    if let Some(share) = group.cpu.max
        && share.percent() > host_percent() as f64
    {
        problems.push(GroupsError::MoreThanHost {
            percent: share.percent(),
            host: host_percent(),
        });
    }
    if tree.version(Controller::Memory) == Some(Version::V1) {
        let mut old = |cannot| {
            problems.push(GroupsError::OldVersion {
                controller: "memory",
                cannot,
            });
        };
        if group.memory.high.is_some() {
            old("has no memory.high: memory high is not enforced");
        }
        if group.memory.swap_max.is_some() && group.memory.max.is_none() {
            old("counts swap only together with memory: swap_max without max is not enforced");
        }
    }
    if tree.version(Controller::Io) == Some(Version::V1)
        && group
            .io
            .iter()
            .any(|io| io.write.is_some() || io.write_ops.is_some())
    {
        let cannot = "throttles only direct and synchronous writes: those through the page cache are not limited";
        problems.push(GroupsError::OldVersion {
            controller: "io",
            cannot,
        });
    }
    problems
}

/// The controllers and disks that a group needs and the host lacks.
pub fn missing(tree: &Tree, host: &Host, group: &Group) -> Vec<GroupsError> {
    let lacks = |controller: Controller| {
        let name = controller.name_v2().unwrap_or_else(|| controller.name_v1());
        let missing = GroupsError::NoController {
            controller: name,
            what: key(controller),
        };
        tree.version(controller).is_none().then_some(missing)
    };
    controllers(group)
        .into_iter()
        .filter_map(lacks)
        .chain(disk::limits(host, group).1)
        .collect()
}

/// The total of the host's CPUs, in percent of one CPU.
#[must_use]
pub fn host_percent() -> u64 {
    // All online CPUs, not only those that the agent may run on.
    let online = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN)
        .ok()
        .flatten();
    online
        .and_then(|count| u64::try_from(count).ok())
        .unwrap_or(1)
        * 100
}

/// A cgroup's CPU quota in microseconds per second; `None` without one.
#[must_use]
pub fn cpu_quota(tree: &Tree, path: &str) -> Option<u64> {
    let (version, directory) = tree.directory(path, Controller::Cpu)?;
    let read = |file: &str| fs::read_to_string(directory.join(file)).ok();
    match version {
        Version::V2 => level(read("cpu.max")?.trim()),
        Version::V1 => {
            let (quota, period) = (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?);
            level(&format!("{} {}", quota.trim(), period.trim()))
        }
    }
}

/// Sets a cgroup's CPU quota while its group is elastic.
///
/// # Errors
///
/// When the kernel rejects it.
pub fn set_cpu_max(tree: &Tree, path: &str, share: CpuShare) -> Result<(), GroupsError> {
    let Some((version, directory)) = tree.directory(path, Controller::Cpu) else {
        return Ok(());
    };
    let setting = cpu_max(Some(share), version);
    write(&directory.join(setting.file), &setting.value)
}

/// The same setting with another CPU share, if it is a CPU quota.
#[must_use]
pub fn with_share(setting: &Setting, share: CpuShare) -> Option<Setting> {
    let version = match setting.file {
        "cpu.max" => Version::V2,
        "cpu.cfs_quota_us" => Version::V1,
        _ => return None,
    };
    Some(cpu_max(Some(share), version))
}

fn cpu_max(share: Option<CpuShare>, version: Version) -> Setting {
    let quota = share.map(|share| share.quota_microseconds());
    let period = CpuShare::PERIOD_MICROSECONDS;
    match version {
        Version::V2 => setting(
            "cpu.max",
            quota.map(|quota| format!("{quota} {period}")),
            &format!("max {period}"),
        ),
        Version::V1 => setting(
            "cpu.cfs_quota_us",
            quota.map(|quota| quota.to_string()),
            "-1",
        ),
    }
}

fn cpu(group: &Group, version: Version) -> Vec<Setting> {
    let max = cpu_max(group.cpu.max, version);
    match version {
        Version::V2 => vec![
            max,
            setting(
                "cpu.weight",
                group.cpu.weight.map(|weight| weight.to_string()),
                "100",
            ),
        ],
        Version::V1 => {
            let period = group
                .cpu
                .max
                .map(|_| CpuShare::PERIOD_MICROSECONDS.to_string());
            // The kernel's own conversion: 1,024 shares are a weight of 100.
            let shares = group
                .cpu
                .weight
                .map(|weight| (u64::from(weight) * 1_024 / 100).max(2).to_string());
            vec![
                setting("cpu.cfs_period_us", period, "100000"),
                max,
                setting("cpu.shares", shares, "1024"),
            ]
        }
    }
}

fn memory(group: &Group, version: Version) -> Vec<Setting> {
    let memory = &group.memory;
    let bytes = |size: Option<Size>| size.map(|size| size.0.to_string());
    match version {
        Version::V2 => vec![
            setting("memory.high", bytes(memory.high), "max"),
            setting("memory.swap.max", bytes(memory.swap_max), "max"),
            setting("memory.max", bytes(memory.max), "max"),
        ],
        Version::V1 => {
            let both = memory.max.zip(memory.swap_max);
            let both = both.map(|(max, swap)| Size(max.0 + swap.0));
            vec![
                // The limit on memory and swap must never be below that on memory.
                setting("memory.memsw.limit_in_bytes", None, "-1"),
                setting("memory.limit_in_bytes", bytes(memory.max), "-1"),
                setting("memory.memsw.limit_in_bytes", bytes(both), "-1"),
            ]
        }
    }
}

/// The files of one disk's limits under v1, in the order of [`disk::Rates`].
const DISK_FILES: [&str; 4] = [
    "blkio.throttle.read_bps_device",
    "blkio.throttle.write_bps_device",
    "blkio.throttle.read_iops_device",
    "blkio.throttle.write_iops_device",
];

/// A setting for each file and disk.
fn io(disks: &[(String, disk::Rates)], version: Version) -> Vec<Setting> {
    let mut settings = Vec::new();
    for (disk, limits) in disks {
        match version {
            Version::V2 => {
                let text = limits
                    .map(|limit| limit.map_or_else(|| "max".to_owned(), |limit| limit.to_string()));
                let line = |[read, write, read_ops, write_ops]: [&str; 4]| {
                    format!("{disk} rbps={read} wbps={write} riops={read_ops} wiops={write_ops}")
                };
                let [read, write, read_ops, write_ops] = &text;
                settings.push(setting(
                    "io.max",
                    Some(line([read, write, read_ops, write_ops])),
                    &line(["max"; 4]),
                ));
            }
            Version::V1 => {
                for (file, limit) in DISK_FILES.into_iter().zip(limits) {
                    let none = format!("{disk} 0");
                    settings.push(setting(
                        file,
                        limit.map(|limit| format!("{disk} {limit}")),
                        &none,
                    ));
                }
            }
        }
    }
    settings
}

/// The disks with limits on the cgroup at `path` that the config lacks.
fn forgotten(tree: &Tree, path: &str, settings: &[(PathBuf, Setting)]) -> Vec<(PathBuf, Setting)> {
    let Some((version, directory)) = tree.directory(path, Controller::Io) else {
        return Vec::new();
    };
    let files: &[&'static str] = match version {
        Version::V2 => &["io.max"],
        Version::V1 => &DISK_FILES,
    };
    let disk = |text: &str| text.split_whitespace().next().map(str::to_owned);
    let wanted: BTreeSet<String> = settings
        .iter()
        .filter_map(|(_, setting)| disk(&setting.value))
        .collect();
    let mut gone = Vec::new();
    for file in files {
        let text = fs::read_to_string(directory.join(file)).unwrap_or_default();
        for disk in text
            .lines()
            .filter_map(disk)
            .filter(|disk| !wanted.contains(disk))
        {
            let default = match version {
                Version::V2 => format!("{disk} rbps=max wbps=max riops=max wiops=max"),
                Version::V1 => format!("{disk} 0"),
            };
            gone.push((directory.clone(), setting(file, None, &default)));
        }
    }
    gone
}
