//! Who was throttled, by which limit: the lines of `agent events`.
//!
//! The kernel's records are read as they come ([`Feed`]), named, and kept in a bounded log ([`EventLog`]) that serves those
//! who follow it. Whoever is too slow, be it the agent or a follower, loses events, and is told how many.

mod feed;
mod log;

pub use feed::Feed;
pub use log::{EventLog, MOST_FOLLOWERS, REMEMBERED, Subscription};

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// What befell a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// Its packets are refused.
    Throttled,
    /// They would be, were the limit not only observed.
    WouldThrottle,
    /// It was banned, since it kept being refused by a limit on requests.
    Banned,
    /// It would have been, were the agent not only observing.
    WouldBan,
    /// Processes of a group were killed for want of memory.
    OomKill,
    /// Rolling back from a config that was on trial failed.
    TrialRollbackFailed,
    /// Limits are in effect on an interface.
    Attached,
    /// Limits are not in effect on an interface.
    Detached,
    /// The cluster's store grants no shares.
    StoreDown,
    /// It does again.
    StoreUp,
    /// Nothing: so many events could not be told.
    Lost,
}

impl What {
    /// As it stands in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Throttled => "throttled",
            Self::WouldThrottle => "would-throttle",
            Self::Banned => "banned",
            Self::WouldBan => "would-ban",
            Self::OomKill => "oom-kill",
            Self::TrialRollbackFailed => "trial-rollback-failed",
            Self::Attached => "attached",
            Self::Detached => "detached",
            Self::StoreDown => "store-down",
            Self::StoreUp => "store-up",
            Self::Lost => "lost",
        }
    }
}

/// One line of `agent events --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When, in seconds since 1970.
    pub time: f64,
    /// Whom it is about: an address, a prefix, a class, an interface.
    pub source: Option<String>,
    /// By which limit.
    pub limit: Option<String>,
    /// Which process group.
    pub group: Option<String>,
    /// What befell it.
    pub verdict: What,
    /// Of the source, packets so far with that verdict, as far as the kernel remembers; of a group, processes killed; of
    /// what was lost, events.
    pub count: u64,
    /// Why, in words.
    pub reason: String,
    /// `tcp`, `udp` or `icmp`, if the limit is on one of them.
    pub protocol: Option<String>,
    /// The local port, if the limit counts by it.
    pub port: Option<u16>,
    /// `ingress` or `egress`, for limits on packets.
    pub direction: Option<String>,
}

impl Event {
    /// An event of this instant about nothing in particular yet.
    #[must_use]
    pub fn now(verdict: What, count: u64, reason: String) -> Self {
        Self {
            time: seconds_since_1970(),
            source: None,
            limit: None,
            group: None,
            verdict,
            count,
            reason,
            protocol: None,
            port: None,
            direction: None,
        }
    }

    /// So many events were lost.
    #[must_use]
    pub fn lost(count: u64, reason: &str) -> Self {
        Self::now(What::Lost, count, reason.to_owned())
    }
}

/// The time of day.
#[must_use]
pub fn seconds_since_1970() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}
