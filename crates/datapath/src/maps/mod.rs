//! The maps of a policy, except for the table of sources.

pub(crate) mod access;
pub(crate) mod bans;
pub(crate) mod batch;
pub(crate) mod capture;
pub(crate) mod events;
pub(crate) mod generation;
mod inner;
mod interfaces;
pub(crate) mod lists;
pub(crate) mod offered;
pub(crate) mod own;
pub(crate) mod policy;
mod prefixes;
pub(crate) mod record;
pub(crate) mod rings;
pub(crate) mod rows;
pub(crate) mod size;
pub(crate) mod stream;
pub(crate) mod text;
pub(crate) mod trace;
