//! One packet, all its rules: charged by all or by none.
//!
//! First every rule is looked at; a packet that one of them refuses has then changed nothing, and costs no write but
//! one counter. Only if all agree are they charged, each by compare-and-swap. If a rule turns out to refuse after all,
//! since another CPU was faster, what was charged before it is taken back.

mod charge;
mod host;
mod overflow;
mod slot;
mod swift;

pub use self::host::{Cell, Host, Outcome, Passage, Sighting, TableEvent, Verdict};
use self::overflow::Newcomer;
pub use self::overflow::{CELLS, claim, estimate, is_background, least, leave, spread};
pub use self::slot::{open, take};

use self::charge::{Charge, charge_bucket, charge_rule, conforms, refund};
use self::slot::{Opened, Slot, open_slot, publish};
use self::swift::judge_swiftly;
use crate::key::Key;
use crate::rule::{Enforcement, MAX_RULES, Rule, RuleSpan, Size, Subject};
use crate::table::{Set, SlotCounter};
use crate::time::{Ticks, is_alive};

/// What a rule was charged, and where.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Charged {
    slot: Slot,
    charge: Charge,
    /// What a glance found that would be changed: a word of the set, from one value to another.
    from: u64,
    to: u64,
    word: u32,
    _pad: u32,
}

/// A packet with several rules, while it is judged.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Hearing {
    subject: Subject,
    span: RuleSpan,
    now: Ticks,
    departure: Ticks,
    open: Opened,
    marked_by: u32,
    /// 1: the key was looked for just now, and not there.
    is_new: u32,
    newcomer: Newcomer,
    charges: [Charged; MAX_RULES as usize],
}

impl Hearing {
    /// The packet and its rules, as [`Hearing::begin`] was given them.
    #[inline(always)]
    #[must_use]
    pub fn case(&self) -> (RuleSpan, Subject) {
        (self.span, self.subject)
    }

    /// How the packet passes.
    #[inline(always)]
    #[must_use]
    pub fn passage(&self) -> Passage {
        Passage { marked_by: self.marked_by, departure: self.departure }
    }

    /// Begins with a packet.
    #[inline(always)]
    pub fn begin(&mut self, span: RuleSpan, subject: &Subject, now: Ticks) {
        self.subject = *subject;
        self.span = span;
        self.now = now;
        self.departure = Passage::AT_ONCE;
        self.marked_by = Passage::UNMARKED;
        self.is_new = 0;
    }
}

/// What one rule says of a packet, as one number: 0 if it is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Ruling(u64);

impl Ruling {
    const REFUSED: Self = Self(0);
    /// It passes, at once and as it is.
    pub const FREE: Self = Self::pass(0, Passage::AT_ONCE);

    /// The last two bits of the departure, a fraction of a nanosecond, make room for what else there is to say.
    #[inline(always)]
    const fn pass(is_marked: u32, departure: Ticks) -> Self {
        Self(departure & !3 | (is_marked as u64) << 1 | 1)
    }

    /// As one number, for functions that return numbers.
    #[inline(always)]
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// What [`Ruling::to_bits`] was given.
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The verdict on a packet of which this is what its only rule says.
    #[inline(always)]
    #[must_use]
    pub const fn verdict(self, rule: u32) -> Verdict {
        if self.0 == Self::REFUSED.0 {
            return Verdict::Refuse(rule);
        }
        let marked_by = if self.0 & 2 != 0 { rule } else { Passage::UNMARKED };
        Verdict::Pass(Passage { marked_by, departure: self.0 & !3 })
    }
}

/// Holds a packet to the rules of `span`.
#[inline(always)]
pub fn judge<H: Host>(host: &H, span: RuleSpan, subject: &Subject) -> Verdict {
    match judge_swiftly(host, span, subject) {
        Some(verdict) => verdict,
        None => judge_thoroughly(host, span, subject),
    }
}

/// As [`judge`], whatever there is to do: making room for a new key, deciding again on what another CPU has changed.
#[inline(always)]
fn judge_thoroughly<H: Host>(host: &H, span: RuleSpan, subject: &Subject) -> Verdict {
    if span.count == 1 && host.rule(span.first).is_some_and(Rule::is_bucket) {
        judge_by_bucket(host, span, subject, 0)
    } else {
        judge_by_several(host, span, subject)
    }
}

