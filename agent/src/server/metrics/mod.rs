//! Metrics in Prometheus' text format, and the live page, on `[agent] metrics`.
//!
//! They are made from the documents of `status`, `limits` and `groups`, on a separate thread: a slow scraper affects no
//! other client. No label is an address: refused sources are in `top`, `show` and `events`, and one label value per
//! source would let a flood fill the metrics database.

mod exposition;
mod ledger;
mod live;
mod reply;
mod server;
#[cfg(test)]
mod tests;

pub use exposition::{Documents, Exposition};
pub use server::{Exporter, ExporterError};
