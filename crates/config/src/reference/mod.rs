//! The reference pages, limits.toml(5) and the JSON Schema, from the keys of all tables.
//!
//! The tables declare their keys in structs (`schema`).

#[cfg(test)]
mod markdown;
mod schema;
mod tables;
mod text;

pub use schema::schema;
pub use tables::{TABLES, without_secrets};

#[cfg(test)]
mod tests;
