//! What a group has used and been refused, read from its cgroup: the document behind `agent groups`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::tree::{Controller, Tree, Version};

/// One element of `agent groups --json`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GroupStatus {
    /// Its name.
    pub name: String,
    /// Its cgroup's path, from the root of each hierarchy.
    pub cgroup: String,
    /// Its processes.
    pub pids: Vec<u32>,
    /// Its limits, as a person would say them.
    pub limits: Vec<String>,
    /// Whether it is frozen.
    pub frozen: bool,
    /// CPU time.
    pub cpu: CpuStatus,
    /// Memory.
    pub memory: MemoryStatus,
    /// Disks it has used.
    pub io: Vec<IoStatus>,
    /// Processes and threads there are, as the kernel counts them against `pids`.
    pub pids_current: u64,
    /// Network; zero where the group has no network limit.
    pub network: NetworkStatus,
    /// Percent of the last ten seconds in which some process waited; `null` where the kernel does not tell.
    pub pressure: PressureStatus,
    /// What is not as the config wants it.
    pub notes: Vec<String>,
}

/// CPU time.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct CpuStatus {
    /// Used.
    pub usage_seconds: f64,
    /// Held back by `max`.
    pub throttled_seconds: f64,
    /// In force at this moment, in percent of one CPU; `null` if nothing is.
    pub max_percent: Option<f64>,
}

/// Memory.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// Used now.
    pub current_bytes: u64,
    /// In force; `null` if nothing is.
    pub high_bytes: Option<u64>,
    /// In force; `null` if nothing is.
    pub max_bytes: Option<u64>,
    /// Processes killed at `max`.
    pub oom_kills: u64,
}

/// One disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoStatus {
    /// Its name, or its number if it has none.
    pub device: String,
    /// Read from it.
    pub read_bytes: u64,
    /// Written to it.
    pub write_bytes: u64,
}

/// Network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkStatus {
    /// Let through.
    pub egress_bytes: u64,
    /// Refused.
    pub egress_throttled_packets: u64,
    /// Let through.
    pub ingress_bytes: u64,
    /// Refused.
    pub ingress_throttled_packets: u64,
}

/// Pressure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PressureStatus {
    /// For a CPU.
    pub cpu: Option<f64>,
    /// For memory.
    pub memory: Option<f64>,
    /// For a disk.
    pub io: Option<f64>,
}

/// Reads everything but pids, network and notes, which are not in files of the cgroup's.
#[must_use]
pub fn read(tree: &Tree, sys: &Path, group: &str) -> GroupStatus {
    let pressure = |file: &str| {
        let text = fs::read_to_string(tree.unified(group)?.join(file)).ok()?;
        text.strip_prefix("some avg10=")?.split_whitespace().next()?.parse().ok()
    };
    GroupStatus {
        name: group.to_owned(),
        cgroup: format!("/{}/{group}", tree.parent()),
        frozen: is_frozen(tree, group),
        cpu: cpu(tree, group),
        memory: memory(tree, group),
        io: io(tree, sys, group),
        pids_current: tree
            .directory(group, Controller::Pids)
            .and_then(|(_, directory)| number(&directory.join("pids.current")))
            .unwrap_or(0),
        pressure: PressureStatus {
            cpu: pressure("cpu.pressure"),
            memory: pressure("memory.pressure"),
            io: pressure("io.pressure"),
        },
        ..GroupStatus::default()
    }
}

/// For how long a group was held back by its CPU limit, in seconds.
#[must_use]
pub fn read_throttled(tree: &Tree, group: &str) -> f64 {
    cpu(tree, group).throttled_seconds
}

/// How many processes of a group were killed for want of memory, since its cgroup was made.
#[must_use]
pub fn read_oom_kills(tree: &Tree, group: &str) -> u64 {
    memory(tree, group).oom_kills
}

fn is_frozen(tree: &Tree, group: &str) -> bool {
    if let Some(directory) = tree.unified(group) {
        return number(&directory.join("cgroup.freeze")) == Some(1);
    }
    let state = tree
        .directory(group, Controller::Freezer)
        .and_then(|(_, directory)| fs::read_to_string(directory.join("freezer.state")).ok());
    state.is_some_and(|state| state.trim() != "THAWED")
}

