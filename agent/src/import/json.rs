//! JSON in bounded memory.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};

/// The most values of a document; a million prefixes of an nftables set are five million values.
const MOST_VALUES: u64 = 8_000_000;

/// A value, in less memory than `serde_json::Value`.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    Other,
    Bool(bool),
    Number(u64),
    Negative(i64),
    Text(Box<str>),
    List(Vec<Json>),
    Map(Vec<(Box<str>, Json)>),
}

impl Json {
    /// Parses a document.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let left = Cell::new(MOST_VALUES);
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let value = Value { left: &left }.deserialize(&mut deserializer)?;
        deserializer.end()?;
        Ok(value)
    }

    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Map(entries) => entries
                .iter()
                .find(|(name, _)| &**name == key)
                .map(|(_, value)| value),
            _ => None,
        }
    }

    /// The text of a key.
    pub fn text_of(&self, key: &str) -> Option<&str> {
        self.get(key)?.text()
    }

    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A number, also in quotes.
    pub fn number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(text) => text.parse().ok(),
            _ => None,
        }
    }

    /// A number that may be negative.
    pub fn signed(&self) -> Option<i64> {
        match self {
            Self::Negative(number) => Some(*number),
            other => i64::try_from(other.number()?).ok(),
        }
    }

    /// The elements of a list; a value that is none is its only element.
    pub fn elements(&self) -> &[Self] {
        match self {
            Self::List(list) => list,
            other => std::slice::from_ref(other),
        }
    }

    /// The only entry of a map.
    pub fn entry(&self) -> Option<(&str, &Self)> {
        match self {
            Self::Map(entries) => entries.first().map(|(key, value)| (&**key, value)),
            _ => None,
        }
    }
}

#[derive(Clone, Copy)]
struct Value<'c> {
    left: &'c Cell<u64>,
}

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = Json;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        let left = self.left.get().checked_sub(1);
        self.left
            .set(left.ok_or_else(|| D::Error::custom(format!("more than {MOST_VALUES} values")))?);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = Json;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Negative(value))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Json, E> {
        Ok(Json::Other)
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Other)
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = elements.next_element_seed(self)? {
            list.push(element);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
        let mut map = Vec::with_capacity(1);
        while let Some(key) = entries.next_key::<Box<str>>()? {
            map.push((key, entries.next_value_seed(self)?));
        }
        Ok(Json::Map(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_bounded_in_number_and_depth() {
        assert_eq!(
            Json::parse("{\"a\": [1, \"b\"]}")
                .unwrap()
                .get("a")
                .unwrap()
                .elements()
                .len(),
            2
        );
        let many = format!("[{}0]", "0,".repeat(MOST_VALUES as usize));
        assert!(
            Json::parse(&many)
                .unwrap_err()
                .to_string()
                .contains("more than")
        );
        let deep = "[".repeat(100_000);
        assert!(
            Json::parse(&deep)
                .unwrap_err()
                .to_string()
                .contains("recursion limit")
        );
    }
}
