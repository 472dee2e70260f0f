//! The entries of the trie to which bans and exceptions come.

use std::collections::BTreeMap;

use common::ban::Ban;
use config::PrefixKey;

use super::{Around, BanList, of_prefix};
use crate::bans::ban::{BanKey, By, Held};
use crate::bans::entry::{BanEntry, Change, Entry, Touched};

/// Everything about exactly one prefix, to restore it when the trie cannot be written.
#[derive(Clone, Debug)]
pub struct Record {
    prefix: PrefixKey,
    held: Vec<(BanKey, Held)>,
    is_exception: bool,
}

impl BanList {
    /// Reads the entries that an earlier agent left in the trie. An entry has the latest end of the bans on this host
    /// alone: their owners are those that were `saved`, unless their bans end later, which then have been lifted. The
    /// latest end itself is of an unknown owner where no saved ban has it. The end of a ban from elsewhere may be that of
    /// another ban.
    pub fn resume(
        entries: impl IntoIterator<Item = BanEntry>,
        saved: &BTreeMap<BanKey, Held>,
    ) -> Self {
        let mut list = Self::default();
        for BanEntry { prefix, ban } in entries {
            let elsewhere = [
                (By::CrowdSec, ban.is_by_crowdsec()),
                (By::Host, ban.is_by_host()),
            ];
            let is_elsewhere = elsewhere.iter().any(|(_, is_by)| *is_by);
            if ban.own_until != 0 || !(is_elsewhere || ban.is_exception()) {
                let known: Vec<_> = of_prefix(saved, &prefix)
                    .filter(|(_, held)| held.until <= ban.own_until)
                    .map(|(key, held)| (key.clone(), held.clone()))
                    .collect();
                if known.iter().all(|(_, held)| held.until < ban.own_until) {
                    list.insert(BanKey::of(prefix, By::of(&ban)), until(ban.own_until));
                }
                for (key, held) in known {
                    list.insert(key, held);
                }
            }
            for (by, _) in elsewhere.into_iter().filter(|(_, is_by)| *is_by) {
                list.insert(BanKey::of(prefix, by), until(ban.until));
            }
            if ban.is_exception() {
                list.add_exception(prefix);
            }
        }
        list
    }

    /// The changes that bring the trie up to date: entries first, so that no packet passes between a removed prefix and
    /// a ban within it.
    #[must_use]
    pub fn changes(&self, touched: &Touched) -> Vec<Change> {
        let change = |(prefix, is_new): (&PrefixKey, &bool)| Change {
            prefix: *prefix,
            entry: self.entry(prefix),
            is_new: *is_new,
        };
        let (written, removed): (Vec<Change>, Vec<Change>) = touched
            .0
            .iter()
            .map(change)
            .partition(|change| change.entry.is_some());
        [written, removed].concat()
    }

    /// Everything about exactly one prefix.
    #[must_use]
    pub fn record(&self, prefix: &PrefixKey) -> Record {
        let held = self
            .of_prefix(prefix)
            .map(|(key, held)| (key.clone(), held.clone()));
        Record {
            prefix: *prefix,
            held: held.collect(),
            is_exception: self.exceptions.contains(prefix),
        }
    }

    /// Restores a prefix as it was.
    pub fn restore(&mut self, record: Record) {
        for (key, _) in self.record(&record.prefix).held {
            self.take(&key);
        }
        self.take_exception(&record.prefix);
        for (key, held) in record.held {
            self.insert(key, held);
        }
        if record.is_exception {
            self.add_exception(record.prefix);
        }
    }

    /// The entry of a prefix in the trie, if it has one.
    pub(super) fn entry(&self, prefix: &PrefixKey) -> Option<Entry> {
        if !self.has_entry(prefix) {
            return None;
        }
        let is_excepted = self.is_excepted(prefix);
        let applies = |around: &Around| !(is_excepted && around.by.is_elsewhere());
        let until = self
            .containing(prefix)
            .filter(applies)
            .map(|around| around.until)
            .max()
            .unwrap_or(0);
        let own = self.longest_own(prefix);
        let is_by = |author: By| {
            self.of_prefix(prefix)
                .any(|(key, _)| key.owner.by == author)
        };
        let bits = [
            (
                Ban::BY_LIMIT,
                own.is_some_and(|(key, _)| key.owner.by == By::Limit),
            ),
            (Ban::BY_CROWDSEC, is_by(By::CrowdSec)),
            (Ban::BY_HOST, is_by(By::Host)),
            (Ban::EXCEPTION, self.exceptions.contains(prefix)),
        ];
        let authors = bits.iter().filter(|(_, is_set)| *is_set);
        Some(Entry {
            until,
            own_until: own.map_or(0, |(_, held)| held.until),
            authors: authors.fold(0, |bits, (bit, _)| bits | bit),
        })
    }

    fn has_entry(&self, prefix: &PrefixKey) -> bool {
        self.holds(prefix) || self.exceptions.contains(prefix)
    }

    /// Notes that the entries of a prefix and of all within it are about to change.
    pub(super) fn touch(&self, prefix: &PrefixKey, touched: &mut Touched) {
        touched
            .0
            .entry(*prefix)
            .or_insert_with(|| !self.has_entry(prefix));
        let banned = self.within(prefix).map(|(key, _)| key.prefix);
        for inner in banned.chain(self.exceptions_within(prefix)) {
            touched.0.entry(inner).or_insert(false);
        }
    }
}

/// A ban until an instant, of which nothing else is known.
pub(super) fn until(until: u64) -> Held {
    Held {
        until,
        ..Held::default()
    }
}
