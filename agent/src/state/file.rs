//! The state file: bans, counters and what sources have used of slow limits.
//!
//! A head of three words (format, checksum, length of the document), a JSON document, and words of 64 bits, all little
//! endian. The checksum is SipHash-1-3 of everything after it: it tells damage, not forgery.

use std::hash::Hasher as _;
use std::io;
use std::path::PathBuf;
use std::{fs, mem};

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;
use thiserror::Error;

use super::clock::Moment;
use super::{StateDirectory, StateError};
use crate::datapath::{BanEntry, SavedTable};
use crate::stats::CountedDocument;

const NAME: &str = "state";
/// Changes with the format.
const FORMAT: u64 = u64::from_le_bytes(*b"WEIRST01");
const WORD: usize = mem::size_of::<u64>();
/// Words of a ban.
const BAN: usize = 5;
/// The most words of the table that are saved: 32 MiB. With all of the 2²⁰ bans there can be, a file has 73 MiB.
pub const MOST_TABLE_WORDS: usize = 4 << 20;

/// A state file cannot be used.
#[derive(Debug, Error)]
#[error("the state file {} cannot be used: {reason}; it was renamed to state.damaged, and bans, counters and slow limits start over", path.display())]
pub struct StateDamaged {
    path: PathBuf,
    reason: String,
}

/// What is saved.
#[derive(Clone, Debug, Default)]
pub struct Saved {
    /// When.
    pub at: Option<Moment>,
    /// Its checksum, which names it.
    pub id: u64,
    /// What was counted until then.
    pub counted: CountedDocument,
    /// What was banned, by the monotonic clock of then.
    pub bans: Vec<BanEntry>,
    /// The table of sources.
    pub table: Option<SavedTable>,
}

#[derive(Serialize, Deserialize)]
struct Document {
    at: Moment,
    counted: CountedDocument,
    bans: usize,
    table: Option<crate::datapath::SavedLayout>,
}

impl Saved {
    /// Reads the file; `None` if there is none.
    ///
    /// # Errors
    ///
    /// When it is damaged. It is renamed, so that this is reported once.
    pub fn read(directory: &StateDirectory) -> Result<Option<Self>, StateDamaged> {
        let path = directory.file(NAME);
        let reason = match fs::read(&path) {
            Ok(bytes) => match parse(&bytes) {
                Ok(saved) => return Ok(Some(saved)),
                Err(reason) => reason.to_owned(),
            },
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => error.to_string(),
        };
        // What cannot be renamed is replaced by the next save.
        let _ = fs::rename(&path, directory.file("state.damaged"));
        Err(StateDamaged { path, reason })
    }

    /// Replaces the file, in one step.
    ///
    /// # Errors
    ///
    /// When it cannot be written; then the one before is there.
    pub fn write(&self, directory: &StateDirectory) -> Result<(), StateError> {
        let document = Document {
            at: self.at.clone().unwrap_or_else(Moment::now),
            counted: self.counted.clone(),
            bans: self.bans.len(),
            table: self.table.as_ref().map(|table| table.layout.clone()),
        };
        let fail = |error: serde_json::Error| StateError::Write { path: directory.file(NAME), source: error.into() };
        let mut body = serde_json::to_vec(&document).map_err(fail)?;
        let length = (body.len() as u64).to_le_bytes();
        let words = self.bans.len() * BAN + self.table.as_ref().map_or(0, |table| table.words.len());
        // Growing by doubling, it would be twice as large for a moment.
        body.reserve_exact(words * WORD);
        let bans = self.bans.iter().flat_map(ban_words);
        let table = self.table.iter().flat_map(|table| table.words.iter().copied());
        body.extend(bans.chain(table).flat_map(u64::to_le_bytes));
        let checksum = checksum(&length, &body).to_le_bytes();
        directory.replace(NAME, &[&FORMAT.to_le_bytes(), &checksum, &length, &body])
    }
}

fn checksum(length: &[u8], body: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(length);
    hasher.write(body);
    hasher.finish()
}

fn parse(bytes: &[u8]) -> Result<Saved, &'static str> {
    const SHORT: &str = "it is incomplete";
    let word = |nth: usize| -> Result<u64, &'static str> {
        let part = bytes.get(nth * WORD..(nth + 1) * WORD).ok_or(SHORT)?;
        Ok(u64::from_le_bytes(part.try_into().map_err(|_| SHORT)?))
    };
    if word(0)? != FORMAT {
        return Err("it is of another version");
    }
    let (length, body) = bytes.get(2 * WORD..).and_then(|rest| rest.split_at_checked(WORD)).ok_or(SHORT)?;
    let id = checksum(length, body);
    if word(1)? != id {
        return Err("its checksum is wrong");
    }
    let length = usize::try_from(word(2)?).map_err(|_| SHORT)?;
    let (document, words) = body.split_at_checked(length).ok_or(SHORT)?;
    let document: Document = serde_json::from_slice(document).map_err(|_| "it is of another version")?;
    let words: Vec<u64> =
        words.chunks_exact(WORD).map(|part| u64::from_le_bytes(part.try_into().unwrap_or_default())).collect();
    let (bans, table) = words.split_at_checked(document.bans.saturating_mul(BAN)).ok_or(SHORT)?;
    Ok(Saved {
        at: Some(document.at),
        id,
        counted: document.counted,
        bans: bans.chunks_exact(BAN).filter_map(ban).collect(),
        table: document.table.map(|layout| SavedTable { layout, words: table.to_vec() }),
    })
}

fn ban_words(entry: &BanEntry) -> [u64; BAN] {
    let address = u128::from_be_bytes(entry.prefix.address);
    let (high, low) = ((address >> 64) as u64, address as u64);
    [high, low, u64::from(entry.prefix.length), entry.ban.own_until, entry.ban.refused]
}

fn ban(words: &[u64]) -> Option<BanEntry> {
    let [high, low, length, own_until, refused] = *words else { return None };
    let address = (u128::from(high) << 64 | u128::from(low)).to_be_bytes();
    let length = u32::try_from(length).ok().filter(|length| *length <= 128)?;
    let ban = common::ban::Ban { until: own_until, own_until, refused };
    Some(BanEntry { prefix: crate::compile::PrefixKey { address, length }, ban })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved() -> Saved {
        let entry = |length: u64, until: u64| ban(&[1, 2 << 40, length, until, 7]).unwrap();
        Saved { bans: vec![entry(128, 5), entry(64, u64::MAX)], ..Saved::default() }
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory::at(folder.path());
        assert!(Saved::read(&directory).unwrap().is_none());
        saved().write(&directory).unwrap();
        let read = Saved::read(&directory).unwrap().unwrap();
        assert_eq!(read.bans, saved().bans);
        assert_eq!(read.at.unwrap().boot, Moment::now().boot);
    }

    #[test]
    fn damage_of_any_byte_is_found_and_the_file_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory::at(folder.path());
        saved().write(&directory).unwrap();
        let whole = fs::read(directory.file(NAME)).unwrap();
        for nth in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[nth] ^= 1 << (nth % 8);
            assert!(parse(&bytes).is_err(), "byte {nth}");
            assert!(parse(&whole[..nth]).is_err(), "{nth} bytes");
        }
        fs::write(directory.file(NAME), &whole[..20]).unwrap();
        let error = Saved::read(&directory).unwrap_err().to_string();
        assert!(error.contains("incomplete") || error.contains("checksum"), "{error}");
        assert!(directory.file("state.damaged").exists() && Saved::read(&directory).unwrap().is_none());
    }
}
