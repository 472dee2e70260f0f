//! A TOML table on its way to typed values: each key is taken once, and what is left over is unknown.

use std::collections::BTreeSet;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::report::{Problems, Span};

/// A table being read.
pub struct Table<'t, 'p> {
    content: &'t DeTable<'t>,
    span: Span,
    what: &'static str,
    known: BTreeSet<&'static str>,
    /// Where problems go.
    pub problems: &'p mut Problems,
}

/// A value and where it stands.
pub type Value<'t> = &'t Spanned<DeValue<'t>>;

impl<'t, 'p> Table<'t, 'p> {
    /// Starts to read a table that is called `what` in messages.
    pub fn new(content: &'t DeTable<'t>, span: Span, what: &'static str, problems: &'p mut Problems) -> Self {
        Self { content, span, what, known: BTreeSet::new(), problems }
    }

    /// Where the table stands.
    pub fn span(&self) -> Span {
        self.span.clone()
    }

    /// Where the key's value stands, or else the table.
    pub fn span_of(&self, key: &str) -> Span {
        self.content.get(key).map_or(self.span(), Spanned::span)
    }

    /// The value of a key.
    pub fn value(&mut self, key: &'static str) -> Option<Value<'t>> {
        self.known.insert(key);
        self.content.get(key)
    }

    /// The value of a key that has to be there.
    pub fn required(&mut self, key: &'static str, example: &str) -> Option<Value<'t>> {
        let value = self.value(key);
        if value.is_none() {
            self.problems.error(self.span(), format!("{} has no {key}", self.what), format!("add {key} = {example}"));
        }
        value
    }

    /// Notes that a value has the wrong type.
    pub fn wrong_type(&mut self, key: &str, value: Value<'_>, wanted: &str) {
        let found = value.get_ref().type_str();
        self.problems.error(value.span(), format!("{key} is {} {found}", article(found)), format!("write {wanted}"));
    }

    /// A string.
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

    /// One of a set of words.
    pub fn word<T: Copy>(&mut self, key: &'static str, words: &[(&'static str, T)]) -> Option<T> {
        let (text, span) = self.string(key, &format!("{:?}", words.first()?.0))?;
        let found = words.iter().find(|(word, _)| word.eq_ignore_ascii_case(text)).map(|(_, value)| *value);
        if found.is_none() {
            let all: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let message = format!("{text:?} is no {key}");
            self.problems.error(span, message, suggestion(text, &all));
        }
        found
    }

    /// A whole number within bounds.
    pub fn number(&mut self, key: &'static str, least: u64, most: u64) -> Option<u64> {
        let value = self.value(key)?;
        let wanted = format!("a whole number from {least} to {most}");
        match integer(value) {
            Some(number) if (least..=most).contains(&number) => Some(number),
            Some(_) => {
                self.problems.error(value.span(), format!("{key} is out of range"), format!("write {wanted}"));
                None
            }
            None if value.get_ref().is_integer() => {
                self.problems.error(value.span(), format!("{key} is out of range"), format!("write {wanted}"));
                None
            }
            None => {
                self.wrong_type(key, value, &wanted);
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

    /// Notes every key that nobody asked for.
    pub fn finish(self) {
        let known: Vec<&str> = self.known.iter().copied().collect();
        for (key, _) in self.content {
            let name: &str = key.get_ref();
            if !self.known.contains(name) {
                let message = format!("{} has no key {name:?}", self.what);
                self.problems.error(key.span(), message, suggestion(name, &known));
            }
        }
    }
}

/// A number that is whole and not negative.
pub fn integer(value: Value<'_>) -> Option<u64> {
    let integer = value.get_ref().as_integer()?;
    u64::from_str_radix(integer.as_str(), integer.radix()).ok()
}

/// A number of any kind.
pub fn float(value: Value<'_>) -> Option<f64> {
    let value = value.get_ref();
    match value.as_float() {
        Some(float) => float.as_str().parse().ok(),
        None => value.as_integer().and_then(|integer| integer.as_str().parse().ok()),
    }
}

/// The nearest of the known words, or all of them.
pub fn suggestion(written: &str, known: &[&str]) -> String {
    let nearest = known.iter().map(|word| (strsim::damerau_levenshtein(written, word), *word)).min();
    match nearest {
        Some((distance, word)) if distance <= 1 + word.len() / 3 => format!("did you mean {word:?}?"),
        _ => format!("write one of {}", known.join(", ")),
    }
}

fn article(noun: &str) -> &'static str {
    if noun.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" }
}
