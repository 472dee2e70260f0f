//! The most bans, and how those of a crowded prefix make room for another.

use std::collections::BTreeMap;

use super::BanList;
use crate::bans::ban::{BanKey, By, Held, Owner};

/// The most bans of one prefix that users and programs have; beyond it, [`BanList::to_merge`] makes room.
pub const MOST_OF_PREFIX: usize = 64;
/// The most bans by owners on this host.
pub const MOST_OWN: usize = 1 << 20;

/// Bans of one prefix by one owner, and the ban of the whole prefix that takes their place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merge {
    pub keys: Vec<BanKey>,
    pub whole: BanKey,
    /// The one of them that ends last.
    pub held: Held,
}

impl BanList {
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
}
