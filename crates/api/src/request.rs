//! Requests, and the replies to those that change something.

use crate::group::Emergency;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A request on the control socket. The first line of each variant is the type of its reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// [`crate::status::Status`].
    Status,
    /// A list of [`crate::limit::LimitStatus`].
    Limits,
    /// A list of [`crate::source::TopRow`].
    Top,
    /// [`crate::heavy_prefixes::HeavyPrefixes`].
    HeavyPrefixes {
        /// The least share of the packets that a prefix has, without those within it; from 0 to 1.
        share: f64,
    },
    /// [`crate::view::View`].
    View { query: crate::view::ViewQuery },
    /// [`crate::source::SourceStatus`].
    Show { source: IpAddr },
    Reset {
        /// The source whose state is reset.
        source: IpAddr,
        /// The only limit under which it is; `None` for all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<String>,
    },
    /// [`Reset`] of all sources in a prefix.
    ResetPrefix {
        /// The prefix; of an IPv6 address, that address.
        prefix: String,
        /// The only limit under which it is; `None` for all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<String>,
    },
    ResetLimit {
        /// The limit whose state is reset, for every key.
        limit: String,
    },
    /// [`Reset`] of one key of limits on requests.
    ResetKey {
        /// Its entries and their values.
        key: BTreeMap<String, String>,
        /// The only limit under which it is; `None` for all with exactly these entries.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<String>,
    },
    /// [`CountersReset`]: sets the counters of all limits to 0.
    ResetCounters,
    /// [`Banned`].
    Ban {
        /// The bans to make: all or none.
        orders: Vec<BanOrder>,
    },
    /// [`Unbanned`].
    Unban {
        /// The prefixes as they were banned; an IPv6 address is one, too.
        cidrs: Vec<String>,
        /// The owner whose bans are lifted; `None` for the user's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        owner: Option<String>,
        /// The user who types it; `None` for the user of the connection.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user: Option<String>,
        /// Whether the bans of all owners are lifted.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        all: bool,
    },
    /// [`Unbanned`]: lifts every ban.
    UnbanAll,
    /// [`crate::allowance::Allowed`]: exempts prefixes for a while, or raises their limits; all or none.
    Allow {
        /// Addresses or prefixes.
        cidrs: Vec<String>,
        for_seconds: f64,
        /// The factor on each limit; `None` exempts them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        times: Option<f64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// Who orders it; `None` for the user of the connection.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        owner: Option<String>,
    },
    /// [`crate::allowance::Disallowed`].
    Disallow {
        /// Addresses or prefixes, as they were allowed.
        cidrs: Vec<String>,
    },
    /// A list of [`crate::allowance::Allowance`].
    Allowances,
    /// A list of [`crate::source::BansRow`].
    Bans,
    /// [`crate::decide::Answer`].
    Decide { question: crate::decide::Question },
    /// [`crate::reload::Reloaded`].
    Reload {
        /// The remote address of the operator's SSH session.
        operator: Option<IpAddr>,
        /// The agent's own config; another one is an error.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file: Option<std::path::PathBuf>,
    },
    /// [`crate::reload::Reloaded`].
    Try {
        /// The config's path, as errors and `status` print it.
        file: std::path::PathBuf,
        /// The config's text; `None` from an earlier version's command: the agent then reads the file.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        /// The trial's duration.
        for_seconds: f64,
        /// The remote address of the operator's SSH session.
        operator: Option<IpAddr>,
    },
    /// [`crate::reload::Reloaded`]: the changes that a reload would make, or a trial of another config.
    Compare {
        /// The config's path, as errors print it; `None` for the agent's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file: Option<std::path::PathBuf>,
        /// Its text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        /// The remote address of the operator's SSH session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        operator: Option<IpAddr>,
    },
    /// [`crate::reload::Confirmed`].
    Confirm,
    /// [`crate::reload::Reloaded`]: ends a trial.
    Revert,
    /// [`crate::record::RecordStatus`]: starts a recording.
    Record {
        /// Its length.
        for_seconds: f64,
    },
    /// [`crate::record::RecordStatus`]: ends the recording.
    StopRecording,
    /// [`crate::record::RecordStatus`].
    Recording,
    /// [`crate::capture::CapturePart`]s, one document a line, until the capture ends; a client that closes its side of the
    /// connection for writing ends it.
    Capture {
        /// One in this many sources is captured; 1: all packets are.
        one_in: u32,
        of: crate::capture::CaptureOf,
        /// Its longest time.
        for_seconds: f64,
    },
    /// A list of the remembered [`crate::event::Event`]s.
    Events,
    /// [`crate::event::Event`]s, one document a line, until the client disconnects.
    Follow {
        /// The number of remembered events to send first.
        last: usize,
    },
    /// [`crate::trace::TraceLine`]s, one document a line, until the client disconnects.
    Trace {
        /// The source whose packets are traced.
        source: IpAddr,
    },
    /// A list of [`crate::group::GroupStatus`].
    Groups,
    /// A list of [`crate::group::UsageRow`].
    Usage {
        /// The group; `None` for all.
        group: Option<String>,
        /// The first day, as YYYY-MM-DD.
        from: Option<String>,
        /// The last day.
        to: Option<String>,
    },
    /// A list of [`crate::notification::NotificationTest`]: sends a notification about nothing.
    TestNotifications {
        /// The `[[notify]]`; `None` for all.
        name: Option<String>,
    },
    /// [`crate::group::Done`].
    Emergency { group: String, what: Emergency },
}

