//! The state file: bans, counters, and the used units of slow limits.
//!
//! A header of three words (format, checksum, length of the document), a JSON document, and 64-bit words, all little
//! endian. The checksum is SipHash-1-3 of everything after it: it detects damage, not forgery.

use std::collections::HashMap;
use std::hash::Hasher as _;
use std::sync::Arc;
use std::{io, mem};

use common::ban::Ban;
use config::PrefixKey;
use datapath::SavedTable;
use datapath::bans::{BanKey, BanList, By, Held, Owner, Why};
use decide::SavedRequests;
use host::{Damaged, Moment};
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;

use super::{StateDirectory, StateError};
use crate::daemon::escalation::SavedEscalation;
use crate::stats::CountedDocument;

const NAME: &str = "state";
/// Changes with the format.
const FORMAT: u64 = u64::from_le_bytes(*b"WEIRST01");
const WORD: usize = mem::size_of::<u64>();
/// Words of a ban.
const BAN: usize = 5;
/// The largest file that is read.
const LARGEST: u64 = 1 << 30;
/// The most words of the table in the file: 32 MiB.
pub const MOST_TABLE_WORDS: usize = 4 << 20;
const SECOND: i64 = 1_000_000_000;

#[derive(Clone, Debug, Default)]
pub struct Saved {
    /// The instant of the save.
    pub at: Option<Moment>,
    /// The file's checksum, which identifies it.
    pub id: u64,
    /// The number of the journal's last change that it includes; 0 without one.
    pub journaled: u64,
    /// The counters at that instant.
    pub counted: CountedDocument,
    /// The bans by owners on this host; of one prefix, the one that ends last first.
    pub bans: Vec<SavedBan>,
    /// The durations of the last bans by limits.
    pub escalations: Vec<SavedEscalation>,
    /// The table of sources.
    pub table: Option<SavedTable>,
    /// Keys of limits on requests.
    pub requests: Option<SavedRequests>,
}

/// A ban.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedBan {
    pub key: BanKey,
    pub held: Held,
    /// The packets that the prefix's bans have refused.
    pub packets: u64,
}

impl SavedBan {
    /// The bans of a list by owners on this host, with the counts of refused packets that are known.
    #[must_use]
    pub fn all(bans: &BanList, packets: &HashMap<PrefixKey, u64>) -> Vec<Self> {
        let saved = |(key, held): (&BanKey, &Held)| Self {
            key: key.clone(),
            held: held.clone(),
            packets: packets.get(&key.prefix).copied().unwrap_or_default(),
        };
        bans.own().into_iter().map(saved).collect()
    }
}

