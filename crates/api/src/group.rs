//! `weir groups --json`, `weir usage --json`, and the emergency actions on groups.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// One element of `weir groups --json`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GroupStatus {
    pub name: String,
    /// The cgroup's path, from the root of each hierarchy.
    pub cgroup: String,
    pub pids: Vec<u32>,
    /// Its limits as text.
    pub limits: Vec<String>,
    pub frozen: bool,
    pub cpu: CpuStatus,
    pub memory: MemoryStatus,
    /// The disks that it has used.
    pub io: Vec<IoStatus>,
    /// Its processes and threads, as the kernel counts them against `pids`.
    pub pids_current: u64,
    /// New processes and threads refused above `pids` since the cgroup was created.
    #[serde(default)]
    pub pids_refused: u64,
    /// Network usage; zero where the group has no network limit.
    pub network: NetworkStatus,
    /// Percent of the last ten seconds in which some process waited; `null` where the kernel does not report it.
    pub pressure: PressureStatus,
    /// Differences between the config and what is enforced.
    pub notes: Vec<String>,
    /// `full`, `partial` (some limit or member is not enforced) or `none` (no member is).
    #[serde(default)]
    pub enforcement: Enforcement,
    /// The cgroups on which its limits are set.
    #[serde(default)]
    pub members: Vec<MemberStatus>,
    /// Matching processes, units and containers that are not enforced.
    #[serde(default)]
    pub not_enforced: Vec<NotEnforced>,
}

/// How much of a group is enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Enforcement {
    /// All limits, on all matching processes.
    #[default]
    Full,
    /// Some limit or member is not enforced.
    Partial,
    /// No member is enforced.
    None,
}

impl Enforcement {
    /// The name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Partial => "partial",
            Self::None => "none",
        }
    }
}

/// A cgroup that a group's limits are set on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// `unit`, `container`, `cgroup` (limited in place), `scope` or `own` (processes that were moved).
    pub kind: String,
    /// The unit, the container's name, or the cgroup's path.
    pub name: String,
    /// The cgroup's path, from the root of its hierarchy; empty while a unit has none.
    pub cgroup: String,
    pub processes: u64,
    /// The way it is enforced, as text.
    pub how: String,
    /// The group's limits that are not enforced on it, each with the reason.
    pub problems: Vec<String>,
}

/// Matching processes of one program in one cgroup, or a unit, that are not enforced.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NotEnforced {
    /// The program that the processes run, or the name of the unit.
    pub name: String,
    pub cgroup: String,
    pub reason: String,
    /// The processes; empty for a unit that has none.
    pub pids: Vec<u32>,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct CpuStatus {
    /// CPU time used.
    pub usage_seconds: f64,
    /// Time throttled by `max`.
    pub throttled_seconds: f64,
    /// The maximum in effect, in percent of one CPU; `null` without one.
    pub max_percent: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct MemoryStatus {
    pub current_bytes: u64,
    /// The `high` in effect; `null` without one.
    pub high_bytes: Option<u64>,
    /// The `max` in effect; `null` without one.
    pub max_bytes: Option<u64>,
    /// Processes killed at `max`.
    pub oom_kills: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoStatus {
    /// The disk's name, or its number if it has none.
    pub device: String,
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NetworkStatus {
    /// Bytes that passed.
    pub egress_bytes: u64,
    /// Packets refused.
    pub egress_throttled_packets: u64,
    /// Bytes that passed.
    pub ingress_bytes: u64,
    /// Packets refused.
    pub ingress_throttled_packets: u64,
    /// Packets refused on egress by the group's `packets` limit.
    pub packets_refused: u64,
    /// Connections opened.
    pub connects: u64,
    pub connects_refused: u64,
    /// New destinations: each is counted once.
    pub destinations: u64,
    /// Connections and datagrams refused because their destination was new.
    pub destinations_refused: u64,
    /// The last refusal that this agent has recorded.
    pub last_refusal: Option<Refusal>,
}

/// A connection or datagram that was refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Refusal {
    /// Seconds since 1970.
    pub time: f64,
    pub destination: IpAddr,
    pub port: u16,
    pub process: u32,
    /// The program's name.
    pub program: String,
    /// `connects` or `destinations`.
    pub limit: String,
}

impl NetworkStatus {
    /// Refused connections and datagrams.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.connects_refused + self.destinations_refused
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            destination,
            port,
            process,
            program,
            limit,
            ..
        } = self;
        write!(
            formatter,
            "{program} (process {process}) to {destination} port {port}, above {limit}"
        )
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PressureStatus {
    pub cpu: Option<f64>,
    pub memory: Option<f64>,
    /// Disks.
    pub io: Option<f64>,
}

/// The resources that a group used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    pub cpu_seconds: f64,
    /// Bytes of memory, multiplied by the seconds for which they were used.
    pub memory_byte_seconds: f64,
    pub disk_read_bytes: u64,
    pub disk_write_bytes: u64,
    /// Bytes sent, as the IP layer counts them.
    pub network_egress_bytes: u64,
    /// Bytes received.
    pub network_ingress_bytes: u64,
}

/// A row of `weir usage`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UsageRow {
    /// The day in UTC, as YYYY-MM-DD.
    pub day: String,
    pub group: String,
    /// The group's usage on that day.
    #[serde(flatten)]
    pub usage: Usage,
}

/// An emergency action on a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Emergency {
    /// Freeze its processes.
    Freeze,
    /// Resume its processes.
    Thaw,
    /// Kill its processes.
    Kill,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    pub group: String,
    pub what: Emergency,
}
