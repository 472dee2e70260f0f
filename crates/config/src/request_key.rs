//! The key of a limit on requests: descriptor entries, each with any value or a fixed one.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use toml::de::DeValue;

use super::report::Span;
use super::table::Table;

/// The entry for the client's address.
pub const SOURCE: &str = "source";
/// Envoy's name of that entry.
const REMOTE_ADDRESS: &str = "remote_address";
/// The most entries of a key.
const MOST_ENTRIES: usize = 16;
const EXAMPLE: &str = "[\"user\"]";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyEntry {
    /// The name; `source` for the client's address.
    pub name: String,
    /// The value that the limit requires; `None`: each value is a separate key.
    pub value: Option<EntryValue>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryValue {
    /// Compared as text.
    Text(String),
    /// For `source`: compared by the limit's prefix length.
    Address(IpAddr),
}

impl KeyEntry {
    /// Whether it is the client's address.
    #[must_use]
    pub fn is_source(&self) -> bool {
        self.name == SOURCE
    }

    /// Whether every value that the other entry matches also matches this one.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.name == other.name && (self.value.is_none() || self.value == other.value)
    }
}

impl fmt::Display for KeyEntry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            None => formatter.write_str(&self.name),
            Some(EntryValue::Text(text)) => write!(formatter, "{}={text}", self.name),
            Some(EntryValue::Address(address)) => write!(formatter, "{}={address}", self.name),
        }
    }
}

/// The entry's name in limits: `remote_address` becomes `source`.
#[must_use]
pub fn entry_name(name: &str) -> &str {
    if name == REMOTE_ADDRESS { SOURCE } else { name }
}

/// Whether Envoy sets the entry's value, the client's address.
#[must_use]
pub fn is_remote_address(name: &str) -> bool {
    name == REMOTE_ADDRESS
}

/// The first address of the prefix around `address`.
#[must_use]
pub fn masked(address: IpAddr, ipv4_prefix: u8, ipv6_prefix: u8) -> IpAddr {
    let length = if address.is_ipv4() {
        ipv4_prefix
    } else {
        ipv6_prefix
    };
    IpNet::new(address, length).map_or(address, |net| net.network())
}

/// Reads `key`: a list, or a single entry as text.
pub fn read(table: &mut Table<'_, '_>) -> Vec<KeyEntry> {
    let Some(value) = table.required("key", EXAMPLE) else {
        return Vec::new();
    };
    let written = match value.get_ref() {
        DeValue::String(text) => vec![(text.as_ref(), value.span())],
        _ => table.strings("key", EXAMPLE),
    };
    let count = written.len();
    let mut entries: Vec<KeyEntry> = Vec::new();
    for (text, span) in written {
        let Some(entry) = entry(table, text, span.clone()) else {
            continue;
        };
        if entries.iter().any(|other| other.name == entry.name) {
            let message = format!("duplicate entry {:?} in the key", entry.name);
            let help = if entry.is_source() && !text.starts_with(SOURCE) {
                "leave it out here: remote_address is source"
            } else {
                "leave it out here: a descriptor has an entry once"
            };
            table.problems.error(span, message, help);
        } else {
            entries.push(entry);
        }
    }
    if count == 0 || count > MOST_ENTRIES {
        let help = format!("name 1 to {MOST_ENTRIES}: key = {EXAMPLE}");
        table
            .problems
            .error(value.span(), format!("key has {count} entries"), help);
    }
    entries
}

/// Parses `name` or `name=value`; reports entries that no descriptor can have.
fn entry(table: &mut Table<'_, '_>, text: &str, span: Span) -> Option<KeyEntry> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    let problem = if name.is_empty() {
        Some((
            "an entry of key has no name".to_owned(),
            format!("write key = {EXAMPLE}"),
        ))
    } else if name.trim() != name || value.is_some_and(|value| value.trim() != value) {
        let trimmed: Vec<&str> = text.split('=').map(str::trim).collect();
        Some((
            format!("unexpected spaces around an entry of key: {text:?}"),
            format!("write {:?}", trimmed.join("=")),
        ))
    } else if value == Some("") {
        Some((
            format!("the entry {name:?} has an empty value, which matches nothing"),
            format!("write {name:?} for each value, or \"{name}=VALUE\""),
        ))
    } else {
        None
    };
    if let Some((message, help)) = problem {
        table.problems.error(span, message, help);
        return None;
    }
    let name = entry_name(name).to_owned();
    let value = match value {
        None => None,
        Some(text) if name == SOURCE => match text.parse::<IpAddr>() {
            Ok(address) => Some(EntryValue::Address(address.to_canonical())),
            Err(_) => {
                let help = "write source=192.0.2.1; for networks add ipv4_prefix and ipv6_prefix, or a [[class]]";
                table
                    .problems
                    .error(span, format!("invalid address {text:?} of source"), help);
                return None;
            }
        },
        Some(text) => Some(EntryValue::Text(text.to_owned())),
    };
    Some(KeyEntry { name, value })
}
