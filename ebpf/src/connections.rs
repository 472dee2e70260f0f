//! Open connections at a SYN: the maps that the programs of the `connections` object share. All decisions are in
//! `common`.

use aya_ebpf::bindings::BPF_NOEXIST;
use common::connections::{
    self, Addressed, Admission, Attempt, Client, Ledger, Reservation, Tuple,
};
use common::key::Key;
use common::rule::{RuleSpan, Subject};

use crate::cell::MapCell;
use crate::clock;
use crate::maps::{ADDRESSED, ATTEMPT, OPEN, PENDING, RESERVED};
use crate::throttle::{KERNEL, Kernel};

impl Ledger for Kernel {
    #[inline(always)]
    fn open_connections(&self, key: &Key) -> u64 {
        // SAFETY: a word of a map's value; volatile since other CPUs write it.
        OPEN.get_ptr_mut(key)
            .map_or(0, |open| unsafe { open.read_volatile() })
    }

    #[inline(always)]
    fn pending_connections(&self, key: &Key) -> Option<MapCell> {
        let pending = PENDING.get_ptr_mut(key).or_else(|| {
            // Another CPU may have been first, and its value is kept.
            let _ = PENDING.insert(key, 0, BPF_NOEXIST.into());
            PENDING.get_ptr_mut(key)
        });
        pending.map(MapCell)
    }

    #[inline(always)]
    fn reserved_in(&self, tuple: &Tuple) -> Option<u32> {
        // SAFETY: the value is written once, before it is in the map.
        RESERVED
            .get_ptr_mut(tuple)
            .map(|reservation| unsafe { (*reservation).window })
    }

    #[inline(always)]
    fn remember(&self, tuple: &Tuple, reservation: &Reservation) {
        let _ = RESERVED.insert(tuple, reservation, 0);
        let addressed = Addressed::of(tuple, reservation.window);
        let _ = ADDRESSED.insert(Client::of(tuple), addressed, 0);
    }

    #[inline(always)]
    fn window(&self) -> u32 {
        connections::window(clock::coarse_nanoseconds())
    }
}

#[inline(always)]
fn attempt() -> Option<&'static mut Attempt> {
    // SAFETY: a map value that only this CPU uses, as `PACKET_STATE` is.
    ATTEMPT
        .get_ptr_mut(0)
        .map(|attempt| unsafe { &mut *attempt })
}

/// [`connections::reserve`] for a SYN.
#[inline(always)]
pub fn reserve(span: RuleSpan, subject: &Subject, tuple: Tuple) -> Admission {
    let Some(attempt) = attempt() else {
        return Admission::admitted(0);
    };
    attempt.subject = *subject;
    attempt.tuple = tuple;
    attempt.first = span.first;
    Admission(weir_reserve(span.count))
}

/// [`connections::conclude`] for the same SYN.
#[inline(always)]
pub fn conclude(passes: bool) {
    weir_reserved(u32::from(passes));
}

/// A global function of a number, so that it is verified once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_reserve(count: u32) -> u64 {
    attempt().map_or(0, |attempt| connections::reserve(&KERNEL, attempt, count).0)
}

/// A global function of a number, so that it is verified once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_reserved(passes: u32) -> u32 {
    if let Some(attempt) = attempt() {
        connections::conclude(&KERNEL, attempt, passes != 0);
    }
    0
}
