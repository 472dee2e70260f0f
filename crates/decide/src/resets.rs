//! When keys were last reset on all hosts that exchange them.
//!
//! After a reset, a key has another fingerprint and so a new state. Units of its earlier states stay with these: a host that
//! receives the reset late, or returns after it, cannot charge them to the new one. The times only grow, and hosts merge them
//! by their maximum, in any order and as often as they like. Only a reset of the whole limit ends those of its keys.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use thiserror::Error;

use super::fingerprint::{Fingerprint, Fingerprints, fnv1a};

/// The most keys of a limit whose resets are kept. Hosts that reset keys at the same time may have more together.
pub const MOST_RESETS: usize = 10_000;

/// A key of a limit, or all its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResetKey {
    /// The hash of the limit's name.
    pub limit: u64,
    /// The key's fingerprint before all resets; 0: all keys.
    pub key: u64,
}

impl ResetKey {
    /// All keys of a limit.
    #[must_use]
    pub const fn all(limit: u64) -> Self {
        Self { limit, key: 0 }
    }

    /// Whether it is a whole limit.
    #[must_use]
    pub const fn is_all(&self) -> bool {
        self.key == 0
    }
}

/// The last reset of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LastReset {
    /// The last reset of the whole limit before that; 0 for a whole limit.
    pub era: u64,
    /// Milliseconds since 1970, but later than the reset before, whatever the clock is.
    pub at: u64,
}

/// The last resets of all keys that were reset.
pub type LastResets = HashMap<ResetKey, LastReset>;

/// There is no room for more resets of a limit's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "hosts keep the resets of at most {MOST_RESETS} keys of a limit, and there is no room for {keys} more: reset fewer, or the whole limit"
)]
pub struct ResetsFull {
    /// The keys that have none yet.
    pub keys: usize,
}

/// The hash of a limit's name, the same on every host.
pub(super) fn name_hash(limit: &str) -> u64 {
    fnv1a(limit.bytes())
}

/// The last resets in effect.
#[derive(Debug, Default)]
pub(super) struct Resets {
    last: ArcSwap<LastResets>,
    /// Locked while they are replaced.
    changes: Mutex<()>,
}

impl Resets {
    /// The current ones.
    pub(super) fn last(&self) -> Arc<LastResets> {
        self.last.load_full()
    }

    /// The fingerprint of the current state of a key.
    #[inline]
    pub(super) fn current(
        &self,
        limit: u64,
        key: Fingerprint,
        fingerprints: impl FnOnce() -> Arc<Fingerprints>,
    ) -> Fingerprint {
        let last = self.last.load();
        if last.is_empty() {
            return key;
        }
        current(&last, limit, key, fingerprints)
    }

    /// Replaces them by those that `change` makes of them, with its result.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut LastResets) -> T) -> T {
        let _locked = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut last = LastResets::clone(&self.last.load());
        let result = change(&mut last);
        self.last.store(Arc::new(last));
        result
    }
}

/// The fingerprint of a key's state after these resets.
pub(super) fn current(
    last: &LastResets,
    limit: u64,
    key: Fingerprint,
    fingerprints: impl FnOnce() -> Arc<Fingerprints>,
) -> Fingerprint {
    let one = ResetKey {
        limit,
        key: key.word(),
    };
    match (
        era_of(last, limit),
        last.get(&one).map_or(0, |reset| reset.at),
    ) {
        (0, 0) => key,
        (all, one) => fingerprints().of(&(key.word(), all, one)),
    }
}

/// The last reset of a whole limit; 0: none.
pub(super) fn era_of(last: &LastResets, limit: u64) -> u64 {
    last.get(&ResetKey::all(limit)).map_or(0, |reset| reset.at)
}

/// Resets each key at `now`, in milliseconds since 1970, all or none.
pub(super) fn raise(last: &mut LastResets, keys: &[ResetKey], now: u64) -> Result<(), ResetsFull> {
    let mut new: HashMap<u64, usize> = HashMap::new();
    let is_new = |key: &&ResetKey| !key.is_all() && !last.contains_key(key);
    for key in keys.iter().filter(is_new) {
        *new.entry(key.limit).or_default() += 1;
    }
    for (limit, keys) in new {
        let is_of = |key: &&ResetKey| key.limit == limit && !key.is_all();
        if last.keys().filter(is_of).count() + keys > MOST_RESETS {
            return Err(ResetsFull { keys });
        }
    }
    for key in keys {
        let era = if key.is_all() {
            0
        } else {
            era_of(last, key.limit)
        };
        let reset = last.entry(*key).or_default();
        *reset = LastReset {
            era,
            at: now.max(reset.at + 1),
        };
    }
    end_eras(last);
    Ok(())
}

/// Takes over the resets of other hosts; returns the keys, and whole limits, with a later one than before.
pub(super) fn merge(last: &mut LastResets, others: &[(ResetKey, LastReset)]) -> Vec<ResetKey> {
    let mut raised = Vec::new();
    let mut take = |last: &mut LastResets, key: ResetKey, other: LastReset| {
        let reset = last.entry(key).or_default();
        if other > *reset {
            *reset = other;
            raised.push(key);
        }
    };
    for (key, other) in others {
        match (key.is_all(), other.era) {
            (true, _) => take(last, *key, *other),
            (false, 0) => {}
            // The limit's own may be on its way.
            (false, at) => take(last, ResetKey::all(key.limit), LastReset { era: 0, at }),
        }
    }
    for (key, other) in others {
        if !key.is_all() && other.era == era_of(last, key.limit) {
            take(last, *key, *other);
        }
    }
    end_eras(last);
    raised
}