/// With one rule, charging it is looking at it. `is_new` is 1 if its key was looked for just now, and not there.
#[inline(always)]
pub fn judge_by_bucket<H: Host>(host: &H, span: RuleSpan, subject: &Subject, is_new: u32) -> Verdict {
    let Some(mut hearing) = host.hearing() else { return Verdict::Pass(Passage::FREE) };
    hearing.begin(span, subject, host.now());
    hearing.is_new = is_new;
    open_slot(host, &mut hearing, 0);
    let ruling = host.charge_by_bucket(&mut hearing);
    if hearing.open.shared != 0 && ruling != Ruling::REFUSED {
        host.spread(&mut hearing);
    }
    ruling.verdict(span.first)
}

/// Charges the bucket whose slot is open.
#[inline(always)]
pub fn charge_by_bucket<H: Host>(host: &H, hearing: &mut Hearing) -> Ruling {
    let Some(rule) = host.rule(hearing.span.first) else { return Ruling::FREE };
    let (key, size, now) = (rule.key_of(&hearing.subject), hearing.subject.size, hearing.now);
    let cost = rule.cost_of(size);
    let mut open = hearing.open;
    let mut is_marked = 0;
    let mut departure = Passage::AT_ONCE;
    if open.slot.exists() {
        let result = charge_bucket(host, rule, open.slot, now, cost);
        is_marked = settle(host, rule, &mut open, result, now, size);
        if is_foreseen(rule, result) {
            host.foresee(rule, &key, size);
        }
        departure = result.departure(rule, cost);
        if open.is_reserved != 0 {
            publish(host, open.slot);
        }
    }
    if open.is_refused != 0 {
        refuse(host, rule, open.slot, key, size);
        return Ruling::REFUSED;
    }
    passed(host, rule, open.slot, key);
    host.count(rule.counter, Outcome::Passed, size);
    Ruling::pass(is_marked, departure)
}

/// Looks at every rule, then charges every rule.
#[inline(always)]
fn judge_by_several<H: Host>(host: &H, span: RuleSpan, subject: &Subject) -> Verdict {
    let Some(first) = host.rule(span.first) else { return Verdict::Pass(Passage::FREE) };
    let Some(mut hearing) = host.hearing() else { return Verdict::Pass(Passage::FREE) };
    hearing.begin(span, subject, host.now());
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
        let Some((opens, closes)) = host.rule(span.first + nth).map(|rule| (rule.opens_key, rule.closes_key)) else {
            break;
        };
        if opens != 0 {
            open_slot(host, &mut hearing, nth);
        }
        if !charge_or_take_back(host, &mut hearing, nth) {
            return Verdict::Refuse(span.first + nth);
        }
        if closes != 0 && hearing.open.shared != 0 {
            host.spread(&mut hearing);
        }
    }
    host.count(first.counter, Outcome::Passed, subject.size);
    Verdict::Pass(hearing.passage())
}

/// Whether the nth rule lets the packet pass as things are; counts it if not.
#[inline(always)]
pub fn look<H: Host>(host: &H, hearing: &mut Hearing, nth: u32) -> bool {
    let Some(rule) = host.rule(hearing.span.first + nth) else { return true };
    if rule.opens_key != 0 {
        hearing.open.slot = Slot::of(host, &rule.key_of(&hearing.subject));
    }
    let slot = hearing.open.slot;
    let cost = rule.cost_of(hearing.subject.size);
    // A key without a slot has its whole allowance.
    let conforms = if slot.exists() { conforms(host, rule, slot, hearing.now, cost) } else { cost <= rule.most };
    if conforms || !has_last_word(host, rule, hearing.now) {
        return true;
    }
    refuse(host, rule, slot, rule.key_of(&hearing.subject), hearing.subject.size);
    false
}

/// Charges the nth rule; if it refuses, takes back what those before it were charged.
#[inline(always)]
fn charge_or_take_back<H: Host>(host: &H, hearing: &mut Hearing, nth: u32) -> bool {
    let is_charged = host.charge(hearing, nth);
    host.conclude(hearing, nth);
    if !is_charged {
        host.take_back(hearing, nth);
    }
    is_charged
}

/// Charges the nth rule; `false` if it refuses after all, or there is no room for its key.
#[inline(always)]
pub fn charge<H: Host>(host: &H, hearing: &mut Hearing, nth: u32) -> bool {
    let Some(rule) = host.rule(hearing.span.first + nth) else { return true };
    let cost = rule.cost_of(hearing.subject.size);
    let slot = hearing.open.slot;
    let mut result = Charge::REFUSED;
    if slot.exists() {
        result = charge_rule(host, rule, slot, hearing.now, cost);
        let is_marked = settle(host, rule, &mut hearing.open, result, hearing.now, hearing.subject.size);
        if is_marked != 0 && hearing.marked_by == Passage::UNMARKED {
            hearing.marked_by = hearing.span.first + nth;
        }
        // The latest turn of all.
        let departure = result.departure(rule, cost);
        let is_later = is_alive(departure, hearing.departure) || hearing.departure == Passage::AT_ONCE;
        if departure != Passage::AT_ONCE && is_later {
            hearing.departure = departure;
        }
        if hearing.open.is_reserved != 0 && (hearing.open.is_refused != 0 || rule.closes_key != 0) {
            publish(host, slot);
            hearing.open.is_reserved = 0;
        }
    }
    if let Some(charged) = hearing.charges.get_mut(nth as usize) {
        charged.slot = slot;
        charged.charge = result;
    }
    hearing.open.is_refused == 0
}

