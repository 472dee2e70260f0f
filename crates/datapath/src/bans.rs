//! The bans and their ends.
//!
//! The kernel does one look-up, which finds the longest prefix that contains an address. So the entry of a prefix has
//! the latest end of *all* bans that contain it: its own, and those of wider prefixes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use common::ban::Ban;
use config::PrefixKey;

/// The bans in effect, by prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BanList {
    /// The end of each, in nanoseconds of the monotonic clock. Ordered by address, so that the prefixes within one are
    /// adjacent.
    ends: BTreeMap<([u8; 16], u32), u64>,
    /// The bans by limits.
    automatic: BTreeSet<([u8; 16], u32)>,
    /// The bans by limits that are not in effect while the agent is on `observe`, with their ends.
    suspended: BTreeMap<([u8; 16], u32), (u64, Option<Why>)>,
    /// The reasons of some bans.
    reasons: BTreeMap<([u8; 16], u32), Why>,
    /// The number of bans of each prefix length: there are few lengths, even with many prefixes.
    lengths: BTreeMap<u32, usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BanEntry {
    /// The banned prefix.
    pub prefix: PrefixKey,
    /// The trie's entry.
    pub ban: Ban,
}

/// The reason of a ban.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Why {
    /// The operator's text, or the limit's.
    pub text: Arc<str>,
    /// The name of the limit that made it.
    pub limit: Option<Arc<str>>,
}

/// The author of a ban.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The operator, whose ban replaces a limit's ban even if it is shorter, but only a shorter one of the operator's
    /// own.
    Operator,
    /// A limit with `escalate`, which never shortens a ban.
    Limit,
}

/// An entry to be written to the trie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The banned prefix.
    pub prefix: PrefixKey,
    /// [`Ban::until`].
    pub until: u64,
    /// [`Ban::own_until`].
    pub own_until: u64,
    /// Whether the trie has no entry for it yet.
    pub is_new: bool,
    /// The author.
    pub by: By,
}

impl By {
    /// The author of a trie's entry.
    #[must_use]
    pub const fn of(ban: &Ban) -> Self {
        if ban.is_by_limit() { Self::Limit } else { Self::Operator }
    }

    /// Its bit in [`Ban::refused`].
    #[must_use]
    pub const fn bit(self) -> u64 {
        match self {
            Self::Operator => 0,
            Self::Limit => Ban::BY_LIMIT,
        }
    }
}

impl BanList {
    /// Reads the entries that an earlier agent left in the trie.
    pub fn resume(entries: impl IntoIterator<Item = BanEntry>) -> Self {
        let mut list = Self::default();
        for BanEntry { prefix, ban } in entries {
            list.insert(&prefix, ban.own_until);
            list.note(&prefix, By::of(&ban));
        }
        list
    }

    /// The bans by limits, each with its end.
    #[must_use]
    pub fn automatic(&self) -> Vec<(PrefixKey, u64)> {
        self.automatic.iter().filter_map(|key| Some((prefix_of(key), *self.ends.get(key)?))).collect()
    }

    /// The number of bans by limits.
    #[must_use]
    pub fn automatic_len(&self) -> usize {
        self.automatic.len()
    }

    /// Stores a ban that is not in effect while the agent is on `observe`.
    pub fn suspend(&mut self, prefix: &PrefixKey, until: u64, why: Option<Why>) {
        self.suspended.insert(order(prefix), (until, why));
    }

    /// The number of bans that are suspended at an instant.
    #[must_use]
    pub fn suspended(&self, now: u64) -> usize {
        self.suspended.values().filter(|(until, _)| Ban::is_in_effect(*until, now)).count()
    }

    /// Removes the suspended bans, and returns those that have not ended.
    pub fn take_suspended(&mut self, now: u64) -> Vec<(PrefixKey, u64, Option<Why>)> {
        let suspended = std::mem::take(&mut self.suspended).into_iter();
        suspended
            .filter(|(_, (until, _))| Ban::is_in_effect(*until, now))
            .map(|(key, (until, why))| (prefix_of(&key), until, why))
            .collect()
    }

