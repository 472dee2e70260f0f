//! Weir's agent as a library; the `agent` binary is a thin shell around it.
// The daemon logs instead of printing: see `log`.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod allowances;
mod ban_owner;
mod ban_reason;
#[expect(clippy::print_stderr, clippy::print_stdout, reason = "verbs print")]
pub mod cli;
mod comments;
pub mod daemon;
pub mod doctor;
mod files;
pub mod follower;
pub mod geo;
mod host_network;
pub mod import;
pub mod log;
pub mod operators;
pub mod page;
pub mod pcapng;
pub mod protect;
pub mod replay;
pub mod rules_store;
pub mod server;
pub mod stats;
pub mod suggest;
pub mod supervisor;
pub mod tui;
