//! Entries of the trie in the kernel, and their changes.

use std::collections::BTreeMap;

use common::ban::Ban;
use config::PrefixKey;

/// An entry of the trie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BanEntry {
    /// The banned prefix.
    pub prefix: PrefixKey,
    /// The trie's entry.
    pub ban: Ban,
}

/// The prefixes whose entries in the trie are out of date, each with whether the trie had no entry before.
#[derive(Clone, Debug, Default)]
pub struct Touched(pub(super) BTreeMap<PrefixKey, bool>);

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
