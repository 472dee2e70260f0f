//! Checks and strips an eBPF object before it is embedded into an agent.

mod check;
mod code;
mod strip;

pub use check::{Function, Logging, check};
pub use strip::without_debug_information;
