//! The usage and refusals of a group, read from its cgroups: the document of `weir groups`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use host::load::some_avg10;
use serde::{Deserialize, Serialize};

pub use api::group::{
    CpuStatus, Enforcement, GroupStatus, IoStatus, MemberStatus, MemoryStatus, NetworkStatus,
    NotEnforced, PressureStatus, Refusal,
};

use super::tree::{Controller, Tree, Version};

/// Reads everything that cgroup files contain, for a group with these cgroups: its own, and those limited in place.
/// Network, notes and unenforced processes are not included.
#[must_use]
pub fn read(tree: &Tree, sys: &Path, paths: &[&str]) -> GroupStatus {
    let mut all = GroupStatus::default();
    for path in paths {
        let one = read_one(tree, sys, path);
        all.pids.extend(one.pids);
        all.frozen |= one.frozen;
        all.cpu.usage_seconds += one.cpu.usage_seconds;
        all.cpu.throttled_seconds += one.cpu.throttled_seconds;
        all.cpu.max_percent = all.cpu.max_percent.or(one.cpu.max_percent);
        all.memory.current_bytes += one.memory.current_bytes;
        all.memory.high_bytes = all.memory.high_bytes.or(one.memory.high_bytes);
        all.memory.max_bytes = all.memory.max_bytes.or(one.memory.max_bytes);
        all.memory.oom_kills += one.memory.oom_kills;
        for disk in one.io {
            match all.io.iter_mut().find(|known| known.device == disk.device) {
                Some(known) => {
                    known.read_bytes += disk.read_bytes;
                    known.write_bytes += disk.write_bytes;
                }
                None => all.io.push(disk),
            }
        }
        all.pids_current += one.pids_current;
        let most = |all: Option<f64>, one: Option<f64>| all.into_iter().chain(one).reduce(f64::max);
        all.pressure = PressureStatus {
            cpu: most(all.pressure.cpu, one.pressure.cpu),
            memory: most(all.pressure.memory, one.pressure.memory),
            io: most(all.pressure.io, one.pressure.io),
        };
    }
    all.pids.sort_unstable();
    all.pids.dedup();
    all
}

fn read_one(tree: &Tree, sys: &Path, path: &str) -> GroupStatus {
    let pressure =
        |file: &str| some_avg10(&fs::read_to_string(tree.unified(path)?.join(file)).ok()?);
    let pids: Vec<u32> = tree.pids(path).into_iter().collect();
    let counted = tree.directory(path, Controller::Pids);
    let counted = counted.and_then(|(_, directory)| number(&directory.join("pids.current")));
    GroupStatus {
        frozen: is_frozen(tree, path),
        cpu: cpu(tree, path),
        memory: memory(tree, path),
        io: io(tree, sys, path),
        // Without the controller, which also counts threads, count processes.
        pids_current: counted.unwrap_or(pids.len() as u64),
        pids,
        pressure: PressureStatus {
            cpu: pressure("cpu.pressure"),
            memory: pressure("memory.pressure"),
            io: pressure("io.pressure"),
        },
        ..GroupStatus::default()
    }
}

/// The counters of a cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// CPU time.
    pub cpu_seconds: f64,
    /// Bytes read from disks.
    pub read_bytes: u64,
    /// Bytes written to disks.
    pub write_bytes: u64,
    /// Memory in use, in bytes.
    pub memory_bytes: u64,
}

/// The counters of a cgroup.
#[must_use]
pub fn read_counters(tree: &Tree, sys: &Path, path: &str) -> Counters {
    let disks = io(tree, sys, path);
    Counters {
        cpu_seconds: cpu(tree, path).usage_seconds,
        read_bytes: disks.iter().map(|disk| disk.read_bytes).sum(),
        write_bytes: disks.iter().map(|disk| disk.write_bytes).sum(),
        memory_bytes: memory(tree, path).current_bytes,
    }
}

/// The seconds for which a cgroup was throttled by its CPU limit.
#[must_use]
pub fn read_throttled(tree: &Tree, path: &str) -> f64 {
    cpu(tree, path).throttled_seconds
}

/// The processes that the kernel killed for lack of memory since the cgroup was created.
#[must_use]
pub fn read_oom_kills(tree: &Tree, path: &str) -> u64 {
    memory(tree, path).oom_kills
}

/// The processes and threads that the kernel refused above a cgroup's `pids` since it was created. Before Linux 6.11, which has
/// `pids.events.local`, it counts them in the cgroup of the process that forks, whichever limit refuses.
#[must_use]
pub fn read_pids_refused(tree: &Tree, path: &str) -> u64 {
    let events = tree
        .directory(path, Controller::Pids)
        .map(|(_, directory)| {
            let local = directory.join("pids.events.local");
            let all = || directory.join("pids.events");
            pairs(&if local.exists() { local } else { all() })
        });
    events
        .and_then(|events| events.get("max").copied())
        .unwrap_or(0)
}

