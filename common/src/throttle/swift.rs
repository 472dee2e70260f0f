//! The way of most packets: every rule's key has its slot already, and no other CPU is at the same state.
//!
//! It is straight-line code without calls, for a call costs the kernel more than all it decides here. What it cannot
//! decide it leaves as it was, for [`super::judge_thoroughly`] to begin anew.

use super::charge::Charge;
use super::host::{Host, Outcome, Passage, Verdict};
use super::slot::{Opened, Slot};
use super::{Charged, Hearing, charge_or_take_back, judge_by_bucket, passed, passed_in, refuse, refuse_in};
use crate::limiter::Decision;
use crate::limiter::sliding_window::{Step, Word};
use crate::rule::{Algorithm, Enforcement, Rule, RuleSpan, Subject};
use crate::table::Set;
use crate::time::Ticks;

/// What a rule says of a packet at one glance.
enum Glance {
    /// It conforms if this word of the set goes from one value to the other.
    Conforms { word: u32, from: u64, to: u64 },
    /// It does not, and the packet is refused.
    Refused,
    /// There is more to it than one word.
    Unclear,
}

/// The most rules that are judged this way: what is verified grows with them.
const MOST_RULES: u32 = 8;

/// The verdict on a packet that needs no more than a glance at each of its rules, `None` on any other.
#[inline(always)]
pub(super) fn judge_swiftly<H: Host>(host: &H, span: RuleSpan, subject: &Subject) -> Option<Verdict> {
    if span.count == 1 {
        return judge_by_one(host, span, subject);
    }
    if span.count > MOST_RULES || host.most_rules() <= 1 {
        return None;
    }
    let mut hearing = host.hearing()?;
    // What is known of the packet's many kinds is forgotten here, for the kernel's verifier: it comes back from memory,
    // after a call that might have changed it.
    hearing.begin(span, subject, 0);
    hearing.now = host.now();
    if span.count == 2 {
        let (one, other) = (host.rule(span.first)?, host.rule(span.first + 1)?);
        if one.is_bucket() && other.is_bucket() && other.opens_key == 0 {
            return judge_by_two_buckets(host, &mut hearing, one, other);
        }
    }
    match look_at_all(host, &mut hearing)? {
        0 => charge_all(host, &mut hearing),
        refused_by => Some(Verdict::Refuse(refused_by - 1)),
    }
}

/// With one rule, charging it is looking at it. Room for a new key is made without looking for it once more.
#[inline(always)]
fn judge_by_one<H: Host>(host: &H, span: RuleSpan, subject: &Subject) -> Option<Verdict> {
    let index = span.first;
    let rule = host.rule(index)?;
    let key = rule.key_of(subject);
    let place = Slot::yet_to_be(host, &key);
    let set = host.set(place.set)?;
    let slot = place.found_in(host, set);
    if !slot.exists() && rule.is_bucket() {
        return Some(judge_by_bucket(host, span, subject, 1));
    }
    match glance(host, set, rule, slot, host.now(), rule.cost_of(subject.size)) {
        Glance::Conforms { word, from, to } => {
            if set.compare_exchange(word, from, to) != from {
                return None;
            }
            passed_in(host, set, rule, slot, key);
            host.count(rule.counter, Outcome::Passed, subject.size);
            Some(Verdict::Pass(Passage::FREE))
        }
        Glance::Refused => {
            refuse_in(host, set, rule, slot, key, subject.size);
            Some(Verdict::Refuse(index))
        }
        Glance::Unclear => None,
    }
}

/// With two buckets on one key, as most rules are that are several: its set is looked up once, and what is noted of the first
/// needs no memory.
#[inline(always)]
fn judge_by_two_buckets<H: Host>(host: &H, hearing: &mut Hearing, one: &Rule, other: &Rule) -> Option<Verdict> {
    let first = hearing.span.first;
    let size = hearing.subject.size;
    let place = Slot::yet_to_be(host, &one.key_of(&hearing.subject));
    let set = host.set(place.set)?;
    let slot = place.found_in(host, set);
    if one.is_swift == 0 || other.is_swift == 0 || !slot.exists() {
        return None;
    }
    let refused = |rule: &Rule, index| {
        refuse_in(host, set, rule, slot, rule.key_of(&hearing.subject), size);
        Some(Verdict::Refuse(index))
    };
    let (word, from, to) = match glance_at_bucket(set, one, slot, hearing.now, one.cost_of(size)) {
        Glance::Conforms { word, from, to } => (word, from, to),
        Glance::Refused => return refused(one, first),
        Glance::Unclear => return None,
    };
    let (other_word, other_from, other_to) = match glance_at_bucket(set, other, slot, hearing.now, other.cost_of(size))
    {
        Glance::Conforms { word, from, to } => (word, from, to),
        Glance::Refused => return refused(other, first + 1),
        Glance::Unclear => return None,
    };
    if set.compare_exchange(word, from, to) != from {
        return None;
    }
    if set.compare_exchange(other_word, other_from, other_to) == other_from {
        passed_in(host, set, other, slot, other.key_of(&hearing.subject));
    } else {
        // Another CPU was faster with the second.
        *hearing.charges.get_mut(0)? = Charged { slot, charge: Charge::done(to), from, to, word, _pad: 0 };
        hearing.open = Opened::own(slot);
        if !charge_or_take_back(host, hearing, 1) {
            return Some(Verdict::Refuse(first + 1));
        }
    }
    host.count(one.counter, Outcome::Passed, size);
    Some(Verdict::Pass(Passage::FREE))
}

