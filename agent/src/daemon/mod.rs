//! The running agent: packet engine, limits on requests, process groups, reload, state and events.

mod agent;
mod ban_events;
pub mod capture;
pub mod crowdsec;
mod documents;
pub mod escalation;
pub mod events;
mod fair;
mod fleet;
mod heavy_prefixes;
pub mod lists;
mod operations;
mod orders;
pub mod packets;
pub mod record;
pub mod reload;
mod requests;
pub mod rollout;
pub mod state;
pub mod syn_cookies;
pub mod trace;
pub mod translations;
pub mod unopened;
mod watcher;

pub use agent::{Agent, holds_packets};
pub use documents::AgentDocuments;
pub(crate) use fair::{Note as FairNote, all_notes as fair_notes};
pub use fleet::fleet;
pub(crate) use operations::{text, whose};
pub use requests::{StartError, start};
