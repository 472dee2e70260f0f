//! The bans, who made them, and their ends.
//!
//! A prefix may be banned by several authors at a time, and is refused until the last of these bans ends. The kernel
//! does one look-up, which finds the longest prefix that contains an address. So the entry of a prefix has the latest
//! end of *all* bans that contain it: its own, and those of wider prefixes. An exception is an entry to which bans from
//! elsewhere (by CrowdSec and by other hosts) do not apply, neither its own nor those of wider prefixes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use common::ban::Ban;
use config::PrefixKey;

/// The bans in effect, by prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BanList {
    /// Ordered by address, so that the prefixes within one are adjacent, and the bans of one prefix too.
    held: BTreeMap<(PrefixKey, By), Held>,
    /// The prefixes to which bans from elsewhere do not apply.
    exceptions: BTreeSet<PrefixKey>,
    /// The bans by limits that are not in effect while the agent is on `observe`.
    suspended: BTreeMap<PrefixKey, Held>,
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

/// One author's ban of a prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Its end, in nanoseconds of the monotonic clock.
    pub until: u64,
    /// Its start, in seconds since 1970; 0 if it is not known.
    pub since: u64,
    /// Its reason, if it is known.
    pub why: Option<Why>,
}

/// The reason of a ban.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Why {
    /// The operator's text, the limit's, or the scenario of a decision by CrowdSec.
    pub text: Arc<str>,
    /// The name of the limit that made it.
    pub limit: Option<Arc<str>>,
    /// The ID of CrowdSec's decision.
    pub decision: Option<u64>,
    /// The host that made it, if that is another one.
    pub host: Option<Arc<str>>,
}

/// The author of a ban.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum By {
    /// The operator, whose ban replaces a limit's ban even if it is shorter, but only a shorter one of the operator's
    /// own.
    Operator,
    /// A limit with `escalate`, which never shortens a ban.
    Limit,
    /// A decision of CrowdSec's local API. It stands beside the bans of other authors.
    CrowdSec,
    /// Another host of the cluster. It stands beside the bans of other authors.
    Host,
}

impl By {
    /// Every author.
    pub const ALL: [Self; 4] = [Self::Operator, Self::Limit, Self::CrowdSec, Self::Host];
    /// The authors on this host, of which a prefix has one at a time: see [`Ban::own_until`].
    pub const OWN: [Self; 2] = [Self::Operator, Self::Limit];
    /// The authors elsewhere, whose bans do not apply to exceptions.
    pub const ELSEWHERE: [Self; 2] = [Self::CrowdSec, Self::Host];

