//! Databases of networks and countries in MaxMind's format, and the prefixes that classes and ban lists take from them.
//!
//! Nothing here opens a file.

mod classes;
mod database;
mod ranges;
mod record;
#[cfg(test)]
mod tests;

pub use classes::{ClassPrefixes, Classes, with_lists, with_prefixes};
pub use database::{AllNetworks, Database, GeoError, MOST_PREFIXES};
