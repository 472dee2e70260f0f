//! `weir limits --json`.

use common::counters::Traffic;
use config::policy::{Class, Config, Limit, LimitSources, PortSet, RequestLimit, Service};
use serde::{Deserialize, Serialize};

use crate::fair::FairLevel;

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    pub packets: u64,
    pub bytes: u64,
}

impl From<Traffic> for Count {
    fn from(traffic: Traffic) -> Self {
        Self {
            packets: traffic.packets,
            bytes: traffic.bytes,
        }
    }
}

/// A limit as configured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LimitDefinition {
    pub name: String,
    /// `ingress` or `egress`.
    pub direction: String,
    /// The key that it counts by.
    pub key: String,
    /// Entries of the key of a limit on requests whose values share one allowance.
    #[serde(default)]
    pub over_entries: Vec<String>,
    /// The unit that it counts.
    pub unit: String,
    pub algorithm: String,
    /// The rate as written in the config.
    pub rate: String,
    /// The time zone of a rate by the calendar.
    #[serde(default)]
    pub time_zone: Option<String>,
    /// The burst in units; `null` with `rate = "fair"`, whose burst depends on the level.
    pub burst: Option<u64>,
    /// Whether several hosts share the limit: rate and burst are for all of them.
    #[serde(default)]
    pub cluster: bool,
    /// The limit in one line, without its name.
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
    /// The IPv6 prefix length, likewise.
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
    /// The sources to which it applies, exclusions with `!`; empty: all.
    #[serde(default)]
    pub sources: Vec<String>,
    /// The interfaces to which it applies; empty: all of the agent's.
    #[serde(default)]
    pub interfaces: Vec<String>,
    /// The multiplier of each class.
    #[serde(default)]
    pub classes: Vec<ClassShare>,
}

/// A class's multiplier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassShare {
    pub name: String,
    /// The factor on rate and burst; `null`: unlimited.
    pub multiplier: Option<f64>,
}

impl ClassShare {
    /// The multipliers of all classes.
    #[must_use]
    pub fn all(config: &Config) -> Vec<Self> {
        let multiplier = |service| match service {
            Service::Multiplier(multiplier) => Some(multiplier.factor()),
            Service::Unlimited => None,
        };
        let share = |class: &Class| Self {
            name: class.name.clone(),
            multiplier: multiplier(class.service()),
        };
        config.classes.iter().map(share).collect()
    }
}

impl LimitDefinition {
    /// The definitions of all limits: those on packets first.
    #[must_use]
    pub fn of_config(config: &Config) -> Vec<Self> {
        let classes = ClassShare::all(config);
        let all = config
            .limits
            .iter()
            .map(Self::from)
            .chain(config.decide.limits.iter().map(Self::from));
        all.map(|limit| Self {
            classes: classes.clone(),
            ..limit
        })
        .collect()
    }
}

impl From<&Limit> for LimitDefinition {
    fn from(limit: &Limit) -> Self {
        Self {
            name: limit.name.clone(),
            direction: limit.direction_name().to_owned(),
            key: limit.key_name(),
            over_entries: Vec::new(),
            unit: limit.unit.to_string(),
            algorithm: limit.rates.algorithm.to_string(),
            rate: limit.rate_text(),
            time_zone: None,
            burst: (!limit.is_fair()).then_some(limit.rates.burst),
            cluster: limit.cluster.is_some(),
            summary: limit.summary(),
            protocol: Some(limit.protocol.to_string()),
            ports: limit.ports.as_ref().map(PortSet::texts).unwrap_or_default(),
            ipv4_prefix: limit.ipv4_prefix,
            ipv6_prefix: limit.ipv6_prefix,
            action: limit.action.words(),
            throttle: limit.throttle.text(),
            tiers: limit
                .rates
                .tiers
                .iter()
                .map(|tier| tier.text.clone())
                .collect(),
            sources: limit
                .sources
                .as_ref()
                .map(LimitSources::texts)
                .unwrap_or_default(),
            interfaces: limit
                .interfaces
                .iter()
                .flat_map(|names| names.iter())
                .map(ToString::to_string)
                .collect(),
            classes: Vec::new(),
        }
    }
}

/// The `direction` of limits on requests.
pub const REQUEST_DIRECTION: &str = "request";

impl From<&RequestLimit> for LimitDefinition {
    fn from(limit: &RequestLimit) -> Self {
        Self {
            name: limit.name.clone(),
            direction: REQUEST_DIRECTION.to_owned(),
            key: limit.key_text(),
            over_entries: limit.over.to_vec(),
            unit: limit.unit.to_string(),
            algorithm: limit.rates.algorithm.to_string(),
            rate: limit.rate_text(),
            time_zone: limit
                .calendar
                .as_ref()
                .map(|calendar| calendar.zone.name().to_owned()),
            burst: Some(limit.rates.burst),
            cluster: limit.cluster.is_some(),
            summary: limit.summary(),
            protocol: None,
            ports: Vec::new(),
            ipv4_prefix: limit.ipv4_prefix,
            ipv6_prefix: limit.ipv6_prefix,
            action: limit.enforcement.word().to_owned(),
            throttle: limit.throttle.text(),
            tiers: limit
                .rates
                .tiers
                .iter()
                .map(|tier| tier.text.clone())
                .collect(),
            sources: Vec::new(),
            interfaces: Vec::new(),
            classes: Vec::new(),
        }
    }
}

/// One element of `weir limits --json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LimitStatus {
    #[serde(flatten)]
    pub definition: LimitDefinition,
    /// Packets that conformed to this and all other limits on them.
    pub passed: Count,
    /// Packets refused by this limit.
    pub throttled: Count,
    /// Packets that would have been refused if the limit were not on `observe`.
    pub would_throttle: Count,
    /// Packets that passed above the limit, because it is soft or elastic or marks them.
    pub over: Count,
    /// Refused packets whose key's state other CPUs kept changing.
    #[serde(default)]
    pub contended: Count,
    /// Keys whose allowance is not full, of the limit's own key.
    pub keys: u64,
    /// Requests of new keys while `max_keys` keys were in use; absent for limits on packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_room: Option<u64>,
    /// The limit's levels, the narrowest first; absent without levels. The limit's other counts include theirs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub levels: Vec<LevelStatus>,
    /// The present level of a limit with `rate = "fair"`; absent for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<FairLevel>,
    /// The queue of a limit on requests; `null` for limits on packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<WaitingStatus>,
}

/// The counts of one level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LevelStatus {
    /// Its key: prefix lengths as in `24/48`, or `all`.
    pub level: String,
    /// How many times the limit's rate and burst it allows; `null` with `rate = "fair"`.
    pub factor: Option<f64>,
    /// Packets refused by this level.
    pub throttled: Count,
    /// Packets that would have been refused if the limit were not on `observe`.
    pub would_throttle: Count,
    /// Packets that passed above the level, because the limit is soft or elastic or marks them.
    pub over: Count,
    /// Keys whose allowance is not full.
    pub keys: u64,
}

/// Requests in a limit's queue, and the outcome of those that left it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingStatus {
    /// Requests in the queue now.
    pub waiting: u64,
    /// Passed after a wait.
    pub passed: u64,
    /// Refused after a wait: the config or the share changed, or the agent stopped.
    pub refused: u64,
    /// Left before their turn: the client disconnected.
    pub left: u64,
    /// Refused at once because the queue was full.
    pub full: u64,
}
