//! `weir status --json`.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::allowance::Allowance;
use crate::attack::Attack;
use crate::cluster::ClusterStatus;
use crate::crowdsec::CrowdSecStatus;
use crate::fair::FairStatus;
use crate::geo::GeoStatus;
use crate::interface::AttachMode;
use crate::limit::LimitDefinition;
use crate::list::ListsStatus;
use crate::memory::MemoryStatus;
use crate::notification::NotificationStatus;
use crate::reload::{LastReload, TrialStatus};
use crate::rules::RulesStatus;

/// `weir status --json`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// The agent's version.
    pub version: String,
    /// `enforce` or `observe`.
    pub mode: String,
    /// Seconds since this agent started.
    pub uptime_seconds: u64,
    /// The file in effect; `null` for the built-in limits.
    pub config: Option<String>,
    pub interfaces: Vec<InterfaceStatus>,
    /// Totals of all packets.
    pub totals: Totals,
    pub sources: SourcesStatus,
    /// Packets to which no limit applied, by reason.
    pub bypass: BypassStatus,
    /// Proofs of addresses; `null` if no limit has `prove`.
    #[serde(default)]
    pub proofs: Option<ProofStatus>,
    /// The number of banned prefixes.
    pub bans: u64,
    /// Runs of `weir limits --reset-counters` since the agent started.
    #[serde(default)]
    pub counter_resets: u64,
    /// Whether elastic limits grant more than their rate now; `null` if no limit is elastic.
    pub has_room: Option<bool>,
    /// The process groups' names.
    #[serde(default)]
    pub groups: Vec<String>,
    /// The last reload; `null` if there was none.
    #[serde(default)]
    pub last_reload: Option<LastReload>,
    /// The trial that is not confirmed yet.
    #[serde(default)]
    pub trial: Option<TrialStatus>,
    #[serde(default)]
    pub limits: Vec<LimitDefinition>,
    /// The prefixes that the config exempts.
    #[serde(default)]
    pub never_limit: Vec<String>,
    /// Exempt addresses that the agent detects (`protect`).
    #[serde(default)]
    pub protected: Vec<Protected>,
    /// The host's own addresses (`protect`): no ban applies to them, but limits do.
    #[serde(default)]
    pub never_banned: Vec<Protected>,
    /// Exemptions for a while (`weir allow`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed: Vec<Allowance>,
    /// The memory of the policy on packets; `null` where there is none.
    #[serde(default)]
    pub memory: Option<MemoryStatus>,
    /// Limits of the config that the kernel cannot enforce, and that are not in effect.
    #[serde(default)]
    pub left_out: Vec<LeftOut>,
    /// Notes for the operator.
    pub notes: Vec<String>,
    /// The attacks that last now.
    #[serde(default)]
    pub attacks: Vec<Attack>,
    /// Attacks that have started since the agent started.
    #[serde(default)]
    pub attacks_total: u64,
    /// The limits with `rate = "fair"`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fair: Vec<FairStatus>,
    /// The deliveries of each `[[notify]]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notifications: Vec<NotificationStatus>,
    /// The ban lists; `null` without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ban_lists: Option<ListsStatus>,
    /// The databases of networks and countries that are in use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub geo: Vec<GeoStatus>,
    /// The cluster's state; `null` without shared limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterStatus>,
    /// Absent without limits on requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservations: Option<ReservationsStatus>,
    /// The bouncer's state; `null` without `[crowdsec]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crowdsec: Option<CrowdSecStatus>,
    /// The streams of `[fleet]`: its own, then those of teams; absent without `[fleet]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RulesStatus>,
}

/// A limit that is not in effect, since the kernel of this start cannot enforce it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// The limit's name.
    pub limit: String,
    /// The reason as text.
    pub reason: String,
}