impl Request {
    /// Whether the request changes nothing except the state that an application's decision charges.
    #[must_use]
    pub fn only_asks(&self) -> bool {
        match self {
            Self::Recording => true,
            Self::Record { .. } | Self::StopRecording => false,
            Self::View { .. } | Self::Events | Self::Follow { .. } => true,
            Self::Status
            | Self::Limits
            | Self::Top
            | Self::Show { .. }
            | Self::Bans
            | Self::Allowances
            | Self::Groups => true,
            Self::Allow { .. } | Self::Disallow { .. } => false,
            Self::Usage { .. } => true,
            // A sample of bounded size, which ends by itself.
            Self::HeavyPrefixes { .. } => true,
            // Applications may decide here as they may over HTTP.
            Self::Decide { question } => !question.is_refund() && !question.is_forced(),
            Self::Reset { .. }
            | Self::ResetPrefix { .. }
            | Self::ResetLimit { .. }
            | Self::ResetKey { .. }
            | Self::ResetCounters => false,
            Self::Reload { .. }
            | Self::Try { .. }
            | Self::Compare { .. }
            | Self::Confirm
            | Self::Revert => false,
            // Packets are other users' data.
            Self::Capture { .. } => false,
            // It runs commands, and shows who receives events.
            Self::TestNotifications { .. } => false,
            // It changes what the kernel programs log, and shows other users' traffic.
            Self::Trace { .. } => false,
            Self::Ban { .. } | Self::Unban { .. } | Self::UnbanAll | Self::Emergency { .. } => {
                false
            }
        }
    }
}

/// A ban to make.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BanOrder {
    /// An address or a prefix.
    pub cidr: String,
    /// The duration; `null`: until it is lifted.
    pub for_seconds: Option<f64>,
    /// The reason, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The owner; `None` for the user of the connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The IPv6 address that was named, if `cidr` is its /64: each address has a ban of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<std::net::Ipv6Addr>,
}

/// The result of `weir ban`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Banned {
    /// The number of prefixes that are banned as ordered.
    pub banned: u64,
    /// Prefixes whose existing ban by the same owner is longer and was kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<crate::source::BanStatus>,
    #[serde(default)]
    pub without_effect: Vec<WithoutEffect>,
    /// Notes about exempt addresses inside the banned prefixes.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A ban that refuses nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithoutEffect {
    pub cidr: String,
    /// The reason, and what to check.
    pub reason: String,
}

/// The result of `weir unban`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unbanned {
    /// Whether there was a ban of exactly one of the prefixes.
    pub was_banned: bool,
    /// The number of lifted bans.
    #[serde(default)]
    pub unbanned: u64,
    /// Prefixes that other owners still ban, or that are part of a banned prefix.
    #[serde(default)]
    pub still_banned: Vec<StillBanned>,
    /// Prefixes that a ban list contains, and that are excepted from all lists now.
    #[serde(default)]
    pub excepted: Vec<Excepted>,
    /// Prefixes to which bans by CrowdSec do not apply from now on, until an operator bans them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exceptions: Vec<String>,
    /// Prefixes to which bans by CrowdSec and by other hosts do not apply from now on, since another host bans them as part
    /// of another prefix, until an operator bans them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exceptions_from_hosts: Vec<String>,
    /// Prefixes that CrowdSec also bans, after another ban was lifted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub still_banned_by_crowdsec: Vec<String>,
    /// Prefixes within those named that stay banned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub narrower: Vec<NarrowerBans>,
    /// Bans by CrowdSec that stay when all others are lifted.
    #[serde(default)]
    pub banned_by_crowdsec: u64,
}

/// An exception from ban lists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Excepted {
    pub cidr: String,
    /// The first list that contains it.
    pub list: String,
}

/// The bans within a prefix after an `weir unban` of it, which lifts only bans of the prefix itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NarrowerBans {
    /// The prefix that was named.
    pub cidr: String,
    /// The number of banned prefixes within it.
    pub prefixes: u64,
    /// The first of them, in the order of addresses.
    pub first: String,
}

/// A prefix that is banned after an `weir unban`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StillBanned {
    pub cidr: String,
    /// The banned prefix.
    pub by: String,
    /// Whether that is a wider one; the /64 of an IPv6 address is not.
    #[serde(default)]
    pub wider: bool,
    /// The owners of its bans, as [`crate::source::BanStatus::owner`].
    #[serde(default)]
    pub owners: Vec<String>,
    /// Whether a ban of `cidr` was lifted.
    #[serde(default)]
    pub lifted: bool,
    /// Whether one of the bans is the owner's whose bans were to be lifted.
    #[serde(default)]
    pub own: bool,
}

/// The result of `weir reset`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reset {
    /// The number of states that were removed.
    pub forgotten: u64,
    /// Of sources: the limits whose keys have more than the address, and which keep their states. Of an address, those on
    /// requests only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<String>,
    /// Of a key: the limits under which it was reset.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<String>,
    /// Of a key or a limit: the limits whose hosts all reset it, since they exchange their keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on_all_hosts: Vec<String>,
    /// The limits of which other hosts have a share, and keep their states.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on_this_host: Vec<String>,
}

/// The result of `weir limits --reset-counters`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountersReset {
    /// The number of limits whose counters were set to 0.
    pub limits: u64,
}

/// The longest config that can be tried, in bytes. JSON escapes make it at most six times as long, typically 1.1 times.
pub const LONGEST_CONFIG: usize = 4 * 1024 * 1024;
/// The most prefixes in one request. This many fit into the longest request.
pub const MOST_ORDERS: usize = 2_000;
