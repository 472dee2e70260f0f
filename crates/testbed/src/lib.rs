//! Helpers that the tests and benchmarks of all crates share. They are not shipped, and use the agent only through its
//! program.
#![expect(
    clippy::new_without_default,
    reason = "a network or a socket is no value to fall back on"
)]

pub mod application;
pub mod certificates;
pub mod delay;
pub mod documents;
pub mod fleet;
pub mod flows;
pub mod foreign;
pub mod groups;
pub mod host_load;
pub mod lapi;
pub mod measure;
pub mod memory;
pub mod mixtures;
pub mod mmdb;
pub mod network;
pub mod overload;
pub mod port;
pub mod process;
mod program;
pub mod random;
pub mod recipes;
pub mod redis;
pub mod stalls;
pub mod tcp;
pub mod trials;
pub mod wait;
pub mod wire;

pub use program::{agent, weir_in};
