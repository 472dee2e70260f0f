//! The bans in effect, by prefix.

mod room;
#[cfg(test)]
mod tests;
mod trie;

use std::collections::{BTreeMap, BTreeSet};

use common::ban::Ban;
use config::PrefixKey;

use super::ban::{BanKey, By, Held};
use super::entry::Touched;
pub use room::{MOST_OF_PREFIX, MOST_OWN, Merge};
pub use trie::Record;

/// The bans in effect, by prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BanList {
    /// Ordered by address, so that the prefixes within one are adjacent, and the bans of one prefix too.
    held: BTreeMap<BanKey, Held>,
    /// The prefixes to which bans from elsewhere do not apply.
    exceptions: BTreeSet<PrefixKey>,
    /// The bans by limits that are not in effect while the agent is on `observe`.
    suspended: BTreeMap<BanKey, Held>,
    /// The number of bans and exceptions of each prefix length: there are few lengths, even with many prefixes.
    lengths: BTreeMap<u32, usize>,
    /// The number of bans of each author.
    counts: [usize; By::ALL.len()],
    /// The number of banned prefixes.
    prefixes: usize,
}

/// A ban that applies to a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Around {
    /// The banned prefix.
    pub prefix: PrefixKey,
    pub by: By,
    /// The ban's end.
    pub until: u64,
}

impl BanList {
    /// The bans of an author.
    pub fn of(&self, author: By) -> impl Iterator<Item = (&BanKey, &Held)> {
        self.held
            .iter()
            .filter(move |(key, _)| key.owner.by == author)
    }

    /// The number of bans of an author.
    #[must_use]
    pub fn count_of(&self, author: By) -> usize {
        self.counts[author as usize]
    }

    /// Stores a ban that is not in effect while the agent is on `observe`.
    pub fn suspend(&mut self, key: BanKey, held: Held) {
        self.suspended.insert(key, held);
    }

    /// The number of bans that are suspended at an instant.
    #[must_use]
    pub fn suspended(&self, now: u64) -> usize {
        self.suspended
            .values()
            .filter(|held| Ban::is_in_effect(held.until, now))
            .count()
    }

    /// Removes the suspended bans, and returns those that have not ended.
    pub fn take_suspended(&mut self, now: u64) -> Vec<(BanKey, Held)> {
        let suspended = std::mem::take(&mut self.suspended).into_iter();
        suspended
            .filter(|(_, held)| Ban::is_in_effect(held.until, now))
            .collect()
    }

    /// An owner's ban of exactly this prefix.
    #[must_use]
    pub fn get(&self, key: &BanKey) -> Option<&Held> {
        self.held.get(key)
    }

