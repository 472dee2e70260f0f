//! Limits with `rate = "fair"`.

use serde::{Deserialize, Serialize};

/// A fair limit: whether it refuses, from which rate on, and why.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FairStatus {
    /// The limit's name.
    pub limit: String,
    pub state: FairState,
    /// The rate that each source may have now, in units a second; `null` while nothing is refused.
    pub level: Option<f64>,
    /// The widest keys that have a level now: `sources`, `networks` or `all`; `null` while nothing is refused.
    #[serde(default)]
    pub limited_by: Option<String>,
    /// The rate that each network may have now, in units a second; `null` while networks have no level.
    #[serde(default)]
    pub network_level: Option<f64>,
    /// The rate that all sources together may have now; `null` while they have no level.
    #[serde(default)]
    pub total_level: Option<f64>,
    /// The bounds of the level. `at_most` is `null` if none is configured.
    pub at_least: f64,
    pub at_most: Option<f64>,
    /// What keeps the level down: `drops`, `wait`, `load`, `demand` or `recent`; `null` while nothing is refused.
    pub held_by: Option<String>,
    /// Why the limit refuses nothing although there may be an overload: `unreadable`, `stalled` or `without-effect`; or, for a limit
    /// that is not in effect, one of [`FairStatus::NOT_IN_EFFECT`].
    pub failure: Option<String>,
    /// What sources send and what passes, in units a second.
    pub offered: f64,
    pub passed: f64,
    /// Units a second that the levels of networks, and of all sources together, refuse.
    #[serde(default)]
    pub refused_by_networks: f64,
    #[serde(default)]
    pub refused_by_all: f64,
    /// What the servers serve, and what they can; `null` until an overload has shown it.
    pub goodput: f64,
    pub capacity: Option<f64>,
    /// Seconds for which units wait in the servers' queues, and to which that is regulated.
    pub wait_seconds: f64,
    pub target_seconds: f64,
    /// The share of passed units that the servers drop, from 0 to 1.
    pub loss: f64,
    /// Sampled sources of the last seconds.
    pub sources: u64,
    /// The sockets whose queues and drops are read, at most 64: first those that nobody serves.
    pub signals: Vec<FairSignal>,
    /// The load that the service reports; `null` where it is no signal.
    #[serde(default)]
    pub load: Option<FairLoad>,
    /// Ports of `signals`, and of the limit if it has at most 16, on which no socket is open.
    #[serde(default)]
    pub closed_ports: Vec<u16>,
    /// Sockets of other users on the ports of servers, which are ignored, at most 64. Not those on loopback addresses, unless the
    /// port is in `signals`.
    #[serde(default)]
    pub strangers: Vec<FairStranger>,
    /// Onsets since the agent started.
    pub onsets: u64,
    /// When the overload began, in seconds since 1970; `null` without one.
    #[serde(default)]
    pub since: Option<f64>,
    /// The sampled sources that send more than the level, as far as they have enough samples for a rate.
    #[serde(default)]
    pub sources_above: u64,
    /// The heaviest of these, at most five, the heaviest first.
    #[serde(default)]
    pub heaviest: Vec<FairSource>,
    /// The last five minutes.
    #[serde(default)]
    pub history: FairHistory,
}

/// A source above the level, by samples of the last two seconds; units a second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FairSource {
    /// The address, or the prefix that shares one key.
    pub source: String,
    pub offered: f64,
    /// Its rate above the level.
    pub refused: f64,
}

/// The last seconds of a limit: lists of equal length, the oldest value first. `null` in `passed`: not measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FairHistory {
    /// When the last of the seconds ended, in seconds since 1970; `null` without values.
    pub ended: Option<f64>,
    /// The length of a step.
    pub step_seconds: u64,
    /// The level at the end of the second; `null` while nothing was refused, and where `passed` is `null`.
    pub level: Vec<Option<f64>>,
    /// As [`FairStatus::held_by`].
    pub held_by: Vec<Option<String>>,
    /// Units a second.
    pub offered: Vec<Option<f64>>,
    pub passed: Vec<Option<f64>>,
    pub refused: Vec<Option<f64>>,
}

impl FairHistory {
    /// Leaves out everything but the levels.
    pub fn keep_levels(&mut self) {
        *self = Self {
            ended: self.ended,
            step_seconds: self.step_seconds,
            level: std::mem::take(&mut self.level),
            ..Self::default()
        };
    }

    /// The lowest and the highest level; `None` if nothing was refused.
    #[must_use]
    pub fn bounds(&self) -> Option<(f64, f64)> {
        let levels = || self.level.iter().copied().flatten();
        let lowest = levels().reduce(f64::min)?;
        Some((lowest, levels().fold(lowest, f64::max)))
    }
}

/// The level of a fair limit in `weir limits --json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FairLevel {
    /// As [`FairStatus::level`].
    pub rate: Option<f64>,
    /// As [`FairStatus::at_most`].
    pub at_most: Option<f64>,
    /// As [`FairStatus::since`].
    pub since: Option<f64>,
    /// As [`FairStatus::held_by`].
    pub held_by: Option<String>,
    /// As [`FairStatus::failure`].
    pub failure: Option<String>,
}

