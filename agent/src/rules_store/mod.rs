//! Stores of a fleet's rules: folders, HTTP servers, S3, Redis and Valkey. All of them block.

mod bucket;
mod folder;
mod http;
mod publishing;
mod redis;
mod signature;
mod store;
mod stream;
#[cfg(test)]
mod testing;

pub use publishing::Reports;
pub use store::StoreError;
pub use stream::Stream;
