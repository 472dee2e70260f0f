//! The tables, one module each.

mod all;
mod key;
mod limit;
mod request;

pub use all::TABLES;
