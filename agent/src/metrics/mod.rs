//! Metrics in Prometheus' text format, on `[agent] metrics`.
//!
//! They are made from the documents behind `status`, `limits` and `groups`, on a thread of their own: who scrapes, or
//! hangs while doing so, holds up nobody else. No label is an address: who was throttled is what `top`, `show` and
//! `events` are for, and what a label per source would do to the store of metrics is what Weir is to keep others from.

mod exposition;
mod ledger;
mod server;
#[cfg(test)]
mod tests;

pub use exposition::{Documents, Exposition};
pub use server::{Exporter, ExporterError};