fn cpu(tree: &Tree, group: &str) -> CpuStatus {
    let Some((version, directory)) = tree.directory(group, Controller::Cpu) else { return CpuStatus::default() };
    let stat = pairs(&directory.join("cpu.stat"));
    let of = |key: &str| stat.get(key).copied().unwrap_or(0) as f64;
    let percent = |quota: u64, period: u64| quota as f64 * 100.0 / period.max(1) as f64;
    match version {
        Version::V2 => {
            let max = fs::read_to_string(directory.join("cpu.max")).unwrap_or_default();
            let max_percent = max
                .trim()
                .split_once(' ')
                .and_then(|(quota, period)| Some(percent(quota.parse().ok()?, period.parse().ok()?)));
            CpuStatus {
                usage_seconds: of("usage_usec") / 1e6,
                throttled_seconds: of("throttled_usec") / 1e6,
                max_percent,
            }
        }
        Version::V1 => {
            let usage = tree
                .directory(group, Controller::CpuAccounting)
                .and_then(|(_, directory)| number(&directory.join("cpuacct.usage")));
            let quota = number(&directory.join("cpu.cfs_quota_us"));
            let period = number(&directory.join("cpu.cfs_period_us"));
            CpuStatus {
                usage_seconds: usage.unwrap_or(0) as f64 / 1e9,
                throttled_seconds: of("throttled_time") / 1e9,
                max_percent: quota.zip(period).map(|(quota, period)| percent(quota, period)),
            }
        }
    }
}

fn memory(tree: &Tree, group: &str) -> MemoryStatus {
    let Some((version, directory)) = tree.directory(group, Controller::Memory) else { return MemoryStatus::default() };
    let file = |name: &str| number(&directory.join(name));
    let oom_kills = |name: &str| pairs(&directory.join(name)).get("oom_kill").copied().unwrap_or(0);
    match version {
        Version::V2 => MemoryStatus {
            current_bytes: file("memory.current").unwrap_or(0),
            high_bytes: file("memory.high"),
            max_bytes: file("memory.max"),
            oom_kills: oom_kills("memory.events"),
        },
        Version::V1 => MemoryStatus {
            current_bytes: file("memory.usage_in_bytes").unwrap_or(0),
            high_bytes: None,
            // Without a limit the kernel shows the largest number of whole pages.
            max_bytes: file("memory.limit_in_bytes").filter(|bytes| *bytes < 1 << 62),
            oom_kills: oom_kills("memory.oom_control"),
        },
    }
}

fn io(tree: &Tree, sys: &Path, group: &str) -> Vec<IoStatus> {
    let Some((version, directory)) = tree.directory(group, Controller::Io) else { return Vec::new() };
    let mut disks: BTreeMap<String, IoStatus> = BTreeMap::new();
    let file = match version {
        Version::V2 => "io.stat",
        Version::V1 => "blkio.throttle.io_service_bytes",
    };
    for line in fs::read_to_string(directory.join(file)).unwrap_or_default().lines() {
        let mut fields = line.split_whitespace();
        let Some(number) = fields.next().filter(|number| number.contains(':')) else { continue };
        let disk = disks.entry(number.to_owned()).or_default();
        let fields: Vec<&str> = fields.collect();
        match (version, fields.as_slice()) {
            (Version::V2, fields) => {
                let of = |key: &str| fields.iter().find_map(|field| field.strip_prefix(key)?.parse().ok());
                disk.read_bytes = of("rbytes=").unwrap_or(0);
                disk.write_bytes = of("wbytes=").unwrap_or(0);
            }
            (Version::V1, ["Read", bytes]) => disk.read_bytes = bytes.parse().unwrap_or(0),
            (Version::V1, ["Write", bytes]) => disk.write_bytes = bytes.parse().unwrap_or(0),
            (Version::V1, _) => {}
        }
    }
    let named = disks.into_iter().map(|(number, disk)| IoStatus { device: disk_name(sys, &number), ..disk });
    named.filter(|disk| disk.read_bytes + disk.write_bytes > 0).collect()
}

/// The name that /sys has for a disk's number.
fn disk_name(sys: &Path, number: &str) -> String {
    let target = fs::read_link(sys.join("dev/block").join(number)).ok();
    let name = target.as_deref().and_then(Path::file_name).map(|name| format!("/dev/{}", name.to_string_lossy()));
    name.unwrap_or_else(|| number.to_owned())
}

/// A file of one number; `None` for `max` and what else is none.
fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// A file of a name and a number a line.
fn pairs(path: &Path) -> BTreeMap<String, u64> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let pair = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}
