//! The servers of the running agent: control socket and metrics.

pub mod control;
pub mod metrics;
