//! What is known of a table and of each of its keys.

use crate::report::Wrong;

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
    pub keys: &'static [Key],
    /// A table that `agent check` accepts, alone or after the tables that it requires.
    pub example: &'static str,
}

/// A key of a table: the source of its errors, its reference, its schema and its differences.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    pub name: &'static str,
    pub kind: Kind,
    pub default: Absent,
    /// The version that introduced it.
    pub since: &'static str,
    /// A description in Markdown.
    pub text: &'static str,
    /// The least and the most number, or time in seconds; `None`: those of the kind.
    pub range: Option<(f64, f64)>,
    /// Valid texts, if the kind has none of its own.
    pub examples: &'static [&'static str],
    /// Whether a reload cannot change it.
    pub needs_restart: bool,
    /// Returns why a text is invalid, beyond the grammar of its type.
    pub check: Option<Check>,
    /// Masks the key's secrets in a config, without changing its length.
    pub mask: Option<Mask>,
}

/// A check of a text.
pub type Check = fn(&str, &Key) -> Result<(), Wrong>;

/// Masks the secrets of a key with this name in a config.
pub type Mask = fn(&str, &str) -> String;

/// The default of a key.
#[derive(Clone, Copy, Debug)]
pub enum Absent {
    /// The key is required.
    Invalid,
    /// The key is required unless this one is there.
    Unless(&'static str),
    /// This value, in TOML.
    Value(&'static str),
    /// This value.
    Default(fn() -> Option<toml::Value>),
    /// The default in words: a sentence fragment.
    Described(&'static str),
}

/// The type of a key's value.
#[derive(Clone, Copy, Debug)]
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
    Table(&'static [Key]),
    /// A table with exactly one of these keys.
    OneKey(&'static [Key]),
    /// One of several types.
    Either(&'static [Kind]),
}

impl Key {
    /// A required key.
    #[must_use]
    pub const fn of_kind(
        name: &'static str,
        kind: Kind,
        text: &'static str,
        since: &'static str,
    ) -> Self {
        Self {
            name,
            kind,
            default: Absent::Invalid,
            since,
            text,
            range: None,
            examples: &[],
            needs_restart: false,
            check: None,
            mask: None,
        }
    }
}

/// The keys of the tables among a key's values.
#[must_use]
pub fn inner_keys(kind: &Kind) -> Vec<&'static Key> {
    match kind {
        Kind::Table(keys) | Kind::OneKey(keys) => keys.iter().collect(),
        Kind::List(element) => inner_keys(element),
        Kind::Either(kinds) => kinds.iter().flat_map(inner_keys).collect(),
        _ => Vec::new(),
    }
}