impl From<&FairStatus> for FairLevel {
    fn from(status: &FairStatus) -> Self {
        Self {
            rate: status.level,
            at_most: status.at_most,
            since: status.since,
            held_by: status.held_by.clone(),
            failure: status.failure.clone(),
        }
    }
}

impl FairStatus {
    /// Each source has a level.
    pub const SOURCES: &str = "sources";
    /// Each network has one, too.
    pub const NETWORKS: &str = "networks";
    /// And all sources together.
    pub const ALL: &str = "all";
    /// With `[agent] mode = "observe"`, fair limits are not evaluated.
    pub const OBSERVE_MODE: &str = "observe-mode";
    /// The limit's maps in the kernel cannot be opened.
    pub const NO_MAPS: &str = "no-maps";
    /// The agent's thread of fair limits has ended.
    pub const ENDED: &str = "ended";
    /// The agent's thread of fair limits has not run for 2 s: levels have ended in the kernel.
    pub const LATE: &str = "late";
    /// The policy is new: the limit is in effect within a second.
    pub const STARTING: &str = "starting";
    /// Released: its signals cannot be read.
    pub const UNREADABLE: &str = "unreadable";
    /// Released: servers have served nothing for 1 s while units wait.
    pub const STALLED: &str = "stalled";
    /// Released for up to 30 s: its level has no effect on the overload.
    pub const WITHOUT_EFFECT: &str = "without-effect";
    /// The failures of limits that are not in effect, whose numbers are 0.
    pub const NOT_IN_EFFECT: [&str; 5] = [
        Self::OBSERVE_MODE,
        Self::NO_MAPS,
        Self::ENDED,
        Self::LATE,
        Self::STARTING,
    ];

    /// Whether its numbers are those of the limit.
    #[must_use]
    pub fn is_in_effect(&self) -> bool {
        let failure = self.failure.as_deref();
        failure.is_none_or(|failure| !Self::NOT_IN_EFFECT.contains(&failure))
    }

    /// The reason why it refuses nothing, in words, by [`FairStatus::failure`].
    #[must_use]
    pub fn reason(&self) -> Option<&'static str> {
        self.failure.as_deref().map(Self::reason_of)
    }

    /// A failure in words.
    #[must_use]
    pub fn reason_of(failure: &str) -> &'static str {
        match failure {
            Self::OBSERVE_MODE => "fair limits are off in mode \"observe\"",
            Self::NO_MAPS => "its maps in the kernel cannot be opened",
            Self::ENDED => "the agent's thread of fair limits has ended",
            Self::LATE => "the agent's thread of fair limits has not run for 2 s",
            Self::STARTING => "its policy is new",
            Self::UNREADABLE => "its signals cannot be read",
            Self::STALLED => "servers serve nothing",
            _ => "its level has no effect",
        }
    }
}

/// The causes of a level, by [`FairStatus::held_by`].
pub const CAUSES: [&str; 5] = ["drops", "wait", "load", "demand", "recent"];

/// The cause of a level in words, by [`FairStatus::held_by`].
#[must_use]
pub fn cause(held_by: Option<&str>) -> &'static str {
    match held_by {
        Some("drops") => "servers drop",
        Some("wait") => "units wait for long",
        Some("load") => "the service reports that it is full",
        Some("demand") => "sources send more than fits",
        _ => "there was an overload a short time ago",
    }
}

/// What a fair limit does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FairState {
    /// Nothing is refused.
    #[default]
    Off,
    /// There was an overload; nothing is refused yet, or no source has to send less.
    Armed,
    /// Sources above the level are limited.
    Limiting,
    /// There is no overload any more; the level is kept for some seconds.
    Holding,
    /// The level rises until the limit is off.
    Releasing,
}

impl FairState {
    /// The name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Armed => "armed",
            Self::Limiting => "limiting",
            Self::Holding => "holding",
            Self::Releasing => "releasing",
        }
    }
}

/// The load that a service reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FairLoad {
    /// Whether there is a report of the last 2 s.
    pub is_reported: bool,
    /// Seconds for which requests wait inside of the service, as it reports, or as follows from its load.
    pub wait_seconds: f64,
}

/// A socket whose queue and drops are read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FairSignal {
    pub port: u16,
    /// `listener` or `udp`.
    pub kind: String,
    /// Waiting connections, or the bytes of memory of waiting datagrams.
    pub waiting: u64,
    /// The backlog in connections, or the buffer in bytes of memory.
    pub room: u64,
    /// Connections or datagrams that were dropped since the socket was opened.
    pub drops: u64,
    /// Whether something is taken from the queue. If not, it is ignored.
    pub is_served: bool,
}

/// A user's sockets on a port, which are ignored beside a server's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FairStranger {
    pub port: u16,
    /// `listener` or `udp`.
    pub kind: String,
    /// The number of the user.
    pub user: u32,
}
