//! The trie of bans.

use std::os::fd::{AsFd, OwnedFd};

use aya::maps::lpm_trie::Key;
use aya::maps::{LpmTrie, Map, MapData, MapError};
use common::ban::Ban;
use config::PrefixKey;

use super::access::unless_missing;
use super::batch;
use crate::bans::{BanEntry, Change, Entry};
use crate::error::LoadError;
use crate::hooks::pins::{BANS, PinDirectory};

impl PinDirectory {
    /// The bans of a stopped agent, in no order.
    ///
    /// # Errors
    ///
    /// When the pinned map cannot be read.
    pub fn bans(&self) -> Result<Vec<BanEntry>, LoadError> {
        let path = self.map(BANS);
        if !path.exists() {
            return Ok(Vec::new());
        }
        let mut map = Map::LpmTrie(MapData::from_pin(path)?);
        Bans::of(&mut map)?.all()
    }
}

/// The trie, open for writing. Only the agent writes it.
pub struct Bans<'e> {
    trie: LpmTrie<&'e mut MapData, [u8; 16], Ban>,
    /// For batches; `None` if the process has no descriptor left.
    batches: Option<OwnedFd>,
}

impl<'e> Bans<'e> {
    pub(crate) fn of(map: &'e mut Map) -> Result<Self, LoadError> {
        let batches = match map {
            Map::LpmTrie(data) => data.fd().as_fd().try_clone_to_owned().ok(),
            _ => None,
        };
        Ok(Self {
            trie: LpmTrie::try_from(map)?,
            batches,
        })
    }

    /// All bans, in no order.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn all(&self) -> Result<Vec<BanEntry>, LoadError> {
        self.trie
            .iter()
            .map(|entry| {
                let (key, ban) = entry?;
                Ok(BanEntry {
                    prefix: PrefixKey {
                        address: key.data(),
                        length: key.prefix_len(),
                    },
                    ban,
                })
            })
            .collect()
    }

    /// Writes changes in their order; entries keep their counts of refused packets.
    ///
    /// # Errors
    ///
    /// When the map is full or cannot be written.
    pub fn write(&mut self, changes: &[Change]) -> Result<(), LoadError> {
        let (mut keys, mut bans) = (Vec::new(), Vec::new());
        for change in changes {
            let Some(entry) = change.entry else { continue };
            // A look-up for a new entry would find the one that contains it.
            let packets = if change.is_new {
                0
            } else {
                self.get(&change.prefix)?.map_or(0, |ban| ban.packets())
            };
            keys.push(trie_key(&change.prefix));
            let Entry {
                until,
                own_until,
                authors,
            } = entry;
            bans.push(Ban {
                until,
                own_until,
                refused: packets | authors,
            });
        }
        self.insert(&keys, &bans)?;
        changes
            .iter()
            .filter(|change| change.entry.is_none())
            .try_for_each(|change| self.lift(&change.prefix))
    }

    /// Writes entries in one call where the kernel can, else one by one.
    fn insert(&mut self, keys: &[Key<[u8; 16]>], bans: &[Ban]) -> Result<(), LoadError> {
        let is_batch = keys.len() > 1;
        if let Some(map) = self.batches.as_ref().filter(|_| is_batch)
            && batch::update(map.as_fd(), keys, bans).is_ok()
        {
            return Ok(());
        }
        // Also after a failed batch: the entry that causes the failure reports it.
        keys.iter()
            .zip(bans)
            .try_for_each(|(key, ban)| Ok(self.trie.insert(key, ban, 0)?))
    }

    /// Writes an entry with its count of refused packets.
    ///
    /// # Errors
    ///
    /// When the map is full or cannot be written.
    pub fn restore(
        &mut self,
        prefix: &PrefixKey,
        entry: &Entry,
        packets: u64,
    ) -> Result<(), LoadError> {
        let Entry {
            until,
            own_until,
            authors,
        } = *entry;
        Ok(self.trie.insert(
            &trie_key(prefix),
            Ban {
                until,
                own_until,
                refused: packets | authors,
            },
            0,
        )?)
    }

    fn lift(&mut self, prefix: &PrefixKey) -> Result<(), LoadError> {
        Ok(unless_missing(self.trie.remove(&trie_key(prefix)))?)
    }

    /// The ban of a prefix, or of the longest one that contains it.
    fn get(&self, prefix: &PrefixKey) -> Result<Option<Ban>, LoadError> {
        match self.trie.get(&trie_key(prefix), 0) {
            Ok(ban) => Ok(Some(ban)),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

fn trie_key(prefix: &PrefixKey) -> Key<[u8; 16]> {
    Key::new(prefix.length, prefix.address)
}
