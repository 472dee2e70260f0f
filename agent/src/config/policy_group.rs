//! Process groups that have been validated.

use std::fmt;
use std::path::PathBuf;

use common::limiter::Rate;

use crate::human;

/// `[[group]]`: a cgroup that Weir makes, fills and keeps filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Unique, and fit for a directory's name.
    pub name: String,
    /// Who belongs in it: whoever one of these matches. At least one.
    pub matchers: Vec<Matcher>,
    /// Its share of CPU time.
    pub cpu: Cpu,
    /// Its memory.
    pub memory: Memory,
    /// Its disks, each named once.
    pub io: Vec<Io>,
    /// The most processes and threads at one time.
    pub pids: Option<u64>,
    /// The CPUs it may run on.
    pub cpus: Option<CpuList>,
    /// Its network.
    pub network: Network,
}

/// Who belongs in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Matcher {
    /// The executable's absolute path.
    Exe(PathBuf),
    /// The name or number of the user it runs as.
    User(String),
    /// A glob over the arguments, joined by spaces.
    Command(String),
    /// A systemd unit.
    Unit(String),
    /// A glob over the path of the cgroup it is in, in any hierarchy.
    Cgroup(String),
    /// A process.
    Pid(u32),
}

/// A share of CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// No more than this.
    pub max: Option<CpuShare>,
    /// Against other groups when CPUs are short, from 1 to 10,000; 100 is what everybody has.
    pub weight: Option<u32>,
    /// More than `max` while the host is idle.
    pub elastic: bool,
}

/// A share of CPU time in hundredths of a percent of one CPU, at least 100 (1 %).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuShare(pub(super) u32);

impl CpuShare {
    /// Every [`CpuShare::PERIOD_MICROSECONDS`] the group has this many microseconds of CPU time.
    #[must_use]
    pub const fn quota_microseconds(self) -> u64 {
        self.0 as u64 * Self::PERIOD_MICROSECONDS / 10_000
    }

    /// The kernel's own default period.
    pub const PERIOD_MICROSECONDS: u64 = 100_000;

    /// Percent of one CPU.
    #[must_use]
    pub fn percent(self) -> f64 {
        f64::from(self.0) / 100.0
    }

    /// From percent of one CPU, rounded to hundredths, at least 1 %.
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
    /// Above this it is slowed down and reclaimed from.
    pub high: Option<u64>,
    /// Above this it is killed.
    pub max: Option<u64>,
    /// Swap it may use.
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

/// Network, in bytes a time, as the IP layer counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// What it sends.
    pub egress: Option<Rate>,
    /// What it receives.
    pub ingress: Option<Rate>,
}

/// CPUs in the kernel's list format, as "0-1,4".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(pub(super) String);

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
            Self::Cgroup(glob) => write!(formatter, "cgroup {glob}"),
            Self::Pid(pid) => write!(formatter, "pid {pid}"),
        }
    }
}

impl Group {
    /// Its limits as a person would say them, one a text.
    #[must_use]
    pub fn limit_texts(&self) -> Vec<String> {
        let rate = |rate: Rate| human::bit_rate(rate.count as f64 * 1e9 / rate.per_nanoseconds as f64);
        let mut texts = Vec::new();
        let mut add = |name: &str, value: Option<String>| texts.extend(value.map(|value| format!("{name} {value}")));
        let elastic = if self.cpu.elastic { ", more while the host is idle" } else { "" };
        add("cpu", self.cpu.max.map(|share| format!("{share}{elastic}")));
        add("cpu weight", self.cpu.weight.map(|weight| weight.to_string()));
        add("cpus", self.cpus.as_ref().map(ToString::to_string));
        add("memory high", self.memory.high.map(human::size));
        add("memory", self.memory.max.map(human::size));
        add("swap", self.memory.swap_max.map(human::size));
        for io in &self.io {
            let device = io.device.display();
            add(&format!("{device} read"), io.read.map(human::byte_rate));
            add(&format!("{device} write"), io.write.map(human::byte_rate));
            add(&format!("{device} read"), io.read_ops.map(|operations| format!("{operations} operations/s")));
            add(&format!("{device} write"), io.write_ops.map(|operations| format!("{operations} operations/s")));
        }
        add("processes", self.pids.map(|pids| pids.to_string()));
        add("egress", self.network.egress.map(rate));
        add("ingress", self.network.ingress.map(rate));
        texts
    }
}
