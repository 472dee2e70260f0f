//! The used units of slow limits' keys, saved to a file for the next agent.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use common::rate_limiter::Policy;
use config::human;
use serde::{Deserialize, Serialize};

use super::engine::Engine;
use super::fingerprint::{Fingerprint, Fingerprints};
use super::limit::Limit;
use super::overflow::SavedOverflow;
use super::resets::{LastReset, ResetKey, merge};
use super::state_store::StateStore;
use super::tiers::{self, Tiers};

/// A state that is full again within this time is not saved.
const A_MINUTE: u64 = 60_000_000_000;
/// The most words in the file: 16 MiB.
const MOST_WORDS: usize = 2 << 20;

/// The keys of all limits, and their counters.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SavedRequests {
    /// The secret of the fingerprints.
    secret: [u64; 2],
    /// The hosts' secret of exchanged keys. Missing in files of earlier versions.
    #[serde(default)]
    exchanged_secret: Option<[u64; 2]>,
    /// Of exchanged keys: limit, key, era and time. Missing in files of earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    resets: Vec<[u64; 4]>,
    /// By limit name: passed, refused, would have been refused.
    counters: BTreeMap<String, [u64; 3]>,
    /// Those that passed above each limit. Earlier agents save none.
    #[serde(default)]
    over: BTreeMap<String, u64>,
    stores: Vec<SavedStore>,
    /// By limit name: the keys without room in the file.
    #[serde(skip)]
    left_out: BTreeMap<String, u64>,
    /// All stores in order, and their keys: fingerprint, then state.
    #[serde(skip)]
    pub words: Vec<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SavedStore {
    limit: String,
    /// The meaning of the keys and their states.
    definition: String,
    keys: usize,
    /// The number of words per key.
    each: usize,
    /// For exchanged keys.
    #[serde(default)]
    exchanged: Option<SavedExchange>,
    /// The allowance that keys without room share. Missing in files of earlier versions, and where it is full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    overflow: Option<SavedOverflow>,
}

/// What is saved of an exchange of keys.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct SavedExchange {
    /// How far the cluster's clock was ahead of this host's.
    ahead: u64,
    /// Whether the other hosts have received the use of the keys.
    is_heard: bool,
}

/// Words by the power of two of the nanoseconds until a key's allowance is full.
type Lives = [usize; u64::BITS as usize];

impl SavedRequests {
    /// The number of words; `None` if it is impossible.
    #[must_use]
    pub fn count(&self) -> Option<usize> {
        self.stores.iter().try_fold(0usize, |sum, store| {
            sum.checked_add(store.keys.checked_mul(store.each)?)
        })
    }

    /// Whether there is nothing to save.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counters.is_empty()
    }

    /// Adds the keys of one of a limit's stores. `lives`: the room for words by the power of two of the key's time.
    fn add(&mut self, limit: &Limit, store: &StateStore, lives: &mut Lives, now: u64) {
        let mut unreceived = Vec::new();
        let before = self.words.len();
        store.each_slow(now, A_MINUTE, |key, words, life| {
            let room = &mut lives[life.ilog2() as usize];
            if let Some(left) = room.checked_sub(1 + words.len()) {
                *room = left;
                let keys = if store.keyed.is_some() && !store.is_received(key) {
                    &mut unreceived
                } else {
                    &mut self.words
                };
                keys.push(key.word());
                keys.extend(words);
            }
        });
        let (each, received) = (1 + store.words(), self.words.len() - before);
        let of = |words: usize, is_heard| SavedStore {
            limit: limit.policy.name.clone(),
            definition: definition(limit, store.tiers()),
            keys: words / each,
            each,
            exchanged: store.ahead().map(|ahead| SavedExchange { ahead, is_heard }),
            overflow: None,
        };
        self.stores.push(SavedStore {
            overflow: store.save_overflow(now, A_MINUTE),
            ..of(received, true)
        });
        if !unreceived.is_empty() {
            self.stores.push(of(unreceived.len(), false));
            self.words.append(&mut unreceived);
        }
    }

    /// A note for the operator about keys without room in the file.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        const SHOWN: usize = 3;
        let keys: u64 = self.left_out.values().sum();
        let of = |(limit, keys): (&String, &u64)| format!("{} of {limit:?}", human::number(*keys));
        let mut limits: Vec<String> = self.left_out.iter().take(SHOWN).map(of).collect();
        match self.left_out.len().saturating_sub(SHOWN) {
            0 => {}
            more => limits.push(format!("and of {more} more limits")),
        }
        (keys > 0).then(|| {
            format!(
                "the state file has no room for {} keys of limits on requests ({}), which start over after a restart: it has at most {}",
                human::number(keys),
                limits.join(", "),
                human::size((MOST_WORDS * size_of::<u64>()) as u64),
            )
        })
    }
}

