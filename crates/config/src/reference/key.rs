//! Entries of the reference.

/// A table of limits.toml.
#[derive(Debug)]
pub struct TableReference {
    /// The heading in the file: `[agent]`, `[[limit]]`.
    pub heading: &'static str,
    /// The condition that separates it from another table with this heading, such as `scope = "request"`.
    pub variant: Option<&'static str>,
    /// The name of its page, without extension.
    pub page: &'static str,
    /// The table's purpose.
    pub summary: &'static str,
    /// The keys, the most used first.
    pub keys: &'static [KeyReference],
    /// A table that `agent check` accepts, alone or after the tables that it requires.
    pub example: &'static str,
}

/// A key of a table.
#[derive(Debug)]
pub struct KeyReference {
    pub name: &'static str,
    pub kind: Kind,
    pub default: Absent,
    /// The version that introduced it.
    pub since: &'static str,
    /// A description in Markdown.
    pub text: &'static str,
}

/// The default of a key.
#[derive(Clone, Copy, Debug)]
pub enum Absent {
    /// The key is required.
    Invalid,
    /// The key is required unless this one is there.
    Unless(&'static str),
    /// This value, in TOML.
    Value(&'static str),
    /// The default in words: a sentence fragment.
    Described(&'static str),
}

/// The type of a key's value.
#[derive(Debug)]
pub enum Kind {
    /// `true` or `false`.
    Boolean,
    /// A whole number, from the first to the second value.
    Integer(u64, u64),
    /// A number, from the first to the second value.
    Number(f64, f64),
    /// Any text, with examples.
    Text(&'static [&'static str]),
    /// One of these words, case-insensitive.
    Words(fn() -> Vec<&'static str>),
    /// A rate: a count per time, with examples.
    Rate(&'static [&'static str]),
    /// A size in bytes with a unit.
    Size(&'static [&'static str]),
    /// A time with a unit.
    Time(&'static [&'static str]),
    /// A percentage, as text.
    Percent(&'static [&'static str]),
    /// An absolute path.
    Path(&'static [&'static str]),
    /// An address or a prefix.
    Prefix(&'static [&'static str]),
    /// A list of such values.
    List(&'static Kind),
    /// A table with these keys.
    Table(&'static [KeyReference]),
    /// A table with exactly one of these keys.
    OneKey(&'static [KeyReference]),
    /// One of several types.
    Either(&'static [Kind]),
}

/// The keys of the tables among a key's values.
#[must_use]
pub fn inner_keys(kind: &Kind) -> Vec<&'static KeyReference> {
    match kind {
        Kind::Table(keys) | Kind::OneKey(keys) => keys.iter().collect(),
        Kind::List(element) => inner_keys(element),
        Kind::Either(kinds) => kinds.iter().flat_map(inner_keys).collect(),
        _ => Vec::new(),
    }
}
