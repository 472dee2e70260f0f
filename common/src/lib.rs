//! Code that Weir's kernel programs and its agent share: the limiters, the packet parser and the layout of every map.
//! No clock, no map, no allocation.
#![cfg_attr(not(test), no_std)]
#![warn(missing_docs)]

pub mod ban;
pub mod bank;
pub mod buffer;
pub mod capture;
pub mod connections;
pub mod counters;
pub mod escalation;
pub mod essential;
pub mod event;
pub mod fair;
mod fields;
pub mod group;
pub mod hot;
pub mod key;
mod layout;
pub mod limiter;
pub mod list;
pub mod neighbour;
pub mod network;
pub mod own;
pub mod packet;
#[cfg(feature = "user")]
mod pod;
pub mod prefix;
pub mod program;
pub mod proof;
pub mod rate_limiter;
pub mod record;
pub mod rule;
pub mod scope;
pub mod settings;
pub mod share;
pub mod siphash;
pub mod source_sketch;
mod spans;
pub mod stream;
pub mod table;
pub mod throttle;
pub mod time;
pub mod trace;
