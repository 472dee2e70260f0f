//! Requests and documents of the control socket: types, and how limits of a config become documents.
//!
//! Names of fields are what `--json` prints: they are added to, and never renamed.

pub mod allowance;
pub mod attack;
pub mod capture;
pub mod cluster;
pub mod crowdsec;
pub mod decide;
pub mod event;
pub mod fair;
pub mod geo;
pub mod group;
pub mod heavy_prefixes;
pub mod interface;
pub mod limit;
pub mod list;
pub mod memory;
pub mod notification;
pub mod record;
pub mod reload;
pub mod request;
pub mod rules;
pub mod source;
pub mod status;
pub mod trace;
pub mod view;

pub use event::{Event, EventKind};
