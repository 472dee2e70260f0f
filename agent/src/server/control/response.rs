//! Responses, and the maximum length of requests.

use serde::{Deserialize, Serialize};

/// The reply to a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Response {
    /// The document.
    Ok(serde_json::Value),
    /// The reason of a failure.
    Error(String),
}

/// The longest request, in bytes.
pub(super) const LONGEST_REQUEST: u64 = 256 * 1024;
/// The longest request of a client that may make changes: it may contain a config's text.
pub(super) const LONGEST_CHANGE: u64 = 32 * 1024 * 1024;
