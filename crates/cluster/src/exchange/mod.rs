//! One limit per key for several hosts, which exchange the consumption of their busy keys.
//!
//! Every host starts with the whole limit for a key and decides alone. Each sync it publishes its busy keys'
//! consumption, and charges its own states with the others'. Between two exchanges a key's *factor* bounds the units
//! that a host passes without the others' publications.
//!
//! - [`wire`]: a publication as bytes.
//! - [`series`]: the keys of one limit and their consumption, pure.
//! - `claim`: the demand by which a host takes its part of a window, pure.
//! - [`peer`]: one host's part in all limits, pure.
//! - [`use_log`]: the use of keys in the store, for hosts that join or return.
//! - `reset_log`: the resets of keys in the store.
//! - `sources`: the sources of a limit on packets, in the kernel.
//! - `exchange.lua`: the store's script, run once per host and sync.
//! - `exchange_state`: where a host is between the others and a time without the store.
//! - `exchanged_limits`: the limits and this host's share; `saved_host_count`: the number of hosts, for the next start.
//! - `worker`: the thread that connects [`peer`] and `sources` to the store; `request`: what it sends; [`exchanger`]: the
//!   agent's handle of it.

mod claim;
mod exchange_state;
mod exchanged_limits;
pub mod exchanger;
pub mod peer;
mod request;
mod reset_log;
mod saved_host_count;
pub mod series;
#[cfg(test)]
mod simulation;
mod sources;
mod timeout;
pub mod use_log;
pub mod wire;
mod worker;

pub use exchanged_limits::limits;
pub use exchanger::Exchanger;
