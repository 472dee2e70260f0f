//! Limits that several hosts enforce together.
//!
//! Each host has a *lease*: a share of the limit's rate and burst for some time. Shares come from a *ledger* in the
//! hosts' store, one for each limit, and follow demand; their sum never exceeds the limit. The kernel and the engine
//! enforce the share like any limit, so packets and decisions never wait for the store.
//!
//! - [`ledger`]: the hosts' shares, a pure function. The store runs the same as `lease.lua`.
//! - [`member`]: one host's part in one limit, a pure state machine.
//! - [`recent_hosts`]: the hosts by which a limit is divided without a store.
//! - [`past`]: the state that one run of the agent saves for the next.
//! - [`store`]: Redis or Valkey; `connect` makes connections.
//! - [`lease_client`]: a thread (`worker`) that runs [`member`] against the store, limit by limit (`part`).
//! - `enforcers`: the enforcement of a limit on this host; for limits on packets, an engine behind the trait [`Packets`].
//! - [`bans`]: bans that all hosts enforce.
//! - [`zones`]: limits that are divided between zones, and by each zone among its hosts.
//! - [`exchange`]: limits whose hosts exchange each key's consumption instead of shares.

pub mod bans;
mod connect;
mod enforcers;
mod error;
pub mod exchange;
mod fleet;
mod health;
pub mod lease_client;
pub mod ledger;
pub mod member;
mod packets;
mod part;
pub mod past;
pub mod recent_hosts;
mod shared_status;
#[cfg(test)]
mod simulation;
pub mod store;
mod worker;
pub mod zones;

pub use api::cluster as status;
pub use api::cluster::ClusterStatus;
pub use decide::EffectiveShare;
pub use error::{ClusterError, StoreError};
pub use fleet::Fleet;
pub use health::StoreUsers;
pub use lease_client::first_shares;
pub use member::Usage;
pub use packets::{BusySource, Elsewhere, Packets, PacketsError};
pub use part::{Definition, Enforcer, Shared};
pub use past::Past;
