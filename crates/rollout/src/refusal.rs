//! Why a document of the store does not count.

use std::time::{Duration, SystemTime};

use config::report::Report;
use host::PROGRAM;
use thiserror::Error;

use crate::key::KeyId;

/// Why a document does not count. Rules that are in effect stay in effect.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    #[error("the object is not signed; publish it with `{PROGRAM} fleet publish`")]
    Unsigned,
    #[error(
        "the object is truncated: {found} of {expected} bytes; publish it again, and replace objects of the store in one step"
    )]
    Truncated { found: usize, expected: usize },
    #[error(
        "the signature is invalid: {0}; publish the object again with `{PROGRAM} fleet publish`"
    )]
    BadSignature(String),
    #[error(
        "key {0} does not count for this stream; sign with a key of its public_keys in [fleet], or add this key there"
    )]
    UnknownKey(KeyId),
    #[error(
        "the object was changed after key {0} signed it; publish it again, and check who can write to the store"
    )]
    Changed(KeyId),
    #[error("the object has {0} bytes, more than 4 MiB; split the rules into several streams")]
    TooLarge(usize),
    #[error("the document is invalid: {0}; publish it with this version of `{PROGRAM}`")]
    Malformed(String),
    #[error("the document is {found}, not {expected}; publish each kind to its own place")]
    WrongKind {
        found: &'static str,
        expected: &'static str,
    },
    #[error(
        "the document is for stream {found:?}, not {expected:?}; correct its address in [fleet], or publish it to {found:?}"
    )]
    WrongStream { found: String, expected: String },
    #[error(
        "version {found} is older than version {seen}, which was seen before; publish version {} to return to older rules", .seen + 1
    )]
    Replayed { found: u64, seen: u64 },
    #[error(
        "two documents have version {version}; none of them is taken: publish one of them as version {}", .version + 1
    )]
    Conflict { version: u64 },
    #[error(
        "version {version} expired at {}; publish it again, or correct this host's clock", humantime::format_rfc3339_seconds(*.expired)
    )]
    Expired { version: u64, expired: SystemTime },
    #[error(
        "version {version} is for hosts with {wanted}; add the label to [fleet] labels, or publish without --select"
    )]
    NotForThisHost { version: u64, wanted: String },
    #[error(
        "the store has no release of stream {0:?}, but had one before; restore it, or publish the next version"
    )]
    StoreEmpty(String),
    #[error(
        "the release expects refusals of limit {limit:?}, which does not begin with {prefix:?}; publish it without --expect for this limit"
    )]
    ForeignPrediction { limit: String, prefix: String },
    #[error(
        "the bake of {} is longer than {}, the longest of a team; publish it with a shorter --bake",
        humantime::format_duration(*.bake),
        humantime::format_duration(*.longest)
    )]
    LongBake { bake: Duration, longest: Duration },
    #[error("{}", lines(.0))]
    Rules(Report),
}

/// The errors of rules in one line, for events.
fn lines(report: &Report) -> String {
    let errors = report.errors.iter();
    let lines: Vec<String> = errors.map(ToString::to_string).collect();
    lines.join("; ")
}
