//! Keys without a slot: how they are counted while the table is full, and what happens to evicted keys.
//!
//! Each group has an array of cells after the sets. A cell is a slot without a key, so every algorithm can use it. A
//! key has [`super::CELLS`] of them, selected by its hash. It is charged in the one with the least use, and then the
//! others are raised to that one's state: a count-min sketch with conservative update (Cormode and Muthukrishnan, 2005;
//! Estan and Varghese, 2002) whose counters are the limiters' states. "Least" and "raised" compare states as instants,
//! which bounds the use: the later one of two states of a bucket has more used.
//!
//! Three rules make a full table strict and fair:
//!
//! - All charges of a key are in its slot or in each of its cells. An evicted key leaves its state in its cells, and a
//!   key that gets a slot starts with its least used cell. So no key gets its burst twice, however often it comes and
//!   goes.
//! - The evicted key is the least used one of the same group, with no more use than the new key's cells show. A busy
//!   key therefore soon gets a slot, and no longer disturbs the keys that share its cells.
//! - A cell that would refuse is compared with [`super::cells::REFERENCES`] other cells of the group. If all have at
//!   least half its use, a flood has filled them, and they carry no information about this key: it may take a slot with
//!   its whole allowance.
//!
//! Bound: no key passes more than its limit while fewer than half of a group's cells are in use: then a key is excused
//! with a probability below 2⁻⁸. A key within its limit is refused only if each of its cells is full because of other
//! keys. With h busy keys without a slot, c cells and the least of three, that is (1 − e^(−3h/c))³ of all keys: 0.9 %
//! at h = c/13. Measured by `common/tests/overflow.rs`.
//!
//! Limits with windows do not evict a key before it has decayed, since a window's end does not show its use. Logs use
//! one cell per key, since two rings cannot be merged; a key leaves that cell when it has decayed.

use super::cells::{CELLS, FullTable, latest, note_latest, raise, raise_cells};
use super::host::Host;
use super::outcome::TableEvent;
use super::packet_state::PacketState;
use crate::limiter::Moves;
use crate::table::{Claim, Claimed, Request, Set, Tag, WIDEST_SLOT, life_of};

/// Reads the key's cells.
#[inline(always)]
pub fn estimate<H: FullTable>(host: &H, packet_state: &mut PacketState) {
    let now = packet_state.now;
    let newcomer = &mut packet_state.newcomer;
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
            let state = host
                .set(place.set)
                .map_or(now, |set| set.load(place.word + newcomer.position));
            let life = life_of(state, now) + newcomer.charge;
            newcomer.life = if newcomer.used > life {
                newcomer.used
            } else {
                life
            };
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

/// Takes a slot for the key, finds the one that another CPU has taken, or selects the cell to charge.
#[inline(always)]
pub fn claim<H: Host>(host: &H, packet_state: &mut PacketState) -> Claim {
    let now = packet_state.now;
    let newcomer = &mut packet_state.newcomer;
    let shared = Claim {
        slot: newcomer.cell,
        ..Claim::none(Claimed::Shared)
    };
    if newcomer.stays != 0 {
        return shared;
    }
    let Some(set) = host.set(newcomer.set) else {
        return Claim::none(Claimed::Full);
    };
    let shape = host.shape();
    let victim = &mut newcomer.victim;
    let request = Request {
        set: newcomer.set,
        tag: newcomer.tag,
        life: newcomer.life,
        is_confined: newcomer.is_slow != 0,
    };
    let claim = shape.claim(
        |number| host.set(number),
        request,
        now,
        |tag, slot| {
            for (word, state) in (0u32..).zip(victim.iter_mut()) {
                if word < shape.slot_words {
                    *state = set.load(slot + word);
                }
            }
            victim[0] = tag.0;
        },
    );
    match claim.outcome {
        Claimed::Reserved | Claimed::Displaced if newcomer.used > 0 => {
            let place = shape.cell(newcomer.set, newcomer.tag, newcomer.cell);
            let other = shape.other_set(newcomer.set, newcomer.tag);
            let own = if claim.is_alternate {
                host.set(other)
            } else {
                Some(set)
            };
            if let (Some(set), Some(from)) = (own, host.set(place.set)) {
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

/// Copies the states of an evicted key to its cells.
#[inline(always)]
pub fn leave<H: Host>(host: &H, packet_state: &PacketState) {
    let newcomer = &packet_state.newcomer;
    let now = packet_state.now;
    host.note(TableEvent::Evicted);
    if newcomer.shares == 0 {
        return;
    }
    let shape = host.shape();
    let (home, tag) = shape.home(newcomer.set, Tag(newcomer.victim[0]));
    let mut longest = 0;
    for (word, state) in (0u32..).zip(&newcomer.victim) {
        let life = life_of(*state, now);
        if word != 0 && word < shape.slot_words && life > 0 {
            longest = if life > longest { life } else { longest };
            for nth in 0..CELLS {
                let place = shape.cell(home, tag, nth);
                if let Some(to) = host.set(place.set) {
                    raise(to, place.word + word, *state, now);
                }
            }
        }
    }
    note_latest(host, tag, longest, now);
}

/// After a charge in one of the key's cells: raises the others to it.
#[inline(always)]
pub fn spread<H: Host>(host: &H, packet_state: &PacketState) {
    let (open, now) = (&packet_state.open, packet_state.now);
    let (set, tag, charged) = (open.home, open.slot.tag, open.shared.wrapping_sub(1));
    let shape = host.shape();
    let Some(from) = host.set(open.slot.set) else {
        return;
    };
    if !packet_state.newcomer.is(Moves::Nowhere) {
        raise_cells(host, from, open.slot.word, (set, tag), charged, now);
    }
    note_latest(host, tag, shape.life(from, open.slot.word, now), now);
}