impl Engine {
    /// The state for the next agent: keys whose allowance is not full within a minute. If they do not fit, limits share
    /// the room (max-min fairness), and of a limit those that take longest come first, to a factor of two.
    #[must_use]
    pub fn save(&self, now: u64) -> SavedRequests {
        self.save_within(MOST_WORDS, now)
    }

    /// The same with room for so many words.
    fn save_within(&self, room: usize, now: u64) -> SavedRequests {
        // The number of words of each limit's keys by the power of two of that time.
        let lives = |limit: &Limit| {
            let mut lives: Lives = [0; u64::BITS as usize];
            for store in &limit.stores {
                store.each_slow(now, A_MINUTE, |_, words, life| {
                    lives[life.ilog2() as usize] += 1 + words.len();
                });
            }
            lives
        };
        let mut lives: Vec<_> = self.limits.iter().map(lives).collect();
        let wanted: Vec<usize> = lives.iter().map(|lives| lives.iter().sum()).collect();
        let parts = fair_parts(&wanted, room);
        for (lives, part) in lives.iter_mut().zip(&parts) {
            let mut room = *part;
            for words in lives.iter_mut().rev() {
                *words = (*words).min(room);
                room -= *words;
            }
        }
        let left_out = self.limits.iter().zip(wanted.iter().zip(&parts));
        let left_out = left_out.filter_map(|(limit, (wanted, part))| {
            let each = 1 + limit.stores.first()?.words();
            let keys = (wanted - part).div_ceil(each) as u64;
            (keys > 0).then(|| (limit.policy.name.clone(), keys))
        });
        let mut saved = SavedRequests {
            secret: self.fingerprints.secret(),
            exchanged_secret: Some(self.exchanged_secret().0),
            resets: Vec::new(),
            counters: self
                .limits
                .iter()
                .map(|limit| (limit.policy.name.clone(), counted(limit)))
                .collect(),
            over: self
                .limits
                .iter()
                .map(|limit| {
                    (
                        limit.policy.name.clone(),
                        limit.counters.over.load(Ordering::Relaxed),
                    )
                })
                .collect(),
            stores: Vec::new(),
            left_out: left_out.collect(),
            words: Vec::with_capacity(parts.iter().sum()),
        };
        for (limit, lives) in self.limits.iter().zip(&mut lives) {
            for store in &limit.stores {
                saved.add(limit, store, lives, now);
            }
        }
        // After the states: one that lacks its reset would be removed as of before.
        let last = self.resets.last();
        let reset =
            |(key, reset): (&ResetKey, &LastReset)| [key.limit, key.key, reset.era, reset.at];
        saved.resets = last.iter().map(reset).collect();
        saved
    }

