//! Weir's agent as a library; the `agent` binary is a thin shell around it.

pub mod applications;
pub mod bans;
mod change;
pub mod cli;
pub mod cluster;
pub mod cmd;
pub mod compile;
pub mod config;
pub mod control;
pub mod counts;
pub mod datapath;
pub mod decide;
pub mod doctor;
pub mod events;
pub mod groups;
pub mod host_load;
pub mod link;
pub mod live;
pub mod manual;
pub mod metrics;
pub mod protect;
pub mod service;
pub mod stacking;
pub mod state;
pub mod stats;
pub mod supervisor;
pub mod tui;
