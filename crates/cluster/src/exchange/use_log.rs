//! The use of keys in the store: which keys this host writes, and whether it has read what others wrote.
//!
//! Publications are read by hosts that are present. The use in the store is for hosts that join or return, and outlives
//! all hosts. A host that finds it lost writes its own again.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};

use decide::KeyUse;

use super::wire::{decode_words, encode_words};

/// A key that is used all the time is written this long after its first use since the last time, in nanoseconds. Other
/// hosts that have received the use write it if this one ends before.
pub const WRITE_AFTER: u64 = 2_000_000_000;
/// A use that ends within this time is not written, in nanoseconds.
pub const LEAST_LIFE: u64 = 5_000_000_000;
/// The most keys in the store, for all limits.
pub const MOST_KEYS: usize = 100_000;
/// The most keys that a host reads at a time.
pub const PAGE: usize = 2_000;
/// The most bytes of states that a host reads at a time, except for the first one.
pub const PAGE_BYTES: usize = 1 << 20;
/// A key that is not used any more is written after this many syncs. It is published for longer.
const IDLE_SYNCS: u64 = 2;
/// The most keys that a host writes at a time.
const MOST_WRITTEN: usize = 500;
/// The most bytes of states that a host writes at a time, about.
const MOST_BYTES: usize = 128 << 10;
/// While keys are written that the store may have lost, used keys have one part of this many of each write.
const PARTS: usize = 4;

/// A key by the number of its limit, the definition of its state, and its fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    pub series: u64,
    pub definition: u64,
    pub key: u64,
}

/// The state of a key to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub name: Name,
    pub order: [u64; 2],
    /// In milliseconds.
    pub life: u64,
    pub state: Vec<u8>,
}

/// What a host writes with one exchange, and how much it reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    pub rows: Vec<Row>,
    /// Whether the rows may be new to the store, so that the other hosts have to read them.
    pub restores: bool,
    /// The most keys to return.
    pub page: usize,
    /// The version at the last read.
    pub version: u64,
}

/// The store's reply about the use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub epoch: String,
    /// Whether the store has lost a request of this host that it had replied to.
    pub has_lost: bool,
    pub version: u64,
    /// The version of the last change that all hosts have to read.
    pub restored: u64,
    /// The version of the last of the keys, if more follow.
    pub until: Option<u64>,
    /// Name and state of changed keys.
    pub keys: Vec<(Name, Vec<u64>)>,
}

/// One host's part.
#[derive(Debug)]
pub struct UseLog {
    epoch: Option<String>,
    version: u64,
    hosts: u64,
    is_behind: bool,
    /// Whether this host has been without the others: what it writes is new to them.
    is_apart: bool,
    /// Used keys by (limit, key), and when each was used first and last since it was written.
    changed: HashMap<(u64, u64), (u64, u64)>,
    /// Keys that the store may have lost.
    lost: LostKeys,
    /// The used keys of the exchange under way.
    written: Vec<(u64, u64)>,
    /// Its keys that the store may have lost.
    restored: Vec<(u64, u64)>,
}

/// A queue of keys without duplicates, at most [`MOST_KEYS`]. A store in a crash loop loses the same keys each time.
#[derive(Debug, Default)]
struct LostKeys {
    queue: VecDeque<(u64, u64)>,
    queued: HashSet<(u64, u64)>,
}

impl LostKeys {
    fn push_back(&mut self, key: (u64, u64)) {
        if self.queue.len() < MOST_KEYS && self.queued.insert(key) {
            self.queue.push_back(key);
        }
    }

    fn push_front(&mut self, key: (u64, u64)) {
        if self.queued.insert(key) {
            self.queue.push_front(key);
        }
    }

    fn pop_front(&mut self) -> Option<(u64, u64)> {
        let key = self.queue.pop_front()?;
        self.queued.remove(&key);
        Some(key)
    }

    fn retain(&mut self, is_kept: impl Fn(&(u64, u64)) -> bool) {
        self.queue.retain(&is_kept);
        self.queued.retain(is_kept);
    }
}

impl Default for UseLog {
    fn default() -> Self {
        Self {
            epoch: None,
            version: 0,
            hosts: 1,
            is_behind: true,
            is_apart: false,
            changed: HashMap::new(),
            lost: LostKeys::default(),
            written: Vec::new(),
            restored: Vec::new(),
        }
    }
}

impl UseLog {
    /// Whether the store has use that this host has not read.
    #[must_use]
    pub const fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Sets the number of hosts in the exchange.
    pub const fn set_hosts(&mut self, hosts: u64) {
        self.hosts = hosts;
    }