/// Notes what each rule would change. Returns the rule that refuses, one up; 0 if all conform.
#[inline(always)]
fn look_at_all<H: Host>(host: &H, hearing: &mut Hearing) -> Option<u32> {
    let mut slot = Slot::default();
    for nth in 0..MOST_RULES {
        if nth >= hearing.span.count || nth >= host.most_rules() {
            break;
        }
        let index = hearing.span.first + nth;
        let rule = host.rule(index)?;
        if rule.opens_key != 0 {
            slot = Slot::of(host, &rule.key_of(&hearing.subject));
        }
        let set = host.set(slot.set)?;
        match glance(host, set, rule, slot, hearing.now, rule.cost_of(hearing.subject.size)) {
            Glance::Conforms { word, from, to } => {
                let noted = hearing.charges.get_mut(nth as usize)?;
                *noted = Charged { slot, charge: Charge::done(to), from, to, word, _pad: 0 };
            }
            Glance::Refused => {
                refuse(host, rule, slot, rule.key_of(&hearing.subject), hearing.subject.size);
                return Some(index + 1);
            }
            Glance::Unclear => return None,
        }
    }
    Some(0)
}

/// Charges what conformed at a glance. If another CPU is faster with one of the states, that rule is charged thoroughly.
#[inline(always)]
fn charge_all<H: Host>(host: &H, hearing: &mut Hearing) -> Option<Verdict> {
    for nth in 0..MOST_RULES {
        if nth >= hearing.span.count || nth >= host.most_rules() {
            break;
        }
        let noted = hearing.charges.get(nth as usize)?;
        let index = hearing.span.first + nth;
        if host.set(noted.slot.set)?.compare_exchange(noted.word, noted.from, noted.to) == noted.from {
            let rule = host.rule(index)?;
            if rule.closes_key != 0 {
                passed(host, rule, noted.slot, rule.key_of(&hearing.subject));
            }
            continue;
        }
        hearing.open = Opened::own(noted.slot);
        if !charge_or_take_back(host, hearing, nth) {
            return Some(Verdict::Refuse(index));
        }
    }
    host.count(host.rule(hearing.span.first)?.counter, Outcome::Passed, hearing.subject.size);
    Some(Verdict::Pass(Passage::FREE))
}

#[inline(always)]
fn glance<H: Host>(host: &H, set: H::Set, rule: &Rule, slot: Slot, now: Ticks, cost: u64) -> Glance {
    if rule.is_swift == 0 || !slot.exists() {
        return Glance::Unclear;
    }
    let word = slot.state(rule);
    if host.runs(rule, Algorithm::SlidingWindow) {
        match rule.sliding_window().step(set.load(word), set.load(word + 1), now, cost) {
            Step::Pass { word: Word::Even, from, to } => Glance::Conforms { word, from, to },
            Step::Pass { word: Word::Odd, from, to } => Glance::Conforms { word: word + 1, from, to },
            Step::Refuse => refusal(rule),
            Step::Seal { .. } => Glance::Unclear,
        }
    } else if host.runs(rule, Algorithm::FixedWindow) {
        let from = set.load(word);
        weigh(rule, word, from, rule.fixed_window().decide(from, now, cost))
    } else {
        glance_at_bucket(set, rule, slot, now, cost)
    }
}

#[inline(always)]
fn glance_at_bucket(set: impl Set, rule: &Rule, slot: Slot, now: Ticks, cost: u64) -> Glance {
    let word = slot.state(rule);
    let from = set.load(word);
    weigh(rule, word, from, rule.token_bucket().decide(from, now, cost))
}

#[inline(always)]
fn weigh(rule: &Rule, word: u32, from: u64, decision: Decision) -> Glance {
    match decision {
        Decision::Pass(to) => Glance::Conforms { word, from, to },
        Decision::Refuse => refusal(rule),
    }
}

#[inline(always)]
fn refusal(rule: &Rule) -> Glance {
    if rule.enforcement == Enforcement::Enforce as u8 { Glance::Refused } else { Glance::Unclear }
}
