//! A TOML table that is being read: each key is taken once; keys that remain are unknown.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::report::{Problems, Span};
use super::suggestion::suggestion;
use super::units;

/// A table being read.
pub struct Table<'t, 'p> {
    content: &'t DeTable<'t>,
    span: Span,
    what: &'static str,
    /// The keys that were asked for, some of them twice.
    known: Vec<&'static str>,
    /// The problems found so far.
    pub problems: &'p mut Problems,
}

/// A value with its span.
pub type Value<'t> = &'t Spanned<DeValue<'t>>;

impl<'t, 'p> Table<'t, 'p> {
    /// Starts to read a table; messages call it `what`.
    pub fn new(
        content: &'t DeTable<'t>,
        span: Span,
        what: &'static str,
        problems: &'p mut Problems,
    ) -> Self {
        Self {
            content,
            span,
            what,
            known: Vec::new(),
            problems,
        }
    }

    /// The table's span.
    pub fn span(&self) -> Span {
        self.span.clone()
    }

    /// The span of the key's value, else of the table.
    pub fn span_of(&self, key: &str) -> Span {
        self.content.get(key).map_or(self.span(), Spanned::span)
    }

    pub fn value(&mut self, key: &'static str) -> Option<Value<'t>> {
        self.known.push(key);
        self.content.get(key)
    }

    /// The value of a required key.
    pub fn required(&mut self, key: &'static str, example: &str) -> Option<Value<'t>> {
        let value = self.value(key);
        if value.is_none() {
            self.problems.error(
                self.span(),
                format!("missing key {key:?} in {}", self.what),
                format!("add {key} = {example}"),
            );
        }
        value
    }

    /// Reports a value of the wrong type.
    pub fn wrong_type(&mut self, key: &str, value: Value<'_>, wanted: &str) {
        let found = value.get_ref().type_str();
        self.problems.error(
            value.span(),
            format!("{key} is {} {found}", article(found)),
            format!("write {wanted}"),
        );
    }

    pub fn string(&mut self, key: &'static str, example: &str) -> Option<(&'t str, Span)> {
        let value = self.value(key)?;
        match value.get_ref().as_str() {
            Some(text) => Some((text, value.span())),
            None => {
                self.wrong_type(key, value, &format!("a string: {key} = {example}"));
                None
            }
        }
    }

    /// The required `name` of a `[[table]]`.
    pub fn name(&mut self, table: &str, example: &str) -> Option<(&'t str, Span)> {
        self.required("name", example);
        let name = self.string("name", example);
        if let Some(("", span)) = &name {
            self.problems.error(
                span.clone(),
                format!("empty name of a {table}"),
                format!("write name = {example}"),
            );
        }
        name
    }

    /// One of a set of words, case-insensitive.
    pub fn word<T: Copy>(&mut self, key: &'static str, words: &[(&'static str, T)]) -> Option<T> {
        let value = self.value(key)?;
        let Some(text) = value.get_ref().as_str() else {
            self.wrong_type(
                key,
                value,
                &format!("a string: {key} = {:?}", words.first()?.0),
            );
            return None;
        };
        let span = value.span();
        let found = words
            .iter()
            .find(|(word, _)| word.eq_ignore_ascii_case(text))
            .map(|(_, value)| *value);
        if found.is_none() {
            let all: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let message = format!("invalid {key} {text:?}");
            self.problems.error(span, message, suggestion(text, &all));
        }
        found
    }

    /// A whole number from `least` to `most`.
    pub fn number(&mut self, key: &'static str, least: u64, most: u64) -> Option<u64> {
        let value = self.value(key)?;
        if let Some(number) = integer(value).filter(|number| (least..=most).contains(number)) {
            return Some(number);
        }
        let wanted = format!("a whole number from {least} to {most}");
        if value.get_ref().is_integer() {
            self.problems.error(
                value.span(),
                format!("{key} is out of range"),
                format!("write {wanted}"),
            );
        } else {
            self.wrong_type(key, value, &wanted);
        }
        None
    }

