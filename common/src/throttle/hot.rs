//! Keys of which several CPUs have packets: see [`crate::hot`].

use super::host::{Host, Sample};
use super::outcome::Outcome;
use super::verdict::HotVerdict;
use crate::hot::{CpuRow, Take, longest_hold};
use crate::key::Key;
use crate::limiter::Decision;
use crate::rule::{Rule, Size};
use crate::table::{Counted, Place, Set};
use crate::time::Ticks;

/// Counts a packet that passes in this CPU's row.
#[inline(always)]
pub(super) fn count_passed<H: Host>(host: &H, rule: &Rule, row: &mut CpuRow, size: Size) {
    row.counters.passed.add(size);
    host.trace(rule.counter, Outcome::Passed, size);
}

/// Charges a packet of this CPU's hot key that conforms in the state `from`: alone, or together with those to come if other
/// CPUs change the state, too. `place` is the key's slot.
#[inline(always)]
pub fn charge_hot<H: Host>(
    host: &H,
    index: u32,
    place: Place,
    from: u64,
    now: Ticks,
    size: Size,
) -> HotVerdict {
    let Some(rule) = host.rule(index) else {
        return HotVerdict::Lost;
    };
    let (Some(mut row), Some(set)) = (host.row(rule.counter), host.set(place.set)) else {
        return HotVerdict::Lost;
    };
    let bucket = rule.token_bucket();
    let cost = rule.cost_of(size);
    let longest = longest_hold(rule.tolerance, host.scale());
    let (next, units) = match row.hot.take(&bucket, from, now, cost, longest) {
        Take::Hold { next, units } => (next, units),
        Take::Single => match bucket.decide(from, now, cost) {
            Decision::Pass(next) => (next, 0),
            Decision::Refuse => return HotVerdict::Lost,
        },
        Take::Refuse => return HotVerdict::Refused,
    };
    if set.compare_exchange(place.word + u32::from(rule.position), from, next) != from {
        row.hot.note_contention();
        return HotVerdict::Lost;
    }
    row.hot.hold(index, next, units, now, longest);
    row.hot.passed = row.hot.passed.wrapping_add(size.packets);
    count_passed(host, rule, &mut row, size);
    HotVerdict::Passed
}

/// Counts a refusal for the rule, and if its key is this CPU's hot one, for the key.
#[inline(always)]
pub(super) fn count_by_cpu<H: Host>(
    host: &H,
    rule: &Rule,
    key: &Key,
    size: Size,
    now: Ticks,
) -> Option<Counted> {
    let Some(mut row) = host.row(rule.counter) else {
        host.count(rule.counter, Outcome::Throttled, size);
        return None;
    };
    host.trace(rule.counter, Outcome::Throttled, size);
    row.counters.throttled.add(size);
    (rule.counts_by_cpu() && row.hot.is(key))
        .then(|| row.hot.refuse(size.packets, now, host.scale()))
}

/// See [`Host::add_hot`].
#[inline(always)]
pub fn add_hot<H: Host>(host: &H, index: u32, now: Ticks, only_if_due: bool) {
    let Some(rule) = host.rule(index) else {
        return;
    };
    let Some(mut row) = host.row(rule.counter) else {
        return;
    };
    if only_if_due && !row.hot.is_due(now, host.scale()) {
        return;
    }
    let (key, refused, passed) = (row.hot.key, row.hot.refused, row.hot.passed);
    (row.hot.refused, row.hot.passed) = (0, 0);
    row.hot.next_step(now, host.scale());
    if refused != 0 {
        // One that gives way was last refused some time ago.
        if only_if_due {
            add(host, rule, key, Outcome::Throttled, refused);
        } else {
            host.add_refused(rule, &key, refused);
        }
    }
    if passed != 0 {
        add(host, rule, key, Outcome::Passed, passed);
    }
}

#[inline(always)]
fn add<H: Host>(host: &H, rule: &Rule, key: Key, outcome: Outcome, weight: u32) {
    host.sample(&Sample {
        rule,
        key,
        outcome,
        weight,
        rest: 0,
    });
}

/// See [`Host::make_hot`].
#[inline(always)]
pub fn make_hot<H: Host>(host: &H, index: u32, key: &Key, now: Ticks, size: u16) -> bool {
    let Some(mut row) = host.rule(index).and_then(|rule| host.row(rule.counter)) else {
        return false;
    };
    if row.hot.is(key) {
        if size > 1 {
            row.hot.note_contention();
        }
        return false;
    }
    if !row.hot.give_way() {
        return false;
    }
    if row.hot.refused | row.hot.passed != 0 {
        return true;
    }
    row.hot.begin(key, now, size);
    false
}