fn is_frozen(tree: &Tree, path: &str) -> bool {
    if let Some(directory) = tree.unified(path) {
        return number(&directory.join("cgroup.freeze")) == Some(1);
    }
    let state = tree
        .directory(path, Controller::Freezer)
        .and_then(|(_, directory)| fs::read_to_string(directory.join("freezer.state")).ok());
    state.is_some_and(|state| state.trim() != "THAWED")
}

fn cpu(tree: &Tree, path: &str) -> CpuStatus {
    let Some((version, directory)) = tree.directory(path, Controller::Cpu) else {
        return CpuStatus::default();
    };
    let stat = pairs(&directory.join("cpu.stat"));
    let of = |key: &str| stat.get(key).copied().unwrap_or(0) as f64;
    let percent = |quota: u64, period: u64| quota as f64 * 100.0 / period.max(1) as f64;
    match version {
        Version::V2 => {
            let max = fs::read_to_string(directory.join("cpu.max")).unwrap_or_default();
            let max_percent = max.trim().split_once(' ').and_then(|(quota, period)| {
                Some(percent(quota.parse().ok()?, period.parse().ok()?))
            });
            CpuStatus {
                usage_seconds: of("usage_usec") / 1e6,
                throttled_seconds: of("throttled_usec") / 1e6,
                max_percent,
            }
        }
        Version::V1 => {
            let usage = tree
                .directory(path, Controller::CpuAccounting)
                .and_then(|(_, directory)| number(&directory.join("cpuacct.usage")));
            let quota = number(&directory.join("cpu.cfs_quota_us"));
            let period = number(&directory.join("cpu.cfs_period_us"));
            CpuStatus {
                usage_seconds: usage.unwrap_or(0) as f64 / 1e9,
                throttled_seconds: of("throttled_time") / 1e9,
                max_percent: quota
                    .zip(period)
                    .map(|(quota, period)| percent(quota, period)),
            }
        }
    }
}

fn memory(tree: &Tree, path: &str) -> MemoryStatus {
    let Some((version, directory)) = tree.directory(path, Controller::Memory) else {
        return MemoryStatus::default();
    };
    let file = |name: &str| number(&directory.join(name));
    let oom_kills = |name: &str| {
        pairs(&directory.join(name))
            .get("oom_kill")
            .copied()
            .unwrap_or(0)
    };
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
            // Without a limit the kernel reports the largest number of whole pages.
            max_bytes: file("memory.limit_in_bytes").filter(|bytes| *bytes < 1 << 62),
            oom_kills: oom_kills("memory.oom_control"),
        },
    }
}

fn io(tree: &Tree, sys: &Path, path: &str) -> Vec<IoStatus> {
    let Some((version, directory)) = tree.directory(path, Controller::Io) else {
        return Vec::new();
    };
    let mut disks: BTreeMap<String, IoStatus> = BTreeMap::new();
    let file = match version {
        Version::V2 => "io.stat",
        Version::V1 => "blkio.throttle.io_service_bytes",
    };
    for line in fs::read_to_string(directory.join(file))
        .unwrap_or_default()
        .lines()
    {
        let mut fields = line.split_whitespace();
        let Some(number) = fields.next().filter(|number| number.contains(':')) else {
            continue;
        };
        let disk = disks.entry(number.to_owned()).or_default();
        let fields: Vec<&str> = fields.collect();
        match (version, fields.as_slice()) {
            (Version::V2, fields) => {
                let of = |key: &str| {
                    fields
                        .iter()
                        .find_map(|field| field.strip_prefix(key)?.parse().ok())
                };
                disk.read_bytes = of("rbytes=").unwrap_or(0);
                disk.write_bytes = of("wbytes=").unwrap_or(0);
            }
            (Version::V1, ["Read", bytes]) => disk.read_bytes = bytes.parse().unwrap_or(0),
            (Version::V1, ["Write", bytes]) => disk.write_bytes = bytes.parse().unwrap_or(0),
            (Version::V1, _) => {}
        }
    }
    let named = disks.into_iter().map(|(number, disk)| IoStatus {
        device: disk_name(sys, &number),
        ..disk
    });
    named
        .filter(|disk| disk.read_bytes + disk.write_bytes > 0)
        .collect()
}

/// The name of a disk in /sys, from its number.
fn disk_name(sys: &Path, number: &str) -> String {
    let target = fs::read_link(sys.join("dev/block").join(number)).ok();
    let name = target
        .as_deref()
        .and_then(Path::file_name)
        .map(|name| format!("/dev/{}", name.to_string_lossy()));
    name.unwrap_or_else(|| number.to_owned())
}

/// The number in a file; `None` for `max` and for invalid content.
fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Parses a file with a name and a number on each line.
fn pairs(path: &Path) -> BTreeMap<String, u64> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let pair = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}
