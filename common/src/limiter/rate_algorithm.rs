//! The trait of algorithms, for a state that one thread holds.

use super::migration::Instants;
use super::moves::Moves;
use super::parameters::Parametric;
use super::rate::{Costs, Rate};
use super::refund::Refund;
use crate::share::Share;
use crate::time::{TickScale, Ticks};

/// An algorithm: its properties and its operations on a state that nobody else changes.
///
/// A state is [`WORDS`](Self::WORDS) words, followed by the ring if it [has one](Self::HAS_RING). Each of the words, read
/// as an instant, is when it has decayed. Costs are at least 1.
pub trait RateAlgorithm: Parametric {
    /// Whether a limit has a burst beside its rate; the allowance then flows back continuously.
    const HAS_BURST: bool = false;
    /// Words of state in a slot.
    const WORDS: u32 = 1;
    /// Whether a state has one more word for each unit of N, outside the slot.
    const HAS_RING: bool = false;
    /// The largest N.
    const LARGEST_COUNT: u64 = u64::MAX;
    /// Whether a limit on packets can count their bytes.
    const COUNTS_BYTES: bool = true;
    /// How a state may be moved to another slot.
    const MOVES: Moves;
    /// How many windows beyond those that fit may lie in a longer window, or have a part in it. Not used for buckets.
    const PARTIAL_WINDOWS: u32 = 1;

    /// The limiter for a rate. Algorithms without a burst ignore it.
    fn build(rate: Rate, burst: u64, costs: Costs, scale: TickScale) -> Self;

    /// The longest time until a state has decayed, in nanoseconds.
    fn longest_life(rate: Rate, _burst: u64) -> u128 {
        // A sliding window's count matters for as long again.
        2 * u128::from(rate.per_nanoseconds)
    }

    /// Whether a state can represent every value that it needs.
    fn is_representable(&self) -> bool {
        true
    }

    /// Whether it keeps to its rate within a thousandth.
    fn is_precise(&self) -> bool {
        self.is_representable()
    }

    /// The same limiter with room in its state for counts far above N: forced charges have to be counted, too.
    #[must_use]
    fn with_room_for_debt(&self) -> Self
    where
        Self: Sized;

    /// The same limiter with the state of earlier versions, which had no such room.
    #[must_use]
    fn without_room_for_debt(&self) -> Self
    where
        Self: Sized;

    /// The same limiter on states that `larger`, of the same window and with more units, uses as well: those of a class with a
    /// multiplier. Where that would make windows imprecise, each keeps states of its own.
    #[must_use]
    fn on_states_of(&self, _larger: &Self) -> Self {
        *self
    }

    /// The limiter of a host that has this share of it; states go on under any share.
    #[must_use]
    fn at_share(&self, share: Share) -> Self;

    /// How far ahead of now the state of a new key lies that begins with `initial` units.
    fn opening(&self, _initial: u64) -> Ticks {
        0
    }

    /// Writes the state of a new key.
    fn open(&self, words: &mut [u64], now: Ticks) {
        words.fill(now);
    }

    /// Whether `cost` would pass.
    fn conforms(&self, words: &[u64], now: Ticks, cost: u64) -> bool;

    /// Charges `cost` if it passes.
    fn charge(&self, words: &mut [u64], now: Ticks, cost: u64) -> bool;

    /// Charges `cost`, consumed elsewhere until an instant that is not in the future, whether it passes or not.
    fn charge_beyond(&self, words: &mut [u64], until: Ticks, cost: u64);

    /// Charges `cost` whether it passes or not.
    fn force(&self, words: &mut [u64], now: Ticks, cost: u64) {
        self.charge_beyond(words, now, cost);
    }

    /// Returns the unused units of a charge, as far as they still count.
    fn refund(&self, words: &mut [u64], now: Ticks, refund: Refund);

    /// Units that are charged beyond the limit, rounded up.
    fn debt(&self, words: &[u64], now: Ticks) -> u64;

    /// Takes back a charge, where the allowance flows back continuously.
    fn give_back(&self, _words: &mut [u64], _now: Ticks, _cost: u64) {}

    /// The largest cost that would pass, in units.
    fn remaining(&self, words: &[u64], now: Ticks) -> u64;

    /// Ticks until `cost` would pass if nothing else did; `None` if it never can.
    fn wait(&self, words: &[u64], now: Ticks, cost: u64) -> Option<Ticks>;

    /// Ticks until one unit may pass, where other CPUs may have charged the state.
    fn wait_for_one(&self, words: &[u64], now: Ticks) -> Ticks {
        self.wait(words, now, 1).unwrap_or(0)
    }

    /// Units that flow back in so many ticks; infinite if nothing flows back bit by bit.
    fn refilled_in(&self, _ticks: Ticks) -> f64 {
        f64::INFINITY
    }

    /// The length of windows that begin with a key's first unit, and can begin at multiples of it instead.
    fn alignable_window(&self) -> Option<Ticks> {
        None
    }

    /// Opens the window that has `begun`, if the state's own is over.
    fn align(&self, _words: &mut [u64], _now: Ticks, _begun: Ticks) {}

    /// Writes into `words`, the state of a new key, what a state under the limiter `old` has used, in units.
    fn migrate(&self, old: &Self, old_words: &[u64], words: &mut [u64], now: Instants);

    /// A word of the slot with all charges: `current` is what charges on one copy made of `then`, `last` what charges on
    /// another copy made of it.
    fn merge(&self, current: u64, then: u64, last: u64, now: Ticks) -> u64;
}

/// Bits of a window's count with room for debts, at most 25: it shares a word with the window's number, whose resolution stays
/// below 2⁻¹⁵ of a window.
pub(super) fn bits_for_debt(window: Ticks) -> u32 {
    (u64::BITS - window.leading_zeros())
        .saturating_sub(16)
        .min(25)
}
