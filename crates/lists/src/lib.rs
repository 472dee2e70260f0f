//! Ban lists: formats, the prefixes that several lists come to, and the last valid copy of each on disk.
//!
//! Nothing here fetches a list or writes to the kernel.

mod copy;
mod entry;
mod error;
mod json;
mod list;
mod merge;
mod nomatch;
mod parse;
mod table;

pub use copy::{Copy, CopyError, Origin, read_exceptions, write_exceptions};
pub use error::ListError;
pub use list::{Listed, dated, find, shrinks_too_much};
pub use merge::merge;
pub use nomatch::{MOST_PREFIXES, without};
pub use parse::{Parsed, parse};