    /// Records that keys of a limit were used.
    pub fn changed(&mut self, series: u64, keys: impl Iterator<Item = u64>, now: u64) {
        for key in keys {
            if let Some((_, last)) = self.changed.get_mut(&(series, key)) {
                *last = now;
            } else if self.changed.len() < MOST_KEYS {
                self.changed.insert((series, key), (now, now));
            }
        }
    }

    /// Removes a limit's keys that are not in use.
    pub fn retain(&mut self, series: u64, is_used: impl Fn(u64) -> bool) {
        let is_kept = |key: &(u64, u64)| key.0 != series || is_used(key.1);
        self.changed.retain(|key, _| is_kept(key));
        self.lost.retain(is_kept);
    }

    /// Records that this host is without the others, or no more.
    pub const fn set_apart(&mut self, is_apart: bool) {
        self.is_apart = is_apart;
        self.is_behind |= is_apart;
    }

    /// Whether this host has yet to write keys that all hosts have to read.
    #[must_use]
    pub fn is_restoring(&self) -> bool {
        !self.lost.queue.is_empty()
    }

    /// Keeps the keys of these limits only.
    pub fn retain_limits(&mut self, is_kept: impl Fn(u64) -> bool) {
        self.changed.retain(|key, _| is_kept(key.0));
        self.lost.retain(|key| is_kept(key.0));
    }

    /// Records that this host has a limit whose use it has not kept: it reads that of earlier versions, too.
    pub fn read_all(&mut self) {
        self.version = 0;
        self.is_behind = true;
    }

    /// Records that the store may lack these keys of a limit.
    pub fn lost(&mut self, series: u64, keys: Vec<u64>) {
        for key in keys {
            self.lost.push_back((series, key));
        }
    }

    /// Records that all hosts have to read the use of a limit's changed keys: they have no publications of it.
    pub fn restore(&mut self, series: u64) {
        for key in self.changed.keys().filter(|key| key.0 == series) {
            self.lost.push_back(*key);
        }
    }

    /// The next writes, at `now` of a clock whose hosts exchange every `sync` nanoseconds. `state` returns the definition and the state of a key, or `None` if its use is over; `is_own`
    /// whether no other host writes the key. A host that `leaves` writes all.
    pub fn writes(
        &mut self,
        (now, sync): (u64, u64),
        leaves: bool,
        is_own: impl Fn(u64, u64) -> bool,
        state: impl Fn(u64, u64) -> Option<(u64, KeyUse)>,
    ) -> Writes {
        let mut writes = Writes {
            page: if self.is_behind && !leaves { PAGE } else { 0 },
            version: self.version,
            ..Writes::default()
        };
        self.written.clear();
        // The last write has had no reply.
        for key in self.restored.drain(..).rev() {
            self.lost.push_front(key);
        }
        // A host that is behind would write less than others have used.
        if self.is_behind && !leaves {
            return writes;
        }
        writes.restores = self.is_apart || !self.lost.queue.is_empty();
        let mut due: BinaryHeap<_> = {
            let is_due = |((series, key), (first, last)): &(&(u64, u64), &(u64, u64))| {
                // Units that no other host has received end with this one.
                let after = if self.hosts > 1 {
                    WRITE_AFTER
                } else {
                    IDLE_SYNCS * sync
                };
                let is_late = now.saturating_sub(*first) >= after
                    || now.saturating_sub(*last) >= IDLE_SYNCS * sync;
                leaves || (is_late && is_own(*series, *key))
            };
            let due = self.changed.iter().filter(is_due);
            due.map(|(key, (first, _))| Reverse((*first, *key)))
                .collect()
        };
        let most = if leaves { PAGE } else { MOST_WRITTEN };
        let parts = if writes.restores && !leaves { PARTS } else { 1 };
        let mut bytes = 0;
        // The oldest first, so that each key is written while others are used.
        while writes.rows.len() < most / parts && bytes < MOST_BYTES / parts {
            let Some(Reverse((_, key))) = due.pop() else {
                break;
            };
            self.written.push(key);
            if let Some(row) = row(key, &state) {
                bytes += row.state.len();
                writes.rows.push(row);
            }
        }
        while writes.restores && writes.rows.len() < most && bytes < MOST_BYTES {
            let Some(key) = self.lost.pop_front() else {
                break;
            };
            self.restored.push(key);
            if let Some(row) = row(key, &state) {
                bytes += row.state.len();
                writes.rows.push(row);
            }
        }
        writes
    }

