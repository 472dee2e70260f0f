//! Ban lists in `weir status --json`.

use serde::{Deserialize, Serialize};

/// A ban list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ListStatus {
    pub name: String,
    /// The file, or the URL without user, password and query.
    pub source: String,
    /// `ban`, or `class:` and the class to which its addresses belong.
    #[serde(default)]
    pub action: String,
    /// Prefixes in effect.
    pub prefixes: u64,
    /// Packets that it refused since the agent started. Of several lists with a source, the first one counts.
    pub throttled_packets: u64,
    /// Seconds since its content last changed; `null` if it has never been read.
    pub updated_seconds_ago: Option<f64>,
    /// Seconds since it was last read without an error.
    pub checked_seconds_ago: Option<f64>,
    /// Seconds until it is read again.
    pub next_in_seconds: f64,
    /// Why what was read last is not in effect; `null` if it is.
    pub problem: Option<String>,
    /// Lines that were left out.
    pub note: Option<String>,
}

/// All ban lists.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ListsStatus {
    pub lists: Vec<ListStatus>,
    /// Prefixes that `weir unban` excepted from all lists.
    pub exceptions: Vec<String>,
    /// Bytes of kernel memory.
    pub memory_bytes: u64,
}
