//! What the agent tells of itself: the documents behind `status`, `limits`, `top` and `show`.

pub mod counted;
mod reader;
mod view;

pub use counted::{Counted, CountedDocument};
pub use reader::{Live, Reader, mapped, monotonic_nanoseconds, seconds_until};
pub use view::{MOST_SOURCES, Sort, SourceLoad, View, ViewQuery};

use common::counters::Traffic;
use serde::{Deserialize, Serialize};

use crate::cluster::ClusterStatus;
use crate::config::policy::{Limit, PortSet};
use crate::datapath::AttachMode;

/// `agent status --json`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// Of this agent.
    pub version: String,
    /// `enforce` or `observe`.
    pub mode: String,
    /// Since this agent started.
    pub uptime_seconds: u64,
    /// The file in force; `null` for the built-in limits.
    pub config: Option<String>,
    /// Where it is attached.
    pub interfaces: Vec<InterfaceStatus>,
    /// Of all packets that came by.
    pub totals: Totals,
    /// The table of sources.
    pub sources: SourcesStatus,
    /// Packets that came to no limit, and why.
    pub bypass: BypassStatus,
    /// Prefixes that are banned.
    pub bans: u64,
    /// Whether elastic limits give more than their rate at this moment; `null` if none is elastic.
    pub has_room: Option<bool>,
    /// The process groups' names.
    #[serde(default)]
    pub groups: Vec<String>,
    /// What came of the last time the config was read again; `null` if it has not been.
    #[serde(default)]
    pub last_reload: Option<crate::live::LastReload>,
    /// The trial that waits to be confirmed.
    #[serde(default)]
    pub trial: Option<crate::live::TrialStatus>,
    /// Who is never throttled so that nobody is locked out.
    #[serde(default)]
    pub protected: Vec<crate::protect::Protected>,
    /// What the policy on packets takes, and what is left; `null` where there is none.
    #[serde(default)]
    pub memory: Option<crate::memory::MemoryStatus>,
    /// What an operator should know.
    pub notes: Vec<String>,
    /// The shares of limits that many hosts keep together, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterStatus>,
}

/// One interface.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct InterfaceStatus {
    /// Its name; a pattern that no interface has.
    pub name: String,
    /// `native`, `generic` or `tc`; `null` where nothing is attached.
    pub attach: Option<AttachMode>,
    /// Whether its packets are limited, as the kernel says at this moment.
    pub state: InterfaceState,
    /// The interfaces that charge its packets in its place, since they carry them too; empty if it charges them itself.
    #[serde(default)]
    pub enforced_by: Vec<String>,
    /// Why others charge its packets.
    #[serde(default)]
    pub reason: Option<String>,
}

/// Whether limits are in effect on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InterfaceState {
    /// They are.
    Attached,
    /// This host has no such interface.
    Missing,
    /// It is down, and its driver attaches programs only while it is up.
    Down,
    /// A program was taken off.
    Detached,
    /// A program could not be attached.
    Failed,
}

impl InterfaceState {
    /// As it stands in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Attached => "attached",
            Self::Missing => "missing",
            Self::Down => "down",
            Self::Detached => "detached",
            Self::Failed => "failed",
        }
    }
}

impl std::fmt::Display for InterfaceStatus {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.attach, self.state) {
            (Some(attach), InterfaceState::Attached) => write!(formatter, "{} ({attach})", self.name),
            (Some(attach), state) => write!(formatter, "{} ({attach}, {})", self.name, state.name()),
            (None, state) => write!(formatter, "{} ({})", self.name, state.name()),
        }
    }
}

/// All packets.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Totals {
    /// Packets let through.
    pub passed_packets: u64,
    /// Their bytes.
    pub passed_bytes: u64,
    /// Packets refused.
    pub throttled_packets: u64,
    /// Their bytes.
    pub throttled_bytes: u64,
}

/// The table of sources.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct SourcesStatus {
    /// Keys whose allowance is not whole at this moment.
    pub tracked: u64,
    /// Keys there is room for.
    pub capacity: u64,
    /// Keys that gave way to others that were as busy.
    pub evicted: u64,
    /// Packets of new keys that found no room, and passed.
    pub full_passed: u64,
    /// … and were refused.
    pub full_throttled: u64,
    /// … and were counted in the shared bucket.
    pub full_shared: u64,
    /// Packets refused since other CPUs kept changing their state.
    pub contended: u64,
}

/// Packets that came to no limit.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct BypassStatus {
    /// No limit applies.
    pub unlimited: u64,
    /// Not IP.
    pub not_ip: u64,
    /// Neighbour discovery and DHCP, within its limit.
    pub essential: u64,
    /// Never limited.
    pub never_limit: u64,
    /// Refused as malformed.
    pub malformed: u64,
    /// Refused as banned.
    pub banned: u64,
    /// ARP, neighbour discovery and DHCP that was refused above its limit.
    #[serde(default)]
    pub essential_throttled: u64,
    /// Other frames that are not IP, refused above their limit.
    #[serde(default)]
    pub not_ip_throttled: u64,
}

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

