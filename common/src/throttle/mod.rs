//! One packet, all its rules: charged by all or by none.
//!
//! First every rule is looked at; a packet that one of them refuses has then changed nothing, and costs no write but
//! one counter. Only if all agree are they charged, each by compare-and-swap. If a rule turns out to refuse after all,
//! since another CPU was faster, what was charged before it is taken back.

mod charge;
mod host;
mod slot;

pub use self::host::{Cell, Host, Outcome, Sighting, TableEvent, Verdict};
pub use self::slot::claim;

use self::charge::{Charge, charge_bucket, charge_rule, conforms, cost, refund};
use self::slot::{Opened, Slot, count, open_key, publish};
use crate::key::Key;
use crate::rule::{Enforcement, MAX_RULES, Rule, RuleSpan, Subject};
use crate::table::SlotCounter;
use crate::time::Ticks;

/// What a rule was charged, and where.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Charged {
    slot: Slot,
    charge: Charge,
}

/// A packet with several rules, while it is judged.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Hearing {
    subject: Subject,
    span: RuleSpan,
    now: Ticks,
    open: Opened,
    charges: [Charged; MAX_RULES as usize],
}

/// Holds a packet to the rules of `span`.
#[inline(always)]
pub fn judge<H: Host>(host: &H, span: RuleSpan, subject: &Subject) -> Verdict {
    let Some(rule) = host.rule(span.first) else { return Verdict::Pass };
    // The commonest case is the one that is all in line.
    if span.count == 1 && rule.is_bucket() {
        let passes = host.judge_by_bucket(span.first, &rule.key_of(subject), subject.length);
        if passes { Verdict::Pass } else { Verdict::Refuse(span.first) }
    } else {
        judge_by_several(host, span, rule.counter, subject)
    }
}

/// With one rule, charging it is looking at it.
#[inline(always)]
pub fn judge_by_bucket<H: Host>(host: &H, index: u32, key: &Key, length: u32) -> bool {
    let Some(rule) = host.rule(index) else { return true };
    let now = host.now();
    let mut open = open_key(host, rule, key, now, length);
    if open.slot.exists() {
        let result = charge_bucket(host, rule, open.slot, now, cost(rule, length));
        settle(host, rule, &mut open, result, length);
        if open.is_reserved != 0 {
            publish(host, open.slot);
        }
    }
    if open.is_refused != 0 {
        refuse(host, rule, open.slot, key, length);
        return false;
    }
    passed(host, rule, open.slot, key);
    host.count(rule.counter, Outcome::Passed, length);
    true
}

#[inline(always)]
fn judge_by_several<H: Host>(host: &H, span: RuleSpan, counter: u32, subject: &Subject) -> Verdict {
    let Some(mut hearing) = host.hearing() else { return Verdict::Pass };
    hearing.subject = *subject;
    hearing.span = span;
    hearing.now = host.now();
    for nth in 0..MAX_RULES {
        if nth >= span.count || nth >= host.most_rules() {
            break;
        }
        if !host.look(&mut hearing, nth) {
            return Verdict::Refuse(span.first + nth);
        }
    }
    for nth in 0..MAX_RULES {
        if nth >= span.count || nth >= host.most_rules() {
            break;
        }
        if !host.charge(&mut hearing, nth) {
            host.take_back(&mut hearing, nth);
            return Verdict::Refuse(span.first + nth);
        }
    }
    host.count(counter, Outcome::Passed, subject.length);
    Verdict::Pass
}

/// Whether the nth rule lets the packet pass as things are; counts it if not.
#[inline(always)]
pub fn look<H: Host>(host: &H, hearing: &mut Hearing, nth: u32) -> bool {
    let Some(rule) = host.rule(hearing.span.first + nth) else { return true };
    if rule.opens_key != 0 {
        hearing.open.slot = Slot::of(host, &rule.key_of(&hearing.subject));
    }
    let slot = hearing.open.slot;
    let cost = cost(rule, hearing.subject.length);
    // A key without a slot has its whole allowance.
    let conforms = if slot.exists() { conforms(host, rule, slot, hearing.now, cost) } else { cost <= rule.most };
    if conforms || !has_last_word(host, rule) {
        return true;
    }
    refuse(host, rule, slot, &rule.key_of(&hearing.subject), hearing.subject.length);
    false
}

