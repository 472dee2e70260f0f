//! Limits that applications ask about: decided in user space, by the functions that run in the kernel.
//!
//! [`Engine`] decides, a pure function of the policy, its state and the instant it is given; HTTP, gRPC and the
//! control socket are three ways to ask it. What an engine cannot do itself, stopping an address at the kernel edge, it
//! asks of an [`Edge`].

mod engine;
mod escalation;
mod formula;
mod sources;
mod store;
#[cfg(test)]
mod tests;
mod tiers;

pub use engine::{Answer, DecideError, Engine, EngineError, Question};
pub use escalation::Edge;
pub use formula::{Formula, FormulaError};
pub use store::{Fingerprint, Fingerprints, Held, Store};
