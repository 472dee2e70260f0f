//! The bans, their owners, and their ends.
//!
//! A ban belongs to its owner: a user or a program, a limit, CrowdSec, or another host. A prefix has one ban of each
//! owner, and is refused until the last of them ends. The kernel does one look-up, which finds the longest prefix that
//! contains an address. So the entry of a prefix has the latest end of *all* bans that contain it: its own, and those of
//! wider prefixes. An exception is an entry to which bans from elsewhere (by CrowdSec and by other hosts) do not apply,
//! neither its own nor those of wider prefixes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use common::ban::Ban;
use config::PrefixKey;

/// The most bans of one prefix that users and programs have; beyond it, [`BanList::to_merge`] makes room.
pub const MOST_OF_PREFIX: usize = 64;
/// The most bans by owners on this host.
pub const MOST_OWN: usize = 1 << 20;

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

/// An entry of the trie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BanEntry {
    /// The banned prefix.
    pub prefix: PrefixKey,
    /// The trie's entry.
    pub ban: Ban,
}

/// A prefix and an owner, who has one ban of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BanKey {
    pub prefix: PrefixKey,
    pub owner: Owner,
    /// The last 64 bits of the IPv6 address that was named instead of its /64; 0 for the prefix itself.
    pub interface_id: u64,
}

/// The owner of a ban.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    pub by: By,
    /// The user or program, or the limit. `None` for CrowdSec and other hosts, and where it is not known.
    pub name: Option<Arc<str>>,
}

/// One owner's ban of a prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Its end, in nanoseconds of the monotonic clock.
    pub until: u64,
    /// Its start, in seconds since 1970; 0 if it is not known.
    pub since: u64,
    /// Its start, in nanoseconds since boot (`CLOCK_BOOTTIME`), which no change of the wall clock affects; negative if it is
    /// from before the boot, `None` if it is not known.
    pub began: Option<i64>,
    /// Its reason, if it is known.
    pub why: Option<Why>,
}

/// The reason of a ban.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Why {
    /// The operator's text, the limit's, or the scenario of a decision by CrowdSec.
    pub text: Arc<str>,
    /// The ID of CrowdSec's decision.
    pub decision: Option<u64>,
    /// The host that made it, if that is another one, and the owner there.
    pub host: Option<(Arc<str>, Owner)>,
}

/// The author of a ban.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum By {
    /// A user or a program, by `agent ban`.
    Operator,
    /// A limit with `escalate`.
    Limit,
    /// A decision of CrowdSec's local API.
    CrowdSec,
    /// Another host of the cluster.
    Host,
}

impl By {
    /// Every author.
    pub const ALL: [Self; 4] = [Self::Operator, Self::Limit, Self::CrowdSec, Self::Host];
    /// The authors on this host: see [`Ban::own_until`].
    pub const OWN: [Self; 2] = [Self::Operator, Self::Limit];
    /// The authors elsewhere, whose bans do not apply to exceptions.
    pub const ELSEWHERE: [Self; 2] = [Self::CrowdSec, Self::Host];

    /// Whether it is on this host.
    #[must_use]
    pub fn is_own(self) -> bool {
        Self::OWN.contains(&self)
    }

    /// Whether its bans do not apply to exceptions.
    #[must_use]
    pub fn is_elsewhere(self) -> bool {
        Self::ELSEWHERE.contains(&self)
    }

    /// The author of [`Ban::own_until`].
    #[must_use]
    pub const fn of(ban: &Ban) -> Self {
        if ban.is_by_limit() {
            Self::Limit
        } else {
            Self::Operator
        }
    }
}

impl Owner {
    /// An author without a name.
    #[must_use]
    pub const fn unnamed(by: By) -> Self {
        Self { by, name: None }
    }

    #[must_use]
    pub fn named(by: By, name: &str) -> Self {
        Self {
            by,
            name: Some(name.into()),
        }
    }
}

