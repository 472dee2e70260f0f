//! What is remembered of keys for people to look at, and what they are told of it: events.

use common::counters::Sighted;
use common::event::Event;
use common::key::Key;
use common::rule::{Rule, Size};

use crate::atomics;
use crate::maps::{COUNTERS, EVENTS, EVENTS_LOST, SIGHTINGS};
use crate::throttle::Kernel;

/// What [`weir_sight`] is told of, beside the verdicts of an event.
const PASSED: u32 = 0;
const _: () = assert!(Event::THROTTLED < 4 && Event::WOULD_THROTTLE < 4, "two bits hold them");
const _: () = assert!(Event::THROTTLED == 1, "the throttle passes a refusal as a truth value");

/// One in so many packets is looked at.
const STEP: u64 = 64;

/// What is remembered of a key at first. Not on the stack, where there is no room for it.
static UNSEEN: Sighted =
    Sighted { passed: 0, refused: 0, would_refuse: 0, refused_at: 0, seen_at: 0, told_at: 0, refused_by: 0, _pad: 0 };

/// Remembers `weight` packets of a key, by how they were judged.
#[inline(always)]
pub fn sight(key: &Key, rule: u32, outcome: u32, weight: u32) {
    let extra = u64::from(key.extra) << 32 | u64::from(key.group);
    weir_sight(key.hi, key.lo, extra, rule, u64::from(weight) << 2 | u64::from(outcome));
}

/// One packet in 64 of a key comes here, so it is kept out of the way of the others.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_sight(hi: u64, lo: u64, extra: u64, rule: u32, what: u64) -> u32 {
    let (outcome, weight) = (what as u32 & 3, what >> 2);
    // On this function's own stack, since kernels such as 6.1 take no memory of a caller's as the key of a map.
    let key = &Key { hi, lo, extra: (extra >> 32) as u32, group: extra as u32 };
    let now = Kernel::nanoseconds();
    if SIGHTINGS.get_ptr(key).is_none() {
        // If the map is full of keys that are looked at right now, this one is not told of.
        let unseen: &Sighted = &UNSEEN;
        let _ = SIGHTINGS.insert(key, unseen, 0);
    }
    let Some(sighted) = SIGHTINGS.get_ptr_mut(key) else { return 0 };
    // SAFETY: a value of the map, which stays mapped while the program runs. CPUs that count one key at the same
    // instant may lose a count: this is for people to look at.
    let sighted = unsafe { &mut *sighted };
    sighted.seen_at = now;
    let total = match outcome {
        PASSED => {
            sighted.passed += weight;
            return 0;
        }
        Event::WOULD_THROTTLE => {
            sighted.would_refuse += weight;
            sighted.would_refuse
        }
        _ => {
            sighted.refused += weight;
            sighted.refused_at = now;
            sighted.refused_by = rule;
            sighted.refused
        }
    };
    // The first one of 64 adds nothing yet.
    tell(key, sighted, total + u64::from(weight == 0), rule, outcome);
    0
}

/// Writes a record, if the last one of this key is long enough ago. Where there is no room for it, that is counted.
#[inline(never)]
fn tell(key: &Key, sighted: &mut Sighted, count: u64, rule: u32, outcome: u32) {
    let (told_at, now) = (sighted.told_at, sighted.seen_at);
    if !Event::is_due(told_at, now) {
        return;
    }
    // Of CPUs that come here at the same instant, one tells.
    // SAFETY: a word of a map's value.
    if unsafe { atomics::compare_exchange(&raw mut sighted.told_at, told_at, now) } != told_at {
        return;
    }
    let Some(mut record) = EVENTS.reserve(0) else {
        if let Some(lost) = EVENTS_LOST.get_ptr_mut(0) {
            // SAFETY: this CPU's own value.
            unsafe { *lost += 1 };
        }
        return;
    };
    // As it is laid out, and not as a value on the stack that is copied.
    let event = record.as_mut_ptr();
    // SAFETY: the ring's memory, reserved for one record; every field is written.
    unsafe {
        (*event).key = *key;
        (*event).at = now;
        (*event).count = count;
        (*event).counter = rule;
        (*event).verdict = outcome;
    }
    record.submit(0);
}

/// Looks at one in 64 of the packets that a rule would have refused, and at the first. The packet has been counted.
#[inline(always)]
pub fn foresee(rule: &Rule, key: &Key, size: Size) {
    let Some(counters) = COUNTERS.get_ptr(rule.counter) else { return };
    // SAFETY: this CPU's own value.
    let count = unsafe { (*counters).would_throttle.packets };
    let before = count - u64::from(size.packets);
    if before == 0 {
        sight(key, rule.counter, Event::WOULD_THROTTLE, 0);
    } else if count / STEP != before / STEP {
        sight(key, rule.counter, Event::WOULD_THROTTLE, STEP as u32);
    }
}
