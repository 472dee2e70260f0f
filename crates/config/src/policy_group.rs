//! Validated process groups.

use std::fmt;
use std::path::PathBuf;

use common::limiter::Rate;

use crate::human;

/// `[[group]]`: processes, units and containers under one set of limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The name: unique, and valid as a directory's name.
    pub name: String,
    /// Conditions, at least one; a process that meets any of them is a member.
    pub matchers: Vec<Matcher>,
    /// Whether processes are moved out of units and containers.
    pub moving: Moving,
    pub cpu: Cpu,
    pub memory: Memory,
    /// The disks, each once.
    pub io: Vec<Io>,
    /// The most processes and threads.
    pub pids: Option<u64>,
    /// The CPUs it may run on.
    pub cpus: Option<CpuList>,
    pub network: Network,
}

/// A condition for membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Matcher {
    /// The executable's absolute path.
    Exe(PathBuf),
    /// The name or ID of the process's user.
    User(String),
    /// A glob over the arguments, joined by spaces.
    Command(String),
    /// A glob over the names of systemd units.
    Unit(String),
    /// A glob over the names of systemd slices.
    Slice(String),
    /// A glob over the names and ids of containers and pods, or over their labels as `key=value`.
    Container(String),
    /// A glob over the path of the process's cgroup, in any hierarchy.
    Cgroup(String),
    /// A process ID.
    Pid(u32),
}

/// Whether matching processes are moved out of their units and containers: `move`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moving {
    /// They stay.
    #[default]
    Never,
    /// They are moved if no restriction is lifted by it.
    Unrestricted,
    /// They are always moved.
    Force,
}

/// A share of CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// The maximum.
    pub max: Option<CpuShare>,
    /// The weight against other groups when CPUs are short, 1 to 10,000; the kernel's default is 100.
    pub weight: Option<u32>,
    /// Whether it may exceed `max` while the host is idle.
    pub elastic: bool,
}

/// A share of CPU time in hundredths of a percent of one CPU, at least 100 (1 %).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuShare(pub(super) u32);

impl CpuShare {
    /// The CPU time in microseconds per [`CpuShare::PERIOD_MICROSECONDS`].
    #[must_use]
    pub const fn quota_microseconds(self) -> u64 {
        self.0 as u64 * Self::PERIOD_MICROSECONDS / 10_000
    }

    /// The kernel's own default period.
    pub const PERIOD_MICROSECONDS: u64 = 100_000;

    /// The share in percent of one CPU.
    #[must_use]
    pub fn percent(self) -> f64 {
        f64::from(self.0) / 100.0
    }

    /// From percent of one CPU, rounded to hundredths; at least 1 %.
    #[must_use]
    pub fn from_percent(percent: f64) -> Self {
        Self((percent * 100.0).round().clamp(100.0, f64::from(u32::MAX)) as u32)
    }
}

impl fmt::Display for CpuShare {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}%", self.percent())
    }
}

/// Memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Above this, the kernel slows the group down and reclaims its memory.
    pub high: Option<u64>,
    /// Above this, the kernel kills.
    pub max: Option<u64>,
    /// The most swap.
    pub swap_max: Option<u64>,
}

/// One disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Io {
    /// A block device, or any path on it.
    pub device: PathBuf,
    /// Bytes a second.
    pub read: Option<u64>,
    /// Bytes a second.
    pub write: Option<u64>,
    /// Operations a second.
    pub read_ops: Option<u64>,
    /// Operations a second.
    pub write_ops: Option<u64>,
}

/// Network limits: bytes as the IP layer counts them, connections, destinations and packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Bytes sent.
    pub egress: Option<Rate>,
    /// Bytes received.
    pub ingress: Option<Rate>,
    /// New connections of TCP and UDP.
    pub connects: Option<Rate>,
    /// New destinations: addresses without a packet in the rate's period.
    pub destinations: Option<Rate>,
    /// Packets sent.
    pub packets: Option<Rate>,
}