impl BanKey {
    /// An owner's ban of a whole prefix.
    #[must_use]
    pub const fn new(prefix: PrefixKey, owner: Owner) -> Self {
        Self {
            prefix,
            owner,
            interface_id: 0,
        }
    }

    /// The ban of a prefix by an author who has one without a name.
    #[must_use]
    pub const fn of(prefix: PrefixKey, by: By) -> Self {
        Self::new(prefix, Owner::unnamed(by))
    }

    /// The first key that a ban of this prefix may have.
    const fn first(prefix: PrefixKey) -> Self {
        Self::of(prefix, By::Operator)
    }
}

/// The prefixes whose entries in the trie are out of date, each with whether the trie had no entry before.
#[derive(Clone, Debug, Default)]
pub struct Touched(BTreeMap<PrefixKey, bool>);

/// A change of the trie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The prefix.
    pub prefix: PrefixKey,
    /// Its entry; `None` if it has none any more.
    pub entry: Option<Entry>,
    /// Whether the trie has no entry for it yet.
    pub is_new: bool,
}

/// An entry to be written to the trie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// [`Ban::until`].
    pub until: u64,
    /// [`Ban::own_until`].
    pub own_until: u64,
    /// The bits of [`Ban::refused`] that say who made it.
    pub authors: u64,
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

/// Bans of one prefix by one owner, and the ban of the whole prefix that takes their place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merge {
    pub keys: Vec<BanKey>,
    pub whole: BanKey,
    /// The one of them that ends last.
    pub held: Held,
}

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

    /// Whether there is no room for this ban by an owner on this host.
    #[must_use]
    pub fn is_full(&self, key: &BanKey) -> bool {
        let own: usize = By::OWN.iter().map(|by| self.count_of(*by)).sum();
        self.get(key).is_none() && own >= MOST_OWN || self.is_crowded(key)
    }

    /// Whether users and programs have so many bans of this prefix that there is no room for this one.
    fn is_crowded(&self, key: &BanKey) -> bool {
        let is_by_operator = |of: &BanKey| of.owner.by == By::Operator;
        let keys = self.of_prefix(&key.prefix).map(|(of, _)| of);
        self.get(key).is_none()
            && is_by_operator(key)
            && keys.filter(|of| is_by_operator(of)).count() >= MOST_OF_PREFIX
    }

    /// The bans that make room for this one in a crowded prefix, when one ban of the whole prefix takes their place: those
    /// by the user or program who has most of them, as long as it has several. Such are bans of single addresses of a /64,
    /// which is refused until the last of them ends.
    #[must_use]
    pub fn to_merge(&self, key: &BanKey) -> Option<Merge> {
        if !self.is_crowded(key) {
            return None;
        }
        let mut by_owner: BTreeMap<&Owner, Vec<BanKey>> = BTreeMap::new();
        for (of, _) in self.of_prefix(&key.prefix) {
            if of.owner.by == By::Operator {
                by_owner.entry(&of.owner).or_default().push(of.clone());
            }
        }
        let (owner, keys) = by_owner
            .into_iter()
            .max_by_key(|(_, keys)| keys.len())
            .filter(|(_, keys)| keys.len() > 1)?;
        let held = keys.iter().filter_map(|of| self.get(of));
        let held = held.max_by_key(|held| held.until)?.clone();
        let whole = BanKey::new(key.prefix, owner.clone());
        Some(Merge { keys, whole, held })
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
    fn entry(&self, prefix: &PrefixKey) -> Option<Entry> {
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
    fn touch(&self, prefix: &PrefixKey, touched: &mut Touched) {
        touched
            .0
            .entry(*prefix)
            .or_insert_with(|| !self.has_entry(prefix));
        let banned = self.within(prefix).map(|(key, _)| key.prefix);
        for inner in banned.chain(self.exceptions_within(prefix)) {
            touched.0.entry(inner).or_insert(false);
        }
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

/// A ban until an instant, of which nothing else is known.
fn until(until: u64) -> Held {
    Held {
        until,
        ..Held::default()
    }
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

#[cfg(test)]
mod tests;