    /// Its bit in [`Ban::refused`].
    const fn bit(self) -> u64 {
        match self {
            Self::Operator => 0,
            Self::Limit => Ban::BY_LIMIT,
            Self::CrowdSec => Ban::BY_CROWDSEC,
            Self::Host => Ban::BY_HOST,
        }
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

/// Everything about exactly one prefix, to restore it when the trie cannot be written.
#[derive(Clone, Debug)]
pub struct Record {
    prefix: PrefixKey,
    held: Vec<(By, Held)>,
    is_exception: bool,
}

impl BanList {
    /// Reads the entries that an earlier agent left in the trie. The end of a ban from elsewhere may be that of another
    /// ban: the trie has only the latest.
    pub fn resume(entries: impl IntoIterator<Item = BanEntry>) -> Self {
        let mut list = Self::default();
        for BanEntry { prefix, ban } in entries {
            if ban.own_until != 0
                || !(ban.is_by_crowdsec() || ban.is_by_host() || ban.is_exception())
            {
                list.insert(
                    prefix,
                    By::of(&ban),
                    Held {
                        until: ban.own_until,
                        ..Held::default()
                    },
                );
            }
            if ban.is_by_crowdsec() {
                list.insert(
                    prefix,
                    By::CrowdSec,
                    Held {
                        until: ban.until,
                        ..Held::default()
                    },
                );
            }
            if ban.is_by_host() {
                list.insert(
                    prefix,
                    By::Host,
                    Held {
                        until: ban.until,
                        ..Held::default()
                    },
                );
            }
            if ban.is_exception() {
                list.add_exception(prefix);
            }
        }
        list
    }

    /// The bans of an author.
    pub fn of(&self, author: By) -> impl Iterator<Item = (PrefixKey, &Held)> {
        self.held
            .iter()
            .filter(move |((_, by), _)| *by == author)
            .map(|((prefix, _), held)| (*prefix, held))
    }

    /// The number of bans of an author.
    #[must_use]
    pub fn count_of(&self, author: By) -> usize {
        self.counts[author as usize]
    }

    /// Stores a ban that is not in effect while the agent is on `observe`.
    pub fn suspend(&mut self, prefix: PrefixKey, held: Held) {
        self.suspended.insert(prefix, held);
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
    pub fn take_suspended(&mut self, now: u64) -> Vec<(PrefixKey, Held)> {
        let suspended = std::mem::take(&mut self.suspended).into_iter();
        suspended
            .filter(|(_, held)| Ban::is_in_effect(held.until, now))
            .collect()
    }

    /// The operator's or a limit's ban of exactly this prefix.
    #[must_use]
    pub fn own(&self, prefix: &PrefixKey) -> Option<(By, &Held)> {
        By::OWN
            .iter()
            .find_map(|by| Some((*by, self.held.get(&(*prefix, *by))?)))
    }

    /// One author's ban of exactly this prefix.
    #[must_use]
    pub fn by(&self, prefix: &PrefixKey, by: By) -> Option<&Held> {
        self.held.get(&(*prefix, by))
    }

    /// Sets the reason and the start of an existing ban by the operator or a limit.
    pub fn set_reason(&mut self, prefix: &PrefixKey, why: Option<Why>, since: u64) {
        for by in By::OWN {
            if let Some(held) = self.held.get_mut(&(*prefix, by)) {
                (held.why, held.since) = (why.clone(), since);
            }
        }
    }

    /// Every prefix that the operator or a limit banned, suspended ones included.
    #[must_use]
    pub fn own_prefixes(&self) -> Vec<PrefixKey> {
        let own = self
            .held
            .keys()
            .filter(|(_, by)| By::OWN.contains(by))
            .map(|(prefix, _)| prefix);
        own.chain(self.suspended.keys()).copied().collect()
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

    /// Every ban by the operator or a limit as an entry of the trie, without its count of refused packets.
    pub fn own_entries(&self) -> impl Iterator<Item = BanEntry> + '_ {
        self.held
            .iter()
            .filter(|((_, by), _)| By::OWN.contains(by))
            .map(|((prefix, by), held)| BanEntry {
                prefix: *prefix,
                ban: Ban {
                    until: held.until,
                    own_until: held.until,
                    refused: by.bit(),
                },
            })
    }

    /// Every banned prefix, in the order of addresses.
    pub fn prefixes(&self) -> impl Iterator<Item = PrefixKey> + '_ {
        let mut last = None;
        self.held.keys().filter_map(move |(prefix, _)| {
            (last.replace(*prefix) != Some(*prefix)).then_some(*prefix)
        })
    }

    /// The bans of exactly this prefix that are in effect, the one that ends last first.
    #[must_use]
    pub fn holders(&self, prefix: &PrefixKey, now: u64) -> Vec<(By, &Held)> {
        let of_prefix = (*prefix, By::ALL[0])..=(*prefix, By::ALL[By::ALL.len() - 1]);
        let held = self
            .held
            .range(of_prefix)
            .map(|((_, by), held)| (*by, held));
        let applies = |by: By| !by.is_elsewhere() || !self.is_excepted(prefix);
        let mut holders: Vec<_> = held
            .filter(|(by, held)| Ban::is_in_effect(held.until, now) && applies(*by))
            .collect();
        holders.sort_by_key(|(by, held)| (std::cmp::Reverse(held.until), *by));
        holders
    }

    /// The existing ban of exactly this prefix, if it stays instead of a new one until `until`: it is longer, and the
    /// new one's author must not shorten it.
    #[must_use]
    pub fn kept(&self, prefix: &PrefixKey, until: u64, by: By, now: u64) -> Option<u64> {
        let (own, held) = self.own(prefix)?;
        let is_longer = Ban::is_in_effect(held.until, now) && held.until > until;
        (is_longer && (by == By::Limit || own == By::Operator)).then_some(held.until)
    }

    /// Bans a prefix, in place of its author's previous ban. Of the operator's and a limit's ban, the new one replaces
    /// the other.
    pub fn ban(&mut self, prefix: PrefixKey, by: By, held: Held, touched: &mut Touched) {
        self.touch(&prefix, touched);
        if By::OWN.contains(&by) {
            self.suspended.remove(&prefix);
            By::OWN
                .iter()
                .filter(|other| **other != by)
                .for_each(|other| self.take(&prefix, *other));
        }
        self.insert(prefix, by, held);
    }

    /// Lifts an author's ban of exactly this prefix; `false` if there is none.
    pub fn lift(&mut self, prefix: &PrefixKey, by: By, touched: &mut Touched) -> bool {
        if !self.held.contains_key(&(*prefix, by)) {
            return false;
        }
        self.touch(prefix, touched);
        self.take(prefix, by);
        true
    }

    /// Lifts the operator's or the limit's ban of exactly this prefix; `false` if there is none, suspended or not.
    pub fn lift_own(&mut self, prefix: &PrefixKey, touched: &mut Touched) -> bool {
        let was_suspended = self.suspended.remove(prefix).is_some();
        let was_banned = By::OWN
            .iter()
            .filter(|by| self.lift(prefix, **by, touched))
            .count()
            > 0;
        was_suspended || was_banned
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
        let (first, last) = span(prefix);
        let is_banned = |held: &Held| Ban::is_in_effect(held.until, now);
        let within = self
            .held
            .range((first, By::ALL[0])..=(last, By::ALL[By::ALL.len() - 1]));
        self.containing(prefix)
            .any(|around| around.by == author && Ban::is_in_effect(around.until, now))
            || within
                .filter(|((inner, by), _)| *by == author && inner.length >= prefix.length)
                .any(|(_, held)| is_banned(held))
    }

    /// The bans that have ended.
    #[must_use]
    pub fn ended(&self, now: u64) -> Vec<(PrefixKey, By)> {
        self.held
            .iter()
            .filter(|(_, held)| !Ban::is_in_effect(held.until, now))
            .map(|(key, _)| *key)
            .collect()
    }

    /// Whether exactly this prefix is banned.
    #[must_use]
    pub fn holds(&self, prefix: &PrefixKey) -> bool {
        By::ALL
            .iter()
            .any(|by| self.held.contains_key(&(*prefix, *by)))
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
        let held = By::ALL
            .iter()
            .filter_map(|by| Some((*by, self.by(prefix, *by)?.clone())));
        Record {
            prefix: *prefix,
            held: held.collect(),
            is_exception: self.exceptions.contains(prefix),
        }
    }

    /// Restores a prefix as it was.
    pub fn restore(&mut self, record: Record) {
        By::ALL.iter().for_each(|by| self.take(&record.prefix, *by));
        self.take_exception(&record.prefix);
        for (by, held) in record.held {
            self.insert(record.prefix, by, held);
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
        let own_until = self.own(prefix).map_or(0, |(_, held)| held.until);
        let bits = By::ALL
            .iter()
            .filter(|by| self.by(prefix, **by).is_some())
            .fold(0, |bits, by| bits | by.bit());
        let exception = if self.exceptions.contains(prefix) {
            Ban::EXCEPTION
        } else {
            0
        };
        Some(Entry {
            until,
            own_until,
            authors: bits | exception,
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
        let (first, last) = span(prefix);
        let held = self
            .held
            .range((first, By::ALL[0])..=(last, By::ALL[By::ALL.len() - 1]))
            .map(|((inner, _), _)| inner);
        for inner in held
            .chain(self.exceptions.range(first..=last))
            .filter(|inner| inner.length >= prefix.length)
        {
            touched.0.entry(*inner).or_insert(false);
        }
    }

    /// The bans that contain a prefix, its own included, the widest first.
    fn containing(&self, prefix: &PrefixKey) -> impl Iterator<Item = Around> {
        self.lengths
            .range(..=prefix.length)
            .flat_map(move |(length, _)| {
                let outer = prefix.cut(*length);
                let around = move |by: &By| {
                    Some(Around {
                        prefix: outer,
                        by: *by,
                        until: self.by(&outer, *by)?.until,
                    })
                };
                By::ALL.iter().filter_map(around)
            })
    }

    fn insert(&mut self, prefix: PrefixKey, by: By, held: Held) {
        let was_banned = self.holds(&prefix);
        if self.held.insert((prefix, by), held).is_none() {
            *self.lengths.entry(prefix.length).or_default() += 1;
            self.counts[by as usize] += 1;
            self.prefixes += usize::from(!was_banned);
        }
    }

    fn take(&mut self, prefix: &PrefixKey, by: By) {
        if self.held.remove(&(*prefix, by)).is_some() {
            self.forget_length(prefix.length);
            self.counts[by as usize] -= 1;
            self.prefixes -= usize::from(!self.holds(prefix));
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
