//! Constructors of the entries.

use crate::schema::{Absent, Key, Kind};

/// The version that introduced all keys below.
const FIRST: &str = "0.1.0";

pub(super) const fn key(
    name: &'static str,
    kind: Kind,
    default: Absent,
    text: &'static str,
) -> Key {
    Key {
        default,
        name,
        kind,
        text,
        since: FIRST,
        ..Key::EMPTY
    }
}

/// The words of an enum of `config::words`.
macro_rules! words {
    ($name:ident) => {
        Kind::Words(|| {
            crate::policy::$name::WORDS
                .iter()
                .map(|(word, _)| *word)
                .collect()
        })
    };
}
pub(super) use words;
