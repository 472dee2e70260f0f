//! The databases of `[geo]`, the lists of classes, and the policy with their prefixes.
//!
//! A config names lists, networks and countries; only a policy in effect has their prefixes. Every use of a config for packets
//! goes through [`Databases::applied`]: start, reload, `weir check` and `weir replay`.

mod class_lists;
mod databases;
mod state;
#[cfg(test)]
mod tests;

pub use class_lists::ClassLists;
pub use databases::{DatabaseChange, Databases};
