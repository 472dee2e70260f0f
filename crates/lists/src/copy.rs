//! The last valid copy of each list, and the exceptions, in the state directory.

use std::path::PathBuf;

use config::PrefixKey;
use host::read::{ReadError, read, read_text};
use host::{StateDirectory, StateError};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::list::Listed;
use crate::nomatch::MOST_PREFIXES;

const EXCEPTIONS: &str = "list-exceptions";
/// The largest file of exceptions: more than a million prefixes.
const MOST_EXCEPTIONS: u64 = 64 << 20;
/// Changes with the format of copies.
const VERSION: u32 = 1;
/// Bytes of a prefix: its address, its length, and the time in little-endian order.
const RECORD: usize = 16 + 1 + 4;
/// A bound on the first line.
const LONGEST_HEAD: usize = 64 << 10;

/// Where and when a copy was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The file or URL, and the format: the validators are of no use for another one.
    pub source: String,
    /// When the content changed, in seconds since 1970.
    pub updated: u64,
    /// When the source last confirmed it.
    pub checked: u64,
    pub etag: Option<String>,
    pub last_modified: Option<String>,
}

/// The last valid copy of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copy {
    pub origin: Origin,
    /// In order.
    pub prefixes: Vec<Listed>,
}

/// The first line of a copy.
#[derive(Serialize, Deserialize)]
struct Head {
    version: u32,
    prefixes: usize,
    #[serde(flatten)]
    origin: Origin,
}

/// A copy cannot be used.
#[derive(Debug, Error)]
pub enum CopyError {
    #[error("{}", .0.without_fix())]
    Read(ReadError),
    #[error("{} is damaged and not used", .0.display())]
    Damaged(PathBuf),
    #[error(transparent)]
    State(#[from] StateError),
}

fn name_of(list: &str) -> String {
    format!("list-{list}.copy")
}

impl Copy {
    /// Reads the copy of a list; `None` if there is none.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or is damaged.
    pub fn read(state: &StateDirectory, list: &str) -> Result<Option<Self>, CopyError> {
        let path = state.file(&name_of(list));
        let most = (LONGEST_HEAD + MOST_PREFIXES * RECORD) as u64;
        match read(&path, most) {
            Ok(bytes) => decode(&bytes).map(Some).ok_or(CopyError::Damaged(path)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(CopyError::Read(error)),
        }
    }

    /// Replaces the copy of a list.
    ///
    /// # Errors
    ///
    /// When the state directory cannot be written.
    pub fn write(
        state: &StateDirectory,
        list: &str,
        origin: &Origin,
        prefixes: &[Listed],
    ) -> Result<(), CopyError> {
        let head = Head {
            version: VERSION,
            prefixes: prefixes.len(),
            origin: origin.clone(),
        };
        // Text and numbers only.
        let mut bytes = serde_json::to_vec(&head).unwrap_or_default();
        bytes.push(b'\n');
        bytes.reserve_exact(prefixes.len() * RECORD);
        for listed in prefixes {
            let prefix = listed.prefix();
            bytes.extend(prefix.address);
            bytes.push(prefix.length as u8);
            bytes.extend(listed.since.to_le_bytes());
        }
        Ok(state.replace(&name_of(list), &[&bytes])?)
    }
}

fn decode(bytes: &[u8]) -> Option<Copy> {
    let end = bytes
        .iter()
        .take(LONGEST_HEAD)
        .position(|byte| *byte == b'\n')?;
    let head: Head = serde_json::from_slice(&bytes[..end]).ok()?;
    let (records, rest) = bytes[end + 1..].as_chunks::<RECORD>();
    if head.version != VERSION || head.prefixes != records.len() || !rest.is_empty() {
        return None;
    }
    let prefixes: Vec<Listed> = records.iter().map(listed).collect::<Option<_>>()?;
    let is_in_order = prefixes.is_sorted_by(|a, b| a.prefix() < b.prefix());
    is_in_order.then_some(Copy {
        origin: head.origin,
        prefixes,
    })
}

fn listed(record: &[u8; RECORD]) -> Option<Listed> {
    let (address, rest) = record.split_first_chunk::<16>()?;
    let (length, since) = rest.split_first()?;
    let prefix = PrefixKey {
        address: *address,
        length: u32::from(*length),
    };
    let is_valid = (1..=128).contains(length)
        && prefix.cut(prefix.length) == prefix
        && prefix != PrefixKey::IPV4;
    is_valid.then_some(Listed::new(
        prefix,
        u32::from_le_bytes(since.try_into().ok()?),
    ))
}

/// Reads the exceptions from all lists.
///
/// # Errors
///
/// When they cannot be read, or a line is invalid.
pub fn read_exceptions(state: &StateDirectory) -> Result<Vec<PrefixKey>, CopyError> {
    let path = state.file(EXCEPTIONS);
    let text = match read_text(&path, MOST_EXCEPTIONS) {
        Ok(text) => text,
        Err(error) if error.is_missing() => return Ok(Vec::new()),
        Err(error) => return Err(CopyError::Read(error)),
    };
    let prefix = |line: &str| {
        config::prefix::parse(line)
            .ok()
            .map(|prefix| PrefixKey::from(&prefix))
    };
    text.lines()
        .map(prefix)
        .collect::<Option<_>>()
        .ok_or(CopyError::Damaged(path))
}

/// Replaces the exceptions.
///
/// # Errors
///
/// When the state directory cannot be written.
pub fn write_exceptions<'p>(
    state: &StateDirectory,
    exceptions: impl IntoIterator<Item = &'p PrefixKey>,
) -> Result<(), CopyError> {
    let text: String = exceptions
        .into_iter()
        .map(|prefix| format!("{prefix}\n"))
        .collect();
    Ok(state.replace(EXCEPTIONS, &[text.as_bytes()])?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_copy_is_read_as_it_was_written_and_a_damaged_one_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDirectory::at(folder.path());
        assert_eq!(Copy::read(&state, "a").unwrap(), None);
        let prefixes = crate::parse(
            b"192.0.2.1\n2001:db8::/32\n",
            &config::policy::ListFormat::Plain,
        )
        .unwrap()
        .prefixes;
        let prefixes = crate::dated(&prefixes, &[], 7);
        let origin = Origin {
            source: "s".to_owned(),
            updated: 7,
            checked: 8,
            etag: Some("\"x\"".to_owned()),
            last_modified: None,
        };
        Copy::write(&state, "a", &origin, &prefixes).unwrap();
        assert_eq!(
            Copy::read(&state, "a").unwrap(),
            Some(Copy { origin, prefixes })
        );
        let path = state.file("list-a.copy");
        let whole = fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            assert!(
                matches!(Copy::read(&state, "a"), Err(CopyError::Damaged(_))),
                "{cut} bytes"
            );
        }
    }

    #[test]
    fn exceptions_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDirectory::at(folder.path());
        assert!(read_exceptions(&state).unwrap().is_empty());
        let all: Vec<PrefixKey> = ["192.0.2.1", "2001:db8::/32"]
            .map(|text| {
                PrefixKey::from(&config::prefix::parse(text).unwrap_or_else(|_| panic!("{text}")))
            })
            .to_vec();
        write_exceptions(&state, &all).unwrap();
        assert_eq!(read_exceptions(&state).unwrap(), all);
    }
}
