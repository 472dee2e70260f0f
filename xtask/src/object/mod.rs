//! Checks of an eBPF object before it is embedded into an agent.

mod check;
mod code;

pub use check::{Function, Logging, check};
