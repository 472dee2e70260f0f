//! One limit for many hosts.
//!
//! Each host holds a *lease*: a share of the limit's rate and burst that is good for some time. Shares come from a
//! *ledger* that the hosts' store keeps, one for each limit, and follow demand; they never add up to more than the
//! limit. Packets and decisions are held to the share by what holds them anyway, so none of them waits for the store.
//!
//! - [`ledger`]: who holds how much, a pure function. The store runs the same as `lease.lua`.
//! - [`member`]: one host's part in one limit, a pure state machine.
//! - [`store`]: Redis or Valkey.
//! - [`keeper`]: a thread that runs the second against the third.

mod holders;
pub mod keeper;
pub mod ledger;
pub mod member;
pub mod status;
pub mod store;

#[cfg(test)]
mod simulation;

pub use holders::shared;
pub use keeper::{Holder, Keeper, Shared};
pub use member::{InForce, Usage};
pub use status::ClusterStatus;
