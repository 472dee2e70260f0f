//! The control socket: one JSON document in, one out, a line each.
//!
//! Every request is bounded in size and time, and the answer is made before the next request is looked at, so that a
//! client that hangs holds up nobody but itself. Who may open the socket may ask; what changes anything is for root and
//! for the user the agent runs as.

mod client;
mod follow;
mod server;

pub use client::{Client, ClientError};
pub use server::{Handler, Server, ServerError};

use crate::groups::Emergency;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Where the socket is unless said otherwise.
pub const DEFAULT_SOCKET: &str = "/run/weir/control.sock";

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// [`crate::stats::Status`].
    Status,
    /// A list of [`crate::stats::LimitStatus`].
    Limits,
    /// A list of [`crate::stats::TopRow`].
    Top,
    /// [`crate::stats::View`].
    View {
        /// Of what.
        query: crate::stats::ViewQuery,
    },
    /// [`crate::stats::SourceStatus`].
    Show {
        /// Whose.
        source: IpAddr,
    },
    /// [`Reset`].
    Reset {
        /// Whose state to forget.
        source: IpAddr,
    },
    /// [`Reset`].
    ResetLimit {
        /// The limit whose state to forget, for every key.
        limit: String,
    },
    /// [`Banned`].
    Ban {
        /// What to ban, all of it or nothing.
        orders: Vec<BanOrder>,
    },
    /// [`Unbanned`].
    Unban {
        /// The prefixes, as they were banned.
        cidrs: Vec<String>,
    },
    /// [`Unbanned`]: lifts every ban.
    UnbanAll,
    /// A list of [`crate::stats::BansRow`].
    Bans,
    /// [`crate::decide::Answer`].
    Decide {
        /// About what.
        question: crate::decide::Question,
    },
    /// [`crate::live::Reloaded`].
    Reload {
        /// The SSH session that it comes from.
        operator: Option<IpAddr>,
    },
    /// [`crate::live::Reloaded`].
    Try {
        /// The config to try: the path that its errors and `status` name.
        file: std::path::PathBuf,
        /// Its text; `None` from a command of an earlier version: the agent reads the file.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        /// How long it is in force unless it is confirmed.
        for_seconds: f64,
        /// The SSH session that it comes from.
        operator: Option<IpAddr>,
    },
    /// [`crate::live::Reloaded`]: what a reload would change.
    Compare,
    /// [`crate::live::Confirmed`].
    Confirm,
    /// [`crate::live::Reloaded`]: ends a trial at once.
    Revert,
    /// A list of [`crate::events::Event`]: those that are remembered.
    Events,
    /// [`crate::events::Event`]s, a document and a line each, until the client goes.
    Follow {
        /// How many of those that are remembered come first.
        last: usize,
    },
    /// A list of [`crate::groups::GroupStatus`].
    Groups,
    /// [`Done`].
    Emergency {
        /// Which group.
        group: String,
        /// What to do to it.
        what: Emergency,
    },
}

impl Request {
    /// Whether this only asks: what it leaves behind is nothing but what an application's decision charges.
    #[must_use]
    pub fn only_asks(&self) -> bool {
        match self {
            Self::View { .. } | Self::Events | Self::Follow { .. } => true,
            Self::Status | Self::Limits | Self::Top | Self::Show { .. } | Self::Bans | Self::Groups => true,
            // An application may decide here as it may over HTTP.
            Self::Decide { .. } => true,
            Self::Reset { .. } | Self::ResetLimit { .. } => false,
            Self::Reload { .. } | Self::Try { .. } | Self::Compare | Self::Confirm | Self::Revert => false,
            Self::Ban { .. } | Self::Unban { .. } | Self::UnbanAll | Self::Emergency { .. } => false,
        }
    }
}

/// A prefix to ban.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BanOrder {
    /// An address or a prefix.
    pub cidr: String,
    /// For how long; `null` until it is lifted.
    pub for_seconds: Option<f64>,
}

/// What came of banning.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Banned {
    /// Prefixes that are banned now as ordered.
    pub banned: u64,
    /// Prefixes that stay banned for longer than was ordered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<crate::stats::BanStatus>,
    /// Bans that refuse nothing.
    #[serde(default)]
    pub without_effect: Vec<WithoutEffect>,
    /// Exempt addresses inside.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A ban that refuses nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithoutEffect {
    /// The prefix.
    pub cidr: String,
    /// Why, and what to look at.
    pub reason: String,
}

/// What came of lifting a ban.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unbanned {
    /// Whether there was a ban of exactly one of the prefixes.
    pub was_banned: bool,
    /// Bans that were lifted.
    #[serde(default)]
    pub unbanned: u64,
    /// Prefixes that stay banned by a wider ban.
    #[serde(default)]
    pub still_banned: Vec<StillBanned>,
}

/// A prefix inside one that is banned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StillBanned {
    /// The prefix.
    pub cidr: String,
    /// The wider prefix.
    pub by: String,
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// To which group.
    pub group: String,
    /// What.
    pub what: Emergency,
}

/// What came of a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reset {
    /// States that were forgotten.
    pub forgotten: u64,
}

/// What is answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Response {
    /// The document.
    Ok(serde_json::Value),
    /// Why there is none.
    Error(String),
}

/// The longest request, in bytes.
const LONGEST_REQUEST: u64 = 256 * 1024;
/// The longest of a client that may change what is in effect: a config's text is in it.
const LONGEST_CHANGE: u64 = 32 * 1024 * 1024;
/// The longest config that can be tried, in bytes. As a JSON string it is at most six times as long, and usually a tenth
/// longer.
pub const LONGEST_CONFIG: usize = 4 * 1024 * 1024;
/// The most prefixes in one request; as many fit into the longest.
pub const MOST_ORDERS: usize = 2_000;