/// A rate of whole units as written in the config.
fn count_rate(rate: Rate) -> String {
    let units = [("s", 1), ("min", 60), ("h", 3_600), ("day", 86_400)];
    let unit = units
        .into_iter()
        .find(|(_, seconds)| rate.per_nanoseconds == seconds * 1_000_000_000);
    let time = unit.map_or_else(
        || human::time(std::time::Duration::from_nanos(rate.per_nanoseconds)),
        |(unit, _)| unit.to_owned(),
    );
    format!("{}/{time}", human::number(rate.count))
}

/// CPUs in the kernel's list format, as "0-1,4".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(pub(super) String);

impl CpuList {
    /// One bit per CPU, starting with the lowest bit of the first byte.
    #[must_use]
    pub fn bits(&self) -> Vec<u8> {
        let mut bits = Vec::new();
        for part in self.0.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (Ok(first), Ok(last)) =
                (first.trim().parse::<usize>(), last.trim().parse::<usize>())
            else {
                continue;
            };
            for cpu in first..=last {
                if bits.len() <= cpu / 8 {
                    bits.resize(cpu / 8 + 1, 0);
                }
                bits[cpu / 8] |= 1 << (cpu % 8);
            }
        }
        bits
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Display for Matcher {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exe(path) => write!(formatter, "exe {}", path.display()),
            Self::User(user) => write!(formatter, "user {user}"),
            Self::Command(glob) => write!(formatter, "command {glob}"),
            Self::Unit(unit) => write!(formatter, "unit {unit}"),
            Self::Slice(slice) => write!(formatter, "slice {slice}"),
            Self::Container(glob) => write!(formatter, "container {glob}"),
            Self::Cgroup(glob) => write!(formatter, "cgroup {glob}"),
            Self::Pid(pid) => write!(formatter, "pid {pid}"),
        }
    }
}

impl Group {
    /// The same matchers without any limit.
    #[must_use]
    pub fn without_limits(&self) -> Self {
        let (name, matchers, moving) = (self.name.clone(), self.matchers.clone(), self.moving);
        Self {
            name,
            matchers,
            moving,
            ..Self::default()
        }
    }

    /// Its limits, each as text.
    #[must_use]
    pub fn limit_texts(&self) -> Vec<String> {
        let rate =
            |rate: Rate| human::bit_rate(rate.count as f64 * 1e9 / rate.per_nanoseconds as f64);
        let mut texts = Vec::new();
        let mut add = |name: &str, value: Option<String>| {
            texts.extend(value.map(|value| format!("{name} {value}")));
        };
        let elastic = if self.cpu.elastic {
            ", more while the host is idle"
        } else {
            ""
        };
        add("cpu", self.cpu.max.map(|share| format!("{share}{elastic}")));
        add(
            "cpu weight",
            self.cpu.weight.map(|weight| weight.to_string()),
        );
        add("cpus", self.cpus.as_ref().map(ToString::to_string));
        add("memory high", self.memory.high.map(human::size));
        add("memory", self.memory.max.map(human::size));
        add("swap", self.memory.swap_max.map(human::size));
        for io in &self.io {
            let device = io.device.display();
            add(&format!("{device} read"), io.read.map(human::byte_rate));
            add(&format!("{device} write"), io.write.map(human::byte_rate));
            add(
                &format!("{device} read"),
                io.read_ops
                    .map(|operations| format!("{operations} operations/s")),
            );
            add(
                &format!("{device} write"),
                io.write_ops
                    .map(|operations| format!("{operations} operations/s")),
            );
        }
        add("processes", self.pids.map(|pids| pids.to_string()));
        add("egress", self.network.egress.map(rate));
        add("ingress", self.network.ingress.map(rate));
        add("connects", self.network.connects.map(count_rate));
        add("destinations", self.network.destinations.map(count_rate));
        add("packets", self.network.packets.map(count_rate));
        texts
    }
}
