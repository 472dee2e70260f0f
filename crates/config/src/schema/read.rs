//! Reading a declared table.

use std::ops::Deref;

use toml::de::{DeTable, DeValue};

use super::{At, Key, Shown, TableReference, Value, Variant, table_keys};
use crate::report::{Problems, Span};
use crate::suggestion::suggestion;
use crate::table;

/// A struct whose fields are keys; derived.
pub trait Table: Sized {
    const REFERENCE: TableReference;

    /// Reads the keys; `None`: a required one is missing or invalid, and has no valid example.
    fn read_keys(reader: &mut Reader<'_, '_>) -> Option<Self>;

    /// Checks the rules between keys, and sets values that depend on several keys.
    fn check(read: &mut Located<'_, Self>, problems: &mut Problems);

    /// The value of the key `name`; empty if there is none.
    fn name(&self) -> &str;

    /// Each key and its value.
    fn shown(&self) -> Vec<Shown>;

    /// The keys with another value in the other table.
    fn differing(&self, other: &Self) -> Vec<&'static Key>;
}

/// A table and its place in the text.
pub struct Located<'t, T> {
    pub table: T,
    pub place: Place<'t>,
}

impl<'t, T> Deref for Located<'t, T> {
    type Target = Place<'t>;

    fn deref(&self) -> &Place<'t> {
        &self.place
    }
}

/// A table in the text.
#[derive(Clone, Copy)]
pub struct Place<'t>(At<'t>);

impl<'t> Place<'t> {
    /// The table's span.
    #[must_use]
    pub fn span(self) -> Span {
        self.0.span()
    }

    /// The key's value in the text.
    #[must_use]
    pub fn find(self, key: &Key) -> Option<At<'t>> {
        self.0.get_ref().as_table()?.get(key.name)
    }

    /// Whether the key is written, valid or not.
    #[must_use]
    pub fn has(self, key: &Key) -> bool {
        self.find(key).is_some()
    }

    /// The span of the key's value, else of the table.
    #[must_use]
    pub fn span_of(self, key: &Key) -> Span {
        self.find(key).unwrap_or(self.0).span()
    }

    /// The valid elements of the key's list, or its value if it is no list, with their spans. They are read once more.
    #[must_use]
    pub fn elements<V: Value>(self, key: &Key) -> Vec<(V, Span)> {
        let mut unreported = Problems::default();
        let elements = self.places(key).into_iter();
        elements
            .filter_map(|at| Some((V::read(at, key, &mut unreported)?, at.span())))
            .collect()
    }

    /// The valid tables of the key's list. They are read once more.
    #[must_use]
    pub fn tables<V: Table>(self, key: &Key) -> Vec<Located<'t, V>> {
        let mut unreported = Problems::default();
        let elements = self.places(key).into_iter();
        elements
            .filter_map(|at| read_inner(at, key, &mut unreported))
            .collect()
    }

    /// The elements of the key's list, or its value if it is no list.
    fn places(self, key: &Key) -> Vec<At<'t>> {
        let Some(at) = self.find(key) else {
            return Vec::new();
        };
        let list = at.get_ref().as_array();
        list.map_or_else(|| vec![at], |list| list.iter().collect())
    }
}

/// A table that is being read.
pub struct Reader<'t, 'p> {
    content: &'t DeTable<'t>,
    at: At<'t>,
    heading: &'static str,
    /// The declarations: of an inner table, those of its place.
    keys: &'static [Key],
    problems: &'p mut Problems,
}

impl Reader<'_, '_> {
    /// The key's value; the default if it is missing or invalid.
    pub fn optional<T: Value>(&mut self, key: &'static Key, default: fn() -> T) -> T {
        self.value(key).unwrap_or_else(default)
    }

    /// The key's value; its example if it is missing or invalid, so that the rules of other keys are checked.
    pub fn required<T: Value>(&mut self, key: &'static Key) -> Option<T> {
        if !self.content.contains_key(key.name) {
            self.missing(key);
        }
        self.value(key).or_else(|| example(self.here(key)))
    }

    /// The key's value, which is required unless another key is there.
    pub fn required_unless<T: Value + Default>(&mut self, key: &'static Key, other: &str) -> T {
        if !self.content.contains_key(key.name) && !self.content.contains_key(other) {
            self.missing(key);
        }
        self.value(key).unwrap_or_default()
    }