    /// Restores the state saved at `then` of the earlier clock, before anything is decided. Limits that have changed
    /// since are reset.
    pub fn resume(&mut self, saved: &SavedRequests, then: u64, now: u64) {
        self.fingerprints = Fingerprints::under(saved.secret);
        if let Some(secret) = saved.exchanged_secret {
            self.name_keys(secret);
            let reset = |[limit, key, era, at]: &[u64; 4]| {
                let (limit, key, era, at) = (*limit, *key, *era, *at);
                (ResetKey { limit, key }, LastReset { era, at })
            };
            let resets: Vec<_> = saved.resets.iter().map(reset).collect();
            self.resets.change(|last| merge(last, &resets));
        }
        let mut rest = &saved.words[..];
        for store in &saved.stores {
            let Some((keys, others)) = rest.split_at_checked(store.keys.saturating_mul(store.each))
            else {
                return;
            };
            rest = others;
            let limit = self
                .limits
                .iter()
                .filter(|limit| limit.is_exchanged() == store.exchanged.is_some())
                .find(|limit| limit.policy.name == store.limit);
            let known = limit.and_then(|limit| {
                limit.stores.iter().find_map(|known| {
                    let earlier = known.tiers().map(Policy::without_room_for_debt);
                    let is_of = |tiers: &Tiers| definition(limit, tiers) == store.definition;
                    match () {
                        () if 1 + known.words() != store.each => None,
                        () if is_of(known.tiers()) => Some((known, None)),
                        () if is_of(&earlier) => Some((known, Some(earlier))),
                        () => None,
                    }
                })
            });
            let Some((known, earlier)) = known else {
                continue;
            };
            let at = store
                .exchanged
                .map_or(then, |exchanged| then.wrapping_add(exchanged.ahead));
            let migrate = |words: &[u64]| {
                let earlier = earlier.as_ref()?;
                Some(tiers::carried(earlier, words, known.tiers(), at))
            };
            if let Some(SavedOverflow { words, period }) = &store.overflow
                && 1 + words.len() == store.each
            {
                let migrated = migrate(words);
                let words = migrated.as_deref().unwrap_or(words);
                known.take_up_overflow(words, *period, then, now);
            }
            for key in keys.chunks_exact(store.each) {
                if let Some((fingerprint, words)) = key
                    .split_first()
                    .filter(|(fingerprint, _)| **fingerprint != 0)
                {
                    let fingerprint = Fingerprint::of_word(*fingerprint);
                    let migrated = migrate(words);
                    let words = migrated.as_deref().unwrap_or(words);
                    match store.exchanged {
                        None => known.take_up(fingerprint, words, then, now),
                        Some(SavedExchange { ahead, is_heard }) => {
                            let ahead = then.wrapping_add(ahead).wrapping_sub(now);
                            known.take_up_exchanged(fingerprint, words, ahead, is_heard);
                        }
                    }
                }
            }
        }
        for limit in &self.limits {
            if let Some([passed, refused, would_refuse]) =
                saved.counters.get(&limit.policy.name).copied()
            {
                limit.counters.passed.fetch_add(passed, Ordering::Relaxed);
                limit.counters.refused.fetch_add(refused, Ordering::Relaxed);
                limit
                    .counters
                    .would_refuse
                    .fetch_add(would_refuse, Ordering::Relaxed);
            }
            if let Some(over) = saved.over.get(&limit.policy.name) {
                limit.counters.over.fetch_add(*over, Ordering::Relaxed);
            }
        }
    }
}

/// The part of each in a room that is too small for all: nobody gets more than it wants, and none that gets less than it
/// wants gets less than another (max-min fairness).
fn fair_parts(wanted: &[usize], mut room: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_unstable_by_key(|nth| wanted[*nth]);
    let mut parts = vec![0; wanted.len()];
    for (before, nth) in order.iter().copied().enumerate() {
        parts[nth] = wanted[nth].min(room / (wanted.len() - before));
        room -= parts[nth];
    }
    parts
}

fn counted(limit: &Limit) -> [u64; 3] {
    let of = &limit.counters;
    [&of.passed, &of.refused, &of.would_refuse].map(|counter| counter.load(Ordering::Relaxed))
}