    /// The reason of a ban, if it is known.
    #[must_use]
    pub fn reason(&self, prefix: &PrefixKey) -> Option<&Why> {
        self.reasons.get(&order(prefix))
    }

    /// Sets the reason of an existing ban.
    pub fn set_reason(&mut self, prefix: &PrefixKey, reason: Option<Why>) {
        match reason.filter(|_| self.holds(prefix)) {
            Some(reason) => self.reasons.insert(order(prefix), reason),
            None => self.reasons.remove(&order(prefix)),
        };
    }

    /// Every ban that has a reason.
    pub fn reasons(&self) -> impl Iterator<Item = (PrefixKey, &Why)> {
        self.reasons.iter().map(|(key, reason)| (prefix_of(key), reason))
    }

    /// Every prefix, banned or suspended.
    #[must_use]
    pub fn prefixes(&self) -> Vec<PrefixKey> {
        self.ends.keys().chain(self.suspended.keys()).map(prefix_of).collect()
    }

    /// The number of banned prefixes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Every ban as an entry of the trie, without its count of refused packets.
    pub fn iter(&self) -> impl Iterator<Item = BanEntry> + '_ {
        self.ends.iter().map(|(key, until)| BanEntry {
            prefix: prefix_of(key),
            ban: Ban { until: *until, own_until: *until, refused: self.by(key).bit() },
        })
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The end of the existing ban of exactly this prefix, if it stays instead of a new one until `until`: it is
    /// longer, and the new one's author must not shorten it.
    #[must_use]
    pub fn kept(&self, prefix: &PrefixKey, until: u64, by: By, now: u64) -> Option<u64> {
        let key = order(prefix);
        let held = self.ends.get(&key).copied().filter(|held| Ban::is_in_effect(*held, now) && *held > until)?;
        (by == By::Limit || !self.automatic.contains(&key)).then_some(held)
    }

    fn by(&self, key: &([u8; 16], u32)) -> By {
        if self.automatic.contains(key) { By::Limit } else { By::Operator }
    }

    fn note(&mut self, prefix: &PrefixKey, by: By) {
        match by {
            By::Operator => self.automatic.remove(&order(prefix)),
            By::Limit => self.automatic.insert(order(prefix)),
        };
    }

    /// Bans a prefix until an instant, in place of its previous ban, with no reason yet. Returns the entries to write: its
    /// own, and those of the banned prefixes within it.
    pub fn ban(&mut self, prefix: PrefixKey, until: u64, by: By) -> Vec<Change> {
        let is_new = self.insert(&prefix, until);
        self.note(&prefix, by);
        self.suspended.remove(&order(&prefix));
        self.reasons.remove(&order(&prefix));
        let mut changes = self.within(&prefix);
        for change in changes.iter_mut().filter(|change| change.prefix == prefix) {
            change.is_new = is_new;
        }
        changes
    }

    /// Lifts the ban of exactly this prefix. Returns the entries to write, of the banned prefixes within it; `None` if it was
    /// not banned.
    pub fn unban(&mut self, prefix: &PrefixKey) -> Option<Vec<Change>> {
        let was_suspended = self.suspended.remove(&order(prefix)).is_some();
        if self.ends.remove(&order(prefix)).is_none() {
            return was_suspended.then(Vec::new);
        }
        self.automatic.remove(&order(prefix));
        self.reasons.remove(&order(prefix));
        if let Some(count) = self.lengths.get_mut(&prefix.length) {
            *count -= 1;
        }
        self.lengths.retain(|_, count| *count > 0);
        Some(self.within(prefix))
    }

