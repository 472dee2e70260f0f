//! The fast path, for most packets: every rule's key has a slot, and no other CPU changes the same state.
//!
//! Straight-line code without calls: one call costs the kernel more than the whole decision. Cases beyond it change
//! nothing, and [`super::slow`] starts from the beginning.

use super::charge::{swap, swap_bucket};
use super::counting::{Refusal, passed, passed_in, refuse_on_fast_path};
use super::host::Host;
use super::hot::count_passed;
use super::outcome::Outcome;
use super::packet_state::{Charged, Opened, PacketState};
use super::slot::Slot;
use super::slow::{charge_or_take_back, evaluate_by_bucket};
use super::steps::Steps;
use super::verdict::{HotVerdict, Passage, Verdict};
use crate::limiter::{Charge, Swap};
use crate::rule::{Enforcement, Rule, RuleSpan, Subject};
use crate::table::Set;
use crate::time::Ticks;

/// The result of evaluating one rule on the fast path.
enum Evaluation {
    /// It conforms if this word of the set changes from one value to the other.
    Conforms { word: u32, from: u64, to: u64 },
    /// It does not conform, and the packet is refused.
    Refused,
    /// It needs the slow path.
    Unclear,
}

/// The most rules on the fast path: the verifier's work grows with them.
const MOST_RULES: u32 = 8;

/// The verdict on a packet whose rules can all be evaluated on the fast path; else `None`.
#[inline(always)]
pub(super) fn evaluate_on_fast_path<H: Steps>(
    host: &H,
    span: RuleSpan,
    subject: &Subject,
) -> Option<Verdict> {
    if span.count == 1 {
        return evaluate_by_one(host, span, subject);
    }
    if span.count > MOST_RULES || host.most_rules() <= 1 {
        return None;
    }
    let mut packet_state = host.packet_state()?;
    // The verifier loses its knowledge of the packet here: the values come back from memory, after a call that might
    // have changed them.
    packet_state.begin(span, subject, 0);
    packet_state.now = host.now();
    if span.count == 2 {
        let (one, other) = (host.rule(span.first)?, host.rule(span.first + 1)?);
        if one.is_bucket() && other.is_bucket() && other.opens_key == 0 {
            return evaluate_by_two_buckets(host, &mut packet_state, one, other);
        }
    }
    match look_at_all(host, &mut packet_state)? {
        0 => charge_all(host, &mut packet_state),
        refused_by => Some(Verdict::Refuse(refused_by - 1)),
    }
}

/// With one rule, the charge is the check. Room for a new key is made without another look-up.
#[inline(always)]
fn evaluate_by_one<H: Steps>(host: &H, span: RuleSpan, subject: &Subject) -> Option<Verdict> {
    let (index, size) = (span.first, subject.size);
    let rule = host.rule(index)?;
    let key = rule.key_of(subject);
    let cost = rule.cost_of(size);
    let mut row = if rule.has_holds() {
        host.row(rule.counter)
    } else {
        None
    };
    if let Some(row) = &mut row
        && row.hot.has_units(index, cost)
        && row.hot.is(&key)
        && row.hot.spend(host.now(), cost, size.packets)
    {
        count_passed(host, rule, row, size);
        return Some(Verdict::Pass(Passage::FREE));
    }
    let place = Slot::for_new(host, &key);
    let set = host.set(place.set)?;
    let slot = place.found_in(host, set);
    if !slot.exists() && rule.is_bucket() {
        return Some(evaluate_by_bucket(host, span, subject, 1));
    }
    let now = host.now();
    match evaluate_rule(host, set, rule, slot, now, cost) {
        Evaluation::Conforms { word, from, to } => {
            let is_hot = row.as_ref().is_some_and(|row| row.hot.is(&key));
            if is_hot {
                match host.charge_hot(index, slot.place(), from, now, size) {
                    HotVerdict::Passed => {
                        // Not in the function that charges: their stacks would add up.
                        host.add_hot(index, now, true);
                        return Some(Verdict::Pass(Passage::FREE));
                    }
                    HotVerdict::Refused => {}
                    HotVerdict::Lost => return None,
                }
            } else if set.compare_exchange(word, from, to) == from {
                passed_in(host, set, rule, slot, key, size);
                match &mut row {
                    Some(row) => count_passed(host, rule, row, size),
                    None => host.count(rule.counter, Outcome::Passed, size),
                }
                return Some(Verdict::Pass(Passage::FREE));
            } else {
                if row.is_some() && host.make_hot(index, &key, now, 2) {
                    host.add_hot(index, now, false);
                }
                return None;
            }
        }
        Evaluation::Refused => {}
        Evaluation::Unclear => return None,
    }
    // One exit for both refusals.
    let refusal = Refusal {
        rule: index,
        slot,
        key,
        size,
        now,
    };
    if refuse_on_fast_path(host, || Some(set), rule, refusal) {
        host.add_hot(index, now, false);
    }
    Some(Verdict::Refuse(index))
}