fn definition(limit: &Limit, tiers: &Tiers) -> String {
    let policy = &limit.policy;
    let definition = format!(
        "{:?}",
        (
            &policy.key,
            policy.ipv4_prefix,
            policy.ipv6_prefix,
            policy.unit,
            &**tiers
        )
    );
    // Without these keys as in earlier versions, whose states are kept.
    let over = (!policy.over.is_empty()).then(|| format!(" {:?}", policy.over));
    let calendar = policy.calendar.as_ref();
    let calendar = calendar.map(|calendar| format!(" {}", calendar.unit.word()));
    let above = (tiers.own().len() < tiers.len()).then(|| " above".to_owned());
    [Some(definition), over, calendar, above]
        .into_iter()
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::{Edge, Offence};

    struct NoEdge;

    impl Edge for NoEdge {
        fn escalate(&self, _: Offence) {}
    }

    #[test]
    fn limits_share_a_small_file_fairly() {
        assert_eq!(fair_parts(&[10, 90, 3, 90], 100), [10, 43, 3, 44]);
        assert_eq!(fair_parts(&[10, 90], 100), [10, 90]);
        assert_eq!(fair_parts(&[], 100), [0usize; 0]);
    }

    /// Such as one whose clients choose its keys.
    #[test]
    fn a_limit_with_many_keys_displaces_no_keys_of_another() {
        const NOW: u64 = 1_000_000_000_000_000;
        let limit = |name: &str, rate: &str| {
            format!(
                "[[limit]]\nname = \"{name}\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"{rate}\"\nalgorithm = \"fixed-window\"\n"
            )
        };
        let text = limit("many", "10/30d") + &limit("few", "10/h");
        let config = config::parse(Path::new("limits.toml"), &text).unwrap();
        let engine = Engine::new(&config.config, Arc::new(NoEdge)).unwrap();
        for (nth, keys) in [(0, 1_000), (1, 100)] {
            for key in 1..=keys {
                engine.limits[nth].stores[0].decide(Fingerprint::of_word(key), NOW, 1);
            }
        }
        let each = 1 + engine.limits[0].stores[0].words();
        let keys = |saved: &SavedRequests| -> Vec<usize> {
            saved.stores.iter().map(|store| store.keys).collect()
        };
        let saved = engine.save_within(500 * each, NOW);
        assert_eq!(keys(&saved), [400, 100]);
        assert_eq!(saved.words.len(), saved.count().unwrap());
        let note = saved.note().unwrap();
        let start =
            "the state file has no room for 600 keys of limits on requests (600 of \"many\")";
        assert!(
            note.starts_with(start) && note.ends_with("at most 16 MiB"),
            "{note}"
        );
        let whole = engine.save(NOW);
        assert_eq!((keys(&whole), whole.note()), (vec![1_000, 100], None));
    }

    /// Their states had fewer bits for counts.
    #[test]
    fn windows_that_an_earlier_version_saved_keep_their_use() {
        const NOW: u64 = 1_000_000_000_000_000;
        for algorithm in ["fixed-window", "sliding-window"] {
            let text = format!(
                "[[limit]]\nname = \"daily\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"1000/day\"\n\
                 tiers = [\"900/h\"]\nalgorithm = \"{algorithm}\"\n"
            );
            let config = config::parse(Path::new("limits.toml"), &text).unwrap();
            let new = || Engine::new(&config.config, Arc::new(NoEdge)).unwrap();
            let engine = new();
            let store = &engine.limits[0].stores[0];
            let earlier = store.tiers().map(Policy::without_room_for_debt);
            assert_ne!(&earlier, store.tiers(), "{algorithm}");
            let mut words = vec![0; store.words()];
            tiers::open(&earlier, &mut words, NOW);
            assert!(tiers::charge(&earlier, &mut words, NOW, 700));
            let mut saved = engine.save(NOW);
            saved.stores = vec![SavedStore {
                limit: "daily".to_owned(),
                definition: definition(&engine.limits[0], &earlier),
                keys: 1,
                each: 1 + words.len(),
                exchanged: None,
                overflow: None,
            }];
            saved.words = [vec![7], words].concat();
            let mut resumed = new();
            resumed.resume(&saved, NOW, NOW + 1);
            let store = &resumed.limits[0].stores[0];
            let outcome = store.peek(Fingerprint::of_word(7), NOW + 1, 201);
            assert_eq!(
                (outcome.remaining, outcome.allowed),
                (200, false),
                "{algorithm}"
            );
            let outcome = store.force(Fingerprint::of_word(7), NOW + 1, 5_000);
            assert_eq!(outcome.debt, 4_800, "{algorithm}");
        }
    }
}
