//! Sources that limits on requests refused, for `weir events` and `weir show`.
//!
//! A refusal changes one record in memory. [`Refusals::take`] turns changed records into events once a second, so that
//! a source has at most one event a second for each limit. Keys of applications, such as logins and API keys, may be
//! secrets: only addresses are recorded.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ipnet::IpNet;
use lru::LruCache;

/// So that threads rarely contend for a lock.
const SHARDS: usize = 16;
/// Records of each shard: 0.5 MB in total. The source whose last refusal is the oldest is evicted.
const RECORDS: usize = 256;
/// Sources that one call of [`Refusals::take`] names; the others are only counted.
pub const MOST_AT_ONCE: usize = 100;

/// A source under a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Refused {
    /// See [`Refusals::number`].
    pub limit: u32,
    /// The client's address under the limit's prefix length; `None` where the application gave none.
    pub source: Option<IpNet>,
}

/// The refusals of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Requests that were refused.
    pub refused: u64,
    /// Requests that would have been refused if the limit were not on `observe`.
    pub would_refuse: u64,
    /// The instant of the last one, by the engine's clock.
    pub at: u64,
    /// `refused` and `would_refuse` at the last call of [`Refusals::take`].
    taken: (u64, u64),
}

impl Record {
    /// Requests refused since the last call of [`Refusals::take`].
    #[must_use]
    pub const fn new_refused(&self) -> u64 {
        self.refused - self.taken.0
    }

    /// Requests that would have been refused since the last call of [`Refusals::take`].
    #[must_use]
    pub const fn new_would_refuse(&self) -> u64 {
        self.would_refuse - self.taken.1
    }

    const fn news(&self) -> u64 {
        self.new_refused() + self.new_would_refuse()
    }
}

/// The records that changed since the last call.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// The records with the most refusals, ordered by time.
    pub named: Vec<(Refused, Record)>,
    /// Refusals of all other sources.
    pub unnamed: u64,
}

#[derive(Debug)]
struct Shard {
    /// Ordered by the last refusal.
    records: LruCache<Refused, Record>,
    /// Refusals of records that were evicted before they were taken.
    unnamed: u64,
}

/// The most recently refused sources; shared by the engines of all configs.
#[derive(Debug)]
pub struct Refusals {
    numbers: Mutex<HashMap<String, u32>>,
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
}

impl Default for Refusals {
    fn default() -> Self {
        let shard = || {
            Mutex::new(Shard {
                records: LruCache::unbounded(),
                unnamed: 0,
            })
        };
        Self {
            numbers: Mutex::default(),
            shards: std::array::from_fn(|_| shard()),
            // Randomly seeded, so that clients cannot choose addresses of one shard.
            hasher: RandomState::new(),
        }
    }
}

impl Refusals {
    /// The number of a limit's name; stable over configs.
    pub fn number(&self, limit: &str) -> u32 {
        let mut numbers = locked(&self.numbers);
        let next = numbers.len() as u32;
        *numbers.entry(limit.to_owned()).or_insert(next)
    }

    /// Records a refusal, or one that `observe` let pass.
    pub fn record(&self, refused: Refused, observes: bool, now: u64) {
        let mut shard = locked(self.shard(&refused));
        let shard = &mut *shard;
        let record = shard.records.get_or_insert_mut(refused, Record::default);
        *(if observes {
            &mut record.would_refuse
        } else {
            &mut record.refused
        }) += 1;
        record.at = record.at.max(now);
        if shard.records.len() > RECORDS {
            shard.unnamed += shard
                .records
                .pop_lru()
                .map_or(0, |(_, record)| record.news());
        }
    }

    /// The record of a source.
    #[must_use]
    pub fn of(&self, refused: &Refused) -> Option<Record> {
        locked(self.shard(refused)).records.peek(refused).copied()
    }

