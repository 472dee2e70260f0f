//! Why a text is no list.

use thiserror::Error;

use crate::nomatch::MOST_PREFIXES;

/// A text is no list.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ListError {
    /// Most lines are invalid.
    #[error(
        "{invalid} of {lines} lines are invalid, the first is line {line}: {text:?}; check the format"
    )]
    Rubbish {
        invalid: u64,
        lines: u64,
        line: u64,
        text: String,
    },
    /// The first line that is no comment has no such column.
    #[error("the first line that is no comment has no column {0:?}; check the format")]
    NoColumn(String),
    /// More than [`MOST_PREFIXES`].
    #[error("more than {MOST_PREFIXES} prefixes")]
    TooMany,
}
