//! The encoding of publications, which tolerates that they are lost or read twice.
//!
//! Each entry has the sum of all units since the key was first published, so that a reader that missed a publication
//! catches up with the next; and the units of this publication, for new readers.

/// The first byte of every publication.
const VERSION: u8 = 2;

/// One host's publication about its busy keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Publication {
    /// Increases with each publication of a host.
    pub sequence: u64,
    /// The store's clock, in microseconds, at the last reply whose units the host had charged before this publication.
    pub read: u64,
    /// The instant of the publication, in nanoseconds of the cluster's clock.
    pub at: u64,
    /// The keys of each limit, by the limit's number.
    pub series: Vec<(u64, Vec<Entry>)>,
}

/// A key's entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    pub key: u64,
    /// Units since the key was first published.
    pub sum: u64,
    /// The sequence of the first publication with this sum.
    pub born: u64,
    /// Units in this publication.
    pub spent: u64,
    /// Units of the limit used by all hosts, in this host's record.
    pub used: u64,
    /// The host's demand by which it may take its part, in thousandths of a unit a second.
    pub demand: u64,
}

impl Publication {
    /// The encoding.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        put(&mut bytes, self.sequence);
        put(&mut bytes, self.read);
        bytes.extend(self.at.to_le_bytes());
        put(&mut bytes, self.series.len() as u64);
        for (number, entries) in &self.series {
            bytes.extend(number.to_le_bytes());
            put(&mut bytes, entries.len() as u64);
            for entry in entries {
                bytes.extend(entry.key.to_le_bytes());
                put(&mut bytes, entry.sum);
                // As a difference, which rarely takes more than a byte.
                put(&mut bytes, self.sequence.wrapping_sub(entry.born));
                put(&mut bytes, entry.spent);
                put(&mut bytes, entry.used);
                put(&mut bytes, entry.demand);
            }
        }
        bytes
    }

    /// Decodes a publication; `None` if it is not of this version.
    #[must_use]
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let rest = &mut bytes;
        (*rest.split_off_first()? == VERSION).then_some(())?;
        let (sequence, read) = (take(rest)?, take(rest)?);
        let (at, count) = (take_word(rest)?, take(rest)?);
        let mut publication = Self {
            sequence,
            read,
            at,
            series: Vec::new(),
        };
        for _ in 0..count {
            let (number, keys) = (take_word(rest)?, take(rest)?);
            let mut entries = Vec::new();
            for _ in 0..keys {
                let (key, sum) = (take_word(rest)?, take(rest)?);
                let born = sequence.wrapping_sub(take(rest)?);
                let (spent, used) = (take(rest)?, take(rest)?);
                entries.push(Entry {
                    key,
                    sum,
                    born,
                    spent,
                    used,
                    demand: take(rest)?,
                });
            }
            publication.series.push((number, entries));
        }
        rest.is_empty().then_some(publication)
    }
}

/// Encodes the words of a state, which are near each other, as differences.
#[must_use]
pub fn encode_words(words: &[u64]) -> Vec<u8> {
    let (mut bytes, mut before) = (Vec::new(), 0u64);
    for word in words {
        let step = word.wrapping_sub(before) as i64;
        put(&mut bytes, (step << 1 ^ step >> 63) as u64);
        before = *word;
    }
    bytes
}

/// Decodes the words of a state; `None` if they are not of this version.
#[must_use]
pub fn decode_words(mut bytes: &[u8]) -> Option<Vec<u64>> {
    let (mut words, mut before) = (Vec::new(), 0u64);
    while !bytes.is_empty() {
        let step = take(&mut bytes)?;
        before = before.wrapping_add(step >> 1 ^ (step & 1).wrapping_neg());
        words.push(before);
    }
    Some(words)
}

/// LEB128: seven bits a byte, the lowest first.
fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let byte = *bytes.split_off_first()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn take_word(bytes: &mut &[u8]) -> Option<u64> {
    let word = bytes.split_off(..size_of::<u64>())?;
    Some(u64::from_le_bytes(word.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry() -> impl Strategy<Value = Entry> {
        any::<[u64; 6]>().prop_map(|[key, sum, born, spent, used, demand]| Entry {
            key,
            sum,
            born,
            spent,
            used,
            demand,
        })
    }

    proptest! {
        #[test]
        fn a_publication_is_read_as_it_was_written(
            sequence: u64,
            read: u64,
            at: u64,
            series in prop::collection::vec((any::<u64>(), prop::collection::vec(entry(), 0..5)), 0..4),
        ) {
            let publication = Publication { sequence, read, at, series };
            let bytes = publication.encode();
            prop_assert_eq!(Publication::decode(&bytes), Some(publication));
            prop_assert_eq!(Publication::decode(&bytes[..bytes.len() - 1]), None);
        }

        #[test]
        fn words_are_read_as_they_were_written(words: Vec<u64>) {
            prop_assert_eq!(decode_words(&encode_words(&words)), Some(words));
        }

        /// Any bytes are decoded or rejected, without a panic.
        #[test]
        fn bytes_of_somebody_else_are_no_publication_or_one(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Some(publication) = Publication::decode(&bytes) {
                prop_assert_eq!(Publication::decode(&publication.encode()), Some(publication));
            }
        }
    }
}
