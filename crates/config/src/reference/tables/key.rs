//! Constructors of the entries.

use crate::reference::{Absent, KeyReference, Kind};

/// The version that introduced all keys below.
const FIRST: &str = "0.1.0";

pub(super) const fn key(
    name: &'static str,
    kind: Kind,
    default: Absent,
    text: &'static str,
) -> KeyReference {
    KeyReference {
        name,
        kind,
        default,
        since: FIRST,
        text,
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
