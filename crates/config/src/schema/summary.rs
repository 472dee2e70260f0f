//! A table in one line.

use super::{Kind, Shown, Table};

/// The keys that are not as if they were missing, without the name: `sources = [192.0.2.0/24], multiplier = 5`.
#[must_use]
pub fn summary(table: &impl Table) -> String {
    let is_shown = |shown: &Shown| !shown.is_default && shown.key.name != "name";
    let parts = table.shown().into_iter().filter(is_shown);
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
