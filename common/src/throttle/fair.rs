//! Fair rules, the last ones of a span: charged before the others, in slots of their own.
//!
//! While all of a packet's fair rules are idle, the packet is evaluated as if it had none. Else each is charged in turn,
//! and then the other rules. If one refuses, the charges before it are taken back.
//!
//! The rules of its wider keys are outside of the span, and are charged after a fair rule if its row names them.
//!
//! Passed packets are counted at the span's first rule, as always: that is a fair one only if there are no others.

use super::fair_rule::{FairStep, offset_of};
use super::host::Host;
use super::outcome::Outcome;
use super::slow::evaluate_on_slow_path;
use super::steps::Steps;
use super::verdict::{Passage, Verdict};
use crate::fair::{MOST_FAIR, WIDER_KEYS};
use crate::limiter::Charge;
use crate::rule::{RuleSpan, Subject};
use crate::table::Claimed;

/// A span without its fair rules.
pub(super) struct Split {
    pub(super) others: RuleSpan,
    /// The number of fair rules, after the others.
    pub(super) fair: u32,
    /// Whether one of them may refuse or sample the packet.
    pub(super) is_busy: bool,
}

impl Split {
    /// The split as one number, and back: what the kernel's verifier knew of the parts is lost in between, so that it goes on
    /// once instead of for each number of fair rules.
    #[inline(always)]
    fn forgotten<H: Host>(self, host: &H, any: u64) -> Self {
        let packed = u64::from(self.is_busy) << 16
            | u64::from(self.fair) << 8
            | u64::from(self.others.count);
        let packed = host.forget_number(packed, any);
        Self {
            others: RuleSpan {
                first: self.others.first,
                count: packed as u32 & 0xff,
            },
            fair: (packed >> 8) as u32 & 0xff,
            is_busy: packed >> 16 != 0,
        }
    }
}

/// Takes the fair rules off a span.
#[inline(always)]
pub(super) fn split<H: Host>(host: &H, span: RuleSpan, subject: &Subject) -> Split {
    let mut split = Split {
        others: RuleSpan {
            first: span.first,
            count: span.count & !RuleSpan::FAIR,
        },
        fair: 0,
        is_busy: false,
    };
    for _ in 0..MOST_FAIR {
        let Some(last) = split.others.count.checked_sub(1) else {
            break;
        };
        let Some(rule) = host.rule(span.first + last) else {
            break;
        };
        split.others.count = last;
        split.fair += 1;
        split.is_busy |= !host.fair_is_idle(rule);
        if rule.ring == 0 {
            break;
        }
    }
    split.forgotten(host, subject.lo)
}

/// Counts a packet that fair rules alone have passed; `first` is the first of them.
#[inline(always)]
pub(super) fn pass_by_fair_alone<H: Host>(host: &H, first: RuleSpan, subject: &Subject) -> Verdict {
    if let Some(rule) = host.rule(first.first) {
        host.count(rule.counter, Outcome::Passed, subject.size);
    }
    Verdict::Pass(Passage::FREE)
}

/// Evaluates a packet for which a fair rule is not idle. The others follow on the slow path: a second copy of the fast one
/// would double the program.
#[inline(always)]
pub(super) fn evaluate_with_fair<H: Steps>(host: &H, split: &Split, subject: &Subject) -> Verdict {
    let (others, fair) = (split.others, split.fair);
    let refused_by = admit(host, others, fair, subject);
    if refused_by != 0 {
        return Verdict::Refuse(refused_by - 1);
    }
    if others.count == 0 {
        return pass_by_fair_alone(host, others, subject);
    }
    let verdict = evaluate_on_slow_path(host, others, subject);
    if let (Verdict::Refuse(_), Some(mut packet_state)) = (verdict, host.packet_state()) {
        host.take_back_fair(&mut packet_state, fair);
    }
    verdict
}

/// Charges the fair rules after `others`, each at its own key and at wider ones. Returns the index of the rule that refuses,
/// plus one; 0 if all pass the packet.
#[inline(always)]
pub(super) fn admit<H: Steps>(host: &H, others: RuleSpan, fair: u32, subject: &Subject) -> u32 {
    let Some(mut packet_state) = host.packet_state() else {
        return 0;
    };
    let first = others.first + others.count;
    packet_state.begin(RuleSpan { first, count: fair }, subject, host.now());
    packet_state.first_fair = first;
    for nth in 0..MOST_FAIR {
        if nth >= fair {
            break;
        }
        // Of another packet, those at keys that this one is not charged at.
        for key in 0..=WIDER_KEYS {
            packet_state.fair_mut(nth + key * MOST_FAIR).charge = Charge::LOST;
        }
        for key in 0..=WIDER_KEYS {
            let has_more = || !packet_state.wider().are_none_from(key - 1);
            if key > 0 && !(host.wider_in_use() && has_more()) {
                break;
            }
            let place = nth + key * MOST_FAIR;
            let mut step = host.charge_fair(&mut packet_state, place);
            if step == FairStep::New {
                host.estimate(&mut packet_state);
                let claim = host.claim(&mut packet_state);
                if claim.outcome == Claimed::Displaced {
                    host.leave(&mut packet_state);
                }
                let offset = offset_of(&packet_state, place);
                host.take(&mut packet_state, offset, claim);
                step = host.charge_new_fair(&mut packet_state, place);
                if step == FairStep::Passed && packet_state.open.shared != 0 {
                    host.spread(&mut packet_state);
                }
            }
            if step == FairStep::Refused {
                let refused_by = first + offset_of(&packet_state, place) + 1;
                host.take_back_fair(&mut packet_state, nth + 1);
                return refused_by;
            }
        }
    }
    0
}
