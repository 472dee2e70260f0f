//! The rules of a fleet on this host: their store, trials, health and state on disk. `crates/rollout` decides.
//!
//! A thread owns the decisions of all streams and checks health every second. A stream has another one, which waits for its
//! store, so that a store that does not reply delays neither checks nor other streams.

mod application;
mod changes;
mod follower;
mod handle;
mod health;
mod notes;
mod polite;
mod requests;
mod saved;
mod settings;
mod task;

pub use handle::Rollout;
pub(super) use handle::{Returned, RulesError, RulesTrial, Signal};
pub use saved::confirmed;
pub use task::start;
