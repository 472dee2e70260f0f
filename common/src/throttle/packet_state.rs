//! The working state of a packet with several rules.

use super::newcomer::Newcomer;
use super::slot::Slot;
use super::verdict::Passage;
use crate::fair::{MOST_FAIR, WIDER_KEYS, Wider};
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

/// The places of the charges of fair rules: of each at its own key, then at each wider one.
pub(super) const FAIR_PLACES: u32 = MOST_FAIR * (1 + WIDER_KEYS);
/// Rounded up, so that a mask bounds an index: a comparison may be of another register than the one that the kernel's verifier
/// sees used.
pub(super) const ROOM_FOR_PLACES: u32 = FAIR_PLACES.next_power_of_two();

/// A fair rule's charge.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct FairCharge {
    pub(super) slot: Slot,
    pub(super) charge: Charge,
    /// The level, as [`crate::fair::Level::to_bits`].
    pub(super) level: u64,
    /// The rule's row, after the first of the packet's fair rules.
    pub(super) offset: u32,
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
    /// The row of the first fair rule, and the wider keys of the one that was charged last.
    pub(super) first_fair: u32,
    pub(super) wider: u32,
    fair: [FairCharge; ROOM_FOR_PLACES as usize],
}

impl PacketState {
    /// The packet and its rules, as passed to [`PacketState::begin`].
    #[inline(always)]
    #[must_use]
    pub fn case(&self) -> (RuleSpan, Subject) {
        (self.span, self.subject)
    }

    /// The charge of the fair rule at a place.
    #[inline(always)]
    pub(super) const fn fair(&self, place: u32) -> &FairCharge {
        &self.fair[(place & (ROOM_FOR_PLACES - 1)) as usize]
    }

    /// The same, to change it.
    #[inline(always)]
    pub(super) const fn fair_mut(&mut self, place: u32) -> &mut FairCharge {
        &mut self.fair[(place & (ROOM_FOR_PLACES - 1)) as usize]
    }

    /// The wider keys of the fair rule whose source was charged last.
    #[inline(always)]
    pub(super) const fn wider(&self) -> Wider {
        Wider::from_bits(self.wider)
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