    /// The prefixes whose own ban has ended.
    #[must_use]
    pub fn ended(&self, now: u64) -> Vec<PrefixKey> {
        self.ends.iter().filter(|(_, until)| !Ban::is_in_effect(**until, now)).map(|(key, _)| prefix_of(key)).collect()
    }

    /// The end of the ban of exactly this prefix.
    #[must_use]
    pub fn own_end(&self, prefix: &PrefixKey) -> Option<u64> {
        self.ends.get(&order(prefix)).copied()
    }

    /// The author of the ban of exactly this prefix.
    #[must_use]
    pub fn maker(&self, prefix: &PrefixKey) -> By {
        self.by(&order(prefix))
    }

    /// Whether exactly this prefix is banned.
    #[must_use]
    pub fn holds(&self, prefix: &PrefixKey) -> bool {
        self.ends.contains_key(&order(prefix))
    }

    /// The longest prefix with a ban in effect that contains an address or prefix, and the ban's end.
    #[must_use]
    pub fn around(&self, prefix: &PrefixKey, now: u64) -> Option<(PrefixKey, u64)> {
        self.containing(prefix).filter(|(_, until)| Ban::is_in_effect(*until, now)).last()
    }

    /// The trie's entries of the banned prefixes within one, itself included.
    fn within(&self, prefix: &PrefixKey) -> Vec<Change> {
        let mask = u128::MAX.checked_shr(prefix.length).unwrap_or(0);
        let last = (u128::from_be_bytes(prefix.address) | mask).to_be_bytes();
        self.ends
            .range((prefix.address, prefix.length)..=(last, 128))
            .filter(|((_, length), _)| *length >= prefix.length)
            .map(|(key, own_until)| {
                let inner = prefix_of(key);
                let until = self.latest_end(&inner);
                Change { prefix: inner, until, own_until: *own_until, is_new: false, by: self.by(key) }
            })
            .collect()
    }

    /// The latest end of all bans that contain a prefix.
    fn latest_end(&self, prefix: &PrefixKey) -> u64 {
        self.containing(prefix).map(|(_, until)| until).max().unwrap_or(0)
    }

    /// The bans that contain a prefix, its own included, the widest first.
    fn containing(&self, prefix: &PrefixKey) -> impl Iterator<Item = (PrefixKey, u64)> {
        self.lengths.range(..=prefix.length).filter_map(|(length, _)| {
            let outer = prefix.cut(*length);
            Some((outer, *self.ends.get(&order(&outer))?))
        })
    }

    /// Returns whether the prefix was not banned before.
    fn insert(&mut self, prefix: &PrefixKey, until: u64) -> bool {
        let is_new = self.ends.insert(order(prefix), until).is_none();
        if is_new {
            *self.lengths.entry(prefix.length).or_default() += 1;
        }
        is_new
    }
}

fn order(prefix: &PrefixKey) -> ([u8; 16], u32) {
    (prefix.address, prefix.length)
}