    /// The bans of exactly this prefix.
    pub fn of_prefix(
        &self,
        prefix: &PrefixKey,
    ) -> impl Iterator<Item = (&BanKey, &Held)> + use<'_> {
        of_prefix(&self.held, prefix)
    }

    /// The ban of exactly this prefix by an owner on this host that ends last.
    #[must_use]
    pub fn longest_own(&self, prefix: &PrefixKey) -> Option<(&BanKey, &Held)> {
        self.of_prefix(prefix)
            .filter(|(key, _)| key.owner.by.is_own())
            .max_by_key(|(_, held)| held.until)
    }

    /// Every prefix that an owner on this host banned, suspended bans included.
    #[must_use]
    pub fn own_prefixes(&self) -> BTreeSet<PrefixKey> {
        let own = self.held.keys().chain(self.suspended.keys());
        own.filter(|key| key.owner.by.is_own())
            .map(|key| key.prefix)
            .collect()
    }

    /// The number of banned prefixes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.prefixes
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.prefixes == 0
    }

    /// Every ban by an owner on this host; of one prefix, the one that ends last first.
    #[must_use]
    pub fn own(&self) -> Vec<(&BanKey, &Held)> {
        let own = self.held.iter();
        let mut own: Vec<_> = own.filter(|(key, _)| key.owner.by.is_own()).collect();
        own.sort_by_key(|(key, held)| (key.prefix, std::cmp::Reverse(held.until)));
        own
    }

    /// Every banned prefix, in the order of addresses.
    pub fn prefixes(&self) -> impl Iterator<Item = PrefixKey> + '_ {
        let mut last = None;
        self.held.keys().filter_map(move |key| {
            (last.replace(key.prefix) != Some(key.prefix)).then_some(key.prefix)
        })
    }

    /// The bans of exactly this prefix that are in effect, the one that ends last first.
    #[must_use]
    pub fn holders(&self, prefix: &PrefixKey, now: u64) -> Vec<(&BanKey, &Held)> {
        let is_excepted = self.is_excepted(prefix);
        let mut holders: Vec<_> = self
            .of_prefix(prefix)
            .filter(|(key, held)| {
                Ban::is_in_effect(held.until, now) && !(is_excepted && key.owner.by.is_elsewhere())
            })
            .collect();
        holders.sort_by_key(|(_, held)| std::cmp::Reverse(held.until));
        holders
    }

    /// The owner's existing ban, if it stays instead of a new one until `until`: it is longer.
    #[must_use]
    pub fn kept(&self, key: &BanKey, until: u64, now: u64) -> Option<&Held> {
        let held = self.get(key)?;
        let is_longer = Ban::is_in_effect(held.until, now) && held.until > until;
        is_longer.then_some(held)
    }

    /// Bans a prefix, in place of its owner's previous ban.
    pub fn ban(&mut self, key: BanKey, held: Held, touched: &mut Touched) {
        self.touch(&key.prefix, touched);
        self.suspended.remove(&key);
        self.insert(key, held);
    }

    /// Lifts an owner's ban; `false` if there is none, suspended or not.
    pub fn lift(&mut self, key: &BanKey, touched: &mut Touched) -> bool {
        let was_suspended = self.suspended.remove(key).is_some();
        if !self.held.contains_key(key) {
            return was_suspended;
        }
        self.touch(&key.prefix, touched);
        self.take(key);
        true
    }

    /// The bans of exactly this prefix by owners on this host, suspended ones included.
    pub fn own_keys(&self, prefix: &PrefixKey) -> impl Iterator<Item = &BanKey> {
        let suspended = of_prefix(&self.suspended, prefix);
        self.of_prefix(prefix)
            .chain(suspended)
            .map(|(key, _)| key)
            .filter(|key| key.owner.by.is_own())
    }

    /// Lets no ban from elsewhere apply to a prefix.
    pub fn except(&mut self, prefix: PrefixKey, touched: &mut Touched) {
        self.touch(&prefix, touched);
        self.add_exception(prefix);
    }

    /// Ends an exception; `false` if there is none.
    pub fn end_exception(&mut self, prefix: &PrefixKey, touched: &mut Touched) -> bool {
        if !self.exceptions.contains(prefix) {
            return false;
        }
        self.touch(prefix, touched);
        self.take_exception(prefix);
        true
    }

    /// The prefixes to which bans from elsewhere do not apply.
    pub fn exceptions(&self) -> impl Iterator<Item = PrefixKey> + '_ {
        self.exceptions.iter().copied()
    }

    /// The exceptions within a prefix, itself included.
    #[must_use]
    pub fn exceptions_within(&self, prefix: &PrefixKey) -> Vec<PrefixKey> {
        let (first, last) = span(prefix);
        self.exceptions
            .range(first..=last)
            .filter(|inner| inner.length >= prefix.length)
            .copied()
            .collect()
    }

    /// Whether an exception contains a prefix.
    #[must_use]
    pub fn is_excepted(&self, prefix: &PrefixKey) -> bool {
        let mut lengths = self.lengths.range(..=prefix.length);
        !self.exceptions.is_empty()
            && lengths.any(|(length, _)| self.exceptions.contains(&prefix.cut(*length)))
    }

    /// Whether an author bans a prefix, one that contains it, or one within it, exceptions aside.
    #[must_use]
    pub fn is_banned_by(&self, author: By, prefix: &PrefixKey, now: u64) -> bool {
        let is_banned = |by: By, until: u64| by == author && Ban::is_in_effect(until, now);
        self.containing(prefix)
            .any(|around| is_banned(around.by, around.until))
            || self
                .within(prefix)
                .any(|(key, held)| is_banned(key.owner.by, held.until))
    }

    /// The number of prefixes within this one, itself excluded, with a ban in effect, and the first in the order of addresses.
    #[must_use]
    pub fn narrower(&self, prefix: &PrefixKey, now: u64) -> Option<(u64, PrefixKey)> {
        let in_effect = self.within(prefix).filter(|(key, held)| {
            key.prefix != *prefix
                && Ban::is_in_effect(held.until, now)
                && !(key.owner.by.is_elsewhere() && self.is_excepted(&key.prefix))
        });
        let (mut first, mut last, mut count) = (None, None, 0);
        for (key, _) in in_effect {
            first.get_or_insert(key.prefix);
            count += u64::from(last.replace(key.prefix) != Some(key.prefix));
        }
        first.map(|first| (count, first))
    }

    /// The bans that have ended.
    #[must_use]
    pub fn ended(&self, now: u64) -> Vec<BanKey> {
        self.held
            .iter()
            .filter(|(_, held)| !Ban::is_in_effect(held.until, now))
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Whether exactly this prefix is banned.
    #[must_use]
    pub fn holds(&self, prefix: &PrefixKey) -> bool {
        self.of_prefix(prefix).next().is_some()
    }

    /// The ban that applies to an address or prefix now: of the longest prefix that contains it, the one that ends
    /// last.
    #[must_use]
    pub fn around(&self, prefix: &PrefixKey, now: u64) -> Option<Around> {
        let is_excepted = self.is_excepted(prefix);
        self.containing(prefix)
            .filter(|around| {
                Ban::is_in_effect(around.until, now) && !(is_excepted && around.by.is_elsewhere())
            })
            .max_by_key(|around| (around.prefix.length, around.until))
    }

    /// The bans of prefixes within one, its own included.
    fn within(&self, prefix: &PrefixKey) -> impl Iterator<Item = (&BanKey, &Held)> {
        let ((first, last), length) = (span(prefix), prefix.length);
        self.held
            .range(BanKey::first(first)..)
            .take_while(move |(key, _)| key.prefix <= last)
            .filter(move |(key, _)| key.prefix.length >= length)
    }

    /// The bans that contain a prefix, its own included, the widest first.
    fn containing(&self, prefix: &PrefixKey) -> impl Iterator<Item = Around> {
        self.lengths
            .range(..=prefix.length)
            .flat_map(move |(length, _)| {
                let outer = prefix.cut(*length);
                self.of_prefix(&outer).map(|(key, held)| Around {
                    prefix: key.prefix,
                    by: key.owner.by,
                    until: held.until,
                })
            })
    }

    fn insert(&mut self, key: BanKey, held: Held) {
        let (was_banned, by) = (self.holds(&key.prefix), key.owner.by);
        let length = key.prefix.length;
        if self.held.insert(key, held).is_none() {
            *self.lengths.entry(length).or_default() += 1;
            self.counts[by as usize] += 1;
            self.prefixes += usize::from(!was_banned);
        }
    }

    fn take(&mut self, key: &BanKey) {
        if self.held.remove(key).is_some() {
            self.forget_length(key.prefix.length);
            self.counts[key.owner.by as usize] -= 1;
            self.prefixes -= usize::from(!self.holds(&key.prefix));
        }
    }

    fn add_exception(&mut self, prefix: PrefixKey) {
        if self.exceptions.insert(prefix) {
            *self.lengths.entry(prefix.length).or_default() += 1;
        }
    }

    fn take_exception(&mut self, prefix: &PrefixKey) {
        if self.exceptions.remove(prefix) {
            self.forget_length(prefix.length);
        }
    }

    fn forget_length(&mut self, length: u32) {
        if let Some(count) = self.lengths.get_mut(&length) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&length);
            }
        }
    }
}

/// The bans of exactly a prefix.
fn of_prefix<'b>(
    bans: &'b BTreeMap<BanKey, Held>,
    prefix: &PrefixKey,
) -> impl Iterator<Item = (&'b BanKey, &'b Held)> + use<'b> {
    let prefix = *prefix;
    bans.range(BanKey::first(prefix)..)
        .take_while(move |(key, _)| key.prefix == prefix)
}

/// The first and the last key that a prefix within this one may have.
fn span(prefix: &PrefixKey) -> (PrefixKey, PrefixKey) {
    let mask = u128::MAX.checked_shr(prefix.length).unwrap_or(0);
    let last = (u128::from_be_bytes(prefix.address) | mask).to_be_bytes();
    (
        *prefix,
        PrefixKey {
            address: last,
            length: 128,
        },
    )
}
