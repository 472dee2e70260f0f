//! What the type of a key's value implements.

use toml::Spanned;
use toml::de::DeValue;

use super::{Key, Kind, Mask};
use crate::report::{Problems, Wrong};

/// A value at its place in the text.
pub type At<'t> = &'t Spanned<DeValue<'t>>;

/// A type of values.
pub trait Value: Sized {
    const KIND: Kind;
    /// Masks secrets in a config's text.
    const MASK: Option<Mask> = None;

    /// Reads a value; `None`: it is invalid, and that is reported, or it has the meaning of a missing key.
    fn read(at: At<'_>, key: &Key, problems: &mut Problems) -> Option<Self>;

    /// The value in TOML; `None`: nothing is written.
    fn write(&self) -> Option<toml::Value>;

    /// The meaning of a missing key in TOML, if there is a value for it.
    fn write_none() -> Option<toml::Value> {
        None
    }

    /// The value for people, without secrets; empty if nothing is written.
    fn shown(&self) -> String;
}

/// A type of values that are strings with a grammar.
pub trait Text: Sized {
    const KIND: Kind;
    /// Masks secrets in a config's text.
    const MASK: Option<Mask> = None;

    /// Parses a text.
    ///
    /// # Errors
    ///
    /// When the text is invalid; the error suggests a correction.
    fn parse(text: &str, key: &Key) -> Result<Self, Wrong>;

    /// The text for people, without secrets.
    fn text(&self) -> String;
}

impl<T: Text> Value for T {
    const KIND: Kind = <T as Text>::KIND;
    const MASK: Option<Mask> = <T as Text>::MASK;

    fn read(at: At<'_>, key: &Key, problems: &mut Problems) -> Option<Self> {
        let Some(text) = at.get_ref().as_str() else {
            key.wrong_type(at, problems);
            return None;
        };
        let checked = key.check.map_or(Ok(()), |check| check(text, key));
        match checked.and_then(|()| T::parse(text, key)) {
            Ok(value) => Some(value),
            Err(wrong) => {
                problems.error(at.span(), wrong.message, wrong.help);
                None
            }
        }
    }

    fn write(&self) -> Option<toml::Value> {
        // A default is no secret.
        Some(self.text().into())
    }

    fn shown(&self) -> String {
        self.text()
    }
}

/// A key and its value.
pub struct Shown {
    pub key: &'static Key,
    /// Empty if nothing is written.
    pub text: String,
    /// Whether a missing key has this value.
    pub is_default: bool,
}

impl Shown {
    pub fn new(key: &'static Key, value: &impl Value, is_default: bool) -> Self {
        Self {
            key,
            text: value.shown(),
            is_default,
        }
    }
}
