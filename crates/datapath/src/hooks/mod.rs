//! Attaches programs to interfaces, all or none, and keeps them attached.

pub(crate) mod attach;
pub(crate) mod attached;
mod chain;
pub(crate) mod conflicts;
pub(crate) mod follow;
pub(crate) mod hook;
pub(crate) mod pins;
pub(crate) mod queueing;
mod release;
pub(crate) mod traffic_control;
mod transaction;
pub(crate) mod trouble;
