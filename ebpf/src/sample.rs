//! Samples of keys for display, and events about them.

use aya_ebpf::bindings::BPF_NOEXIST;
use common::counters::{KeyStatistics, SampleKey};
use common::event::Event;
use common::key::Key;
use common::rule::Rule;
use common::source_sketch::hash;
use common::throttle::{Outcome, Sample};

use crate::atomics;
use crate::clock;
use crate::maps::{EVENTS, EVENTS_LOST, PACKET_STATE, SAMPLE_QUOTA, SAMPLES, setting};

/// A kind of sample in [`weir_sample`], besides the verdicts of an event.
const PASSED: u32 = 0;
const _: () = assert!(
    Event::THROTTLED < 4 && Event::WOULD_THROTTLE < 4,
    "two bits hold them"
);

/// Bit of [`weir_sample`]: the weight is that of one refusal, so that a new entry requires [`may_sample`].
const UNTALLIED: u64 = 1 << 63;

/// The initial sample of a key. Not on the stack, which has no room for it.
static UNSEEN: KeyStatistics = KeyStatistics::UNSEEN;

/// Samples packets of a key, by verdict and states.
#[inline(always)]
pub fn sample(sample: &Sample<'_>) {
    request(sample, 0);
}

/// As [`common::throttle::Host::sample_untallied`].
#[inline(always)]
pub fn sample_untallied(sample: &Sample<'_>) {
    request(sample, UNTALLIED);
}

#[inline(always)]
fn request(sample: &Sample<'_>, bits: u64) {
    let Sample { rule, key, .. } = sample;
    let (outcome, entry) = match sample.outcome {
        Outcome::Passed => (PASSED, SampleKey::passed(key.group, rule.closes_key)),
        Outcome::WouldThrottle => (
            Event::WOULD_THROTTLE,
            SampleKey::refused(key.group, rule.position),
        ),
        _ => (
            Event::THROTTLED,
            SampleKey::refused(key.group, rule.position),
        ),
    };
    let extra = u64::from(key.extra) << 32 | u64::from(entry.0);
    if rule.is_of_level() && outcome != PASSED {
        weir_source(key.hi, key.lo, extra);
    }
    let what =
        u64::from(sample.weight) << 8 | u64::from(sample.rest & 63) << 2 | u64::from(outcome);
    weir_sample(key.hi, key.lo, extra, rule.counter, what | bits);
}

/// Whether this CPU may take another sample of a key with a first refusal in a while.
#[inline(always)]
pub fn may_sample(nanoseconds: u64) -> bool {
    // SAFETY: this CPU's own value.
    SAMPLE_QUOTA
        .get_ptr_mut(0)
        .is_some_and(|quota| unsafe { &mut *quota }.take(nanoseconds))
}

/// Only one packet in 64 of a key with a slot needs this function, so it is separate from the others' path.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_sample(hi: u64, lo: u64, extra: u64, rule: u32, what: u64) -> u32 {
    let (outcome, rest, weight) = (
        what as u32 & 3,
        what >> 2 & 63,
        what >> 8 & u64::from(u32::MAX),
    );
    // On this function's stack, since kernels such as 6.1 accept no memory of a caller as a map's key.
    let key = &Key {
        hi,
        lo,
        extra: (extra >> 32) as u32,
        group: extra as u32,
    };
    let now = clock::nanoseconds();
    let statistics = match SAMPLES.get_ptr_mut(key) {
        Some(statistics) => statistics,
        None if what & UNTALLIED != 0 && !may_sample(now) => return 0,
        None => match new_statistics(key) {
            Some(statistics) => statistics,
            None => return 0,
        },
    };
    // SAFETY: a value of the map, which stays mapped while the program runs.
    let statistics = unsafe { &mut *statistics };
    statistics.seen_at = now;
    let total = match outcome {
        PASSED => {
            added(&mut statistics.passed, weight);
            return 0;
        }
        Event::WOULD_THROTTLE => {
            statistics.would_refuse_at = now;
            added(&mut statistics.would_refuse, weight)
        }
        _ => {
            statistics.refused_at = now;
            added(&mut statistics.refused, weight)
        }
    };
    report(key, statistics, total + rest, rule, outcome);
    0
}