impl From<Traffic> for Count {
    fn from(traffic: Traffic) -> Self {
        Self { packets: traffic.packets, bytes: traffic.bytes }
    }
}

/// A limit as the operator defined it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LimitDefinition {
    /// Its name.
    pub name: String,
    /// `ingress` or `egress`.
    pub direction: String,
    /// What it counts by.
    pub key: String,
    /// What it counts.
    pub unit: String,
    /// How.
    pub algorithm: String,
    /// As the operator wrote it.
    pub rate: String,
    /// In units.
    pub burst: u64,
    /// Whether many hosts keep it together: rate and burst are of all of them.
    #[serde(default)]
    pub cluster: bool,
    /// All of it but the name in one line.
    #[serde(default)]
    pub summary: String,
    /// `any`, `tcp`, `udp` or `icmp`; `null` for limits on requests.
    #[serde(default)]
    pub protocol: Option<String>,
    /// Local ports and ranges; empty for every packet.
    #[serde(default)]
    pub ports: Vec<String>,
    /// Sources in one IPv4 prefix of this length share a key.
    #[serde(default)]
    pub ipv4_prefix: u8,
    /// Likewise for IPv6.
    #[serde(default)]
    pub ipv6_prefix: u8,
    /// `drop`, `observe`, `reject`, `mark …`, `shape`; `refuse` or `observe` for limits on requests.
    #[serde(default)]
    pub action: String,
    /// `hard`, `soft up to …` or `elastic up to …`.
    #[serde(default)]
    pub throttle: String,
    /// Further rates on the same key.
    #[serde(default)]
    pub tiers: Vec<String>,
}

impl From<&Limit> for LimitDefinition {
    fn from(limit: &Limit) -> Self {
        Self {
            name: limit.name.clone(),
            direction: limit.direction_name().to_owned(),
            key: limit.key_name(),
            unit: limit.unit.to_string(),
            algorithm: limit.algorithm.to_string(),
            rate: limit.rate_text(),
            burst: limit.burst,
            cluster: limit.cluster,
            summary: limit.summary(),
            protocol: Some(limit.protocol.to_string()),
            ports: limit.ports.as_ref().map(PortSet::texts).unwrap_or_default(),
            ipv4_prefix: limit.ipv4_prefix,
            ipv6_prefix: limit.ipv6_prefix,
            action: limit.action.words(),
            throttle: limit.throttle.words().unwrap_or_else(|| "hard".to_owned()),
            tiers: limit.tiers.iter().map(|tier| tier.text.clone()).collect(),
        }
    }
}

/// One element of `agent limits --json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LimitStatus {
    /// What it is.
    #[serde(flatten)]
    pub definition: LimitDefinition,
    /// Packets that conformed to this and all other limits on them.
    pub passed: Count,
    /// Refused by this limit.
    pub throttled: Count,
    /// Would have been.
    pub would_throttle: Count,
    /// Passed above it, since it is soft or elastic, or marks.
    pub over: Count,
    /// Keys whose allowance is not whole.
    pub keys: u64,
    /// Limits on requests: those that wait in line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<WaitingStatus>,
}

/// Requests that wait for a limit, and what became of those that did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingStatus {
    /// At this moment.
    pub waiting: u64,
    /// Passed after a wait.
    pub passed: u64,
    /// Refused after a wait: another config or share, or the agent's end.
    pub refused: u64,
    /// Left before their turn: the client disconnected.
    pub left: u64,
    /// Refused at once, since the line was full.
    pub full: u64,
}

/// One element of `agent top --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopRow {
    /// The address or prefix that is counted as one.
    pub source: String,
    /// The limit that refused it last, or the first that it counts under.
    pub limit: String,
    /// Packets let through.
    pub passed_packets: u64,
    /// Packets refused.
    pub throttled_packets: u64,
}

/// `agent show IP --json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SourceStatus {
    /// The address asked for.
    pub source: String,
    /// Its class.
    pub class: String,
    /// Whether it is never throttled.
    pub never_limit: bool,
    /// The ban it is under.
    pub ban: Option<BanStatus>,
    /// Each limit it is held to.
    pub limits: Vec<SourceLimit>,
    /// Why its last packet was refused, if one was.
    pub last_refused: Option<LastRefused>,
}

/// A ban.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BanStatus {
    /// The prefix.
    pub cidr: String,
    /// Until it ends; `null` if it does not.
    pub expires_in_seconds: Option<f64>,
}

/// One element of `agent bans --json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BansRow {
    /// The ban.
    #[serde(flatten)]
    pub ban: BanStatus,
    /// Packets it refused.
    pub throttled_packets: u64,
}

/// What one limit has left for a source.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SourceLimit {
    /// The limit.
    pub name: String,
    /// Units that would pass now.
    pub remaining: u64,
    /// Until one more passes; 0 if one passes now.
    pub retry_after_seconds: f64,
    /// Packets let through.
    pub passed_packets: u64,
    /// Packets refused.
    pub throttled_packets: u64,
}

/// The last refusal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LastRefused {
    /// By which limit.
    pub limit: String,
    /// How long ago.
    pub seconds_ago: f64,
}
