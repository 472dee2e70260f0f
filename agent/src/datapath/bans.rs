//! The trie of what is banned.

use aya::maps::lpm_trie::Key;
use aya::maps::{LpmTrie, Map, MapData, MapError};
use common::ban::Ban;

use super::error::LoadError;
use crate::bans::Change;
use crate::compile::PrefixKey;

/// The trie, open for writing. Only the agent writes it.
pub struct Bans<'e>(LpmTrie<&'e mut MapData, [u8; 16], Ban>);

/// One prefix that is banned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BanEntry {
    /// Which.
    pub prefix: PrefixKey,
    /// What the trie says of it.
    pub ban: Ban,
}

impl<'e> Bans<'e> {
    pub(super) fn of(map: &'e mut Map) -> Result<Self, LoadError> {
        Ok(Self(LpmTrie::try_from(map)?))
    }

    /// Everything that is banned, in no order.
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

    /// Writes an entry; what it has refused so far stays counted.
    ///
    /// # Errors
    ///
    /// When the map is full or cannot be written.
    pub fn write(&mut self, change: &Change) -> Result<(), LoadError> {
        // A look-up would find the entry around one that is not there.
        self.restore(change, change.is_new.then_some(0))
    }

    /// The same, with what it has refused so far; `None`: what the trie says.
    ///
    /// # Errors
    ///
    /// When the map is full or cannot be written.
    pub fn restore(&mut self, change: &Change, refused: Option<u64>) -> Result<(), LoadError> {
        let refused = match refused {
            Some(refused) => refused,
            None => self.get(&change.prefix)?.map_or(0, |ban| ban.refused),
        };
        let ban = Ban { until: change.until, own_until: change.own_until, refused };
        Ok(self.0.insert(&trie_key(&change.prefix), ban, 0)?)
    }

    /// Lifts the ban of a prefix.
    ///
    /// # Errors
    ///
    /// When the map cannot be written.
    pub fn lift(&mut self, prefix: &PrefixKey) -> Result<(), LoadError> {
        match self.0.remove(&trie_key(prefix)) {
            Ok(()) | Err(MapError::KeyNotFound) => Ok(()),
            Err(MapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The ban of a prefix, or of the longest around it.
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
