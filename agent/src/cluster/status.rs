//! What `agent status` tells of the cluster.

use serde::{Deserialize, Serialize};

/// `cluster` in `agent status --json`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// This host's name in the cluster.
    pub node: String,
    /// Where the store is, without credentials.
    pub store: Vec<String>,
    /// `connecting`: it has not answered yet; `up`; `slow`: it answers after a sync or more; `down`.
    pub health: String,
    /// How long the last answer took; `null` before the first.
    pub answered_in_seconds: Option<f64>,
    /// How long ago it was; `null` before the first.
    pub last_answer_seconds_ago: Option<f64>,
    /// Requests that the store did not grant since the agent started, of all limits.
    pub failures: u64,
    /// Why the last one failed that did.
    pub last_error: Option<String>,
    /// What holds on a host whose leases have run out.
    pub when_store_is_down: String,
    /// How often shares are asked for.
    pub sync_seconds: f64,
    /// Hosts seen when the store last answered, this one included.
    pub hosts: u64,
    /// Each limit that many hosts keep together.
    pub limits: Vec<ClusterLimitStatus>,
}

/// One limit that many hosts keep together.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClusterLimitStatus {
    /// Its name.
    pub name: String,
    /// This host's share in force, 0 to 1.
    pub share: f64,
    /// Where it is from: `joining`, `lease`, or `share`, `local`, `open`, `closed` as `when_store_is_down` has it.
    pub share_from: String,
    /// What is asked of the limit on this host, in units a second.
    pub demand_per_second: f64,
    /// Hosts that had a lease when the store last answered, this one included.
    pub hosts: u64,
    /// Whether no share may grow yet, since the store has just come back without what it knew.
    pub is_settling: bool,
    /// Renewals that failed since the agent started.
    #[serde(default)]
    pub failures: u64,
    /// Why the last one failed that did.
    #[serde(default)]
    pub last_error: Option<String>,
    /// Keys whose consumption was exchanged with other hosts since the agent started.
    #[serde(default)]
    pub keys_exchanged: u64,
    /// Keys that the last exchange left to this host alone, since there were more than it may have.
    #[serde(default)]
    pub keys_local: u64,
    /// Each host's share as the store has it.
    pub shares: Vec<HostShareStatus>,
}

/// One host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostShareStatus {
    /// The host, and which of its agents.
    pub host: String,
    /// Its share, 0 to 1.
    pub share: f64,
    /// What is asked of the limit there, in units a second.
    pub demand_per_second: f64,
}