    /// A time in nanoseconds.
    pub fn time(&mut self, key: &'static str, example: &str) -> Option<u64> {
        let (text, span) = self.string(key, example)?;
        match units::time(text) {
            Ok(nanoseconds) => Some(nanoseconds),
            Err(wrong) => {
                self.problems
                    .error(span, wrong.message, format!("write {key} = {example}"));
                None
            }
        }
    }

    /// The elements of an array.
    pub fn array(&mut self, key: &'static str, example: &str) -> Option<Vec<Value<'t>>> {
        let value = self.value(key)?;
        match value.get_ref().as_array() {
            Some(array) => Some(array.iter().collect()),
            None => {
                self.wrong_type(key, value, &format!("a list: {key} = {example}"));
                None
            }
        }
    }

    /// The strings of an array.
    pub fn strings(&mut self, key: &'static str, example: &str) -> Vec<(&'t str, Span)> {
        let mut strings = Vec::new();
        for value in self.array(key, example).unwrap_or_default() {
            match value.get_ref().as_str() {
                Some(text) => strings.push((text, value.span())),
                None => self.wrong_type(key, value, &format!("strings: {key} = {example}")),
            }
        }
        strings
    }

    /// The strings of an array, or one string.
    pub fn strings_or_one(&mut self, key: &'static str, example: &str) -> Vec<(&'t str, Span)> {
        match self.value(key) {
            Some(value) if value.get_ref().as_str().is_some() => {
                self.string(key, example).into_iter().collect()
            }
            _ => self.strings(key, example),
        }
    }

    /// Reports every unread key as unknown.
    pub fn finish(mut self) {
        let is_unknown = |name: &str| !self.known.contains(&name);
        let unknown: Vec<_> = self
            .content
            .keys()
            .filter(|key| is_unknown(key.get_ref()))
            .collect();
        if unknown.is_empty() {
            return;
        }
        self.known.sort_unstable();
        self.known.dedup();
        for key in unknown {
            let message = format!("unknown key {:?} in {}", key.get_ref(), self.what);
            self.problems
                .error(key.span(), message, suggestion(key.get_ref(), &self.known));
        }
    }
}

/// A non-negative whole number.
pub fn integer(value: Value<'_>) -> Option<u64> {
    let integer = value.get_ref().as_integer()?;
    u64::from_str_radix(integer.as_str(), integer.radix()).ok()
}

/// A number of any type.
pub fn float(value: Value<'_>) -> Option<f64> {
    let value = value.get_ref();
    match value.as_float() {
        Some(float) => float.as_str().parse().ok(),
        None => value
            .as_integer()
            .and_then(|integer| integer.as_str().parse().ok()),
    }
}

/// `a` or `an`.
pub fn article(noun: &str) -> &'static str {
    if noun.starts_with(['a', 'e', 'i', 'o', 'u']) {
        "an"
    } else {
        "a"
    }
}

/// The tables of an array of tables.
pub fn entries<T>(
    root: &mut Table<'_, '_>,
    key: &'static str,
    what: &'static str,
    read: impl Fn(Table<'_, '_>) -> Option<T>,
) -> Vec<T> {
    let Some(value) = root.value(key) else {
        return Vec::new();
    };
    let tables: Vec<&Spanned<DeValue<'_>>> = match value.get_ref() {
        DeValue::Array(array) => array.iter().collect(),
        _ => {
            root.wrong_type(key, value, &format!("each one as {what}"));
            return Vec::new();
        }
    };
    let mut all = Vec::new();
    for value in tables {
        match value.get_ref().as_table() {
            Some(content) => {
                all.extend(read(Table::new(content, value.span(), what, root.problems)));
            }
            None => root.wrong_type(key, value, &format!("each one as {what}")),
        }
    }
    all
}
