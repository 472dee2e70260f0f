//! What is banned, and until when: worked out here, so that the kernel has one look-up to do.
//!
//! The kernel's trie finds the longest prefix that holds an address, and nothing of the others. An entry therefore
//! says until when *any* ban holds its prefix: its own, or that of a network around it.

use std::collections::{BTreeMap, BTreeSet};

use common::ban::Ban;

use crate::compile::PrefixKey;
use crate::datapath::BanEntry;

/// The bans in force, by prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BanList {
    /// When each ends, in nanoseconds of the monotonic clock. Ordered by address, so that what lies within a prefix lies
    /// side by side.
    ends: BTreeMap<([u8; 16], u32), u64>,
    /// Those that nobody ordered, but a limit. Of what an earlier agent left, it is not known: it is taken for ordered.
    automatic: BTreeSet<([u8; 16], u32)>,
    /// How many have each length: few lengths occur, however many the prefixes.
    lengths: BTreeMap<u32, usize>,
}

/// Who bans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The operator, whose order replaces what a limit did, and not the operator's own longer ban.
    Operator,
    /// A limit that escalates: it makes a ban longer, never shorter.
    Limit,
}

/// An entry of the trie that has to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which.
    pub prefix: PrefixKey,
    /// [`Ban::until`].
    pub until: u64,
    /// [`Ban::own_until`].
    pub own_until: u64,
    /// Whether the trie has no entry for it yet.
    pub is_new: bool,
}

impl BanList {
    /// Takes up what an earlier agent left: (prefix, its own end).
    pub fn resume(entries: impl IntoIterator<Item = (PrefixKey, u64)>) -> Self {
        let mut list = Self::default();
        for (prefix, until) in entries {
            list.insert(&prefix, until);
        }
        list
    }

    /// How many prefixes are banned.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Every ban, as the trie would have it had it refused nothing.
    pub fn iter(&self) -> impl Iterator<Item = BanEntry> + '_ {
        self.ends.iter().map(|(key, until)| BanEntry {
            prefix: prefix_of(key),
            ban: Ban { until: *until, own_until: *until, refused: 0 },
        })
    }

    /// Whether nothing is banned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Until when the ban of exactly this prefix holds that stays in place of another until `until`: a longer one, which
    /// this one may not shorten.
    #[must_use]
    pub fn kept(&self, prefix: &PrefixKey, until: u64, by: By, now: u64) -> Option<u64> {
        let key = order(prefix);
        let held = self.ends.get(&key).copied().filter(|held| Ban::is_in_force(*held, now) && *held > until)?;
        (by == By::Limit || !self.automatic.contains(&key)).then_some(held)
    }

    /// Notes whose ban it is that holds a prefix.
    pub fn note(&mut self, prefix: &PrefixKey, by: By) {
        match by {
            By::Operator => self.automatic.remove(&order(prefix)),
            By::Limit => self.automatic.insert(order(prefix)),
        };
    }

    /// Bans a prefix until an instant, instead of what was said of it before. Returns what is to be written: itself, and
    /// what lies within it.
    pub fn ban(&mut self, prefix: PrefixKey, until: u64) -> Vec<Change> {
        let is_new = self.insert(&prefix, until);
        let mut changes = self.within(&prefix);
        for change in changes.iter_mut().filter(|change| change.prefix == prefix) {
            change.is_new = is_new;
        }
        changes
    }

    /// Lifts the ban of exactly this prefix. Returns what is to be written, of what lies within it; `None` if it was not
    /// banned.
    pub fn unban(&mut self, prefix: &PrefixKey) -> Option<Vec<Change>> {
        self.ends.remove(&order(prefix))?;
        self.automatic.remove(&order(prefix));
        if let Some(count) = self.lengths.get_mut(&prefix.length) {
            *count -= 1;
        }
        self.lengths.retain(|_, count| *count > 0);
        Some(self.within(prefix))
    }

    /// The prefixes whose own ban has ended.
    #[must_use]
    pub fn ended(&self, now: u64) -> Vec<PrefixKey> {
        self.ends.iter().filter(|(_, until)| !Ban::is_in_force(**until, now)).map(|(key, _)| prefix_of(key)).collect()
    }

    /// When the ban of exactly this prefix ends.
    #[must_use]
    pub fn own_end(&self, prefix: &PrefixKey) -> Option<u64> {
        self.ends.get(&order(prefix)).copied()
    }

    /// How many bans a limit made.
    #[must_use]
    pub fn automatic(&self) -> usize {
        self.automatic.len()
    }

    /// Whether exactly this prefix is banned.
    #[must_use]
    pub fn holds(&self, prefix: &PrefixKey) -> bool {
        self.ends.contains_key(&order(prefix))
    }

    /// The longest prefix around an address or prefix whose ban is in force, and when that ends.
    #[must_use]
    pub fn around(&self, prefix: &PrefixKey, now: u64) -> Option<(PrefixKey, u64)> {
        self.holding(prefix).filter(|(_, until)| Ban::is_in_force(*until, now)).last()
    }

    /// What the trie has to say of the banned prefixes that lie within one, itself included.
    fn within(&self, prefix: &PrefixKey) -> Vec<Change> {
        let mask = u128::MAX.checked_shr(prefix.length).unwrap_or(0);
        let last = (u128::from_be_bytes(prefix.address) | mask).to_be_bytes();
        self.ends
            .range((prefix.address, prefix.length)..=(last, 128))
            .filter(|((_, length), _)| *length >= prefix.length)
            .map(|(key, own_until)| {
                let inner = prefix_of(key);
                Change { prefix: inner, until: self.latest_end(&inner), own_until: *own_until, is_new: false }
            })
            .collect()
    }

    /// The latest end of all bans that hold a prefix.
    fn latest_end(&self, prefix: &PrefixKey) -> u64 {
        self.holding(prefix).map(|(_, until)| until).max().unwrap_or(0)
    }

    /// The bans that hold a prefix, the widest first.
    fn holding(&self, prefix: &PrefixKey) -> impl Iterator<Item = (PrefixKey, u64)> {
        self.lengths.range(..=prefix.length).filter_map(|(length, _)| {
            let outer = prefix.cut(*length);
            Some((outer, *self.ends.get(&order(&outer))?))
        })
    }

    /// Returns whether it was not there before.
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

    /// Prefixes of a small space, so that they often hold each other.
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
            list.ban(prefix, 100);
            list.note(&prefix, held_by);
            assert_eq!(list.kept(&prefix, 99, by, 50).is_some(), is_kept, "{by:?} after {held_by:?}");
            // As long, longer, or after the other has ended.
            assert_eq!(list.kept(&prefix, 100, by, 50), None);
            assert_eq!(list.kept(&prefix, Ban::FOREVER, by, 50), None);
            assert_eq!(list.kept(&prefix, 99, by, 200), None);
            list.ban(prefix, Ban::FOREVER);
            assert_eq!(list.kept(&prefix, u64::MAX - 1, by, 50).is_some(), is_kept);
        }
    }

    proptest! {
        /// What the trie answers for an address, its longest entry alone, is what a look at every ban says.
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
                        let changes = list.ban(prefix, until);
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
                let by_trie = longest.is_some_and(|(_, until)| Ban::is_in_force(*until, now));
                let by_all = model.iter().any(|((of, length), until)| holds(*length, *of) && Ban::is_in_force(*until, now));
                prop_assert_eq!(by_trie, by_all);
                prop_assert_eq!(list.around(&whole, now).is_some(), by_all);
            }
        }
    }
}
