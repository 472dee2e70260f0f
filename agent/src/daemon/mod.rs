//! The running agent: packet engine, limits on requests, process groups, reload, state and events.

mod agent;
mod ban_events;
pub mod capture;
mod cluster_bans;
mod cluster_packets;
pub mod crowdsec;
mod documents;
pub mod escalation;
pub mod events;
mod heavy_prefixes;
pub mod lists;
mod operations;
pub mod packets;
pub mod record;
pub mod reload;
mod requests;
pub mod state;
pub mod syn_cookies;
pub mod trace;
pub mod translations;
pub mod unopened;
mod watcher;

pub use agent::{Agent, holds_packets, start_sharer};
pub use cluster_packets::for_cluster;
pub use documents::AgentDocuments;
pub(crate) use operations::{text, whose};
pub use requests::{StartError, start};
