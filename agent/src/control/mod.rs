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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
const LONGEST_REQUEST: u64 = 64 * 1024;
