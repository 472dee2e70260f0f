//! The slot of a key: finding it, and finding room for a new one.

use super::Hearing;
use super::has_last_word;
use super::host::{Host, TableEvent};
use crate::key::Key;
use crate::rule::{OnFull, Rule};
use crate::table::{Claim, Claimed, NO_SLOT, Set, Tag};

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
    /// The key's own set.
    pub(super) home: u32,
    /// 0: the slot is the key's own; else it is its cell of this number, counted from 1.
    pub(super) shared: u32,
    /// 1: the key has no slot yet, and asks for one.
    pub(super) asks: u32,
    _pad: u32,
}

impl Opened {
    /// The key's own slot.
    #[inline(always)]
    pub(super) const fn own(slot: Slot) -> Self {
        Self { slot, is_reserved: 0, is_refused: 0, home: slot.set, shared: 0, asks: 0, _pad: 0 }
    }
}

#[inline(always)]
pub(super) fn publish<H: Host>(host: &H, slot: Slot) {
    if let Some(set) = host.set(slot.set) {
        host.shape().publish(set, slot.word, slot.tag);
    }
}

/// The slot for the key that the nth rule opens: its own, or room is made for it.
#[inline(always)]
pub(super) fn open_slot<H: Host>(host: &H, hearing: &mut Hearing, nth: u32) {
    host.open(hearing, nth);
    if hearing.open.asks != 0 {
        host.estimate(hearing);
        let claim = host.claim(hearing);
        if claim.outcome == Claimed::Displaced {
            host.leave(hearing);
        }
        host.take(hearing, nth, claim);
    }
}

/// Finds the slot for the key that the nth rule opens, or has it ask for one.
#[inline(always)]
pub fn open<H: Host>(host: &H, hearing: &mut Hearing, nth: u32) {
    let Some(rule) = host.rule(hearing.span.first + nth) else { return };
    let key = rule.key_of(&hearing.subject);
    let cost = rule.cost_of(hearing.subject.size);
    let slot = if hearing.is_new != 0 { Slot::yet_to_be(host, &key) } else { Slot::of(host, &key) };
    hearing.open = Opened::own(slot);
    if slot.exists() {
        return;
    }
    if cost > rule.most && has_last_word(host, rule, hearing.now) {
        hearing.open.is_refused = 1;
        return;
    }
    hearing.open.asks = 1;
    let newcomer = &mut hearing.newcomer;
    newcomer.set = slot.set;
    newcomer.tag = slot.tag;
    newcomer.charge = if rule.is_bucket() && cost <= rule.most { rule.token_bucket().charge(cost) } else { 0 };
    newcomer.most = rule.tolerance;
    newcomer.position = u32::from(rule.position);
    newcomer.moves = rule.moves() as u32;
    newcomer.is_slow = u32::from(rule.is_slow());
    newcomer.shares = u32::from(rule.does_on_full(OnFull::Share));
}

/// Does what came of asking for a slot.
#[inline(always)]
pub fn take<H: Host>(host: &H, hearing: &mut Hearing, nth: u32, claim: Claim) {
    let Some(rule) = host.rule(hearing.span.first + nth) else { return };
    let open = &mut hearing.open;
    open.asks = 0;
    open.slot.word = claim.slot;
    match claim.outcome {
        Claimed::Reserved | Claimed::Displaced => open.is_reserved = 1,
        Claimed::Found => {}
        Claimed::Shared => {
            host.note(TableEvent::FullShared);
            let place = host.shape().cell(open.slot.set, open.slot.tag, claim.slot);
            open.shared = claim.slot + 1;
            (open.slot.set, open.slot.word) = (place.set, place.word);
        }
        Claimed::Full if rule.does_on_full(OnFull::Throttle) && rule.may_refuse() => {
            host.note(TableEvent::FullThrottled);
            open.is_refused = 1;
        }
        Claimed::Full => host.note(TableEvent::FullPassed),
        Claimed::Contended => {
            host.note(TableEvent::Contended);
            open.is_refused = u32::from(rule.may_refuse());
        }
    }
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