/// With two buckets on one key, the usual case of several rules: its set is looked up once, and the first result needs
/// no memory.
#[inline(always)]
fn evaluate_by_two_buckets<H: Steps>(
    host: &H,
    packet_state: &mut PacketState,
    one: &Rule,
    other: &Rule,
) -> Option<Verdict> {
    let first = packet_state.span.first;
    let size = packet_state.subject.size;
    let place = Slot::for_new(host, &one.key_of(&packet_state.subject));
    let set = host.set(place.set)?;
    let slot = place.found_in(host, set);
    if one.is_fast == 0 || other.is_fast == 0 || !slot.exists() {
        return None;
    }
    let now = packet_state.now;
    // One exit for both refusals: a second copy of the code would exceed the stack.
    let nth = match evaluate_bucket(host, set, one, slot, now, one.cost_of(size)) {
        Evaluation::Conforms { word, from, to } => {
            match evaluate_bucket(host, set, other, slot, now, other.cost_of(size)) {
                Evaluation::Conforms {
                    word: other_word,
                    from: other_from,
                    to: other_to,
                } => {
                    if set.compare_exchange(word, from, to) != from {
                        return None;
                    }
                    if set.compare_exchange(other_word, other_from, other_to) == other_from {
                        passed_in(
                            host,
                            set,
                            other,
                            slot,
                            other.key_of(&packet_state.subject),
                            size,
                        );
                    } else {
                        // Another CPU was faster with the second rule.
                        let charge = Charge::done(to);
                        *packet_state.charges.get_mut(0)? = Charged {
                            slot,
                            charge,
                            from,
                            to,
                            word,
                            _pad: 0,
                        };
                        packet_state.open = Opened::own(slot);
                        if !charge_or_take_back(host, packet_state, 1) {
                            return Some(Verdict::Refuse(first + 1));
                        }
                    }
                    host.count(one.counter, Outcome::Passed, size);
                    return Some(Verdict::Pass(Passage::FREE));
                }
                Evaluation::Refused => 1,
                Evaluation::Unclear => return None,
            }
        }
        Evaluation::Refused => 0,
        Evaluation::Unclear => return None,
    };
    packet_state.open = Opened::own(slot);
    refuse_nth(host, packet_state, nth);
    Some(Verdict::Refuse(first + nth))
}

/// Counts a refusal by the nth rule, of the key with the open slot.
#[inline(always)]
fn refuse_nth<H: Steps>(host: &H, packet_state: &mut PacketState, nth: u32) {
    // Not in the function that counts: their stacks would add up.
    if host.refuse_by(packet_state, nth) {
        host.add_hot(packet_state.span.first + nth, packet_state.now, false);
    }
}

/// Records the change of each rule. Returns the index of the rule that refuses, plus one; 0 if all conform.
#[inline(always)]
fn look_at_all<H: Steps>(host: &H, packet_state: &mut PacketState) -> Option<u32> {
    let mut slot = Slot::default();
    for nth in 0..MOST_RULES {
        if nth >= packet_state.span.count || nth >= host.most_rules() {
            break;
        }
        let index = packet_state.span.first + nth;
        let rule = host.rule(index)?;
        if rule.opens_key != 0 {
            slot = Slot::at_home(host, &rule.key_of(&packet_state.subject));
        }
        let set = host.set(slot.set)?;
        match evaluate_rule(
            host,
            set,
            rule,
            slot,
            packet_state.now,
            rule.cost_of(packet_state.subject.size),
        ) {
            Evaluation::Conforms { word, from, to } => {
                let noted = packet_state.charges.get_mut(nth as usize)?;
                *noted = Charged {
                    slot,
                    charge: Charge::done(to),
                    from,
                    to,
                    word,
                    _pad: 0,
                };
            }
            Evaluation::Refused => {
                packet_state.open = Opened::own(slot);
                refuse_nth(host, packet_state, nth);
                return Some(index + 1);
            }
            Evaluation::Unclear => return None,
        }
    }
    Some(0)
}

/// Makes the recorded changes. If another CPU is faster with a state, the slow path charges that rule.
#[inline(always)]
fn charge_all<H: Steps>(host: &H, packet_state: &mut PacketState) -> Option<Verdict> {
    for nth in 0..MOST_RULES {
        if nth >= packet_state.span.count || nth >= host.most_rules() {
            break;
        }
        let noted = packet_state.charges.get(nth as usize)?;
        let index = packet_state.span.first + nth;
        if host
            .set(noted.slot.set)?
            .compare_exchange(noted.word, noted.from, noted.to)
            == noted.from
        {
            let rule = host.rule(index)?;
            if rule.closes_key != 0 {
                passed(
                    host,
                    rule,
                    noted.slot,
                    rule.key_of(&packet_state.subject),
                    packet_state.subject.size,
                );
            }
            continue;
        }
        packet_state.open = Opened::own(noted.slot);
        if !charge_or_take_back(host, packet_state, nth) {
            return Some(Verdict::Refuse(index));
        }
    }
    host.count(
        host.rule(packet_state.span.first)?.counter,
        Outcome::Passed,
        packet_state.subject.size,
    );
    Some(Verdict::Pass(Passage::FREE))
}

#[inline(always)]
fn evaluate_rule<H: Host>(
    host: &H,
    set: H::Set,
    rule: &Rule,
    slot: Slot,
    now: Ticks,
    cost: u64,
) -> Evaluation {
    if rule.is_fast == 0 || !slot.exists() {
        return Evaluation::Unclear;
    }
    evaluation_of(rule, slot, swap(host, set, rule, slot, now, cost))
}

#[inline(always)]
fn evaluate_bucket<H: Host>(
    host: &H,
    set: H::Set,
    rule: &Rule,
    slot: Slot,
    now: Ticks,
    cost: u64,
) -> Evaluation {
    evaluation_of(rule, slot, swap_bucket(host, set, rule, slot, now, cost))
}

#[inline(always)]
fn evaluation_of(rule: &Rule, slot: Slot, swap: Swap) -> Evaluation {
    match swap {
        Swap::Conforms { word, from, to } => Evaluation::Conforms {
            word: slot.state(rule) + word,
            from,
            to,
        },
        Swap::Refused => refused(rule),
        Swap::Several => Evaluation::Unclear,
    }
}

#[inline(always)]
fn refused(rule: &Rule) -> Evaluation {
    if rule.enforcement == Enforcement::Enforce as u8 {
        Evaluation::Refused
    } else {
        Evaluation::Unclear
    }
}
