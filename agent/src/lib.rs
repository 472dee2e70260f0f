//! Weir's agent as a library; the `agent` binary is a thin shell around it.

pub mod compile;
pub mod datapath;
