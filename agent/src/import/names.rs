//! Names and quotations for the config.

use std::collections::BTreeSet;

/// Characters of a rule that a comment quotes, and of a name.
const QUOTED: usize = 200;
const LONGEST_NAME: usize = 64;

/// A name that may be long.
pub fn cut(name: &str) -> String {
    name.chars().take(LONGEST_NAME).collect()
}

/// A text for a comment: without control characters, and not long.
pub fn quoted(text: &str) -> String {
    let mut short: String = text
        .chars()
        .take(QUOTED)
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect();
    if text.chars().nth(QUOTED).is_some() {
        short.push('…');
    }
    short
}

/// A name for limits.toml and a file that is in no other place, from a name of the rule's.
pub fn unique(name: &str, names: &mut BTreeSet<String>) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || "-_.".contains(c) {
            c
        } else {
            '-'
        }
    };
    let name: String = name.chars().take(48).map(plain).collect();
    let name = name.trim_matches(['-', '.']).to_owned();
    let name = if name.is_empty() {
        "imported".to_owned()
    } else {
        name
    };
    let mut free = name.clone();
    let mut nth = 2;
    while !names.insert(free.clone()) {
        free = format!("{name}-{nth}");
        nth += 1;
    }
    free
}

/// Texts as elements of a TOML list.
pub fn quoted_list(texts: impl Iterator<Item = String>) -> String {
    texts
        .map(|text| format!("\"{text}\""))
        .collect::<Vec<_>>()
        .join(", ")
}
