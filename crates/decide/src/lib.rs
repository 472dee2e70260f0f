//! Limits on requests of applications, evaluated in user space by the functions of the kernel programs.
//!
//! [`Engine`] decides: a pure function of the policy, its state and an instant. HTTP, gRPC and the control socket call
//! it. It sends bans to an [`Edge`].
//!
//! - `resolve`: a question becomes a `charge`; `engine` decides it, `together` several at once.
//! - `periods`: the days and months of limits whose rate is by the calendar.
//! - `state_store`: a limit's keys in shards; decisions use a locked one (`locked_shard`).
//! - `forced`, `reservations`, `reserve`: forced charges, refunds, and units that are settled after the work.
//! - `line`, `waiting`: requests that wait until they conform.
//! - `quotas`: units that proxies spend without a request for each.
//! - `engine_handle`, `http`, `grpc`, `service`: the interfaces for applications.
//! - `share`, `keyed`, `exchange`: limits that several hosts share.

mod account;
mod answer;
mod build;
mod charge;
mod connection;
mod engine;
mod engine_handle;
mod error;
mod escalation;
mod exchange;
mod fingerprint;
mod forced;
mod forecast;
mod full_stores;
mod grpc;
mod headers;
mod health;
mod http;
mod key_use;
mod keyed;
mod limit;
mod line;
mod locked_shard;
mod memory;
mod offence;
pub mod offline;
mod overflow;
mod periods;
mod quotas;
mod received;
mod refusals;
mod reservations;
mod reserve;
mod reset;
mod resets;
mod resolve;
mod saved;
mod service;
mod shard;
mod share;
mod sources;
mod state_store;
mod status;
mod table;
#[cfg(test)]
mod tests;
mod tiers;
mod together;
mod unsupported;
mod valid_request;
mod waiting;
mod without_room;

pub use account::PeerConsumption;
pub use answer::Decided;
pub use api::decide::{
    Answer, ChargeMode, LONGEST_RESERVATION, LONGEST_WAIT, OnExpiry, Question, ReserveTime, Wait,
};
pub use build::{EngineError, Moves};
pub use engine::{Current, Engine, Now};
pub use engine_handle::EngineHandle;
pub use error::DecideError;
pub use escalation::Edge;
pub use fingerprint::{Fingerprint, Fingerprints, fnv1a};
pub use full_stores::FullStores;
pub use key_use::KeyUse;
pub use keyed::{Adjustment, Cut};
pub use line::{Bounds, Decision, Ticket, Waiting};
pub use memory::{LimitMemory, memory};
pub use offence::{Offence, Scope};
pub use reset::{KeyReset, ResetError};
pub use resets::{LastReset, LastResets, MOST_RESETS, ResetKey, ResetsFull};
pub use saved::SavedRequests;
pub use service::{Service, ServiceError};
pub use shard::Forgotten;
pub use share::EffectiveShare;
pub use state_store::{LockedShard, StateStore};
