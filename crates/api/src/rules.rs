//! The rules of a fleet in `weir status --json`.

use serde::{Deserialize, Serialize};

/// The state of a stream of rules on this host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RulesStatus {
    /// The store's address, without credentials.
    pub store: String,
    pub stream: String,
    /// This host's name in the fleet.
    pub node: String,
    /// The beginning of the names of its limits; `null` of the fleet's own stream.
    pub prefix: Option<String>,
    /// The version in effect; 0: none of this stream.
    pub version: u64,
    /// The newest version that this host has accepted; 0: none.
    pub accepted: u64,
    /// Of the accepted version: `none`, `waiting` for its canaries, `trying`, `held`, `failed` or `stopped`.
    pub state: String,
    /// Why it failed or was stopped.
    pub reason: Option<String>,
    /// Why the store's present document is refused; `null` if it is not.
    pub refused: Option<String>,
    /// The last refusal since the agent started.
    pub last_refusal: Option<String>,
    /// Refused documents since the agent started, each counted once.
    pub refusals: u64,
    /// Versions that were stopped on this host since the agent started.
    pub stops: u64,
    /// Whether the last request to the store succeeded; `null` before the first.
    pub store_up: Option<bool>,
    /// Why the last request failed, or why reports cannot be written; `null` if all is well.
    pub error: Option<String>,
    /// Its rules that this host's file replaces, such as `limit web`.
    pub replaced: Vec<String>,
}
