//! Fair rules, the last ones of a span: charged before the others, in slots of their own.
//!
//! While all of a packet's fair rules are idle, the packet is evaluated as if it had none. Else each is charged in turn,
//! and then the other rules. If one refuses, the charges before it are taken back.
//!
//! Passed packets are counted at the span's first rule, as always: that is a fair one only if there are no others.

use super::charge::{charge_at, take_back_from};
use super::counting::{lost, passed, sample_refusal};
use super::host::Host;
use super::open::publish;
use super::outcome::Outcome;
use super::packet_state::{Charged, Opened, PacketState};
use super::slot::Slot;
use super::slow::evaluate_on_slow_path;
use super::steps::Steps;
use super::verdict::{Passage, Verdict};
use crate::fair::{Bucket, Level, MOST_FAIR};
use crate::limiter::Charge;
use crate::rule::{MAX_RULES, OnFull, Rule, RuleSpan, Subject};
use crate::table::Claimed;

/// The result of evaluating one fair rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FairStep {
    /// It passes the packet.
    Passed = 0,
    /// It refuses the packet, and has counted it.
    Refused = 1,
    /// Its key needs a slot first.
    New = 2,
}

impl FairStep {
    /// Returns the step with this number; [`FairStep::Passed`] for unknown ones.
    #[inline(always)]
    #[must_use]
    pub const fn from_number(number: u32) -> Self {
        match number {
            1 => Self::Refused,
            2 => Self::New,
            _ => Self::Passed,
        }
    }
}

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
        split.is_busy |= !host.fair_words(rule).are_idle();
        if rule.ring == 0 {
            break;
        }
    }
    split.forgotten(host, subject.lo)
}

/// Counts a packet whose rules are all fair and idle; `first` is the first one.
#[inline(always)]
pub(super) fn pass_by_idle<H: Host>(host: &H, first: RuleSpan, subject: &Subject) -> Verdict {
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
        return pass_by_idle(host, others, subject);
    }
    let verdict = evaluate_on_slow_path(host, others, subject);
    if let (Verdict::Refuse(_), Some(mut packet_state)) = (verdict, host.packet_state()) {
        host.take_back_fair(&mut packet_state, others.first + others.count, fair);
    }
    verdict
}

/// Charges the fair rules after `others`. Returns the index of the rule that refuses, plus one; 0 if all pass the packet.
#[inline(always)]
pub(super) fn admit<H: Steps>(host: &H, others: RuleSpan, fair: u32, subject: &Subject) -> u32 {
    let Some(mut packet_state) = host.packet_state() else {
        return 0;
    };
    let first = others.first + others.count;
    packet_state.begin(RuleSpan { first, count: fair }, subject, host.now());
    for nth in 0..MOST_FAIR {
        if nth >= fair {
            break;
        }
        let mut step = host.charge_fair(&mut packet_state, nth);
        if step == FairStep::New {
            host.estimate(&mut packet_state);
            let claim = host.claim(&mut packet_state);
            if claim.outcome == Claimed::Displaced {
                host.leave(&mut packet_state);
            }
            host.take(&mut packet_state, nth, claim);
            step = host.charge_new_fair(&mut packet_state, nth);
            if step == FairStep::Passed && packet_state.open.shared != 0 {
                host.spread(&mut packet_state);
            }
        }
        if step == FairStep::Refused {
            host.take_back_fair(&mut packet_state, first, nth);
            return first + nth + 1;
        }
    }
    0
}

/// The place of the nth fair rule's charge: the other rules begin at the other end.
const fn place_of(nth: u32) -> usize {
    (MAX_RULES - 1 - nth) as usize
}

