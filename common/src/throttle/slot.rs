//! The slot of a key.

use super::host::Host;
use crate::key::Key;
use crate::rule::Rule;
use crate::table::{NO_SLOT, Place, Set, Tag};

/// The slot of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Slot {
    /// The index of the set.
    pub(super) set: u32,
    /// First word in the set; [`NO_SLOT`] if the key has no slot.
    pub(super) word: u32,
    /// The tag of its head.
    pub(super) tag: Tag,
}

impl Slot {
    /// The slot of a key in its home set; if it has none, [`Slot::for_new`].
    #[inline(always)]
    pub(super) fn at_home<H: Host>(host: &H, key: &Key) -> Self {
        let place = Self::for_new(host, key);
        host.set(place.set)
            .map_or(place, |set| place.found_in(host, set))
    }

    /// The same slot, or if there is none, that in the key's alternate set.
    #[inline(always)]
    pub(super) fn or_alternate<H: Host>(self, host: &H) -> Self {
        let is_there = |set| host.shape().may_be_in_alternate(set, self.tag);
        if self.exists() || !host.set(self.set).is_some_and(is_there) {
            return self;
        }
        let other = self.in_alternate(host);
        let found = host
            .set(other.set)
            .map_or(other, |set| other.found_in(host, set));
        if found.exists() { found } else { self }
    }

    /// The same slot of the key's alternate set.
    #[inline(always)]
    pub(super) fn in_alternate<H: Host>(self, host: &H) -> Self {
        Self {
            set: host.shape().other_set(self.set, self.tag),
            tag: self.tag.in_alternate(),
            ..self
        }
    }

    /// The same, looked up in its set.
    #[inline(always)]
    pub(super) fn found_in<H: Host>(self, host: &H, set: H::Set) -> Self {
        Self {
            word: host.shape().find(set, self.tag),
            ..self
        }
    }

    /// The set of a key without a slot.
    #[inline(always)]
    pub(super) fn for_new<H: Host>(host: &H, key: &Key) -> Self {
        let hash = host.hash(key);
        Self {
            set: host.shape().set(hash),
            word: NO_SLOT,
            tag: Tag::new(hash, key),
        }
    }

    /// The location of its first word.
    #[inline(always)]
    pub(super) const fn place(&self) -> Place {
        Place {
            set: self.set,
            word: self.word,
        }
    }

    #[inline(always)]
    pub(super) fn exists(&self) -> bool {
        self.word != NO_SLOT
    }

    /// The word of a rule's state.
    #[inline(always)]
    pub(super) fn state(&self, rule: &Rule) -> u32 {
        self.word + u32::from(rule.position)
    }

    /// The word with one byte for each state's refusals: the first of the slot's part of the rings.
    #[inline(always)]
    pub(super) fn refusals<H: Host>(&self, host: &H) -> u32 {
        host.shape().slot_number(self.set, self.word) * host.ring_words()
    }

    /// The first word of a rule's ring.
    #[inline(always)]
    pub(super) fn ring<H: Host>(&self, host: &H, rule: &Rule) -> u32 {
        host.shape().slot_number(self.set, self.word) * host.ring_words() + u32::from(rule.ring)
    }

    /// Whether the slot now belongs to another key.
    #[inline(always)]
    pub(super) fn has_gone(&self, set: impl Set) -> bool {
        // A reserved slot has no head yet; no other CPU can take it.
        let head = set.load(self.word);
        !Tag::is_free(head) && !self.tag.matches(head)
    }
}
