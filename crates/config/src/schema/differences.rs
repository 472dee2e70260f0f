//! The values of a table for people, and what differs between two.

use super::{Key, Kind, Table, Value};

/// A key and its value.
pub struct Shown {
    pub key: &'static Key,
    /// Empty if nothing is written.
    pub text: String,
    /// Whether a missing key has this value.
    pub is_default: bool,
}

impl Shown {
    pub fn new(key: &'static Key, value: &impl Value, is_default: bool) -> Self {
        Self {
            key,
            text: value.shown(),
            is_default,
        }
    }
}

/// The keys that are not as if they were missing, without the name: `sources = [192.0.2.0/24], multiplier = 5`.
#[must_use]
pub fn summary(table: &impl Table) -> String {
    let is_said = |shown: &Shown| !shown.is_default && shown.key.name != "name";
    let parts = table.shown().into_iter().filter(is_said);
    let parts: Vec<String> = parts
        .map(|Shown { key, text, .. }| {
            let is_list = matches!(key.kind, Kind::List(_)) || text.contains(", ");
            if is_list {
                format!("{} = [{text}]", key.name)
            } else {
                format!("{} = {text}", key.name)
            }
        })
        .collect();
    parts.join(", ")
}
