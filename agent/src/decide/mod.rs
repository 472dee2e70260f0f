//! Limits that applications ask about: decided in user space, by the functions that run in the kernel.
//!
//! [`Engine`] decides, a pure function of the policy, its state and the instant it is given; HTTP, gRPC and the
//! control socket are three ways to ask it. What an engine cannot do itself, stopping an address at the kernel edge, it
//! asks of an [`Edge`].

mod connection;
mod engine;
mod escalation;
mod fingerprint;
mod formula;
mod functions;
mod grpc;
mod headers;
mod http;
mod memory;
mod question;
mod service;
mod shard;
mod sources;
mod status;
mod store;
mod table;
#[cfg(test)]
mod tests;
mod tiers;
mod together;
mod waiting;

pub use engine::{Engine, EngineError, Moves};
pub use escalation::Edge;
pub use fingerprint::{Fingerprint, Fingerprints};
pub use formula::{ALLOWANCE, Formula, FormulaError, LIMIT};
pub use memory::{LimitMemory, memory};
pub use question::{Answer, DecideError, Question};
pub use service::{Desk, Service, ServiceError};
pub use shard::Forgotten;
pub use store::{Held, Store};
pub use waiting::{Bounds, Decision, LONGEST_WAIT, Ticket, Wait, Waiting};

/// The engine that decides at this moment: another one takes its place when the config is read again.
pub type Current = arc_swap::ArcSwap<Engine>;

/// A clock: nanoseconds since a fixed instant.
pub type Now = fn() -> u64;
