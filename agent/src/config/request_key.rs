//! The key of a limit on requests: entries of a descriptor, each with any value or with one.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use toml::de::DeValue;

use super::report::Span;
use super::table::Table;

/// The entry that is the client's address.
pub const SOURCE: &str = "source";
/// What Envoy calls it.
const REMOTE_ADDRESS: &str = "remote_address";
/// The most entries of a key.
const MOST_ENTRIES: usize = 16;
const EXAMPLE: &str = "[\"user\"]";

/// An entry of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyEntry {
    /// Its name, `source` for the client's address.
    pub name: String,
    /// The one value that the limit is for; `None`: each value is a key of its own.
    pub value: Option<EntryValue>,
}

/// The one value of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryValue {
    /// As it is written.
    Text(String),
    /// Of `source`: an address, or another one of the limit's prefix around it.
    Address(IpAddr),
}

impl KeyEntry {
    /// Whether it is the client's address.
    #[must_use]
    pub fn is_source(&self) -> bool {
        self.name == SOURCE
    }

    /// Whether every value of the other entry is one of this one.
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

/// An entry's name as limits have it: `remote_address` is Envoy's word for `source`.
#[must_use]
pub fn entry_name(name: &str) -> &str {
    if name == REMOTE_ADDRESS { SOURCE } else { name }
}

/// Whether Envoy itself gives the entry its value, the address that it sees.
#[must_use]
pub fn is_remote_address(name: &str) -> bool {
    name == REMOTE_ADDRESS
}

/// The first address of the prefix around `address`.
#[must_use]
pub fn masked(address: IpAddr, ipv4_prefix: u8, ipv6_prefix: u8) -> IpAddr {
    let length = if address.is_ipv4() { ipv4_prefix } else { ipv6_prefix };
    IpNet::new(address, length).map_or(address, |net| net.network())
}

/// Reads `key`, a list or one entry without brackets.
pub fn read(table: &mut Table<'_, '_>) -> Vec<KeyEntry> {
    let Some(value) = table.required("key", EXAMPLE) else { return Vec::new() };
    let written = match value.get_ref() {
        DeValue::String(text) => vec![(text.as_ref(), value.span())],
        _ => table.strings("key", EXAMPLE),
    };
    let count = written.len();
    let mut entries: Vec<KeyEntry> = Vec::new();
    for (text, span) in written {
        let Some(entry) = entry(table, text, span.clone()) else { continue };
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
        table.problems.error(value.span(), format!("a key of {count} entries"), help);
    }
    entries
}

/// `name` or `name=value`, unless no descriptor can ever have it.
fn entry(table: &mut Table<'_, '_>, text: &str, span: Span) -> Option<KeyEntry> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    let problem = if name.is_empty() {
        Some(("an entry of a key needs a name".to_owned(), format!("write key = {EXAMPLE}")))
    } else if name.trim() != name || value.is_some_and(|value| value.trim() != value) {
        let trimmed: Vec<&str> = text.split('=').map(str::trim).collect();
        Some((
            format!("no descriptor has spaces around an entry as in {text:?}"),
            format!("write {:?}", trimmed.join("=")),
        ))
    } else if value == Some("") {
        Some((
            format!("the entry {name:?} has no value, and matches nothing"),
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
                table.problems.error(span, format!("{text:?} is no address: no client has it"), help);
                return None;
            }
        },
        Some(text) => Some(EntryValue::Text(text.to_owned())),
    };
    Some(KeyEntry { name, value })
}
