//! `over`: the entries of a key whose values share one allowance.

use std::ops::Deref;

use super::report::{Problems, Span};
use super::request_key::{EntryValue, KeyEntry, RequestKey, entry_name, list_or_text};
use super::schema::{At, Key, Kind, Value};
use super::suggestion::suggestion;

/// Distinct names of entries, in the file's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Over(Vec<String>);

impl Deref for Over {
    type Target = [String];

    fn deref(&self) -> &[String] {
        &self.0
    }
}

impl Over {
    /// Whether all values of the entry share one allowance.
    #[must_use]
    pub fn has(&self, entry: &KeyEntry) -> bool {
        self.0.contains(&entry.name)
    }
}

impl Value for Over {
    const KIND: Kind = Kind::List(&<String as Value>::KIND);

    /// A list, or a single name as text.
    fn read(at: At<'_>, key: &Key, problems: &mut Problems) -> Option<Self> {
        let list = list_or_text(at, key, problems)?;
        if list.is_empty() {
            let help = format!("leave it out, or write {}", key.example());
            problems.error(at.span(), format!("{} is empty", key.name), help);
        }
        let mut names: Vec<String> = Vec::new();
        for at in list {
            let Some(written) = String::read(at, key, problems) else {
                continue;
            };
            let name = entry_name(&written);
            if names.iter().any(|known| known == name) {
                let message = format!("duplicate entry {name:?} in {}", key.name);
                let help = if name == written {
                    "leave it out here".to_owned()
                } else {
                    format!("leave it out here: {written} is {name}")
                };
                problems.error(at.span(), message, help);
            } else {
                names.push(name.to_owned());
            }
        }
        Some(Self(names))
    }

    fn write(&self) -> Option<toml::Value> {
        self.0.write()
    }

    fn shown(&self) -> String {
        self.0.shown()
    }
}

/// Checks names, with their spans, against the key.
pub fn check(names: &[(String, Span)], key: &RequestKey, problems: &mut Problems) {
    for (written, span) in names {
        let name = entry_name(written);
        let Some(entry) = key.iter().find(|entry| entry.name == name) else {
            let (message, help) = match written.split_once('=') {
                Some((name, _)) => (
                    format!("{written:?} in over has a value"),
                    format!("write {name:?}: the key has its value"),
                ),
                None => {
                    let known: Vec<&str> = key.iter().map(|entry| entry.name.as_str()).collect();
                    (
                        format!("{name:?} in over is no entry of the key"),
                        suggestion(name, &known),
                    )
                }
            };
            problems.error(span.clone(), message, help);
            continue;
        };
        if let Some(EntryValue::Text(_) | EntryValue::Address(_)) = entry.value {
            let message = format!("{name:?} in over has no effect: {entry} is a single value");
            let help = if entry.is_source() {
                format!("take {name:?} out of over")
            } else {
                format!("take {name:?} out of over, or write a wildcard in the key: \"{entry}*\"")
            };
            problems.warning(span.clone(), message, help);
        }
    }
}
