//! The slot of a key: finding it, and finding room for a new one.

use super::has_last_word;
use super::host::{Host, TableEvent};
use crate::key::Key;
use crate::rule::{OnFull, Rule};
use crate::table::{Claim, Claimed, NO_SLOT, Set, Tag};
use crate::time::Ticks;

/// The slot of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Slot {
    /// The number of the set.
    pub(super) set: u32,
    /// First word in the set; [`NO_SLOT`] if the key has none.
    pub(super) word: u32,
    /// What its head has to say.
    pub(super) tag: Tag,
}

/// What came of looking for the slot of a key, and for room for a new one.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Opened {
    /// The slot, if there is one to charge.
    pub(super) slot: Slot,
    /// 1: it was reserved just now, its set locked, and has to be published.
    pub(super) is_reserved: u32,
    /// 1: the packet is refused for want of one.
    pub(super) is_refused: u32,
}

#[inline(always)]
pub(super) fn publish<H: Host>(host: &H, slot: Slot) {
    if let Some(set) = host.set(slot.set) {
        host.shape().publish(set, slot.word, slot.tag);
    }
}

/// The slot for the key that `rule` opens: its own, or room is made for it.
#[inline(always)]
pub(super) fn open_slot<H: Host>(host: &H, rule: &Rule, slot: Slot, now: Ticks, cost: u64) -> Opened {
    if slot.exists() { Opened { slot, is_reserved: 0, is_refused: 0 } } else { make_room(host, rule, slot, now, cost) }
}

/// A slot for a key that has none.
#[inline(always)]
fn make_room<H: Host>(host: &H, rule: &Rule, mut slot: Slot, now: Ticks, cost: u64) -> Opened {
    if cost > rule.most && has_last_word(host, rule, now) {
        return Opened { slot, is_reserved: 0, is_refused: 1 };
    }
    let mut claim = host.claim(slot.set, slot.tag, now, life_of_one(rule, cost));
    let mut is_refused = 0;
    if claim.outcome == Claimed::Full {
        if rule.on_full == OnFull::Share as u8 {
            host.note(TableEvent::FullShared);
            slot = Slot::shared(host, u32::from(rule.group));
            claim = host.claim(slot.set, slot.tag, now, 0);
            is_refused = u32::from(claim.outcome == Claimed::Full && rule.may_refuse());
        } else if rule.on_full == OnFull::Throttle as u8 && rule.may_refuse() {
            host.note(TableEvent::FullThrottled);
            is_refused = 1;
        } else {
            host.note(TableEvent::FullPassed);
        }
    }
    if claim.outcome == Claimed::Contended {
        host.note(TableEvent::Contended);
        is_refused = u32::from(rule.may_refuse());
    }
    slot.word = claim.slot;
    let is_reserved = u32::from(matches!(claim.outcome, Claimed::Reserved | Claimed::Displaced));
    Opened { slot, is_reserved, is_refused }
}

impl Slot {
    /// The slot of a key, if it has one; where it would be, if it has none.
    #[inline(always)]
    pub(super) fn of<H: Host>(host: &H, key: &Key) -> Self {
        let place = Self::yet_to_be(host, key);
        host.set(place.set).map_or(place, |set| place.found_in(host, set))
    }

    /// The same, looked for in its set.
    #[inline(always)]
    pub(super) fn found_in<H: Host>(self, host: &H, set: H::Set) -> Self {
        Self { word: host.shape().find(set, self.tag), ..self }
    }

    /// Where the slot of a key would be that has none.
    #[inline(always)]
    pub(super) fn yet_to_be<H: Host>(host: &H, key: &Key) -> Self {
        let hash = host.seed().hash(key);
        Self { set: host.shape().set(hash), word: NO_SLOT, tag: Tag::new(hash, key) }
    }

    /// Where the bucket is that all keys of a group share which found no room of their own.
    #[inline(always)]
    fn shared<H: Host>(host: &H, group: u32) -> Self {
        let key = Key { hi: 0, lo: 0, extra: u32::MAX, group };
        Self { set: host.shape().overflow_set(group), word: NO_SLOT, tag: Tag::new(host.seed().hash(&key), &key) }
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

    /// The first word of a rule's ring.
    #[inline(always)]
    pub(super) fn ring<H: Host>(&self, host: &H, rule: &Rule) -> u32 {
        host.shape().slot_number(self.set, self.word) * host.ring_words() + u32::from(rule.ring)
    }

    /// Whether the slot belongs to another key by now.
    #[inline(always)]
    pub(super) fn has_gone(&self, set: impl Set) -> bool {
        // A slot that is reserved has no head yet; nobody else can take it.
        let head = set.load(self.word);
        !Tag::is_free(head) && !self.tag.matches(head)
    }
}

/// How long the key's first charge lives: how busy the key would be.
#[inline(always)]
fn life_of_one(rule: &Rule, cost: u64) -> Ticks {
    // A window's end does not tell how much is in it: such keys give way to nobody before they have decayed.
    if rule.is_bucket() && cost <= rule.most { rule.token_bucket().charge(cost) } else { 0 }
}

/// Takes a slot in `set` for a key whose first charge lives for `life`, or finds that another CPU has.
#[inline(always)]
pub fn claim<H: Host>(host: &H, set: u32, tag: Tag, now: Ticks, life: Ticks) -> Claim {
    let Some(set) = host.set(set) else { return Claim { outcome: Claimed::Full, slot: NO_SLOT } };
    let claim = host.shape().claim(set, tag, now, life);
    if claim.outcome == Claimed::Displaced {
        host.note(TableEvent::Evicted);
    }
    claim
}
