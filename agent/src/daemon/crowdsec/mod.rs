//! The bouncer: bans what CrowdSec decides, and reports what limits ban.
//!
//! Two threads use CrowdSec's local API, so that no packet and no request waits for it: one pulls decisions, and one
//! sends alerts. Bans stay in the kernel until they end, whatever happens to the API or the agent.

mod alerts;
mod bouncer;
mod poll;
mod saved;
mod shared;
mod status;

pub use bouncer::Bouncer;
pub use shared::Parts;