    /// Processes the store's reply. Returns whether the store may have lost keys.
    pub fn replied(&mut self, changes: &Changes) -> bool {
        for key in self.written.drain(..).chain(self.restored.drain(..)) {
            self.changed.remove(&key);
        }
        let is_same = self.epoch.as_ref() == Some(&changes.epoch);
        let has_lost = !is_same || changes.has_lost;
        if has_lost {
            // The versions since then are those of other changes now.
            self.version = 0;
            // The first reply is complete for a host that has asked for everything.
            let is_first = self.epoch.is_none();
            self.epoch = Some(changes.epoch.clone());
            if !is_first {
                self.is_behind = true;
                return true;
            }
        }
        if self.is_behind {
            self.is_behind = changes.until.is_some();
            self.version = changes.until.unwrap_or(changes.version);
        } else if changes.restored > self.version {
            self.is_behind = true;
        } else {
            // Other hosts publish these changes.
            self.version = changes.version;
        }
        has_lost
    }
}

/// The row of a (limit, key) with its `state`; `None` if its use is over.
fn row(
    (series, key): (u64, u64),
    state: impl Fn(u64, u64) -> Option<(u64, KeyUse)>,
) -> Option<Row> {
    let (definition, used) = state(series, key)?;
    Some(Row {
        name: Name {
            series,
            definition,
            key,
        },
        order: used.order,
        life: used.life.div_ceil(1_000_000),
        state: encode_words(&used.words),
    })
}

impl Name {
    /// The name in the store.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        [self.series, self.definition, self.key]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect()
    }

    /// Decodes a name; `None` if it is not of this version.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, []) = bytes.as_chunks::<8>() else {
            return None;
        };
        let [series, definition, key] = *words else {
            return None;
        };
        Some(Self {
            series: u64::from_le_bytes(series),
            definition: u64::from_le_bytes(definition),
            key: u64::from_le_bytes(key),
        })
    }
}

