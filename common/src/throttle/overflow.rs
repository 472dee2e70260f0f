//! Keys without a slot: where they are counted while the table is full, and what becomes of those that give way.
//!
//! Each group has an array of cells behind the sets. A cell is a slot without a name, so every algorithm runs on it as
//! on any other. A key has [`CELLS`] of them, chosen by its hash. It is charged in the cell with the least in it, and
//! then the others are raised to that: a count-min sketch with conservative update (Cormode and Muthukrishnan, 2005;
//! Estan and Varghese, 2002), whose counters are the limiters' own states. "The least" and "raised" compare states as
//! instants, which bounds what was used: of two states of a bucket, the later one has more used.
//!
//! Three rules make a full table strict and fair:
//!
//! - What a key was charged is in its slot or, at the least, in each of its cells. A key that gives way leaves its state
//!   there, and a key that gets a slot starts with what the least of its cells holds. So no key has its burst twice,
//!   however often it comes and goes.
//! - Who gives way is who has used least of the same group, and no more than the newcomer's cells say of the newcomer.
//!   A busy key therefore gets a slot soon, and no longer disturbs those that share its cells.
//! - A cell that would refuse is compared with [`REFERENCES`] other cells of the group. If all are half as full or more,
//!   a flood has filled them, and they say nothing about this key: it may take a slot with its whole allowance.
//!
//! Bound: no key passes more than its limit while fewer than half of a group's cells are in use: a key is excused then
//! with a probability below 2⁻⁸. A key within its limit is refused only if each of its cells is full because of
//! others. With h busy keys that found no slot, c cells and the least of three, that is (1 − e^(−3h/c))³ of all keys:
//! 0.9 % at h = c/13. Measured by `common/tests/overflow.rs`.
//!
//! Limits with windows give no slot away before it has decayed, since a window's end does not tell how much is used.
//! Logs use one cell for each key, since two rings cannot be merged; a key leaves that cell when it has decayed.

use super::Hearing;
use super::host::{Host, TableEvent};
use crate::rule::Moves;
use crate::table::{Claim, Claimed, NO_SLOT, Place, Set, Shape, Tag, WIDEST_SLOT, life_of};
use crate::time::Ticks;

/// Cells that a key without a slot is counted in.
pub const CELLS: u32 = 3;
/// Cells that a key's own are compared with.
pub const REFERENCES: u32 = 8;
/// How often a state that others keep changing is raised again.
const RAISE_TRIES: u32 = 4;

/// A key that asks for a slot, and what is found out about it. It lies in memory, since each step is a function of its
/// own, called from where the stack is emptiest.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Newcomer {
    /// The head of its slot.
    pub(super) tag: Tag,
    /// What its first charge adds to the life of its state; 0 if its rule is not a bucket.
    pub(super) charge: Ticks,
    /// The longest life that its rule lets a state have.
    pub(super) most: Ticks,
    /// What the least of its cells holds, as a life.
    used: Ticks,
    /// The longest life of a key that gives way to this one.
    life: Ticks,
    /// The states of a key that gave way, and what named it.
    victim: [u64; WIDEST_SLOT as usize],
    /// The number of its set.
    pub(super) set: u32,
    /// Which of its cells has the least in it.
    cell: u32,
    /// Word of the state of its rule in a slot.
    pub(super) position: u32,
    /// [`Moves`] of its group.
    pub(super) moves: u32,
    /// 1: it leaves some slots to groups of shorter lives.
    pub(super) is_slow: u32,
    /// 1: it is counted in cells if there is no slot.
    pub(super) shares: u32,
    /// 1: it is counted in its cells, whether there is a slot or not.
    stays: u32,
    _pad: u32,
}

impl Newcomer {
    #[inline(always)]
    const fn moves(&self) -> Moves {
        Moves::from_bits(self.moves as u8)
    }

    #[inline(always)]
    fn is(&self, moves: Moves) -> bool {
        self.moves == moves as u32
    }
}

/// Finds out what the key's cells hold.
#[inline(always)]
pub fn estimate<H: Host>(host: &H, hearing: &mut Hearing) {
    let now = hearing.now;
    let newcomer = &mut hearing.newcomer;
    (newcomer.used, newcomer.cell, newcomer.stays) = (0, 0, 0);
    newcomer.life = newcomer.charge;
    if newcomer.shares != 0 && latest(host, newcomer.tag, now) > 0 {
        let fewest = host.least(newcomer.set, newcomer.tag, newcomer.moves(), now);
        (newcomer.cell, newcomer.used) = ((fewest & 3) as u32, fewest & !3);
        if newcomer.used > 0 && newcomer.is(Moves::Nowhere) {
            newcomer.stays = 1;
        }
        if newcomer.used > 0 && newcomer.is(Moves::Anywhere) {
            let place = host.shape().cell(newcomer.set, newcomer.tag, newcomer.cell);
            let state = host.set(place.set).map_or(now, |set| set.load(place.word + newcomer.position));
            let life = life_of(state, now) + newcomer.charge;
            newcomer.life = if newcomer.used > life { newcomer.used } else { life };
            if life > newcomer.most {
                if host.is_background(newcomer.set, newcomer.tag, newcomer.used, now) {
                    (newcomer.used, newcomer.life) = (0, newcomer.charge);
                } else {
                    newcomer.stays = 1;
                }
            }
        }
    }
    if !newcomer.is(Moves::Anywhere) {
        newcomer.life = 0;
    }
}

