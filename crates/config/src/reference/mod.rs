//! The reference pages, limits.toml(5) and the JSON Schema, from the keys of all tables.
//!
//! The tables declare their keys in structs (`schema`).

#[cfg(test)]
mod markdown;
mod schema;
mod secrets;
mod tables;
mod text;

pub use schema::schema;
pub use secrets::without_secrets;
pub use tables::TABLES;

#[cfg(test)]
mod tests;
