//! The control socket: one JSON request, one JSON reply, a line each.
//!
//! Every request is bounded in size and time, and clients are served independently, so that a slow client delays only
//! itself. Users with access to the socket may query; only root and the user that runs the agent may make changes.

mod client;
mod follow;
mod peer;
mod server;

pub use client::{Client, ClientError};
pub use server::{Server, ServerError};

use serde::{Deserialize, Serialize};

/// The reply to a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Response {
    /// The document.
    Ok(serde_json::Value),
    /// The reason of a failure.
    Error(String),
}
