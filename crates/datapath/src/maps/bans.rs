//! The trie of bans.

use aya::maps::lpm_trie::Key;
use aya::maps::{LpmTrie, Map, MapData, MapError};
use common::ban::Ban;
use config::PrefixKey;

use super::access::unless_missing;
use crate::bans::{BanEntry, Change};
use crate::error::LoadError;

/// The trie, open for writing. Only the agent writes it.
pub struct Bans<'e>(LpmTrie<&'e mut MapData, [u8; 16], Ban>);

impl<'e> Bans<'e> {
    pub(crate) fn of(map: &'e mut Map) -> Result<Self, LoadError> {
        Ok(Self(LpmTrie::try_from(map)?))
    }

    /// All bans, in no order.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn all(&self) -> Result<Vec<BanEntry>, LoadError> {
        self.0
            .iter()
            .map(|entry| {
                let (key, ban) = entry?;
                Ok(BanEntry { prefix: PrefixKey { address: key.data(), length: key.prefix_len() }, ban })
            })
            .collect()
    }

    /// Writes an entry, and keeps its count of refused packets.
    ///
    /// # Errors
    ///
    /// When the map is full or cannot be written.
    pub fn write(&mut self, change: &Change) -> Result<(), LoadError> {
        // A look-up for a new entry would find the one that contains it.
        self.restore(change, change.is_new.then_some(0))
    }

    /// The same with a count of refused packets; `None` keeps the trie's.
    ///
    /// # Errors
    ///
    /// When the map is full or cannot be written.
    pub fn restore(&mut self, change: &Change, refused: Option<u64>) -> Result<(), LoadError> {
        let packets = match refused {
            Some(packets) => packets,
            None => self.get(&change.prefix)?.map_or(0, |ban| ban.packets()),
        };
        let refused = packets | change.by.bit();
        let ban = Ban { until: change.until, own_until: change.own_until, refused };
        Ok(self.0.insert(&trie_key(&change.prefix), ban, 0)?)
    }

    /// Removes the ban of a prefix.
    ///
    /// # Errors
    ///
    /// When the map cannot be written.
    pub fn lift(&mut self, prefix: &PrefixKey) -> Result<(), LoadError> {
        Ok(unless_missing(self.0.remove(&trie_key(prefix)))?)
    }

    /// The ban of a prefix, or of the longest one that contains it.
    fn get(&self, prefix: &PrefixKey) -> Result<Option<Ban>, LoadError> {
        match self.0.get(&trie_key(prefix), 0) {
            Ok(ban) => Ok(Some(ban)),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

fn trie_key(prefix: &PrefixKey) -> Key<[u8; 16]> {
    Key::new(prefix.length, prefix.address)
}