/// Charges the nth rule; `false` if it refuses after all, or there is no room for its key.
#[inline(always)]
pub fn charge<H: Host>(host: &H, hearing: &mut Hearing, nth: u32) -> bool {
    let Some(rule) = host.rule(hearing.span.first + nth) else { return true };
    if rule.opens_key != 0 {
        let key = rule.key_of(&hearing.subject);
        hearing.open = open_key(host, rule, &key, hearing.now, hearing.subject.length);
    }
    let slot = hearing.open.slot;
    let mut result = Charge::REFUSED;
    if slot.exists() {
        result = charge_rule(host, rule, slot, hearing.now, hearing.subject.length);
        settle(host, rule, &mut hearing.open, result, hearing.subject.length);
        if hearing.open.is_reserved != 0 && (hearing.open.is_refused != 0 || rule.closes_key != 0) {
            publish(host, slot);
            hearing.open.is_reserved = 0;
        }
    }
    if let Some(charged) = hearing.charges.get_mut(nth as usize) {
        *charged = Charged { slot, charge: result };
    }
    if hearing.open.is_refused != 0 {
        refuse(host, rule, slot, &rule.key_of(&hearing.subject), hearing.subject.length);
        return false;
    }
    if rule.closes_key != 0 {
        passed(host, rule, slot, &rule.key_of(&hearing.subject));
    }
    true
}

/// Turns what came of a charge into whether the packet is refused, and counts what passes all the same.
#[inline(always)]
fn settle<H: Host>(host: &H, rule: &Rule, open: &mut Opened, result: Charge, length: u32) {
    if result == Charge::LOST {
        host.note(TableEvent::Contended);
        open.is_refused = 1;
    } else if result == Charge::REFUSED {
        if has_last_word(host, rule) {
            open.is_refused = 1;
        } else if rule.enforcement == Enforcement::Observe as u8 {
            host.count(rule.counter, Outcome::WouldThrottle, length);
        } else {
            host.count(rule.counter, Outcome::Over, length);
        }
    }
}

/// Counts a packet that passed all rules of its key.
#[inline(always)]
fn passed<H: Host>(host: &H, rule: &Rule, slot: Slot, key: &Key) {
    if slot.exists() && count(host, slot, SlotCounter::Passed) & 63 == 0 {
        host.sight(&Sighting { rule, key, counter: SlotCounter::Passed, weight: 64 });
    }
}

/// Whether a refusal by this rule refuses the packet.
#[inline(always)]
fn has_last_word<H: Host>(host: &H, rule: &Rule) -> bool {
    rule.enforcement == Enforcement::Enforce as u8
        || (rule.enforcement == Enforcement::Elastic as u8 && !host.has_room())
}

/// Counts a refusal, for the rule and for the key.
#[inline(always)]
fn refuse<H: Host>(host: &H, rule: &Rule, slot: Slot, key: &Key, length: u32) {
    host.count(rule.counter, Outcome::Throttled, length);
    if slot.exists() {
        let count = count(host, slot, SlotCounter::Refused) & 63;
        if count <= 1 {
            let weight = if count == 0 { 64 } else { 0 };
            host.sight(&Sighting { rule, key, counter: SlotCounter::Refused, weight });
        }
    }
}

/// Takes back what the first `count` rules were charged.
#[inline(always)]
pub fn take_back<H: Host>(host: &H, hearing: &mut Hearing, count: u32) {
    for (nth, charged) in (0..MAX_RULES).zip(&hearing.charges) {
        if nth >= count || nth >= host.most_rules() {
            break;
        }
        if let (Some(rule), true) = (host.rule(hearing.span.first + nth), charged.charge.is_done()) {
            refund(host, rule, charged.slot, charged.charge, cost(rule, hearing.subject.length));
        }
    }
}