/// Counts what came of charging the nth rule.
#[inline(always)]
pub fn conclude<H: Host>(host: &H, hearing: &Hearing, nth: u32) {
    let Some(rule) = host.rule(hearing.span.first + nth) else { return };
    let key = rule.key_of(&hearing.subject);
    let charge = hearing.charges.get(nth as usize).map_or(Charge::LOST, |charged| charged.charge);
    if hearing.open.slot.exists() && is_foreseen(rule, charge) {
        host.foresee(rule, &key, hearing.subject.size);
    }
    if hearing.open.is_refused != 0 {
        refuse(host, rule, hearing.open.slot, key, hearing.subject.size);
    } else if rule.closes_key != 0 {
        passed(host, rule, hearing.open.slot, key);
    }
}

/// Turns what came of a charge into whether the packet is refused, and counts what passes all the same. Returns 1 if
/// that is to be marked.
#[inline(always)]
fn settle<H: Host>(host: &H, rule: &Rule, open: &mut Opened, result: Charge, now: Ticks, size: Size) -> u32 {
    if result == Charge::LOST {
        host.note(TableEvent::Contended);
        open.is_refused = u32::from(rule.may_refuse());
    } else if result == Charge::REFUSED {
        if has_last_word(host, rule, now) {
            open.is_refused = 1;
        } else if rule.enforcement == Enforcement::Observe as u8 {
            host.count(rule.counter, Outcome::WouldThrottle, size);
        } else {
            host.count(rule.counter, Outcome::Over, size);
            return u32::from(rule.enforcement == Enforcement::Mark as u8);
        }
    }
    0
}

/// Whether the packet passes only since the rule observes.
#[inline(always)]
fn is_foreseen(rule: &Rule, result: Charge) -> bool {
    result == Charge::REFUSED && rule.enforcement == Enforcement::Observe as u8
}

/// Counts a packet that passed all rules of its key.
#[inline(always)]
fn passed<H: Host>(host: &H, rule: &Rule, slot: Slot, key: Key) {
    if let (true, Some(set)) = (slot.exists(), host.set(slot.set)) {
        passed_in(host, set, rule, slot, key);
    }
}

/// The same of a slot whose set is known.
#[inline(always)]
fn passed_in<H: Host>(host: &H, set: H::Set, rule: &Rule, slot: Slot, key: Key) {
    if set.count(slot.word, SlotCounter::Passed) & 63 == 0 {
        host.sight(&Sighting { rule, key, counter: SlotCounter::Passed, weight: 64 });
    }
}

/// Whether a refusal by this rule refuses the packet.
#[inline(always)]
fn has_last_word<H: Host>(host: &H, rule: &Rule, now: Ticks) -> bool {
    rule.enforcement == Enforcement::Enforce as u8
        || (rule.enforcement == Enforcement::Elastic as u8 && !host.has_room(now))
}

/// Counts a refusal, for the rule and for the key.
#[inline(always)]
fn refuse<H: Host>(host: &H, rule: &Rule, slot: Slot, key: Key, size: Size) {
    if let (true, Some(set)) = (slot.exists(), host.set(slot.set)) {
        refuse_in(host, set, rule, slot, key, size);
    } else {
        host.count(rule.counter, Outcome::Throttled, size);
    }
}

/// The same with a slot whose set is known.
#[inline(always)]
fn refuse_in<H: Host>(host: &H, set: H::Set, rule: &Rule, slot: Slot, key: Key, size: Size) {
    host.count(rule.counter, Outcome::Throttled, size);
    let count = set.count(slot.word, SlotCounter::Refused);
    let weight = if count & 63 == 0 { 64 } else { 0 };
    if weight != 0 || count == 1 {
        host.sight(&Sighting { rule, key, counter: SlotCounter::Refused, weight });
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
            refund(host, rule, charged.slot, charged.charge, rule.cost_of(hearing.subject.size));
        }
    }
}
