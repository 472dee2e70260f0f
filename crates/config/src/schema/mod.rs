//! One declaration a key: a table of limits.toml is a struct that derives `Table`, and each of its fields is a key.
//!
//! Reading, errors, the reference page, the JSON Schema, the differences of two configs, what requires a restart and
//! what is masked come from this declaration. `schema_derive` describes its options.

mod key;
mod mask;
mod message;
mod read;
mod summary;
mod value;
mod values;

pub use key::{Absent, Key, Kind, Mask, TableReference, inner_keys};
pub use mask::masked_value;
pub use read::{Located, Reader, Table, read_all, read_one};
pub use schema_derive::Table;
pub use summary::summary;
pub use value::{At, Shown, Text, Value};
pub use values::{HttpUrl, OneOrMore, SecretText};
