//! Values as they are written in documents: times (`2026-11-29T20:00:00Z`), periods (`10m`), digests and names.

use std::fmt::Display;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Deserializer, Serializer, de};
use sha2::{Digest as _, Sha256};

/// A serde module for a type that is written as a string.
macro_rules! as_string {
    ($module:ident, $type:ty, $format:path, $parse:path) => {
        pub mod $module {
            use super::*;

            pub fn serialize<S: Serializer>(value: &$type, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(&$format(*value))
            }

            pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<$type, D::Error> {
                parse(from, $parse)
            }
        }
    };
}

as_string!(
    time,
    SystemTime,
    humantime::format_rfc3339_seconds,
    humantime::parse_rfc3339_weak
);
as_string!(
    instant,
    SystemTime,
    humantime::format_rfc3339_millis,
    humantime::parse_rfc3339_weak
);
as_string!(
    period,
    Duration,
    humantime::format_duration,
    humantime::parse_duration
);

fn parse<'d, D: Deserializer<'d>, T, E: Display>(
    from: D,
    parse: fn(&str) -> Result<T, E>,
) -> Result<T, D::Error> {
    let text = String::deserialize(from)?;
    parse(&text).map_err(|error| de::Error::custom(format!("invalid value {text:?}: {error}")))
}

/// Whether a name of a stream, publisher, host or limit is plain: it is part of paths and keys in the store.
#[must_use]
pub fn is_plain(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() <= 128 && !name.starts_with('.') && name.chars().all(is_plain)
}

/// The most characters of a reason in reports, which the index has of all canaries, and in the state of a host.
const LONGEST_REASON: usize = 500;

/// The beginning of a reason: the errors of a config have a paragraph for each fault.
#[must_use]
pub fn brief(reason: &str) -> String {
    match reason.char_indices().nth(LONGEST_REASON) {
        Some((end, _)) => format!("{} …", &reason[..end]),
        None => reason.to_owned(),
    }
}

/// The SHA-256 of a text, in hexadecimal digits.
#[must_use]
pub fn digest(text: &str) -> String {
    use std::fmt::Write as _;
    let mut digits = String::with_capacity(64);
    for byte in Sha256::digest(text.as_bytes()) {
        // Writing to a string does not fail.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}
