//! The verbs.

pub mod bench;
pub mod build;
pub mod cleanup;
pub mod demo;
pub mod lint;
pub mod setup;
pub mod test;
pub mod vm;
