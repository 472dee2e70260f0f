//! Process groups: limits units, containers and cgroups in place, moves processes that can only be limited separately,
//! and reports how each is enforced and its usage.
//!
//! `plan.rs` decides from plain facts how a process is enforced; `in_place.rs`, `systemd.rs` and `fill.rs` do it. No
//! error here stops the agent: it becomes a note, and the group's other limits, other groups and limits on packets stay
//! in effect.

pub mod account;
mod changed;
mod comparisons;
mod container_list;
mod containers;
mod disk;
mod domain;
mod elastic;
mod emergency;
mod error;
mod fill;
mod glob;
mod groups;
mod host_paths;
mod in_effect;
mod in_place;
mod kernel;
mod lacking;
mod leave;
mod ledger;
mod level;
mod lifted;
mod limit;
mod links;
mod lock;
mod matcher;
mod member;
mod named_units;
mod network;
mod origins;
mod others;
mod place;
mod plan;
mod process;
mod properties;
mod resolution;
mod resolve;
mod restrict;
mod round;
mod scan;
mod scopes;
mod starts;
mod systemd;
mod target;
mod targets;
#[cfg(test)]
mod tests;
mod threads;
mod tree;
mod units;
mod usage;
mod view;
mod watch;
mod watched;
mod written;

pub use account::{Enforcement, GroupStatus};
pub use api::group::{Emergency, Usage, UsageRow};
pub use comparisons::Lifted;
pub use error::GroupsError;
pub use lacking::lacking;
pub use leave::detach;
pub use ledger::{first_of_last, parse_day};
pub use limit::host_percent;
pub use tree::{Controller, Tree, Version};
pub use watch::GroupManager;
