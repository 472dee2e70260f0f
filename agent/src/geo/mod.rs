//! The databases of `[geo]`, and the policy with their prefixes.
//!
//! A config names networks and countries; only a policy in effect has their prefixes. Every use of a config for packets
//! goes through [`Databases::applied`]: start, reload, `agent check` and `agent replay`.

mod databases;
mod state;
#[cfg(test)]
mod tests;

pub use databases::{DatabaseChange, Databases};
