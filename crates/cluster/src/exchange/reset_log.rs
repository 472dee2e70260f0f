//! The resets of keys that the store has, and those that this host has to write. See decision 51.

use std::sync::Arc;

use decide::{LastReset, LastResets, ResetKey};

/// The most resets in one request: the rest follow in the next ones.
const MOST_WRITTEN: usize = 500;

/// The name in the store.
#[must_use]
pub fn encode_name(key: ResetKey) -> Vec<u8> {
    let words = [key.limit, key.key];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Parses an entry of the store; `None` if it is not of this version.
#[must_use]
pub fn parse(name: &[u8], entry: &str) -> Option<(ResetKey, LastReset)> {
    let (words, []) = name.as_chunks::<8>() else {
        return None;
    };
    let [limit, key] = *words else {
        return None;
    };
    let [limit, key] = [limit, key].map(u64::from_le_bytes);
    let (era, at) = entry.split_once(' ')?;
    let (era, at) = (era.parse().ok()?, at.parse().ok()?);
    Some((ResetKey { limit, key }, LastReset { era, at }))
}

/// The resets of the store that a reply has: all of them, if they have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResetNews {
    /// Another one after each change.
    pub version: String,
    pub all: Option<Vec<(ResetKey, LastReset)>>,
}

/// The resets of the store, and those of this host that it lacks.
#[derive(Debug, Default)]
pub struct ResetLog {
    version: String,
    stored: LastResets,
    /// The resets of this host, once the store has all of them.
    written: Option<Arc<LastResets>>,
}

impl ResetLog {
    /// The version at the last reply.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The resets that the store lacks, those of whole limits first.
    pub fn writes(&mut self, last: &Arc<LastResets>) -> Vec<(ResetKey, LastReset)> {
        let is_written = |written: &Arc<LastResets>| Arc::ptr_eq(written, last);
        if self.written.as_ref().is_some_and(is_written) {
            return Vec::new();
        }
        let is_missing = |(key, reset): &(&ResetKey, &LastReset)| {
            self.stored.get(key).is_none_or(|stored| stored < *reset)
        };
        let missing = last.iter().filter(is_missing);
        let mut missing: Vec<_> = missing.map(|(key, reset)| (*key, *reset)).collect();
        if missing.is_empty() {
            self.written = Some(Arc::clone(last));
        }
        missing.sort_unstable_by_key(|(key, _)| (!key.is_all(), *key));
        missing.truncate(MOST_WRITTEN);
        missing
    }

    /// Processes the store's reply; returns its resets if they have changed.
    pub fn replied(&mut self, news: ResetNews) -> Vec<(ResetKey, LastReset)> {
        self.version = news.version;
        let Some(all) = news.all else {
            return Vec::new();
        };
        self.stored = all.iter().copied().collect();
        self.written = None;
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Reset = (ResetKey, LastReset);

    fn resets(of: impl IntoIterator<Item = (u64, u64)>) -> Arc<LastResets> {
        let reset = |(key, at)| (ResetKey { limit: 1, key }, LastReset { era: 0, at });
        Arc::new(of.into_iter().map(reset).collect())
    }

    fn keys(rows: &[Reset]) -> Vec<u64> {
        rows.iter().map(|(key, _)| key.key).collect()
    }

    /// The store after it has taken these rows.
    fn news(version: &str, rows: &[Reset]) -> ResetNews {
        ResetNews {
            version: version.to_owned(),
            all: Some(rows.to_vec()),
        }
    }

    #[test]
    fn a_reset_is_written_until_the_store_has_it() {
        let mut log = ResetLog::default();
        let own = resets([(7, 1), (0, 1)]);
        for _ in 0..2 {
            assert_eq!(keys(&log.writes(&own)), [0, 7]);
        }
        let rows = log.writes(&own);
        assert_eq!(log.replied(news("a", &rows)).len(), 2);
        assert_eq!(keys(&log.writes(&own)), [0u64; 0]);
        let own = resets([(7, 2), (0, 1), (3, 1)]);
        assert_eq!(keys(&log.writes(&own)), [3, 7]);
        // The store has lost all.
        log.replied(news("", &[]));
        assert_eq!(keys(&log.writes(&own)), [0, 3, 7]);
        let unchanged = ResetNews {
            version: "b".to_owned(),
            all: None,
        };
        assert!(log.replied(unchanged).is_empty() && log.version() == "b");
    }

    #[test]
    fn many_resets_are_written_in_several_requests() {
        let mut log = ResetLog::default();
        let own = resets((0..1_200).map(|key| (key, 1)));
        let mut stored = Vec::new();
        for most in [500, 500, 200, 0] {
            let rows = log.writes(&own);
            assert_eq!(rows.len(), most);
            stored.extend(rows);
            log.replied(news("a", &stored));
        }
        assert!(keys(&stored).into_iter().eq(0..1_200));
    }

    #[test]
    fn entries_are_parsed_as_they_are_named() {
        let key = ResetKey {
            limit: u64::MAX,
            key: 5,
        };
        let name = encode_name(key);
        assert_eq!(
            parse(&name, "3 140"),
            Some((key, LastReset { era: 3, at: 140 }))
        );
        for (name, entry) in [(&b"#version"[..], "a1"), (&name, "3"), (b"", "3 1")] {
            assert_eq!(parse(name, entry), None);
        }
    }
}