    /// The records that changed since the last call.
    pub fn take(&self) -> Taken {
        let mut taken = Taken::default();
        for shard in &self.shards {
            let mut shard = locked(shard);
            taken.unnamed += std::mem::take(&mut shard.unnamed);
            // Changed records come first.
            for (refused, record) in shard
                .records
                .iter_mut()
                .take_while(|(_, record)| record.news() > 0)
            {
                taken.named.push((*refused, *record));
                record.taken = (record.refused, record.would_refuse);
            }
        }
        if taken.named.len() > MOST_AT_ONCE {
            taken
                .named
                .sort_unstable_by_key(|(_, record)| std::cmp::Reverse(record.news()));
            taken.unnamed += taken
                .named
                .drain(MOST_AT_ONCE..)
                .map(|(_, record)| record.news())
                .sum::<u64>();
        }
        taken.named.sort_unstable_by_key(|(_, record)| record.at);
        taken
    }

    /// Removes all records.
    pub fn clear(&self) {
        for shard in &self.shards {
            let mut shard = locked(shard);
            shard.records.clear();
            shard.unnamed = 0;
        }
    }

    fn shard(&self, refused: &Refused) -> &Mutex<Shard> {
        &self.shards[self.hasher.hash_one(refused) as usize % SHARDS]
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Records are only displayed: a panic elsewhere leaves at most one of them wrong.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn source(number: u32) -> Refused {
        Refused {
            limit: 0,
            source: Some(IpNet::new(Ipv4Addr::from_bits(number).into(), 32).unwrap()),
        }
    }

    #[test]
    fn a_source_is_taken_once_however_often_it_was_refused() {
        let refusals = Refusals::default();
        (0..1_000).for_each(|now| refusals.record(source(1), false, now));
        refusals.record(source(1), true, 1_000);
        let taken = refusals.take();
        assert_eq!((taken.named.len(), taken.unnamed), (1, 0));
        let (of, record) = taken.named[0];
        assert_eq!(
            (of, record.refused, record.would_refuse, record.at),
            (source(1), 1_000, 1, 1_000)
        );
        assert_eq!(refusals.take(), Taken::default());
        refusals.record(source(1), false, 1_001);
        let again = refusals.take().named[0].1;
        assert_eq!(
            (again.refused, again.new_refused(), again.new_would_refuse()),
            (1_001, 1, 0)
        );
    }

    #[test]
    fn a_flood_of_made_up_sources_is_bounded_and_every_refusal_is_counted() {
        let refusals = Refusals::default();
        let flood = 100_000;
        for number in 0..flood {
            refusals.record(source(number), false, number.into());
            // A source that keeps being refused stays among the named ones.
            if number % 100 == 0 {
                refusals.record(source(u32::MAX), false, number.into());
            }
        }
        let kept: usize = refusals
            .shards
            .iter()
            .map(|shard| locked(shard).records.len())
            .sum();
        assert!(kept <= SHARDS * RECORDS, "{kept}");
        let taken = refusals.take();
        assert_eq!(taken.named.len(), MOST_AT_ONCE);
        assert!(
            taken
                .named
                .iter()
                .any(|(of, record)| *of == source(u32::MAX) && record.refused == 1_000)
        );
        let named: u64 = taken.named.iter().map(|(_, record)| record.refused).sum();
        assert_eq!(named + taken.unnamed, u64::from(flood) + 1_000);
        assert_eq!(refusals.take(), Taken::default());
    }

    #[test]
    fn a_limit_keeps_its_number() {
        let refusals = Refusals::default();
        assert_eq!(
            (
                refusals.number("a"),
                refusals.number("b"),
                refusals.number("a")
            ),
            (0, 1, 0)
        );
        refusals.record(source(7), false, 1);
        assert_eq!(
            refusals.of(&source(7)).map(|record| record.refused),
            Some(1)
        );
        assert_eq!(
            refusals.of(&Refused {
                limit: 1,
                ..source(7)
            }),
            None
        );
        refusals.clear();
        assert_eq!(refusals.of(&source(7)), None);
    }
}
