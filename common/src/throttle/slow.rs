//! The slow path: room for new keys, and retries when another CPU has changed a state.

use super::hearing::Hearing;
use super::host::Outcome;
use super::steps::Steps;
use super::verdict::{Passage, Ruling, Verdict};
use crate::rule::{MAX_RULES, Rule, RuleSpan, Subject};
use crate::table::Claimed;

/// Like [`super::judge`], without the restrictions of the fast path.
#[inline(always)]
pub(super) fn judge_thoroughly<H: Steps>(host: &H, span: RuleSpan, subject: &Subject) -> Verdict {
    if span.count == 1 && host.rule(span.first).is_some_and(Rule::is_bucket) {
        judge_by_bucket(host, span, subject, 0)
    } else {
        judge_by_several(host, span, subject)
    }
}

/// With one rule, the charge is the check. `is_new` is 1 if its key was just looked up without success.
#[inline(always)]
pub fn judge_by_bucket<H: Steps>(host: &H, span: RuleSpan, subject: &Subject, is_new: u32) -> Verdict {
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

/// Checks every rule, then charges every rule.
#[inline(always)]
fn judge_by_several<H: Steps>(host: &H, span: RuleSpan, subject: &Subject) -> Verdict {
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

/// Charges the nth rule; if it refuses, refunds the charges of those before it.
#[inline(always)]
pub(super) fn charge_or_take_back<H: Steps>(host: &H, hearing: &mut Hearing, nth: u32) -> bool {
    let is_charged = host.charge(hearing, nth);
    host.conclude(hearing, nth);
    if !is_charged {
        host.take_back(hearing, nth);
    }
    is_charged
}

/// The slot for the key that the nth rule opens: the existing one, or a new one.
#[inline(always)]
fn open_slot<H: Steps>(host: &H, hearing: &mut Hearing, nth: u32) {
    host.open(hearing, nth);
    if hearing.open.asks != 0 {
        host.estimate(hearing);
        let claim = host.claim(hearing);
        if claim.outcome == Claimed::Displaced {
            host.leave(hearing);
        }
        host.take(hearing, nth, claim);
    }
}