/// Adds refusals of some time ago, without an event.
#[inline(always)]
pub fn add_refused(rule: &Rule, key: &Key, refused: u32) {
    let entry = SampleKey::refused(key.group, rule.position);
    let extra = u64::from(key.extra) << 32 | u64::from(entry.0);
    weir_add_refused(key.hi, key.lo, extra, refused);
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_add_refused(hi: u64, lo: u64, extra: u64, refused: u32) -> u32 {
    // As in `weir_sample`.
    let key = &Key {
        hi,
        lo,
        extra: (extra >> 32) as u32,
        group: extra as u32,
    };
    if let Some(statistics) = statistics_of(key) {
        // SAFETY: a value of the map, as in `weir_sample`.
        added(unsafe { &mut (*statistics).refused }, refused.into());
    }
    0
}

/// Adds to a count that other CPUs change; returns the sum.
#[inline(always)]
fn added(count: &mut u64, more: u64) -> u64 {
    let count = &raw mut *count;
    // SAFETY: a word of a map's value; volatile since other CPUs write it.
    unsafe {
        atomics::add(count, more);
        count.read_volatile()
    }
}

/// The entry of a key, with a new one if there is none. If the map is full of keys that are being read, there is none.
#[inline(always)]
fn statistics_of(key: &Key) -> Option<*mut KeyStatistics> {
    SAMPLES.get_ptr_mut(key).or_else(|| new_statistics(key))
}

/// A new entry.
#[inline(always)]
fn new_statistics(key: &Key) -> Option<*mut KeyStatistics> {
    // Another CPU may have been first, and its value is kept.
    let unseen: &KeyStatistics = &UNSEEN;
    let _ = SAMPLES.insert(key, unseen, BPF_NOEXIST.into());
    SAMPLES.get_ptr_mut(key)
}

/// Adds the packet's source to those that a level refuses. The packet is this CPU's [`PACKET_STATE`]: a limit with levels has
/// several rules. Apart from [`weir_sample`], whose stack lies below that of most functions.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_source(hi: u64, lo: u64, extra: u64) -> u32 {
    // As in `weir_sample`.
    let key = &Key {
        hi,
        lo,
        extra: (extra >> 32) as u32,
        group: extra as u32,
    };
    let Some(statistics) = statistics_of(key) else {
        return 0;
    };
    let Some(packet_state) = PACKET_STATE.get_ptr_mut(0) else {
        return 0;
    };
    let seed = [setting!(seed.words[0]), setting!(seed.words[1])];
    // SAFETY: a value of the map, as in `weir_sample`, and one that only this CPU uses.
    unsafe { (*statistics).add_source(hash(seed, (*packet_state).source()), clock::nanoseconds()) };
    0
}

/// Adds packets to the refusals of a key that do not count towards a ban, if the key is sampled: a flood of forged sources
/// displaces no other key. A global function of numbers, so that it is verified once, and not at all without bans (Linux 6.8).
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn weir_unconnected(hi: u64, lo: u64, extra: u64, packets: u32) -> u32 {
    // As in `weir_sample`.
    let key = &Key {
        hi,
        lo,
        extra: (extra >> 32) as u32,
        group: extra as u32,
    };
    if let Some(statistics) = SAMPLES.get_ptr_mut(key) {
        // SAFETY: a value of the map, as in `weir_sample`.
        added(unsafe { &mut (*statistics).unconnected }, packets.into());
    }
    0
}

/// Writes a record if this key's last one is old enough. If there is no room for it, the loss is counted.
#[inline(never)]
fn report(key: &Key, statistics: &mut KeyStatistics, count: u64, rule: u32, outcome: u32) {
    let (reported_at, now) = (statistics.reported_at, statistics.seen_at);
    if !Event::is_due(reported_at, now) {
        return;
    }
    // Of several CPUs at the same instant, one writes the record.
    // SAFETY: a word of a map's value.
    if unsafe { atomics::compare_exchange(&raw mut statistics.reported_at, reported_at, now) }
        != reported_at
    {
        return;
    }
    let Some(mut record) = EVENTS.reserve(0) else {
        if let Some(lost) = EVENTS_LOST.get_ptr_mut(0) {
            // SAFETY: this CPU's own value.
            unsafe { *lost += 1 };
        }
        return;
    };
    // Written in place, without a copy of the value on the stack.
    let event = record.as_mut_ptr();
    // SAFETY: the ring's memory, reserved for one record; every field is written.
    unsafe {
        (*event).key = Key {
            group: SampleKey(key.group).group(),
            ..*key
        };
        (*event).at = now;
        (*event).count = count;
        (*event).counter = rule;
        (*event).verdict = outcome;
    }
    record.submit(0);
}