fn prefix_of(key: &([u8; 16], u32)) -> PrefixKey {
    PrefixKey { address: key.0, length: key.1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Prefixes of a small space, so that they often contain each other.
    fn prefix() -> impl Strategy<Value = PrefixKey> {
        (0u8..=255, 0u32..=8).prop_map(|(byte, length)| {
            let mut address = [0; 16];
            address[0] = byte;
            PrefixKey { address, length }.cut(length)
        })
    }

    #[test]
    fn only_the_operator_shortens_a_ban_and_not_one_of_his_own() {
        let prefix = PrefixKey { address: [1; 16], length: 128 };
        for (held_by, by, is_kept) in [
            (By::Operator, By::Operator, true),
            (By::Operator, By::Limit, true),
            (By::Limit, By::Operator, false),
            (By::Limit, By::Limit, true),
        ] {
            let mut list = BanList::default();
            list.ban(prefix, 100, held_by);
            assert_eq!(list.kept(&prefix, 99, by, 50).is_some(), is_kept, "{by:?} after {held_by:?}");
            // Equally long, longer, or after the other has ended.
            assert_eq!(list.kept(&prefix, 100, by, 50), None);
            assert_eq!(list.kept(&prefix, Ban::FOREVER, by, 50), None);
            assert_eq!(list.kept(&prefix, 99, by, 200), None);
            list.ban(prefix, Ban::FOREVER, held_by);
            assert_eq!(list.kept(&prefix, u64::MAX - 1, by, 50).is_some(), is_kept);
        }
    }

    #[test]
    fn a_suspended_ban_is_taken_up_again_unless_it_ended_or_was_lifted() {
        let prefix = |byte| PrefixKey { address: [byte; 16], length: 128 };
        let mut list = BanList::default();
        for byte in 1..=4 {
            list.ban(prefix(byte), 100 * u64::from(byte), By::Limit);
        }
        list.ban(prefix(5), 900, By::Operator);
        for (prefix, until) in list.automatic() {
            list.unban(&prefix);
            list.suspend(&prefix, until, None);
        }
        assert_eq!((list.len(), list.suspended(0), list.suspended(150)), (1, 4, 3));
        assert_eq!(list.unban(&prefix(3)), Some(Vec::new()));
        list.ban(prefix(4), 50, By::Operator);
        assert_eq!(list.take_suspended(150), [(prefix(2), 200, None)]);
        assert_eq!((list.len(), list.suspended(0)), (2, 0));
    }

    #[test]
    fn an_entry_says_who_made_it() {
        let prefix = PrefixKey { address: [1; 16], length: 128 };
        for by in [By::Operator, By::Limit] {
            let mut list = BanList::default();
            assert_eq!(list.ban(prefix, 100, by)[0].by, by);
            let resumed = BanList::resume(list.iter());
            assert_eq!((resumed.maker(&prefix), resumed.own_end(&prefix)), (by, Some(100)));
        }
    }

    proptest! {
        /// The trie's longest entry for an address gives the verdict of all bans together.
        #[test]
        fn the_longest_entry_says_what_all_bans_say(
            steps in prop::collection::vec((prefix(), prop::option::weighted(0.8, 1u64..1_000)), 1..60),
            now in 0u64..1_000,
        ) {
            let mut list = BanList::default();
            let mut trie: BTreeMap<(u32, [u8; 16]), u64> = BTreeMap::new();
            let mut model: BTreeMap<([u8; 16], u32), u64> = BTreeMap::new();
            for (prefix, until) in steps {
                let changes = match until {
                    Some(until) => {
                        let is_known = model.insert(order(&prefix), until).is_some();
                        let changes = list.ban(prefix, until, By::Operator);
                        prop_assert!(changes.iter().any(|change| change.prefix == prefix && change.is_new != is_known));
                        changes
                    }
                    None => {
                        let was_banned = model.remove(&order(&prefix)).is_some();
                        trie.remove(&(prefix.length, prefix.address));
                        let changes = list.unban(&prefix);
                        prop_assert_eq!(changes.is_some(), was_banned);
                        changes.unwrap_or_default()
                    }
                };
                for change in changes {
                    trie.insert((change.prefix.length, change.prefix.address), change.until);
                }
            }
            for byte in 0..=255u8 {
                let mut address = [0; 16];
                address[0] = byte;
                let whole = PrefixKey { address, length: 128 };
                let holds = |length: u32, of: [u8; 16]| whole.cut(length).address == of;
                let longest = trie.iter().rev().find(|((length, of), _)| holds(*length, *of));
                let by_trie = longest.is_some_and(|(_, until)| Ban::is_in_effect(*until, now));
                let by_all = model.iter().any(|((of, length), until)| holds(*length, *of) && Ban::is_in_effect(*until, now));
                prop_assert_eq!(by_trie, by_all);
                prop_assert_eq!(list.around(&whole, now).is_some(), by_all);
            }
        }
    }
}
