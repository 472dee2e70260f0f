//! The values of types that many keys have.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use toml::de::DeValue;

use super::{At, Key, Kind, Mask, Text, Value, masked_value};
use crate::human;
use crate::policy::{Country, Rate, Unit};
use crate::prefix::{self, Prefix};
use crate::report::{Problems, Wrong};
use crate::units;

impl Text for String {
    const KIND: Kind = Kind::Text(&[]);

    fn parse(text: &str, _: &Key) -> Result<Self, Wrong> {
        Ok(text.to_owned())
    }

    fn text(&self) -> String {
        self.clone()
    }
}

impl Text for PathBuf {
    const KIND: Kind = Kind::Path(&[]);

    fn parse(text: &str, _: &Key) -> Result<Self, Wrong> {
        if text.starts_with('/') {
            Ok(text.into())
        } else {
            let message = format!("{text:?} is not an absolute path");
            Err(Wrong::new(message, "begin it with /"))
        }
    }

    fn text(&self) -> String {
        self.display().to_string()
    }
}

impl Text for SocketAddr {
    const KIND: Kind = Kind::Text(&[]);

    fn parse(text: &str, key: &Key) -> Result<Self, Wrong> {
        text.parse().map_err(|_| {
            let message = format!("invalid address {text:?} of {}", key.name);
            let examples: Vec<String> = key.examples.iter().map(|it| format!("{it:?}")).collect();
            let help = format!(
                "write an address and a port: {} = {}",
                key.name,
                examples.join(" or ")
            );
            Wrong::new(message, help)
        })
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl Text for Prefix {
    const KIND: Kind = Kind::Prefix(&[]);

    fn parse(text: &str, _: &Key) -> Result<Self, Wrong> {
        prefix::parse(text)
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl Text for Country {
    const KIND: Kind = Kind::Text(&[]);

    fn parse(text: &str, key: &Key) -> Result<Self, Wrong> {
        Self::new(text).ok_or_else(|| {
            let help = format!(
                "write codes of two letters as in ISO 3166-1: {}",
                key.example()
            );
            Wrong::new(format!("invalid country {text:?}"), help)
        })
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

/// An `http` or `https` URL. `Debug` and `text` omit credentials and queries.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpUrl(String);

impl HttpUrl {
    /// The whole address.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for HttpUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text())
    }
}

impl Text for HttpUrl {
    const KIND: Kind = Kind::Text(&[]);

    fn parse(text: &str, key: &Key) -> Result<Self, Wrong> {
        match http_client::check(text) {
            Ok(()) => Ok(Self(text.to_owned())),
            Err(reason) => {
                let message = format!("invalid {}: {reason}", key.name);
                Err(Wrong::new(message, format!("write {}", key.example())))
            }
        }
    }

    fn text(&self) -> String {
        http_client::shown(&self.0)
    }
}

/// A secret that is sent in a header. It is compared, and never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(String);

impl SecretText {
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text())
    }
}

impl Text for SecretText {
    const KIND: Kind = Kind::Text(&[]);
    const MASK: Option<Mask> = Some(masked_value);

    fn parse(text: &str, key: &Key) -> Result<Self, Wrong> {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Ok(Self(text.to_owned()));
        }
        let help = "write printable ASCII characters without spaces";
        Err(Wrong::new(format!("invalid {}", key.name), help))
    }

    fn text(&self) -> String {
        "(hidden)".to_owned()
    }
}

impl Text for Duration {
    const KIND: Kind = Kind::Time(&[]);

    fn parse(text: &str, key: &Key) -> Result<Self, Wrong> {
        let help = format!("write {}", key.example());
        let time = match units::time(text) {
            Ok(nanoseconds) => Self::from_nanos(nanoseconds),
            Err(wrong) => return Err(Wrong::new(wrong.message, help)),
        };
        let (least, most) = key.bounds(&<Self as Text>::KIND);
        if (least..=most).contains(&time.as_secs_f64()) {
            return Ok(time);
        }
        let of = |seconds| human::time(Self::from_secs_f64(seconds));
        let message = format!(
            "{} {text:?} is out of range: {} to {}",
            key.name,
            of(least),
            of(most)
        );
        Err(Wrong::new(message, help))
    }

    fn text(&self) -> String {
        units::time_text(u64::try_from(self.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Text for Rate {
    const KIND: Kind = Kind::Rate(&[]);

    fn parse(text: &str, key: &Key) -> Result<Self, Wrong> {
        let help = |wrong: Wrong| Wrong::new(wrong.message, format!("write {}", key.example()));
        units::rate(text, Unit::Packets).map_err(help)
    }

    fn text(&self) -> String {
        format!(
            "{}/{}",
            self.count,
            units::period_text(self.per_nanoseconds)
        )
    }
}

impl Value for bool {
    const KIND: Kind = Kind::Boolean;

    fn read(at: At<'_>, key: &Key, problems: &mut Problems) -> Option<Self> {
        let flag = at.get_ref().as_bool();
        if flag.is_none() {
            key.wrong_type(at, problems);
        }
        flag
    }

    fn write(&self) -> Option<toml::Value> {
        Some((*self).into())
    }

    fn shown(&self) -> String {
        self.to_string()
    }
}

/// Makes values of the types of whole numbers.
macro_rules! integers {
    ($($type:ty),+) => {$(
        impl Value for $type {
            const KIND: Kind = Kind::Integer(<$type>::MIN as u64, <$type>::MAX as u64);

            fn read(at: At<'_>, key: &Key, problems: &mut Problems) -> Option<Self> {
                let DeValue::Integer(written) = at.get_ref() else {
                    key.wrong_type(at, problems);
                    return None;
                };
                let number = u64::from_str_radix(written.as_str(), written.radix()).ok();
                let (least, most) = key.bounds(&<$type as Value>::KIND);
                let inside = number
                    .filter(|number| (least..=most).contains(&(*number as f64)))
                    .and_then(|number| <$type>::try_from(number).ok());
                if inside.is_none() {
                    let message = format!("{} is out of range: {}", key.name, written.as_str());
                    problems.error(at.span(), message, key.help());
                }
                inside
            }

            fn write(&self) -> Option<toml::Value> {
                i64::try_from(*self).ok().map(Into::into)
            }

            fn shown(&self) -> String {
                self.to_string()
            }
        }
    )+};
}
integers!(u8, u32, u64);

impl<T: Value> Value for Option<T> {
    const KIND: Kind = T::KIND;
    const MASK: Option<Mask> = T::MASK;

    fn read(at: At<'_>, key: &Key, problems: &mut Problems) -> Option<Self> {
        T::read(at, key, problems).map(Some)
    }

    fn write(&self) -> Option<toml::Value> {
        self.as_ref().map_or_else(T::write_none, T::write)
    }

    fn shown(&self) -> String {
        self.as_ref().map_or_else(String::new, T::shown)
    }
}

impl<T: Value> Value for Vec<T> {
    const KIND: Kind = Kind::List(&T::KIND);
    const MASK: Option<Mask> = T::MASK;

    /// The valid elements: an invalid one is reported, and the rules for others are checked.
    fn read(at: At<'_>, key: &Key, problems: &mut Problems) -> Option<Self> {
        let Some(list) = at.get_ref().as_array() else {
            key.wrong_type(at, problems);
            return None;
        };
        let elements = list.iter().filter_map(|at| T::read(at, key, problems));
        Some(elements.collect())
    }

    fn write(&self) -> Option<toml::Value> {
        Some(self.iter().filter_map(T::write).collect::<Vec<_>>().into())
    }

    fn shown(&self) -> String {
        let all: Vec<String> = self.iter().map(T::shown).collect();
        all.join(", ")
    }
}

impl<T: Value> Value for BTreeMap<String, T> {
    const KIND: Kind = Kind::Map(&T::KIND);
    const MASK: Option<Mask> = T::MASK;

    /// The valid values: an invalid one is reported.
    fn read(at: At<'_>, key: &Key, problems: &mut Problems) -> Option<Self> {
        let Some(table) = at.get_ref().as_table() else {
            key.wrong_type(at, problems);
            return None;
        };
        let values = table.iter().filter_map(|(name, at)| {
            let value = T::read(at, key, problems)?;
            Some((name.get_ref().to_string(), value))
        });
        Some(values.collect())
    }

    fn write(&self) -> Option<toml::Value> {
        let values = self
            .iter()
            .filter_map(|(name, value)| Some((name.clone(), value.write()?)));
        Some(toml::Value::Table(values.collect()))
    }

    fn shown(&self) -> String {
        let all: Vec<String> = self
            .iter()
            .map(|(name, value)| format!("{name} = {}", value.shown()))
            .collect();
        all.join(", ")
    }
}

/// Values, written as a list or, if there is one, by itself. There is at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneOrMore<T>(pub Vec<T>);

impl<T> std::ops::Deref for OneOrMore<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<'a, T> IntoIterator for &'a OneOrMore<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<T: Value> Value for OneOrMore<T> {
    const KIND: Kind = Kind::Either(&[T::KIND, Kind::List(&T::KIND)]);
    const MASK: Option<Mask> = T::MASK;

    fn read(at: At<'_>, key: &Key, problems: &mut Problems) -> Option<Self> {
        match at.get_ref() {
            DeValue::String(_) => T::read(at, key, problems).map(|one| Self(vec![one])),
            DeValue::Array(list) if list.is_empty() => {
                problems.error(at.span(), format!("empty {}", key.name), key.help());
                None
            }
            DeValue::Array(_) => {
                let all = Vec::read(at, key, problems).filter(|all| !all.is_empty());
                all.map(Self)
            }
            _ => {
                key.wrong_type(at, problems);
                None
            }
        }
    }

    fn write(&self) -> Option<toml::Value> {
        self.0.write()
    }

    fn shown(&self) -> String {
        self.0.shown()
    }
}
