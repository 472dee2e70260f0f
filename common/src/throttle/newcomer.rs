//! A key that requests a slot.

use crate::limiter::Moves;
use crate::table::{Tag, WIDEST_SLOT};
use crate::time::Ticks;

/// A key that requests a slot, and its properties. In memory, because each step is a separate function, called where
/// the stack is emptiest.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Newcomer {
    /// The head of its slot.
    pub(super) tag: Tag,
    /// The life that its first charge adds to its state; 0 if its rule is not a bucket.
    pub(super) charge: Ticks,
    /// The longest life of a state under its rule.
    pub(super) most: Ticks,
    /// The use of its least used cell, as a life.
    pub(super) used: Ticks,
    /// The longest life of a key that may be evicted for this one.
    pub(super) life: Ticks,
    /// The states of the evicted key, and its tag.
    pub(super) victim: [u64; WIDEST_SLOT as usize],
    /// The index of its set.
    pub(super) set: u32,
    /// The index of its least used cell.
    pub(super) cell: u32,
    /// The word of its rule's state in a slot.
    pub(super) position: u32,
    /// The [`Moves`] of its group.
    pub(super) moves: u32,
    /// 1: it leaves some slots to groups with shorter lives.
    pub(super) is_slow: u32,
    /// 1: it is counted in cells if there is no slot.
    pub(super) shares: u32,
    /// 1: it is counted in cells even if there is a slot.
    pub(super) stays: u32,
    _pad: u32,
}

impl Newcomer {
    #[inline(always)]
    pub(super) const fn moves(&self) -> Moves {
        Moves::from_bits(self.moves as u8)
    }

    #[inline(always)]
    pub(super) fn is(&self, moves: Moves) -> bool {
        self.moves == moves as u32
    }
}
