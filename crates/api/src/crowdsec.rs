//! The bouncer of CrowdSec in `weir status --json`.

use serde::{Deserialize, Serialize};

/// The state of `[crowdsec]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CrowdSecStatus {
    /// The local API's address.
    pub url: String,
    /// `ok`, `starting` until the first pull, or `unavailable`.
    pub state: String,
    /// Decisions that apply, in observe mode too.
    pub decisions: u64,
    /// Prefixes that are banned by them: none in observe mode, and no exempt ones.
    pub banned_prefixes: u64,
    /// Prefixes to which no decision applies, made by `weir unban`.
    pub exceptions: Vec<String>,
    /// Decisions that are not enforced, by reason.
    pub ignored: IgnoredDecisions,
    /// Pulls since the agent started.
    pub pulls: u64,
    /// Failed pulls since the agent started.
    pub failed_pulls: u64,
    /// `null` before the first.
    pub last_pull_seconds_ago: Option<f64>,
    /// The last pull of all decisions.
    pub last_full_pull_seconds_ago: Option<f64>,
    /// Why the last pull failed, or why not all bans are in effect; `null` if all is well.
    pub error: Option<String>,
    /// Alerts of bans by limits; `null` without `machine_id`.
    pub alerts: Option<AlertsStatus>,
}

/// Decisions that are not enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IgnoredDecisions {
    /// Neither on an address nor on a range.
    pub scope: u64,
    /// Another type than `ban`.
    pub r#type: u64,
    /// The value, the duration or the ID is invalid.
    pub invalid: u64,
    /// A range wider than /8, or /16 for IPv6.
    pub wide: u64,
    /// Simulated.
    pub simulated: u64,
    /// Made by this host's own alerts: its limits ban these sources themselves.
    pub own: u64,
    /// Beyond `max_decisions`.
    pub excess: u64,
}

impl IgnoredDecisions {
    /// The sum.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.scope
            + self.r#type
            + self.invalid
            + self.wide
            + self.simulated
            + self.own
            + self.excess
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlertsStatus {
    /// Alerts that the local API accepted.
    pub sent: u64,
    /// Alerts that wait for it.
    pub waiting: u64,
    /// Alerts that were not sent, because too many waited or their bans had ended.
    pub dropped: u64,
    /// Why the last attempt failed; `null` if it succeeded.
    pub error: Option<String>,
}
