//! The key of a limit on requests: descriptor entries, each with any value, a fixed one or those of a pattern.

use std::fmt;
use std::net::IpAddr;
use std::ops::Deref;

use ipnet::IpNet;

use super::report::{Problems, Wrong};
use super::schema::{At, Key, Kind, Text, Value};
use super::value_pattern::{NoPattern, ValuePattern};

/// The entry for the client's address.
pub const SOURCE: &str = "source";
/// Envoy's name of that entry.
const REMOTE_ADDRESS: &str = "remote_address";
/// The most entries of a key.
const MOST_ENTRIES: usize = 16;

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
    /// Each value that matches is a separate key.
    Pattern(ValuePattern),
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
        use EntryValue::{Pattern, Text};

        self.name == other.name
            && match (&self.value, &other.value) {
                (None, _) => true,
                (Some(Pattern(own)), Some(Text(text))) => own.matches(text),
                (Some(Pattern(own)), Some(Pattern(other))) => own.covers(other),
                (own, other) => own == other,
            }
    }
}

impl fmt::Display for KeyEntry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            None => formatter.write_str(&self.name),
            Some(EntryValue::Text(text)) => write!(formatter, "{}={text}", self.name),
            Some(EntryValue::Pattern(pattern)) => write!(formatter, "{}={pattern}", self.name),
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

/// The key of a limit on requests: distinct entries, in the file's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestKey(Vec<KeyEntry>);

impl Deref for RequestKey {
    type Target = [KeyEntry];

    fn deref(&self) -> &[KeyEntry] {
        &self.0
    }
}

/// The elements of a list, or a single text; another type is an error.
pub(super) fn list_or_text<'t>(
    at: At<'t>,
    key: &Key,
    problems: &mut Problems,
) -> Option<Vec<At<'t>>> {
    match (at.get_ref().as_array(), at.get_ref().as_str()) {
        (Some(list), _) => Some(list.iter().collect()),
        (None, Some(_)) => Some(vec![at]),
        (None, None) => {
            key.wrong_type(at, problems);
            None
        }
    }
}

impl Value for RequestKey {
    const KIND: Kind = Kind::List(&<KeyEntry as Value>::KIND);

    /// A list, or a single entry as text.
    fn read(at: At<'_>, key: &Key, problems: &mut Problems) -> Option<Self> {
        let list = list_or_text(at, key, problems)?;
        if list.is_empty() || list.len() > MOST_ENTRIES {
            let message = format!("{} has {} entries", key.name, list.len());
            let help = format!("name 1 to {MOST_ENTRIES}: {}", key.example());
            problems.error(at.span(), message, help);
        }
        let mut entries: Vec<KeyEntry> = Vec::new();
        for at in list {
            let Some(entry) = KeyEntry::read(at, key, problems) else {
                continue;
            };
            if entries.iter().any(|other| other.name == entry.name) {
                let is_renamed = !at
                    .get_ref()
                    .as_str()
                    .is_some_and(|it| it.starts_with(SOURCE));
                let message = format!("duplicate entry {:?} in the key", entry.name);
                let help = if entry.is_source() && is_renamed {
                    "leave it out here: remote_address is source"
                } else {
                    "leave it out here: a descriptor has an entry once"
                };
                problems.error(at.span(), message, help);
            } else {
                entries.push(entry);
            }
        }
        Some(Self(entries))
    }

    fn write(&self) -> Option<toml::Value> {
        self.0.write()
    }

    fn shown(&self) -> String {
        self.0.shown()
    }
}

impl Text for KeyEntry {
    const KIND: Kind = Kind::Text(&[]);

    /// Parses `name` or `name=value`. An entry that no descriptor can have is invalid.
    fn parse(text: &str, key: &Key) -> Result<Self, Wrong> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        if name.is_empty() {
            let message = format!("an entry of {} has no name", key.name);
            return Err(Wrong::new(message, format!("write {}", key.example())));
        }
        if name.trim() != name || value.is_some_and(|value| value.trim() != value) {
            let trimmed: Vec<&str> = text.split('=').map(str::trim).collect();
            let message = format!(
                "unexpected spaces around an entry of {}: {text:?}",
                key.name
            );
            return Err(Wrong::new(
                message,
                format!("write {:?}", trimmed.join("=")),
            ));
        }
        if value == Some("") {
            let message = format!("the entry {name:?} has an empty value, which matches nothing");
            let help = format!("write {name:?} for each value, or \"{name}=VALUE\"");
            return Err(Wrong::new(message, help));
        }
        let name = entry_name(name).to_owned();
        let value = match value {
            Some(text) if name == SOURCE => match text.parse::<IpAddr>() {
                Ok(address) => Some(EntryValue::Address(address.to_canonical())),
                Err(_) => {
                    let message = format!("invalid address {text:?} of source");
                    let help = "write source=192.0.2.1; for networks add ipv4_prefix and ipv6_prefix, or a [[class]]";
                    return Err(Wrong::new(message, help));
                }
            },
            Some(text) => Some(text_or_pattern(&name, text)?),
            None => None,
        };
        Ok(Self { name, value })
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

fn text_or_pattern(name: &str, text: &str) -> Result<EntryValue, Wrong> {
    match ValuePattern::parse(text) {
        Ok(pattern) => Ok(EntryValue::Pattern(pattern)),
        Err(NoPattern::Literal) => Ok(EntryValue::Text(text.to_owned())),
        Err(NoPattern::All) => {
            let message = format!("the entry \"{name}={text}\" matches each value of {name:?}");
            Err(Wrong::new(message, format!("write {name:?}")))
        }
        Err(NoPattern::Repeated) => {
            let mut once = text.to_owned();
            while once.contains("**") {
                once = once.replace("**", "*");
            }
            let message = format!("repeated wildcard in the entry \"{name}={text}\"");
            let help = format!("write \"{name}={once}\": * matches any text, / included");
            Err(Wrong::new(message, help))
        }
    }
}
