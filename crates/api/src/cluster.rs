//! The cluster's part of `weir status --json`.

use serde::{Deserialize, Serialize};

/// `cluster` in `weir status --json`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// This host's name in the cluster.
    pub node: String,
    /// The store's addresses, without credentials.
    pub store: Vec<String>,
    /// `connecting`: before the first reply; `up`; `slow`: replies take a sync or longer; `down`.
    pub health: String,
    /// The time that the last reply took; `null` before the first.
    pub answered_in_seconds: Option<f64>,
    /// The time since the last reply; `null` before the first.
    pub last_answer_seconds_ago: Option<f64>,
    /// Failed requests since the agent started, of all limits.
    pub failures: u64,
    /// The reason of the last failure; `null` if none has failed.
    pub last_error: Option<String>,
    /// The fallback of hosts whose leases have ended: `share`, `local`, `open` or `closed`.
    pub when_store_is_down: String,
    /// The interval at which the host renews its shares.
    pub sync_seconds: f64,
    /// Hosts in the store's last reply, this one included.
    pub hosts: u64,
    /// The limits with `cluster = true`.
    pub limits: Vec<ClusterLimitStatus>,
    /// Bans shared with other hosts; `null` without `share_bans`.
    #[serde(default)]
    pub bans: Option<SharedBansStatus>,
    /// This host's zone; `null` without zones.
    #[serde(default)]
    pub zone: Option<ZoneStatus>,
}

/// A zone, whose hosts divide its share of limits with `cluster = "shares"`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZoneStatus {
    pub name: String,
    /// The addresses of the store of all zones, without credentials; `store` of the cluster is the zone's own.
    pub store: Vec<String>,
    /// Its health, as the host that leads the zone finds it.
    pub health: String,
    /// The limits whose share this host leases for its zone.
    pub leads: Vec<String>,
    /// Failed requests of this host to that store since it leads the zone for a limit.
    pub failures: u64,
    /// The reason of the last one; `null` if none has failed.
    pub last_error: Option<String>,
}

impl ClusterStatus {
    /// Adds the limits and bans of another cluster thread. The health is the worse of the two: they use the same store, or a
    /// zone's and that of all zones.
    #[must_use]
    pub fn with(mut self, other: Self) -> Self {
        let rank = |health: &str| {
            ["up", "connecting", "slow", "down"]
                .iter()
                .position(|word| *word == health)
        };
        if rank(&other.health) > rank(&self.health) {
            self.health = other.health;
        }
        self.failures += other.failures;
        self.last_error = self.last_error.or(other.last_error);
        self.hosts = self.hosts.max(other.hosts);
        self.limits.extend(other.limits);
        self.bans = self.bans.or(other.bans);
        self.zone = self.zone.or(other.zone);
        self
    }
}

/// A limit that several hosts enforce together.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClusterLimitStatus {
    pub name: String,
    /// `shares` or `keys`.
    #[serde(default)]
    pub mode: String,
    /// This host's share in effect, 0 to 1.
    pub share: f64,
    /// Its origin: `joining`, `lease`, `keys`, or `share`, `local`, `open`, `closed` by `when_store_is_down`.
    pub share_from: String,
    /// The demand on this host in units a second.
    pub demand_per_second: f64,
    /// Hosts with a lease in the store's last reply, this one included.
    pub hosts: u64,
    /// The zones that divide the limit; 1 without zones.
    #[serde(default)]
    pub zones: u64,
    /// The share of this host's zone, 0 to 1; `null` without zones, and without a lease.
    #[serde(default)]
    pub zone_share: Option<f64>,
    /// Whether shares must not grow yet because the store has lost its contents.
    pub is_settling: bool,
    /// Renewals that failed since the agent started.
    #[serde(default)]
    pub failures: u64,
    /// The reason of the last failure; `null` if none has failed.
    #[serde(default)]
    pub last_error: Option<String>,
    /// Keys whose consumption this host has published, summed over all exchanges since the agent started.
    #[serde(default)]
    pub keys_exchanged: u64,
    /// Busy keys beyond `max_hot_keys`, whose limit this host enforces alone.
    #[serde(default)]
    pub keys_local: u64,
    /// Each host's share as the store reports it.
    pub shares: Vec<HostShareStatus>,
}

impl ClusterLimitStatus {
    /// `share_from` before the store's first reply.
    pub const JOINING: &str = "joining";
    /// `share_from` of a lease.
    pub const LEASE: &str = "lease";
    /// `share_from` while keys are exchanged.
    pub const KEYS: &str = "keys";

    /// Whether it waits for the store's first reply.
    #[must_use]
    pub fn is_joining(&self) -> bool {
        self.share_from == Self::JOINING
    }

    /// Whether its share is what the store has granted, or follows from what hosts exchange.
    #[must_use]
    pub fn is_from_store(&self) -> bool {
        [Self::LEASE, Self::KEYS].contains(&self.share_from.as_str())
    }
}

/// Bans that all hosts enforce.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SharedBansStatus {
    /// Bans of other hosts, in observe mode too.
    pub others: u64,
    /// This host's bans in the store, without those that another host bans longer.
    pub published: u64,
    /// Bans and removals that wait for the store.
    pub waiting: u64,
    /// This host's bans for which the store has no room.
    pub left_out: u64,
    /// Invalid entries in the store.
    pub ignored: u64,
    /// Failed requests since the agent started.
    pub failed_requests: u64,
    /// The time since everything in the store was compared; `null` before the first time.
    pub compared_seconds_ago: Option<f64>,
    /// Why the last request failed, or why not all bans are in effect; `null` if all is well.
    pub error: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostShareStatus {
    /// The host's name, with the agent's number where a host runs several.
    pub host: String,
    pub share: f64,
    /// The demand on that host in units a second.
    pub demand_per_second: f64,
}
