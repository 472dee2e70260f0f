//! Named sets and maps to which rules of nftables refer.

use std::collections::HashMap;

use serde_json::Value;

/// The most that are listed.
const MOST: usize = 64;

/// As `nft list` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Set,
    Map,
}

impl Kind {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Set => "set",
            Self::Map => "map",
        }
    }
}

/// The name of a set or map of a table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    pub kind: Kind,
    pub family: String,
    pub table: String,
    pub name: String,
}

/// Sets and maps, each listed once.
pub struct NamedSets<'l> {
    /// Prints one in JSON.
    list: &'l mut dyn FnMut(&Name) -> Option<Value>,
    listed: HashMap<Name, Option<Vec<Value>>>,
}

impl<'l> NamedSets<'l> {
    pub fn new(list: &'l mut dyn FnMut(&Name) -> Option<Value>) -> Self {
        Self {
            list,
            listed: HashMap::new(),
        }
    }

    /// The elements that a rule names: of a set in it, of a named one of its table, or one value. `None` if it names none, or
    /// they are unknown.
    pub fn elements(&mut self, rule: &Value, kind: Kind, of: &Value) -> Option<Vec<Value>> {
        if let Some(elements) = of["set"].as_array() {
            return Some(elements.clone());
        }
        let Some(name) = of.as_str().and_then(|text| text.strip_prefix('@')) else {
            return (!of.is_null()).then(|| vec![of.clone()]);
        };
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let name = Name {
            kind,
            family: text(&rule["family"])?,
            table: text(&rule["table"])?,
            name: name.to_owned(),
        };
        if self.listed.len() == MOST && !self.listed.contains_key(&name) {
            return None;
        }
        let list = &mut self.list;
        self.listed
            .entry(name)
            .or_insert_with_key(|name| list(name).and_then(|printed| of_printed(name, &printed)))
            .clone()
    }
}

/// The elements in what `nft -j list set` prints.
fn of_printed(name: &Name, printed: &Value) -> Option<Vec<Value>> {
    let entries = printed["nftables"].as_array()?;
    let set = entries
        .iter()
        .map(|entry| &entry[name.kind.word()])
        .find(|set| set["name"] == name.name)?;
    // An empty one has none.
    Some(set["elem"].as_array().cloned().unwrap_or_default())
}
