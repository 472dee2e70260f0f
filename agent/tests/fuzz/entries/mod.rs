//! The promises of each reader for any bytes of others: nothing panics, and what it returns is valid. Called with random values by
//! `fuzz`, and by the fuzzers of crates/fuzz, which are guided by coverage.

mod config;
mod files;
mod packet;
mod requests;

pub use config::config;
pub use files::{capture, list, mmdb, state};
pub use packet::{Watched, every_depth, hides_its_transport, packet};
pub use requests::{http, rls};