/// Decodes the state in an entry of the store, which follows its order.
#[must_use]
pub fn decode_entry(entry: &[u8]) -> Option<Vec<u64>> {
    decode_words(entry.splitn(3, |byte| *byte == b' ').nth(2)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYNC: u64 = 100_000_000;

    fn used(_: u64, key: u64) -> Option<(u64, KeyUse)> {
        let used = KeyUse {
            key,
            order: [1, key],
            life: LEAST_LIFE,
            words: vec![key],
        };
        Some((9, used))
    }

    fn reply(epoch: &str, version: u64) -> Changes {
        Changes {
            epoch: epoch.to_owned(),
            version,
            ..Changes::default()
        }
    }

    #[test]
    fn a_host_writes_nothing_before_it_has_read_all() {
        let mut log = UseLog::default();
        log.changed(1, [7].into_iter(), 0);
        let writes = log.writes((WRITE_AFTER, SYNC), false, |_, _| true, used);
        assert_eq!((writes.rows.len(), writes.page), (0, PAGE));
        log.replied(&Changes {
            until: Some(5),
            ..reply("a", 8_000)
        });
        assert!(log.is_behind());
        assert_eq!(
            log.writes((WRITE_AFTER, SYNC), false, |_, _| true, used)
                .version,
            5
        );
        log.replied(&reply("a", 8_000));
        assert!(!log.is_behind());
        let writes = log.writes((WRITE_AFTER, SYNC), false, |_, _| true, used);
        assert_eq!(
            (writes.rows.len(), writes.page, writes.version),
            (1, 0, 8_000)
        );
        assert!(!writes.restores);
    }

    #[test]
    fn a_change_is_written_until_the_store_has_replied() {
        let mut log = UseLog::default();
        log.replied(&reply("a", 0));
        log.set_hosts(2);
        log.changed(1, [7].into_iter(), 0);
        assert_eq!(
            log.writes((IDLE_SYNCS * SYNC - 1, SYNC), false, |_, _| true, used)
                .rows
                .len(),
            0,
            "too early"
        );
        let rows = |log: &mut UseLog, is_own: bool| {
            log.writes((WRITE_AFTER, SYNC), false, |_, _| is_own, used)
                .rows
                .len()
        };
        log.changed(1, [7].into_iter(), WRITE_AFTER);
        assert_eq!(rows(&mut log, false), 0, "another host writes it");
        assert_eq!((rows(&mut log, true), rows(&mut log, true)), (1, 1));
        log.replied(&reply("a", 1));
        assert_eq!(rows(&mut log, true), 0);
    }

    #[test]
    fn a_host_writes_its_use_again_after_a_loss() {
        // Other hosts have written as much again meanwhile.
        for (epoch, has_lost) in [("b", false), ("a", true)] {
            let mut log = UseLog::default();
            assert!(log.replied(&reply("a", 0)), "of the run before");
            assert!(!log.replied(&reply("a", 2)));
            assert!(log.replied(&Changes {
                has_lost,
                ..reply(epoch, 3)
            }));
            log.lost(1, vec![7, 8]);
            assert!(log.is_behind());
            let all = log.writes((0, SYNC), false, |_, _| false, used);
            assert_eq!((all.version, all.page), (0, PAGE), "of all keys");
            log.replied(&reply(epoch, 3));
            let writes = log.writes((0, SYNC), false, |_, _| false, used);
            assert_eq!((writes.rows.len(), writes.restores), (2, true));
            log.replied(&Changes {
                restored: 5,
                ..reply(epoch, 5)
            });
            assert!(log.is_behind(), "another host may have restored more");
        }
    }

    #[test]
    fn a_host_that_returns_writes_what_it_used_so_that_all_read_it() {
        let mut log = UseLog::default();
        log.replied(&reply("a", 0));
        log.set_hosts(2);
        log.changed(1, [7].into_iter(), 0);
        log.changed(2, [8].into_iter(), 0);
        log.restore(1);
        let writes = log.writes((0, SYNC), false, |_, _| false, used);
        let names: Vec<_> = writes.rows.iter().map(|row| row.name.series).collect();
        assert_eq!((names, writes.restores), (vec![1], true));
    }

    #[test]
    fn the_oldest_keys_are_written_first() {
        let mut log = UseLog::default();
        log.replied(&reply("a", 0));
        let (keys, mut written) = (4 * MOST_WRITTEN as u64, Vec::new());
        // Every key is in use all the time.
        for sync in 0..8 {
            let now = WRITE_AFTER + sync * SYNC;
            log.changed(1, 0..keys, now);
            let writes = log.writes((now + WRITE_AFTER, SYNC), false, |_, _| true, used);
            written.extend(writes.rows.iter().map(|row| row.name.key));
            log.replied(&reply("a", 0));
        }
        for rounds in written.chunks(keys as usize) {
            let mut round = rounds.to_vec();
            round.sort_unstable();
            assert!(round.into_iter().eq(0..keys), "each key once a round");
        }
    }

    #[test]
    fn used_keys_have_a_part_of_each_write_after_a_loss() {
        let mut log = UseLog::default();
        log.replied(&reply("a", 0));
        log.lost(1, (0..5_000).collect());
        log.changed(2, 0..1_000, 0);
        let writes = log.writes((WRITE_AFTER, SYNC), false, |_, _| true, used);
        let rows = |series| {
            let is_of = |row: &&Row| row.name.series == series;
            writes.rows.iter().filter(is_of).count()
        };
        assert_eq!((rows(1), rows(2), writes.restores), (375, 125, true));
        log.replied(&reply("a", 0));
        assert_eq!((log.lost.queue.len(), log.changed.len()), (4_625, 875));
    }

    #[test]
    fn a_store_in_a_crash_loop_loses_each_key_once() {
        let mut log = UseLog::default();
        log.replied(&reply("a", 0));
        for round in 0..20 {
            log.replied(&reply(&round.to_string(), 0));
            log.lost(1, (0..1_000).collect());
            log.replied(&reply(&round.to_string(), 0));
            // The first write has no reply.
            for _ in 0..2 {
                let writes = log.writes((0, SYNC), false, |_, _| true, used);
                assert_eq!((writes.rows.len(), writes.restores), (MOST_WRITTEN, true));
            }
        }
        let mut keys = Vec::new();
        loop {
            let writes = log.writes((0, SYNC), false, |_, _| true, used);
            if writes.rows.is_empty() {
                break;
            }
            keys.extend(writes.rows.iter().map(|row| row.name.key));
            log.replied(&reply("19", 0));
        }
        keys.sort_unstable();
        assert!(keys.into_iter().eq(0..1_000));
        log.lost(1, (0..2 * MOST_KEYS as u64).collect());
        assert_eq!(log.lost.queue.len(), MOST_KEYS);
    }

    #[test]
    fn a_host_with_a_new_limit_reads_all() {
        let mut log = UseLog::default();
        log.replied(&reply("a", 8_000));
        log.replied(&reply("a", 8_001));
        let page = |log: &mut UseLog| {
            let writes = log.writes((0, SYNC), false, |_, _| true, used);
            (writes.page, writes.version)
        };
        assert_eq!(page(&mut log), (0, 8_001));
        log.read_all();
        assert_eq!(page(&mut log), (PAGE, 0));
        log.replied(&reply("a", 8_001));
        assert_eq!(page(&mut log), (0, 8_001));
    }

    #[test]
    fn names_are_decoded_as_encoded() {
        let name = Name {
            series: 1,
            definition: u64::MAX,
            key: 3,
        };
        assert_eq!(Name::decode(&name.encode()), Some(name));
        assert_eq!(Name::decode(b"short"), None);
        let entry = [b"17 2 ".as_slice(), &encode_words(&[32, 5])].concat();
        assert_eq!(decode_entry(&entry), Some(vec![32, 5]));
        assert_eq!(decode_entry(b"17"), None);
    }
}
