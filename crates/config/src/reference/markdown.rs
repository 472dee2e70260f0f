//! The reference pages of the book.

use std::fmt::Write as _;

use super::TABLES;
use crate::schema::{Key, TableReference, inner_keys};

/// Each page's file name and text.
pub fn pages() -> Vec<(String, String)> {
    TABLES
        .iter()
        .map(|table| (format!("{}.md", table.page), page(table)))
        .collect()
}

fn page(table: &TableReference) -> String {
    let mut page = format!("# `{}`", table.heading);
    if let Some(variant) = table.variant {
        let _ = write!(page, " with `{}`", variant.condition);
    }
    // `weir check` would read the databases, which a checkout does not have.
    let mark = if table.heading == "[geo]" {
        "toml,fragment"
    } else {
        "toml"
    };
    let _ = write!(
        page,
        "\n\n{}\n\n```{mark}\n{}```\n",
        table.summary, table.example
    );
    for key in table.keys {
        section(&mut page, key, "");
    }
    page.push_str("\n<!-- This page is made from crates/config/src: change it there. -->\n");
    page
}

/// A key, followed by the keys of its table.
fn section(page: &mut String, key: &Key, parent: &str) {
    let name = if parent.is_empty() {
        key.name.to_owned()
    } else {
        format!("{parent}.{}", key.name)
    };
    let _ = write!(page, "\n## `{name}`\n\n{}\n\n", key.text);
    let _ = write!(
        page,
        "- Type: {}\n- Default: {}\n",
        key.type_in_words(),
        key.default.description()
    );
    if key.needs_restart {
        page.push_str("- Change: requires a restart\n");
    }
    let _ = writeln!(page, "- Since: {}", key.since);
    for inner in inner_keys(&key.kind) {
        section(page, inner, &name);
    }
}
