//! One limit for many hosts.
//!
//! Each host holds a *lease*: a share of the limit's rate and burst that is good for some time. Shares come from a
//! *ledger* that the hosts' store keeps, one for each limit, and follow demand; they never add up to more than the
//! limit. Packets and decisions are held to the share by what holds them anyway, so none of them waits for the store.
//!
//! - [`ledger`]: who holds how much, a pure function. The store runs the same as `lease.lua`.
//! - [`member`]: one host's part in one limit, a pure state machine.
//! - [`past`]: what one run of the agent leaves to the next.
//! - [`store`]: Redis or Valkey; `connect` finds it.
//! - [`keeper`]: a thread (`worker`) that runs the second against the store, limit by limit (`part`).

mod connect;
mod health;
mod holders;
pub mod keeper;
pub mod ledger;
pub mod member;
mod part;
pub mod past;
pub mod status;
pub mod store;
mod worker;

#[cfg(test)]
mod simulation;

pub use holders::shared;
pub use keeper::{Keeper, first_shares};
pub use member::{InForce, Usage};
pub use part::{Definition, Holder, Shared};
pub use past::Past;
pub use status::ClusterStatus;
