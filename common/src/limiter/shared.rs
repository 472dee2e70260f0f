//! The trait of algorithms, for a state that other CPUs change at the same time.

use super::decision::Decision;
use crate::time::Ticks;

/// Attempts on a state that other CPUs keep changing.
pub const CHARGE_TRIES: u32 = 16;

/// The state of a rule in a key's slot, which other CPUs charge as well. Every operation is sequentially consistent.
pub trait SharedState {
    /// A place of the ring.
    type Place: Copy;

    /// Reads one of the state's words.
    fn load(&self, word: u32) -> u64;
    /// Replaces `current` by `new` in a word and returns what was there.
    fn compare_exchange(&self, word: u32, current: u64, new: u64) -> u64;
    /// A place of the state's ring.
    fn place(&self, nth: u32) -> Option<Self::Place>;
    /// Reads a place.
    fn load_place(&self, place: Self::Place) -> u64;
    /// Replaces `current` by `new` in a place and returns what was there.
    fn compare_exchange_place(&self, place: Self::Place, current: u64, new: u64) -> u64;
    /// Whether the slot belongs to another key by now.
    fn has_gone(&self) -> bool;
}

/// The result of charging one rule: the state after the charge, or one of two reasons why there was none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Charge(u64);

impl Charge {
    /// The rule refuses, and was not charged.
    pub const REFUSED: Self = Self(0);
    /// The slot was given to another key, or its state never stood still: not charged.
    pub const LOST: Self = Self(1);
    /// The value of a charge that took the ring's first place.
    const FIRST_PLACE: u64 = Self::LOST.0 + 1;

    /// Charged; the state that the charge left, for taking it back. A state of 0 or 1 is an instant as good as 2.
    #[inline(always)]
    #[must_use]
    pub const fn done(left: u64) -> Self {
        Self(if left < 2 { 2 } else { left })
    }

    /// Charged by taking a place of the ring.
    #[inline(always)]
    #[must_use]
    pub const fn took(place: u32) -> Self {
        Self(place as u64 + Self::FIRST_PLACE)
    }

    /// Whether the rule was charged.
    #[inline(always)]
    #[must_use]
    pub const fn is_done(self) -> bool {
        self.0 > Self::LOST.0
    }

    /// The state that the charge left.
    #[inline(always)]
    #[must_use]
    pub const fn left(self) -> u64 {
        self.0
    }

    /// The place that the charge took.
    #[inline(always)]
    #[must_use]
    pub const fn place(self) -> u32 {
        self.0.wrapping_sub(Self::FIRST_PLACE) as u32
    }
}

/// A charge as one compare-and-swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swap {
    /// It conforms if this word of the state goes from one value to the other.
    Conforms {
        /// The word of the state.
        word: u32,
        /// The value that it must have.
        from: u64,
        /// Its new value.
        to: u64,
    },
    /// It does not conform.
    Refused,
    /// It changes more than one word.
    Several,
}

/// An algorithm on a state that other CPUs charge meanwhile: the kernel's evaluation.
pub trait SharedCharge {
    /// The charge of `cost`, without doing it. `first` was read from the state's first word.
    fn swap_shared<S: SharedState>(&self, state: &S, first: u64, now: Ticks, cost: u64) -> Swap;

    /// Whether `cost` would pass as things are. `first` was read from the state's first word.
    #[inline(always)]
    fn conforms_shared<S: SharedState>(
        &self,
        state: &S,
        first: u64,
        now: Ticks,
        cost: u64,
    ) -> bool {
        !matches!(self.swap_shared(state, first, now, cost), Swap::Refused)
    }

    /// Charges `cost` if it passes.
    fn charge_shared<S: SharedState>(&self, state: &S, now: Ticks, cost: u64) -> Charge;

    /// Takes back one charge of `cost` at `now`, if it is still what it was: otherwise it stays until it has decayed.
    fn refund_shared<S: SharedState>(&self, state: &S, charged: Charge, now: Ticks, cost: u64);
}

impl Decision {
    /// The decision on a state of one word, `from`.
    #[inline(always)]
    pub(super) const fn swap(self, from: u64) -> Swap {
        match self {
            Self::Pass(to) => Swap::Conforms { word: 0, from, to },
            Self::Refuse => Swap::Refused,
        }
    }
}

/// Charges a state of one word.
#[inline(always)]
pub(crate) fn charge_word(state: &impl SharedState, decide: impl Fn(u64) -> Decision) -> Charge {
    let mut word = state.load(0);
    for _ in 0..CHARGE_TRIES {
        let Decision::Pass(next) = decide(word) else {
            return Charge::REFUSED;
        };
        let found = state.compare_exchange(0, word, next);
        if found == word {
            return Charge::done(next);
        }
        if state.has_gone() {
            return Charge::LOST;
        }
        word = found;
    }
    Charge::LOST
}

/// Takes a charge back from one word, unless `refunded` finds nothing of it.
#[inline(always)]
pub(super) fn refund_word(
    state: &impl SharedState,
    word: u32,
    refunded: impl Fn(u64) -> Option<u64>,
) {
    for _ in 0..CHARGE_TRIES {
        let found = state.load(word);
        let Some(next) = refunded(found) else { return };
        if state.compare_exchange(word, found, next) == found {
            return;
        }
    }
}
