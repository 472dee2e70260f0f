//! The control socket: one JSON document in, one out, a line each.
//!
//! Every request is bounded in size and time, and the answer is made before the next request is looked at, so that a
//! client that hangs holds up nobody but itself.

mod client;
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
        /// The prefix, as it was banned.
        cidr: String,
    },
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
        /// The config to try.
        file: std::path::PathBuf,
        /// How long it is in force unless it is confirmed.
        for_seconds: f64,
        /// The SSH session that it comes from.
        operator: Option<IpAddr>,
    },
    /// [`crate::live::Confirmed`].
    Confirm,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Banned {
    /// Prefixes that are banned now.
    pub banned: u64,
}

/// What came of lifting a ban.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unbanned {
    /// Whether there was one of exactly this prefix.
    pub was_banned: bool,
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
/// The most prefixes in one request; as many fit into the longest.
pub const MOST_ORDERS: usize = 2_000;
