//! The cells in which keys without a slot are counted; see [`super::overflow`].

use super::host::Host;
use crate::limiter::Moves;
use crate::table::{Place, Set, Shape, Tag, WIDEST_SLOT, life_of};
use crate::time::Ticks;

/// The number of cells of a key.
pub const CELLS: u32 = 3;

/// The number of cells with which a key's own are compared.
pub const REFERENCES: u32 = 8;

/// The most attempts to raise a state that other CPUs keep changing.
const RAISE_TRIES: u32 = 4;

/// A host whose table may be full. The kernel verifies each method once, instead of on every path.
pub trait FullTable: Host {
    /// [`least`].
    fn least(&self, set: u32, tag: Tag, moves: Moves, now: Ticks) -> u64 {
        least(self, set, tag, moves, now)
    }
    /// [`is_background`].
    fn is_background(&self, set: u32, tag: Tag, used: Ticks, now: Ticks) -> bool {
        is_background(self, set, tag, used, now)
    }
}

/// Raises all other cells of a key to the states of a slot or cell.
#[inline(always)]
pub(super) fn raise_cells<H: Host>(
    host: &H,
    from: H::Set,
    slot: u32,
    key: (u32, Tag),
    but: u32,
    now: Ticks,
) {
    let shape = host.shape();
    for nth in 0..CELLS {
        let place = shape.cell(key.0, key.1, nth);
        if let (true, Some(to)) = (nth != but, host.set(place.set)) {
            for word in 1..WIDEST_SLOT {
                if word < shape.slot_words {
                    raise(to, place.word + word, from.load(slot + word), now);
                }
            }
        }
    }
}

/// Replaces a state unless it lives longer.
#[inline(always)]
pub(super) fn raise(set: impl Set, word: u32, state: u64, now: Ticks) {
    let life = life_of(state, now);
    for _ in 0..RAISE_TRIES {
        let current = set.load(word);
        if life <= life_of(current, now) || set.compare_exchange(word, current, state) == current {
            return;
        }
    }
}

/// The life of the key's cell with the least use, except for the last two bits, which are that cell's index.
#[inline(always)]
pub fn least<H: Host>(host: &H, set: u32, tag: Tag, moves: Moves, now: Ticks) -> u64 {
    let shape = host.shape();
    let mut least = u64::MAX;
    for nth in 0..CELLS {
        if nth == 0 || moves as u8 != Moves::Nowhere as u8 {
            let life =
                life_of_cell(host, &shape, shape.cell(set, tag, nth), now) & !3 | u64::from(nth);
            if life < least {
                least = life;
            }
        }
    }
    least
}

/// Whether other cells of the group have at least half of the use of this key's. They are the same cells each time;
/// otherwise a key could retry until it succeeds.
#[inline(always)]
pub fn is_background<H: Host>(host: &H, set: u32, tag: Tag, used: Ticks, now: Ticks) -> bool {
    let shape = host.shape();
    for nth in CELLS..CELLS + REFERENCES {
        if life_of_cell(host, &shape, shape.cell(set, tag, nth), now) < used >> 1 {
            return false;
        }
    }
    true
}

#[inline(always)]
fn life_of_cell<H: Host>(host: &H, shape: &Shape, place: Place, now: Ticks) -> Ticks {
    host.set(place.set)
        .map_or(0, |set| shape.life(set, place.word, now))
}

/// An upper bound for the life of all cells of the tag's group: 0 skips the look at a new key's cells.
#[inline(always)]
pub(super) fn latest<H: Host>(host: &H, tag: Tag, now: Ticks) -> Ticks {
    let place = host.shape().latest(tag);
    host.set(place.set)
        .map_or(0, |set| life_of(set.load(place.word + 1), now))
}

/// A quarter more than needed, so that it is rarely written.
#[inline(always)]
pub(super) fn note_latest<H: Host>(host: &H, tag: Tag, life: Ticks, now: Ticks) {
    if life > latest(host, tag, now) {
        let place = host.shape().latest(tag);
        if let Some(set) = host.set(place.set) {
            raise(
                set,
                place.word + 1,
                now.wrapping_add(life + (life >> 2)),
                now,
            );
        }
    }
}