/// Samples the packet for the nth fair rule, and charges it if its key has a slot.
#[inline(always)]
pub fn charge_fair<H: Host>(host: &H, packet_state: &mut PacketState, nth: u32) -> FairStep {
    if let Some(charged) = packet_state.charges.get_mut(place_of(nth)) {
        charged.charge = Charge::LOST;
    }
    let Some(rule) = host.rule(packet_state.span.first + nth) else {
        return FairStep::Passed;
    };
    let (words, now) = (host.fair_words(rule), packet_state.now);
    let key = rule.key_of(&packet_state.subject);
    let cost = rule.cost_of(packet_state.subject.size);
    if words.one_in != 0 && words.sample_has(host.random(), now) {
        host.sample_offered(rule, &key, packet_state.subject.class, cost, words.one_in);
    }
    let level = words.level_at(now);
    if level.is_off() {
        return FairStep::Passed;
    }
    let bucket = level.bucket(rule.shift);
    if let Some(charged) = packet_state.charges.get_mut(place_of(nth)) {
        charged.to = level.to_bits();
    }
    let slot = Slot::at_home(host, &key).or_alternate(host);
    packet_state.open = Opened::own(slot);
    if slot.exists() {
        return charge_slot(host, packet_state, (rule, nth), &bucket);
    }
    packet_state.open.wants_slot = 1;
    let newcomer = &mut packet_state.newcomer;
    newcomer.set = slot.set;
    newcomer.tag = slot.tag;
    newcomer.charge = bucket.charge(cost);
    newcomer.most = bucket.tolerance();
    newcomer.position = u32::from(rule.position);
    newcomer.moves = rule.moves() as u32;
    newcomer.is_slow = u32::from(rule.is_slow());
    newcomer.shares = u32::from(rule.does_on_full(OnFull::Share));
    FairStep::New
}

/// Charges the nth fair rule, whose key has a new slot or none.
#[inline(always)]
pub fn charge_new_fair<H: Host>(host: &H, packet_state: &mut PacketState, nth: u32) -> FairStep {
    let Some(rule) = host.rule(packet_state.span.first + nth) else {
        return FairStep::Passed;
    };
    let level = packet_state.charges.get(place_of(nth));
    let level = level.map_or(Level::OFF, |charged| Level::from_bits(charged.to));
    charge_slot(host, packet_state, (rule, nth), &level.bucket(rule.shift))
}

/// Charges the key's slot, if it has one, and counts a refusal.
#[inline(always)]
fn charge_slot<H: Host>(
    host: &H,
    packet_state: &mut PacketState,
    (rule, nth): (&Rule, u32),
    bucket: &Bucket,
) -> FairStep {
    let (size, now) = (packet_state.subject.size, packet_state.now);
    let key = rule.key_of(&packet_state.subject);
    let open = &mut packet_state.open;
    if open.slot.exists() {
        let charge = charge_at(host, bucket, (rule, open.slot), now, rule.cost_of(size));
        if charge == Charge::LOST {
            open.is_refused = lost(host, rule, size);
        } else if charge == Charge::REFUSED {
            open.is_refused = 1;
        }
        if open.is_reserved != 0 {
            publish(host, open.slot);
            open.is_reserved = 0;
        }
        if let Some(charged) = packet_state.charges.get_mut(place_of(nth)) {
            charged.slot = open.slot;
            charged.charge = charge;
        }
    }
    let slot = packet_state.open.slot;
    if packet_state.open.is_refused != 0 {
        sample_refusal(host, rule, slot, key, size, now, Outcome::Throttled);
        host.count(rule.counter, Outcome::Throttled, size);
        return FairStep::Refused;
    }
    if rule.closes_key != 0 {
        passed(host, rule, slot, key, size);
    }
    FairStep::Passed
}

/// Takes back the charges of the first `count` fair rules, of which `first` is the first.
#[inline(always)]
pub fn take_back_fair<H: Host>(host: &H, packet_state: &PacketState, first: u32, count: u32) {
    for nth in 0..MOST_FAIR {
        if nth >= count {
            break;
        }
        let charged = packet_state.charges.get(place_of(nth));
        if let (Some(rule), Some(charged)) = (host.rule(first + nth), charged)
            && charged.charge.is_done()
        {
            let Charged {
                slot, charge, to, ..
            } = *charged;
            let bucket = Level::from_bits(to).bucket(rule.shift);
            let cost = rule.cost_of(packet_state.subject.size);
            take_back_from(host, &bucket, (rule, slot), charge, cost);
        }
    }
}
