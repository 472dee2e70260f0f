//! The slow path: room for new keys, and retries when another CPU has changed a state.

use super::outcome::Outcome;
use super::packet_state::PacketState;
use super::steps::Steps;
use super::verdict::{PackedVerdict, Passage, Verdict};
use crate::rule::{MAX_RULES, Rule, RuleSpan, Subject};
use crate::table::Claimed;

/// Like [`super::evaluate`], without the restrictions of the fast path.
#[inline(always)]
pub(super) fn evaluate_on_slow_path<H: Steps>(
    host: &H,
    span: RuleSpan,
    subject: &Subject,
) -> Verdict {
    if span.count == 1 && host.rule(span.first).is_some_and(Rule::is_bucket) {
        evaluate_by_bucket(host, span, subject, 0)
    } else {
        evaluate_by_several(host, span, subject)
    }
}

/// With one rule, the charge is the check. `is_new` is 1 if its key was just looked up without success.
#[inline(always)]
pub fn evaluate_by_bucket<H: Steps>(
    host: &H,
    span: RuleSpan,
    subject: &Subject,
    is_new: u32,
) -> Verdict {
    let Some(mut packet_state) = host.packet_state() else {
        return Verdict::Pass(Passage::FREE);
    };
    packet_state.begin(span, subject, host.now());
    packet_state.is_new = is_new;
    open_slot(host, &mut packet_state, 0);
    let verdict = host.charge_by_bucket(&mut packet_state);
    if packet_state.open.shared != 0 && verdict != PackedVerdict::REFUSED {
        host.spread(&mut packet_state);
    }
    verdict.verdict(span.first)
}

/// Checks every rule, then charges every rule.
#[inline(always)]
fn evaluate_by_several<H: Steps>(host: &H, span: RuleSpan, subject: &Subject) -> Verdict {
    let Some(first) = host.rule(span.first) else {
        return Verdict::Pass(Passage::FREE);
    };
    let Some(mut packet_state) = host.packet_state() else {
        return Verdict::Pass(Passage::FREE);
    };
    packet_state.begin(span, subject, host.now());
    for nth in 0..MAX_RULES {
        if nth >= span.count || nth >= host.most_rules() {
            break;
        }
        if !host.look(&mut packet_state, nth) {
            return Verdict::Refuse(span.first + nth);
        }
    }
    for nth in 0..MAX_RULES {
        if nth >= span.count || nth >= host.most_rules() {
            break;
        }
        let Some((opens, closes)) = host
            .rule(span.first + nth)
            .map(|rule| (rule.opens_key, rule.closes_key))
        else {
            break;
        };
        if opens != 0 {
            open_slot(host, &mut packet_state, nth);
        }
        if !charge_or_take_back(host, &mut packet_state, nth) {
            return Verdict::Refuse(span.first + nth);
        }
        if closes != 0 && packet_state.open.shared != 0 {
            host.spread(&mut packet_state);
        }
    }
    host.count(first.counter, Outcome::Passed, subject.size);
    Verdict::Pass(packet_state.passage())
}

/// Charges the nth rule; if it refuses, refunds the charges of those before it.
#[inline(always)]
pub(super) fn charge_or_take_back<H: Steps>(
    host: &H,
    packet_state: &mut PacketState,
    nth: u32,
) -> bool {
    let is_charged = host.charge(packet_state, nth);
    host.conclude(packet_state, nth);
    if !is_charged {
        host.take_back(packet_state, nth);
    }
    is_charged
}

/// The slot for the key that the nth rule opens: the existing one, or a new one.
#[inline(always)]
fn open_slot<H: Steps>(host: &H, packet_state: &mut PacketState, nth: u32) {
    host.open(packet_state, nth);
    if packet_state.open.wants_slot != 0 {
        host.estimate(packet_state);
        let claim = host.claim(packet_state);
        if claim.outcome == Claimed::Displaced {
            host.leave(packet_state);
        }
        host.take(packet_state, nth, claim);
    }
}
