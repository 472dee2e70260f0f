//! The keys of limits.toml in one table: the source of the reference pages, limits.toml(5) and the JSON Schema.
//!
//! To add a key, add an entry to its table. Tests compare the table with the parser: names, ranges and defaults.

#[cfg(test)]
mod markdown;
mod schema;
mod tables;
mod text;

pub use schema::schema;
pub use tables::TABLES;

#[cfg(test)]
mod tests;
