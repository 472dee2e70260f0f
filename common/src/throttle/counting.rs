//! Counting a packet: for its rules, for its key, and as a sample.

use super::host::{Cell, Host, Sample};
use super::hot::count_by_cpu;
use super::outcome::{Outcome, TableEvent};
use super::slot::Slot;
use crate::key::Key;
use crate::rule::{Enforcement, Rule, Size};
use crate::table::{Counted, Set, SlotCounter};
use crate::time::Ticks;

/// Counts a packet whose charge failed because other CPUs were faster. Returns 1 if it is refused for that.
#[inline(always)]
pub(super) fn lost<H: Host>(host: &H, rule: &Rule, size: Size) -> u32 {
    host.note(TableEvent::Contended);
    if !rule.may_refuse() {
        return 0;
    }
    host.count(rule.counter, Outcome::Contended, size);
    1
}

/// Counts a packet that passed all rules of its key.
#[inline(always)]
pub(super) fn passed<H: Host>(host: &H, rule: &Rule, slot: Slot, key: Key, size: Size) {
    if let (true, Some(set)) = (slot.exists(), host.set(slot.set)) {
        passed_in(host, set, rule, slot, key, size);
    }
}

/// The same for a slot in a known set.
#[inline(always)]
pub(super) fn passed_in<H: Host>(
    host: &H,
    set: H::Set,
    rule: &Rule,
    slot: Slot,
    key: Key,
    size: Size,
) {
    let Counted { carried, rest, .. } = set.count(slot.word, SlotCounter::Passed, size.packets, 0);
    if carried != 0 {
        host.sample(&Sample {
            rule,
            key,
            outcome: Outcome::Passed,
            weight: carried,
            rest,
        });
    }
}

/// Whether a refusal by this rule refuses the packet.
#[inline(always)]
pub(super) fn has_last_word<H: Host>(host: &H, rule: &Rule, now: Ticks) -> bool {
    rule.enforcement == Enforcement::Enforce as u8
        || (rule.enforcement == Enforcement::Elastic as u8 && !host.has_room(now))
}

/// Counts a refusal, for the rule and for the key.
#[inline(always)]
pub(super) fn refuse<H: Host>(host: &H, rule: &Rule, slot: Slot, key: Key, size: Size, now: Ticks) {
    host.count(rule.counter, Outcome::Throttled, size);
    sample_refusal(host, rule, slot, key, size, now, Outcome::Throttled);
}

/// A refused packet of a key with a slot.
#[derive(Clone, Copy)]
pub(super) struct Refusal {
    /// The index of the rule.
    pub(super) rule: u32,
    pub(super) slot: Slot,
    pub(super) key: Key,
    pub(super) size: Size,
    pub(super) now: Ticks,
}

/// Counts a refusal of a key with a slot, by this CPU alone if the key is its hot one. `set` returns the slot's set. True if
/// [`Host::add_hot`] has to follow, for a hot key that gives way to this one.
#[inline(always)]
pub(super) fn refuse_on_fast_path<H: Host>(
    host: &H,
    set: impl FnOnce() -> Option<H::Set>,
    rule: &Rule,
    refusal: Refusal,
) -> bool {
    let Refusal {
        rule: index,
        slot,
        key,
        size,
        now,
    } = refusal;
    let by_cpu = count_by_cpu(host, rule, &key, size, now);
    let is_hot = by_cpu.is_some();
    let counted = match by_cpu {
        Some(counted) => Some(counted),
        None => count_refusal(host, set, rule, slot, size, now),
    };
    sample(host, rule, key, now, Outcome::Throttled, counted);
    !is_hot
        && rule.counts_by_cpu()
        && counted.is_some_and(|counted| counted.carried != 0)
        && host.make_hot(index, &key, now, 1)
}

/// Counts a packet that was refused, or would have been, for the state in the key's slot, and samples it if it is due.
#[inline(always)]
pub(super) fn sample_refusal<H: Host>(
    host: &H,
    rule: &Rule,
    slot: Slot,
    key: Key,
    size: Size,
    now: Ticks,
    outcome: Outcome,
) {
    if slot.exists() {
        let counted = count_refusal(host, || host.set(slot.set), rule, slot, size, now);
        sample(host, rule, key, now, outcome, counted);
    }
}

/// Adds to the tally of a state in an existing slot. `set` is only called if the tally is in the slot's head.
#[inline(always)]
fn count_refusal<H: Host>(
    host: &H,
    set: impl FnOnce() -> Option<H::Set>,
    rule: &Rule,
    slot: Slot,
    size: Size,
    now: Ticks,
) -> Option<Counted> {
    let instant = host.coarse(now);
    if host.shape().has_refusal_words() {
        host.cell(slot.refusals(host))
            .map(|cell| cell.count(u32::from(rule.position), size.packets, instant))
    } else {
        set().map(|set| set.count(slot.word, SlotCounter::Refused, size.packets, instant))
    }
}

#[inline(always)]
fn sample<H: Host>(
    host: &H,
    rule: &Rule,
    key: Key,
    now: Ticks,
    outcome: Outcome,
    counted: Option<Counted>,
) {
    let Some(Counted {
        carried,
        rest,
        is_due,
    }) = counted
    else {
        return;
    };
    if carried != 0 || (is_due && host.may_sample(now)) {
        host.sample(&Sample {
            rule,
            key,
            outcome,
            weight: carried,
            rest,
        });
    }
}
