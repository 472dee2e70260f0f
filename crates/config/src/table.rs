//! A TOML table that is being read: each key is taken once; keys that remain are unknown.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::report::{Problems, Span};
use super::suggestion::suggestion;

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

    /// Reports a value of the wrong type.
    pub fn wrong_type(&mut self, key: &str, value: Value<'_>, wanted: &str) {
        let found = value.get_ref().type_str();
        self.problems.error(
            value.span(),
            format!("{key} is {} {found}", article(found)),
            format!("write {wanted}"),
        );
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

/// A value as it was typed, for messages; the type of a list or table.
pub fn typed(value: Value<'_>) -> String {
    match value.get_ref() {
        DeValue::String(text) => format!("{text:?}"),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Array(_) => "list".to_owned(),
        DeValue::Table(_) => "table".to_owned(),
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
