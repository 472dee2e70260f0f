//! What is known of a table and of each of its keys.

use crate::report::Wrong;

/// A table of limits.toml.
#[derive(Debug)]
pub struct TableReference {
    /// The heading in the file: `[agent]`, `[[limit]]`.
    pub heading: &'static str,
    /// What separates it from another table with this heading.
    pub variant: Option<Variant>,
    /// The name of its page, without extension.
    pub page: &'static str,
    /// The table's purpose.
    pub summary: &'static str,
    /// The keys, the most used first.
    pub keys: &'static [Key],
    /// A table that `weir check` accepts, alone or after the tables that it requires.
    pub example: &'static str,
}

/// One of several tables with a heading.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// The condition: `scope = "request"`.
    pub condition: &'static str,
    /// The keys of the table without this condition.
    pub others: &'static [Key],
    /// Such tables as a noun: `limits on packets`.
    pub noun: &'static str,
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
    /// A table whose keys are names that the operator chooses, each with such a value.
    Map(&'static Kind),
    /// One of several types.
    Either(&'static [Kind]),
}

impl Key {
    /// The values of fields that a declaration leaves out.
    pub const EMPTY: Self = Self {
        name: "",
        kind: Kind::Boolean,
        default: Absent::Invalid,
        since: "",
        text: "",
        range: None,
        examples: &[],
        needs_restart: false,
        check: None,
        mask: None,
    };
}

/// The number of keys in lists.
#[must_use]
pub const fn count(lists: &[&[Key]]) -> usize {
    let (mut count, mut nth) = (0, 0);
    while nth < lists.len() {
        count += lists[nth].len();
        nth += 1;
    }
    count
}

/// The `N` keys of lists.
#[must_use]
pub const fn joined<const N: usize>(lists: &[&[Key]]) -> [Key; N] {
    let mut all = [Key::EMPTY; N];
    let (mut nth, mut list) = (0, 0);
    while list < lists.len() {
        let mut inside = 0;
        while inside < lists[list].len() {
            all[nth] = lists[list][inside];
            nth += 1;
            inside += 1;
        }
        list += 1;
    }
    all
}

/// The keys of the table that a value, or an element of a list, is.
#[must_use]
pub fn table_keys(kind: &Kind) -> Option<&'static [Key]> {
    match kind {
        Kind::Table(keys) | Kind::OneKey(keys) => Some(keys),
        Kind::List(element) => table_keys(element),
        Kind::Either(kinds) => kinds.iter().find_map(table_keys),
        _ => None,
    }
}

/// The keys of the tables among a key's values.
#[must_use]
pub fn inner_keys(kind: &Kind) -> Vec<&'static Key> {
    table_keys(kind).into_iter().flatten().collect()
}

/// Masks the whole values of a key. It finds them by the key's name, since the text may be invalid.
#[must_use]
pub fn masked_value(text: &str, key: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for (start, _) in text.match_indices(key) {
        let rest = &text[start + key.len()..];
        let value = rest.trim_start_matches([' ', '\t', '"', '\'']);
        let Some(value) = value.strip_prefix('=') else {
            continue;
        };
        let value = value.trim_start_matches([' ', '\t']);
        let long = ["\"\"\"", "'''"]
            .into_iter()
            .find(|quotes| value.starts_with(quotes));
        let end = match long {
            Some(quotes) => value[3..].find(quotes).map_or(value.len(), |end| end + 6),
            // To the end of the line, since an invalid value may end anywhere.
            None => value.find(['\n', '\r']).unwrap_or(value.len()),
        };
        let from = text.len() - value.len();
        for byte in &mut bytes[from..from + end] {
            if !matches!(*byte, b'\n' | b'\r') {
                *byte = b'*';
            }
        }
    }
    // Only whole values were replaced.
    String::from_utf8(bytes).unwrap_or_default()
}
