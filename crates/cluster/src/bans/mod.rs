//! Bans that all hosts of a cluster enforce.
//!
//! Each host publishes the bans that its operators and limits make, and enforces those of the others. The store has one
//! entry for each prefix: the ban that ends last, or the removal that undid it. Bans from lists, from CrowdSec and from
//! other hosts are not published.
//!
//! - [`entry`]: a ban or removal in the store, as text.
//! - [`outbox`]: this host's changes that the store does not have yet.
//! - [`known_bans`]: one host's part, a pure state machine: requests, replies and the comparison of all bans.
//! - `share_bans.lua`: the store's script, run once per host and sync.
//! - [`sharer`]: the thread that connects these to the store; [`HostBans`] is the packet engine behind it.

pub mod entry;
mod host_bans;
pub mod known_bans;
pub mod outbox;
pub mod sharer;
#[cfg(test)]
mod simulation;

pub use host_bans::{Applied, HostBans, HostBansError};
pub use known_bans::{Lift, SharedBan};
pub use outbox::{BanOutbox, Order, OwnBan, Scope};
pub use sharer::BanSharer;