/// Takes a slot for the key, finds that another CPU has, or says which of its cells to charge.
#[inline(always)]
pub fn claim<H: Host>(host: &H, hearing: &mut Hearing) -> Claim {
    let now = hearing.now;
    let newcomer = &mut hearing.newcomer;
    let shared = Claim { outcome: Claimed::Shared, slot: newcomer.cell };
    if newcomer.stays != 0 {
        return shared;
    }
    let Some(set) = host.set(newcomer.set) else { return Claim { outcome: Claimed::Full, slot: NO_SLOT } };
    let shape = host.shape();
    let victim = &mut newcomer.victim;
    let claim = shape.claim(set, newcomer.tag, now, newcomer.life, newcomer.is_slow != 0, |tag, slot| {
        for (word, state) in (0u32..).zip(victim.iter_mut()) {
            if word < shape.slot_words {
                *state = set.load(slot + word);
            }
        }
        victim[0] = tag.0;
    });
    match claim.outcome {
        Claimed::Reserved | Claimed::Displaced if newcomer.used > 0 => {
            let place = shape.cell(newcomer.set, newcomer.tag, newcomer.cell);
            if let Some(from) = host.set(place.set) {
                for word in 1..WIDEST_SLOT {
                    if word < shape.slot_words {
                        set.store(claim.slot + word, from.load(place.word + word));
                    }
                }
            }
            claim
        }
        Claimed::Full if newcomer.shares != 0 => shared,
        _ => claim,
    }
}

/// Leaves the states of a key that gave way in its cells.
#[inline(always)]
pub fn leave<H: Host>(host: &H, hearing: &Hearing) {
    let newcomer = &hearing.newcomer;
    let (tag, now) = (Tag(newcomer.victim[0]), hearing.now);
    host.note(TableEvent::Evicted);
    if newcomer.shares == 0 {
        return;
    }
    let shape = host.shape();
    let mut longest = 0;
    for (word, state) in (0u32..).zip(&newcomer.victim) {
        let life = life_of(*state, now);
        if word != 0 && word < shape.slot_words && life > 0 {
            longest = if life > longest { life } else { longest };
            for nth in 0..CELLS {
                let place = shape.cell(newcomer.set, tag, nth);
                if let Some(to) = host.set(place.set) {
                    raise(to, place.word + word, *state, now);
                }
            }
        }
    }
    note_latest(host, tag, longest, now);
}

/// After a key was charged in one of its cells: raises the others to it.
#[inline(always)]
pub fn spread<H: Host>(host: &H, hearing: &Hearing) {
    let (open, now) = (&hearing.open, hearing.now);
    let (set, tag, charged) = (open.home, open.slot.tag, open.shared.wrapping_sub(1));
    let shape = host.shape();
    let Some(from) = host.set(open.slot.set) else { return };
    if !hearing.newcomer.is(Moves::Nowhere) {
        raise_cells(host, from, open.slot.word, (set, tag), charged, now);
    }
    note_latest(host, tag, shape.life(from, open.slot.word, now), now);
}

/// Raises all cells of a key but one to the states of a slot or cell.
#[inline(always)]
fn raise_cells<H: Host>(host: &H, from: H::Set, slot: u32, key: (u32, Tag), but: u32, now: Ticks) {
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

/// Replaces a state by one that lives longer.
#[inline(always)]
fn raise(set: impl Set, word: u32, state: u64, now: Ticks) {
    let life = life_of(state, now);
    for _ in 0..RAISE_TRIES {
        let current = set.load(word);
        if life <= life_of(current, now) || set.compare_exchange(word, current, state) == current {
            return;
        }
    }
}

/// How long the cell of the key with the least in it lives, but for the last two bits, which tell which one it is.
#[inline(always)]
pub fn least<H: Host>(host: &H, set: u32, tag: Tag, moves: Moves, now: Ticks) -> u64 {
    let shape = host.shape();
    let mut least = u64::MAX;
    for nth in 0..CELLS {
        if nth == 0 || moves as u8 != Moves::Nowhere as u8 {
            let life = life_of_cell(host, &shape, shape.cell(set, tag, nth), now) & !3 | u64::from(nth);
            if life < least {
                least = life;
            }
        }
    }
    least
}

/// Whether other cells of the group hold half of what this key's do, or more. They are the same ones each time, or a key
/// would only have to ask often.
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
    host.set(place.set).map_or(0, |set| shape.life(set, place.word, now))
}

/// How long any cell of the tag's group lives at the most: 0 spares a new key the look at its own.
#[inline(always)]
fn latest<H: Host>(host: &H, tag: Tag, now: Ticks) -> Ticks {
    let place = host.shape().latest(tag);
    host.set(place.set).map_or(0, |set| life_of(set.load(place.word + 1), now))
}

/// A quarter more than is needed, so that it is seldom written.
#[inline(always)]
fn note_latest<H: Host>(host: &H, tag: Tag, life: Ticks, now: Ticks) {
    if life > latest(host, tag, now) {
        let place = host.shape().latest(tag);
        if let Some(set) = host.set(place.set) {
            raise(set, place.word + 1, now.wrapping_add(life + (life >> 2)), now);
        }
    }
}