    fn value<T: Value>(&mut self, key: &'static Key) -> Option<T> {
        let at = self.content.get(key.name)?;
        T::read(at, self.here(key), self.problems)
    }

    fn missing(&mut self, key: &'static Key) {
        let key = self.here(key);
        self.problems.error(
            self.at.span(),
            format!("missing key {:?} in {}", key.name, self.heading),
            format!("add {}", key.example()),
        );
    }

    /// The key as declared for this place.
    fn here(&self, key: &'static Key) -> &'static Key {
        let here = self.keys.iter().find(|here| here.name == key.name);
        here.unwrap_or(key)
    }
}

fn example<T: Value>(key: &Key) -> Option<T> {
    let text = key.example();
    let document = DeTable::parse(&text).ok()?;
    let at = document.get_ref().get(key.name)?;
    T::read(at, key, &mut Problems::default())
}

/// The table `[name]`.
pub fn read_one<'t, T: Table>(root: &mut table::Table<'t, '_>) -> Option<Located<'t, T>> {
    let heading = T::REFERENCE.heading;
    let name = T::REFERENCE.page;
    let at = root.value(name)?;
    if !at.get_ref().is_table() {
        root.wrong_type(name, at, &format!("a table: {heading}"));
    }
    read(at, root.problems)
}

/// The tables `[[name]]`.
pub fn read_all<'t, T: Table>(root: &mut table::Table<'t, '_>) -> Vec<Located<'t, T>> {
    let tables = tables(root, T::REFERENCE.page);
    let tables = tables.into_iter();
    tables.filter_map(|at| read(at, root.problems)).collect()
}

/// The places of the tables `[[name]]`. Values that are no tables are reported.
pub fn tables<'t>(root: &mut table::Table<'t, '_>, name: &'static str) -> Vec<At<'t>> {
    let Some(at) = root.value(name) else {
        return Vec::new();
    };
    let wanted = format!("each one as [[{name}]]");
    let DeValue::Array(array) = at.get_ref() else {
        root.wrong_type(name, at, &wanted);
        return Vec::new();
    };
    let mut tables = Vec::new();
    for at in array.iter() {
        if at.get_ref().is_table() {
            tables.push(at);
        } else {
            root.wrong_type(name, at, &wanted);
        }
    }
    tables
}

/// Reads a table; `None`: it is no table, or a required key has no value.
pub fn read<'t, T: Table>(at: At<'t>, problems: &mut Problems) -> Option<Located<'t, T>> {
    let TableReference { heading, keys, .. } = T::REFERENCE;
    read_as(at, heading, keys, problems)
}

/// Reads a table that is the value of a key; `None`: it is no table, or a required key has no value.
pub fn read_inner<'t, T: Table>(
    at: At<'t>,
    key: &Key,
    problems: &mut Problems,
) -> Option<Located<'t, T>> {
    if !at.get_ref().is_table() {
        key.wrong_type(at, problems);
    }
    let keys = table_keys(&key.kind).unwrap_or(T::REFERENCE.keys);
    read_as(at, key.name, keys, problems)
}

fn read_as<'t, T: Table>(
    at: At<'t>,
    heading: &'static str,
    keys: &'static [Key],
    problems: &mut Problems,
) -> Option<Located<'t, T>> {
    let content = at.get_ref().as_table()?;
    let is_unknown = |name: &str| keys.iter().all(|key| key.name != name);
    for name in content.keys().filter(|name| is_unknown(name.get_ref())) {
        let (span, name) = (name.span(), name.get_ref());
        let variant = T::REFERENCE.variant;
        let of_other = variant.filter(|variant| variant.others.iter().any(|key| key.name == *name));
        if let Some(Variant {
            condition, noun, ..
        }) = of_other
        {
            let message = format!("{name} conflicts with {condition}: only {noun} have it");
            let help = format!("leave out {name}, or {condition}");
            problems.error(content[name.as_ref()].span(), message, help);
            continue;
        }
        let mut names: Vec<&str> = keys.iter().map(|key| key.name).collect();
        names.sort_unstable();
        let message = format!("unknown key {name:?} in {heading}");
        problems.error(span, message, suggestion(name, &names));
    }
    let mut reader = Reader {
        content,
        at,
        heading,
        keys,
        problems,
    };
    let table = T::read_keys(&mut reader)?;
    let place = Place(at);
    let mut read = Located { table, place };
    T::check(&mut read, problems);
    Some(read)
}
