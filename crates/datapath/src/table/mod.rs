//! The table of sources: its place, its content, and state migration.

pub(crate) mod carry;
pub(crate) mod elsewhere;
mod locks;
pub(crate) mod place;
pub(crate) mod saved;
pub(crate) mod sources;
