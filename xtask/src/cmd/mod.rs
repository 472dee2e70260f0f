//! The verbs.

pub mod accuracy;
pub mod build;
pub mod cleanup;
pub mod demo;
pub mod lint;
pub mod setup;
pub mod test;
pub mod vm;
