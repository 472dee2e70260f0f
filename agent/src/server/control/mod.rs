//! The control socket: one JSON request, one JSON reply, a line each.
//!
//! Every request is bounded in size and time, and clients are served independently, so that a slow client delays only
//! itself. Users with access to the socket may query; only root and the user that runs the agent may make changes.

mod client;
mod dispatch;
mod follow;
mod response;
mod server;

pub use client::{Client, ClientError};
pub use server::{Server, ServerError};