/// An owner, a reason and a start, and the bans that have them: all bans of a list share one.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct SavedReason {
    /// The reason as text; empty if there is none.
    text: String,
    /// The start of the bans, in seconds since 1970; 0 if it is not known.
    #[serde(default)]
    since: u64,
    /// [`Held::began`] in seconds, rounded down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    began: Option<i64>,
    /// The limit that made them, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limit: Option<String>,
    /// The user or program that ordered them; missing in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    /// [`BanKey::interface_id`] of all bans, in files of earlier versions.
    #[serde(default, skip_serializing_if = "is_zero")]
    interface_id: u64,
    /// That of each ban; empty if all are 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    interface_ids: Vec<u64>,
    /// Indices into [`Saved::bans`].
    bans: Vec<usize>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl SavedReason {
    /// Those of all bans that have one.
    fn all(bans: &[SavedBan]) -> Vec<Self> {
        type Common<'b> = (&'b Owner, Option<&'b Why>, u64, Option<i64>);
        let mut all: HashMap<Common<'_>, Vec<usize>> = HashMap::new();
        for (nth, SavedBan { key, held, .. }) in bans.iter().enumerate() {
            let is_known = key.owner.name.is_some() || held.why.is_some() || held.since != 0;
            if is_known {
                let began = held.began.map(|began| began.div_euclid(SECOND));
                let common = (&key.owner, held.why.as_ref(), held.since, began);
                all.entry(common).or_default().push(nth);
            }
        }
        let reason = |((owner, why, since, began), of): (Common<'_>, Vec<usize>)| {
            let name = owner.name.as_ref().map(ToString::to_string);
            let (limit, owner) = match owner.by {
                By::Limit => (name, None),
                _ => (None, name),
            };
            let ids = of.iter().map(|nth| bans[*nth].key.interface_id);
            let mut interface_ids: Vec<u64> = ids.collect();
            if interface_ids.iter().all(is_zero) {
                interface_ids.clear();
            }
            Self {
                text: why.map(|why| why.text.to_string()).unwrap_or_default(),
                since,
                began,
                limit,
                owner,
                interface_id: 0,
                interface_ids,
                bans: of,
            }
        };
        all.into_iter().map(reason).collect()
    }

    /// Completes its bans, whose owners' names share memory.
    fn complete(self, bans: &mut [SavedBan]) {
        let why = (!self.text.is_empty()).then(|| Why {
            text: self.text.as_str().into(),
            ..Why::default()
        });
        let limit: Option<Arc<str>> = self.limit.as_deref().map(Arc::from);
        let owner: Option<Arc<str>> = self.owner.as_deref().map(Arc::from);
        let began = self.began.map(|began| began.saturating_mul(SECOND));
        for (place, nth) in self.bans.into_iter().enumerate() {
            let Some(ban) = bans.get_mut(nth) else {
                continue;
            };
            ban.key.owner.name = match ban.key.owner.by {
                By::Limit => limit.clone(),
                _ => owner.clone(),
            };
            let interface_id = self.interface_ids.get(place);
            ban.key.interface_id = interface_id.copied().unwrap_or(self.interface_id);
            (ban.held.why, ban.held.since, ban.held.began) = (why.clone(), self.since, began);
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Document {
    at: Moment,
    /// Missing in files of earlier versions.
    #[serde(default)]
    journaled: u64,
    counted: CountedDocument,
    bans: usize,
    table: Option<datapath::SavedLayout>,
    /// Missing in files of earlier versions.
    #[serde(default)]
    requests: Option<SavedRequests>,
    #[serde(default)]
    reasons: Vec<SavedReason>,
    #[serde(default)]
    escalations: Vec<SavedEscalation>,
}

impl Saved {
    /// Reads the file; `None` if there is none.
    ///
    /// # Errors
    ///
    /// When it is damaged. It is then renamed, so that this is reported once.
    pub fn read(directory: &StateDirectory) -> Result<Option<Self>, Damaged> {
        directory.read(NAME, LARGEST, parse)
    }

    /// Replaces the file atomically.
    ///
    /// # Errors
    ///
    /// When it cannot be written, or is so large that it could not be read; the previous file stays.
    pub fn write(&self, directory: &StateDirectory) -> Result<(), StateError> {
        self.write_within(directory, LARGEST)
    }

    fn write_within(&self, directory: &StateDirectory, largest: u64) -> Result<(), StateError> {
        let document = Document {
            at: self.at.clone().unwrap_or_else(Moment::now),
            journaled: self.journaled,
            counted: self.counted.clone(),
            bans: self.bans.len(),
            table: self.table.as_ref().map(|table| table.layout.clone()),
            requests: self.requests.clone(),
            reasons: SavedReason::all(&self.bans),
            escalations: self.escalations.clone(),
        };
        let fail = |error: serde_json::Error| StateError::Write {
            path: directory.file(NAME),
            source: error.into(),
        };
        let mut body = serde_json::to_vec(&document).map_err(fail)?;
        let length = (body.len() as u64).to_le_bytes();
        let table = self.table.as_ref().map_or(&[][..], |table| &table.words);
        let requests = self
            .requests
            .as_ref()
            .map_or(&[][..], |requests| &requests.words);
        let words = self.bans.len() * BAN + table.len() + requests.len();
        let bytes = (3 * WORD + body.len() + words * WORD) as u64;
        // The next agent would drop all of it. The bans since the last save are in the journal.
        if bytes > largest {
            let source = io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!(
                    "{bytes} bytes, of {largest} at most: lift bans, or give them shorter reasons"
                ),
            );
            let path = directory.file(NAME);
            return Err(StateError::Write { path, source });
        }
        // Growing by doubling would temporarily take twice the memory.
        body.reserve_exact(words * WORD);
        let bans = self.bans.iter().flat_map(ban_words);
        let others = table.iter().chain(requests).copied();
        body.extend(bans.chain(others).flat_map(u64::to_le_bytes));
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
    let (length, body) = bytes
        .get(2 * WORD..)
        .and_then(|rest| rest.split_at_checked(WORD))
        .ok_or(SHORT)?;
    let id = checksum(length, body);
    if word(1)? != id {
        return Err("its checksum is wrong");
    }
    let length = usize::try_from(word(2)?).map_err(|_| SHORT)?;
    let (document, words) = body.split_at_checked(length).ok_or(SHORT)?;
    let mut document: Document =
        serde_json::from_slice(document).map_err(|_| "it is of another version")?;
    let words: Vec<u64> = words
        .chunks_exact(WORD)
        .map(|part| u64::from_le_bytes(part.try_into().unwrap_or_default()))
        .collect();
    let (bans, others) = words
        .split_at_checked(document.bans.saturating_mul(BAN))
        .ok_or(SHORT)?;
    let of_requests = document
        .requests
        .as_ref()
        .map_or(Some(0), SavedRequests::count)
        .ok_or(SHORT)?;
    let (table, of_requests) = others
        .split_at_checked(others.len().wrapping_sub(of_requests))
        .ok_or(SHORT)?;
    if let Some(requests) = &mut document.requests {
        requests.words = of_requests.to_vec();
    }
    let mut bans: Vec<SavedBan> = bans
        .chunks_exact(BAN)
        .map(ban)
        .collect::<Option<_>>()
        .ok_or(SHORT)?;
    document
        .reasons
        .into_iter()
        .for_each(|reason| reason.complete(&mut bans));
    Ok(Saved {
        at: Some(document.at),
        id,
        journaled: document.journaled,
        counted: document.counted,
        bans,
        escalations: document.escalations,
        table: document.table.map(|layout| SavedTable {
            layout,
            words: table.to_vec(),
        }),
        requests: document.requests,
    })
}

fn ban_words(ban: &SavedBan) -> [u64; BAN] {
    let prefix = &ban.key.prefix;
    let address = u128::from_be_bytes(prefix.address);
    let (high, low) = ((address >> 64) as u64, address as u64);
    let by = match ban.key.owner.by {
        By::Limit => Ban::BY_LIMIT,
        _ => 0,
    };
    [
        high,
        low,
        u64::from(prefix.length),
        ban.held.until,
        ban.packets | by,
    ]
}

fn ban(words: &[u64]) -> Option<SavedBan> {
    let [high, low, length, until, refused] = *words else {
        return None;
    };
    let address = (u128::from(high) << 64 | u128::from(low)).to_be_bytes();
    let length = u32::try_from(length).ok().filter(|length| *length <= 128)?;
    let ban = Ban {
        until,
        own_until: until,
        refused,
    };
    Some(SavedBan {
        key: BanKey::of(PrefixKey { address, length }, By::of(&ban)),
        held: Held {
            until,
            ..Held::default()
        },
        packets: ban.packets(),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use datapath::bans::MOST_OWN;

    fn saved() -> Saved {
        let entry = |length: u64, until: u64| ban(&[1, 2 << 40, length, until, 7]).unwrap();
        let mut named = entry(128, 9);
        named.key.owner = Owner::named(By::Operator, "sshd");
        named.key.interface_id = 7;
        named.held.began = Some(-3 * SECOND);
        let mut other = named.clone();
        other.key.interface_id = u64::MAX;
        let mut limit = entry(128, 5);
        limit.key.owner = Owner::named(By::Limit, "web");
        limit.held.since = 7;
        limit.held.why = Some(Why {
            text: "a \"scan\"".into(),
            ..Why::default()
        });
        Saved {
            bans: vec![named, limit, other, entry(64, u64::MAX)],
            ..Saved::default()
        }
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
    fn a_file_that_would_be_too_large_to_read_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory::at(folder.path());
        saved().write(&directory).unwrap();
        let length = fs::metadata(directory.file(NAME)).unwrap().len();
        let mut larger = saved();
        larger.bans.extend(saved().bans);
        let error = larger.write_within(&directory, length).unwrap_err();
        assert!(error.to_string().contains("lift bans"), "{error}");
        let read = Saved::read(&directory).unwrap().unwrap();
        assert_eq!(read.bans, saved().bans);
        saved().write_within(&directory, length + 100).unwrap();
    }

    #[test]
    fn bans_take_no_more_of_a_file_than_documented() {
        const OF_BAN: usize = 69;
        const OF_GROUP: usize = 1_280;
        let last = MOST_OWN - 1;
        let bytes = |reasons: &[SavedReason]| serde_json::to_vec(reasons).unwrap().len();
        // The longest texts, of the longest characters.
        let group = |bans: usize| SavedReason {
            text: "\u{1f6ab}".repeat(crate::ban_reason::LONGEST),
            since: u64::MAX,
            began: Some(i64::MIN / SECOND),
            limit: None,
            owner: Some("\u{1f6ab}".repeat(crate::ban_owner::LONGEST)),
            interface_id: 0,
            interface_ids: vec![u64::MAX; bans],
            bans: vec![last; bans],
        };
        let words = BAN * WORD;
        let alone = bytes(&[group(1), group(1)]) - bytes(&[group(1)]);
        assert!(words + alone <= OF_BAN + OF_GROUP, "{alone}");
        let more = bytes(&[group(2)]) - bytes(&[group(1)]);
        assert_eq!(words + more, OF_BAN);
        // Single IPv6 addresses of one order share a group.
        let bans: Vec<SavedBan> = (1..=100)
            .map(|id| {
                let mut ban = saved().bans[0].clone();
                ban.key.interface_id = id;
                ban
            })
            .collect();
        assert_eq!(SavedReason::all(&bans).len(), 1);
        let documented = include_str!("../../../../docs/operations/changing.md");
        let kib = OF_GROUP as f64 / 1024.0;
        let text = format!("{OF_BAN} bytes a ban, and {kib} KiB more");
        assert!(documented.contains(&text), "{text}");
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
        assert!(
            error.contains("incomplete") || error.contains("checksum"),
            "{error}"
        );
        assert!(
            directory.file("state.damaged").exists() && Saved::read(&directory).unwrap().is_none()
        );
    }
}