/// Removes the resets of keys from before one of their limit.
fn end_eras(last: &mut LastResets) {
    let eras: HashMap<u64, u64> = last
        .iter()
        .filter(|(key, _)| key.is_all())
        .map(|(key, reset)| (key.limit, reset.at))
        .collect();
    let era = |limit| eras.get(&limit).copied().unwrap_or(0);
    last.retain(|key, reset| key.is_all() || reset.era == era(key.limit));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(key: u64) -> ResetKey {
        ResetKey { limit: 9, key }
    }

    /// One of two hosts resets a key or all, by a clock that may be wrong, or receives the other's, or those of some keys.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Reset { host: usize, key: u64, now: u64 },
        Receive { host: usize, keys: u8 },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let reset = (0usize..2, 0u64..4, 0u64..5).prop_map(|(host, key, now)| Step::Reset {
            host,
            key,
            now,
        });
        let receive = (0usize..2, 0u8..32).prop_map(|(host, keys)| Step::Receive { host, keys });
        prop::collection::vec(prop_oneof![3 => reset, 1 => receive], 1..40)
    }

    fn fingerprint(last: &LastResets, key: u64) -> Fingerprint {
        let fingerprints = || Arc::new(Fingerprints::under([1, 2]));
        current(last, 9, Fingerprint::of_word(key), fingerprints)
    }

    fn merged(one: &LastResets, other: &LastResets) -> LastResets {
        let mut last = one.clone();
        let other: Vec<_> = other.iter().map(|(key, reset)| (*key, *reset)).collect();
        merge(&mut last, &other);
        last
    }

    proptest! {
        #[test]
        fn a_reset_leads_to_no_earlier_state_and_hosts_agree(steps in steps()) {
            let mut hosts = [LastResets::new(), LastResets::new()];
            // The states that each host has had, of each key.
            let mut states: [Vec<Vec<Fingerprint>>; 2] = [0, 1].map(|_| {
                (1..4).map(|key| vec![Fingerprint::of_word(key)]).collect()
            });
            for step in steps {
                let before = hosts.clone();
                let (to, reset) = match step {
                    Step::Reset { host, key: of, now } => {
                        raise(&mut hosts[host], &[key(of)], now).unwrap();
                        (host, Some(of))
                    }
                    Step::Receive { host: to, keys } => {
                        let from = &before[1 - to];
                        let mut part = from.clone();
                        part.retain(|key, _| keys & 1 << key.key != 0 || keys >= 16);
                        hosts[to] = merged(&before[to], &part);
                        // Replies may come again, late, and in another order.
                        let all = merged(&before[to], from);
                        prop_assert_eq!(&merged(&hosts[to], &before[to]), &hosts[to]);
                        prop_assert_eq!(&merged(&hosts[to], &part), &hosts[to]);
                        prop_assert_eq!(&merged(&hosts[to], from), &all);
                        prop_assert_eq!(&merged(from, &before[to]), &all);
                        (to, None)
                    }
                };
                for of in 1..4 {
                    let now = fingerprint(&hosts[to], of);
                    let had = &mut states[to][of as usize - 1];
                    if let Some(reset) = reset {
                        prop_assert_eq!(Some(&now) != had.last(), reset == 0 || reset == of);
                    }
                    if Some(&now) != had.last() {
                        prop_assert!(!had.contains(&now), "an earlier state of this host");
                        had.push(now);
                    }
                }
            }
        }
    }

    #[test]
    fn keys_without_room_change_nothing_and_a_whole_limit_makes_room() {
        let mut last = LastResets::default();
        let all: Vec<_> = (1..=MOST_RESETS as u64).map(key).collect();
        assert_eq!(raise(&mut last, &all[1..], 5), Ok(()));
        let before = last.clone();
        let two = [key(1), key(MOST_RESETS as u64 + 1)];
        assert_eq!(raise(&mut last, &two, 5), Err(ResetsFull { keys: 2 }));
        assert_eq!(last, before);
        assert_eq!(
            raise(&mut last, &all, 5),
            Ok(()),
            "one new, the others again"
        );
        assert_eq!((last[&all[0]].at, last[&all[1]].at), (5, 6));
        // Another host had room, and another limit has.
        let other = (two[1], LastReset { era: 0, at: 1 });
        assert_eq!(merge(&mut last, &[other]), [other.0]);
        assert_eq!(raise(&mut last, &all, 5), Ok(()), "none is new");
        assert_eq!(
            raise(&mut last, &[ResetKey { limit: 8, key: 1 }], 5),
            Ok(())
        );
        assert_eq!(raise(&mut last, &[key(0)], 5), Ok(()));
        assert_eq!(last.len(), 2);
        let late: Vec<_> = before.iter().map(|(key, reset)| (*key, *reset)).collect();
        assert!(merge(&mut last, &late).is_empty());
        assert_eq!(last.len(), 2, "those of before do not come back");
    }
}
