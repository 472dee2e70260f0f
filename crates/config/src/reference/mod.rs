//! The reference pages, limits.toml(5) and the JSON Schema, from the keys of all tables.
//!
//! Most tables declare their keys in structs (`schema`). The others are in `tables`; tests compare these with the parser.

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