impl std::fmt::Display for LeftOut {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { limit, reason } = self;
        write!(formatter, "limit `{limit}` is not in effect: {reason}")
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct InterfaceStatus {
    /// The interface's name, or a pattern that matches none.
    pub name: String,
    /// `native`, `generic` or `tc`; `null` where nothing is attached.
    pub attach: Option<AttachMode>,
    /// Whether its packets are limited, as the kernel reports now.
    pub state: InterfaceState,
    /// The interfaces that charge its packets instead, because they carry them too; empty if it charges them itself.
    #[serde(default)]
    pub enforced_by: Vec<String>,
    /// Why other interfaces charge its packets.
    #[serde(default)]
    pub reason: Option<String>,
}

/// Whether limits are in effect on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InterfaceState {
    /// Limits are in effect.
    Attached,
    /// This host has no such interface.
    Missing,
    /// A pattern matches no interface yet.
    Unmatched,
    /// It is down, and its driver attaches programs only while it is up.
    Down,
    /// A program was detached.
    Detached,
    /// A program could not be attached.
    Failed,
}

impl InterfaceState {
    /// The name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Attached => "attached",
            Self::Missing => "missing",
            Self::Unmatched => "unmatched",
            Self::Down => "down",
            Self::Detached => "detached",
            Self::Failed => "failed",
        }
    }
}

impl std::fmt::Display for InterfaceStatus {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.attach, self.state) {
            (Some(attach), InterfaceState::Attached) => {
                write!(formatter, "{} ({attach})", self.name)
            }
            (Some(attach), state) => {
                write!(formatter, "{} ({attach}, {})", self.name, state.name())
            }
            (None, state) => write!(formatter, "{} ({})", self.name, state.name()),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Totals {
    pub passed_packets: u64,
    pub passed_bytes: u64,
    pub throttled_packets: u64,
    pub throttled_bytes: u64,
}

/// The table of sources.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct SourcesStatus {
    /// Keys whose allowance is not full now.
    pub tracked: u64,
    /// The maximum number of keys.
    pub capacity: u64,
    /// Keys that were evicted for others that were as busy.
    pub evicted: u64,
    /// Packets of new keys that found no room and passed.
    pub full_passed: u64,
    /// Packets of new keys that found no room and were refused.
    pub full_throttled: u64,
    /// Packets of new keys that found no room and were charged to the shared bucket.
    pub full_shared: u64,
    /// Packets refused because other CPUs kept changing their key's state.
    pub contended: u64,
}

/// Packets to which no limit applied.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct BypassStatus {
    /// No limit applies.
    pub unlimited: u64,
    pub not_ip: u64,
    /// Neighbour discovery and DHCP, within its limit.
    pub essential: u64,
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

/// Packets of limits with `prove`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProofStatus {
    /// SYNs that were answered by a SYN cookie.
    pub syns_answered: u64,
    /// SYNs that were answered by a challenge (`prove = "reset"`).
    #[serde(default)]
    pub syns_challenged: u64,
    /// SYNs that were refused without an answer: above the limit on answers, in IPv4 fragments, with a header that is not whole,
    /// or with a source or destination that is no host's.
    pub syns_refused: u64,
    /// SYNs that passed, since the kernel had no SYN cookies in use.
    pub syns_passed: u64,
    /// SYNs to ports of this host without a listener, which no limit on connections charged.
    #[serde(default)]
    pub syns_to_closed_ports: u64,
    /// ACKs with a valid cookie whose connection passed: connections.
    pub acks_accepted: u64,
    /// ACKs with a valid cookie whose connection a limit refused.
    #[serde(default)]
    pub acks_limited: u64,
    /// ACKs without one, which were refused.
    pub acks_refused: u64,
    /// Resets that proved a source's address (`prove = "reset"`).
    #[serde(default)]
    pub resets_accepted: u64,
}

/// Reservations of units for requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationsStatus {
    /// Those that are neither committed nor released.
    pub open: u64,
    /// Requests for which there was no room.
    pub without_room: u64,
}

/// An exempt address and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protected {
    pub address: IpAddr,
    /// The reason as text.
    pub why: String,
}
