//! One declaration a key: a table of limits.toml is a struct that derives `Table`, and each of its fields is a key.
//!
//! Reading, errors, the reference page, the JSON Schema, the differences of two configs, what requires a restart and
//! what is masked come from this declaration. `schema_derive` describes its options.

mod key;
mod message;
mod read;
mod summary;
mod value;
mod values;

pub use key::{
    Absent, Key, Kind, Mask, TableReference, Variant, count, inner_keys, joined, masked_value,
    table_keys,
};
pub use read::{Located, Place, Reader, Table, read, read_all, read_inner, read_one, tables};
pub use schema_derive::Table;
pub use summary::{braced, summary, summary_of};
pub use value::{At, Shown, Text, Value};
pub use values::{HttpUrl, OneOrMore, SecretText};
