//! The working state of a packet with several rules.

use super::newcomer::Newcomer;
use super::slot::Slot;
use super::verdict::Passage;
use crate::limiter::Charge;
use crate::rule::{MAX_RULES, RuleSpan, Subject};
use crate::source_sketch;
use crate::time::Ticks;

/// The result of looking for a key's slot, and for room for a new one.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Opened {
    /// The slot to charge, if there is one.
    pub(super) slot: Slot,
    /// 1: the slot was just reserved; its set is locked, and it must be published.
    pub(super) is_reserved: u32,
    /// 1: the packet is refused because there is no slot.
    pub(super) is_refused: u32,
    /// The index of the key's set.
    pub(super) home: u32,
    /// 0: the slot is the key's own; else it is the cell with this index, counted from 1.
    pub(super) shared: u32,
    /// 1: the key has no slot yet and requests one.
    pub(super) wants_slot: u32,
    _pad: u32,
}

impl Opened {
    /// The key's own slot.
    #[inline(always)]
    pub(super) const fn own(slot: Slot) -> Self {
        Self {
            slot,
            is_reserved: 0,
            is_refused: 0,
            home: slot.set,
            shared: 0,
            wants_slot: 0,
            _pad: 0,
        }
    }
}

/// A rule's charge and its slot.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Charged {
    pub(super) slot: Slot,
    pub(super) charge: Charge,
    /// The change that the fast path would make: a word of the set, from one value to another.
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) word: u32,
    pub(super) _pad: u32,
}

/// The working state of a packet with several rules.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct PacketState {
    pub(super) subject: Subject,
    pub(super) span: RuleSpan,
    pub(super) now: Ticks,
    pub(super) departure: Ticks,
    pub(super) open: Opened,
    pub(super) marked_by: u32,
    /// 1: the key was just looked up without success.
    pub(super) is_new: u32,
    pub(super) newcomer: Newcomer,
    pub(super) charges: [Charged; MAX_RULES as usize],
}

impl PacketState {
    /// The packet and its rules, as passed to [`PacketState::begin`].
    #[inline(always)]
    #[must_use]
    pub fn case(&self) -> (RuleSpan, Subject) {
        (self.span, self.subject)
    }

    /// The number of the packet's source: [`source_sketch::number`].
    #[inline(always)]
    #[must_use]
    pub fn source(&self) -> u64 {
        source_sketch::number(&self.subject)
    }

    /// How the packet passes.
    #[inline(always)]
    #[must_use]
    pub fn passage(&self) -> Passage {
        Passage {
            marked_by: self.marked_by,
            departure: self.departure,
        }
    }

    /// Starts with a packet.
    #[inline(always)]
    pub fn begin(&mut self, span: RuleSpan, subject: &Subject, now: Ticks) {
        self.subject = *subject;
        self.span = span;
        self.now = now;
        self.departure = Passage::AT_ONCE;
        self.marked_by = Passage::UNMARKED;
        self.is_new = 0;
    }
}
