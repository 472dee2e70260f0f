//! The verbs.

pub mod accuracy;
pub mod bench;
pub mod build;
pub mod cleanup;
pub mod demo;
pub mod deny;
pub mod dist;
pub mod docs;
pub mod fuzz;
pub mod integration;
pub mod lint;
mod measured;
pub mod package;
pub mod release_check;
pub mod rest;
pub mod setup;
pub mod tcp;
pub mod test;
pub mod vm;
