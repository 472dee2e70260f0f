//! A table in one line.

use super::{Key, Kind, Shown, Table};

/// The keys that are not as if they were missing, without the name: `sources = [192.0.2.0/24], multiplier = 5`.
#[must_use]
pub fn summary(table: &impl Table) -> String {
    chosen(table, |shown| !shown.is_default && shown.key.name != "name")
}

/// These keys: `every = 1h`.
#[must_use]
pub fn summary_of(table: &impl Table, keys: &[&Key]) -> String {
    chosen(table, |shown| {
        keys.iter().any(|key| key.name == shown.key.name)
    })
}

/// A table within another: `{ max = 150%, weight = 50 }`; empty if all keys are as if they were missing.
#[must_use]
pub fn braced(table: &impl Table) -> String {
    match chosen(table, |shown| !shown.is_default) {
        none if none.is_empty() => none,
        keys => format!("{{ {keys} }}"),
    }
}

fn chosen(table: &impl Table, is_shown: impl Fn(&Shown) -> bool) -> String {
    let parts = table.shown().into_iter().filter(is_shown);
    let parts: Vec<String> = parts
        .map(|Shown { key, text, .. }| {
            let is_list = matches!(key.kind, Kind::List(_))
                || (text.contains(", ") && !text.starts_with('{'));
            if is_list {
                format!("{} = [{text}]", key.name)
            } else {
                format!("{} = {text}", key.name)
            }
        })
        .collect();
    parts.join(", ")
}
