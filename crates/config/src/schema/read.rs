//! Reading a declared table.

use toml::de::{DeTable, DeValue};

use super::{At, Key, Shown, TableReference, Value};
use crate::report::{Problems, Span};
use crate::suggestion::suggestion;
use crate::table;

/// A struct whose fields are keys; derived.
pub trait Table: Sized {
    const REFERENCE: TableReference;

    /// Reads the keys; `None`: a required one is missing or invalid, and has no valid example.
    fn read_keys(reader: &mut Reader<'_, '_>) -> Option<Self>;

    /// Checks the rules between keys.
    fn check(read: &Located<'_, Self>, problems: &mut Problems);

    /// Each key and its value.
    fn shown(&self) -> Vec<Shown>;

    /// The keys with another value in the other table.
    fn differing(&self, other: &Self) -> Vec<&'static Key>;
}

/// A table and its place in the text.
pub struct Located<'t, T> {
    pub table: T,
    at: At<'t>,
}

impl<'t, T> Located<'t, T> {
    /// The table's span.
    #[must_use]
    pub fn span(&self) -> Span {
        self.at.span()
    }

    /// The key's value in the text.
    #[must_use]
    pub fn find(&self, key: &Key) -> Option<At<'t>> {
        self.at.get_ref().as_table()?.get(key.name)
    }

    /// Whether the key is written, valid or not.
    #[must_use]
    pub fn has(&self, key: &Key) -> bool {
        self.find(key).is_some()
    }

    /// The span of the key's value, else of the table.
    #[must_use]
    pub fn span_of(&self, key: &Key) -> Span {
        self.find(key).unwrap_or(self.at).span()
    }

    /// The valid elements of the key's list with their spans. They are read once more.
    #[must_use]
    pub fn elements<V: Value>(&self, key: &Key) -> Vec<(V, Span)> {
        let list = self.find(key).and_then(|list| list.get_ref().as_array());
        let mut unreported = Problems::default();
        list.into_iter()
            .flat_map(|list| list.iter())
            .filter_map(|at| Some((V::read(at, key, &mut unreported)?, at.span())))
            .collect()
    }
}

/// A table that is being read.
pub struct Reader<'t, 'p> {
    content: &'t DeTable<'t>,
    at: At<'t>,
    heading: &'static str,
    problems: &'p mut Problems,
}

impl Reader<'_, '_> {
    /// The key's value; the default if it is missing or invalid.
    pub fn optional<T: Value>(&mut self, key: &Key, default: fn() -> T) -> T {
        let value = self.content.get(key.name);
        value
            .and_then(|at| T::read(at, key, self.problems))
            .unwrap_or_else(default)
    }

    /// The key's value; its example if it is missing or invalid, so that the rules of other keys are checked.
    pub fn required<T: Value>(&mut self, key: &Key) -> Option<T> {
        let value = self.content.get(key.name);
        if value.is_none() {
            self.problems.error(
                self.at.span(),
                format!("missing key {:?} in {}", key.name, self.heading),
                format!("add {}", key.example()),
            );
        }
        value
            .and_then(|at| T::read(at, key, self.problems))
            .or_else(|| example(key))
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
    let heading = T::REFERENCE.heading;
    let name = T::REFERENCE.page;
    let Some(at) = root.value(name) else {
        return Vec::new();
    };
    let DeValue::Array(array) = at.get_ref() else {
        root.wrong_type(name, at, &format!("each one as {heading}"));
        return Vec::new();
    };
    let mut all = Vec::new();
    for at in array.iter() {
        if !at.get_ref().is_table() {
            root.wrong_type(name, at, &format!("each one as {heading}"));
        }
        all.extend(read(at, root.problems));
    }
    all
}

/// Reads a table; `None`: it is no table, or a required key has no value.
fn read<'t, T: Table>(at: At<'t>, problems: &mut Problems) -> Option<Located<'t, T>> {
    let content = at.get_ref().as_table()?;
    let TableReference { heading, keys, .. } = T::REFERENCE;
    let is_unknown = |name: &str| keys.iter().all(|key| key.name != name);
    for name in content.keys().filter(|name| is_unknown(name.get_ref())) {
        let mut names: Vec<&str> = keys.iter().map(|key| key.name).collect();
        names.sort_unstable();
        let message = format!("unknown key {:?} in {heading}", name.get_ref());
        problems.error(name.span(), message, suggestion(name.get_ref(), &names));
    }
    let mut reader = Reader {
        content,
        at,
        heading,
        problems,
    };
    let table = T::read_keys(&mut reader)?;
    let read = Located { table, at };
    T::check(&read, problems);
    Some(read)
}
