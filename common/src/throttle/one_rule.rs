//! One rule of a packet: check, charge and refund.

use super::charge::{charge_bucket, charge_rule, conforms, departure, refund};
use super::counting::{
    Refusal, has_last_word, lost, passed, refuse, refuse_on_fast_path, sample_refusal,
};
use super::host::Host;
use super::open::publish;
use super::outcome::Outcome;
use super::packet_state::{Opened, PacketState};
use super::slot::Slot;
use super::verdict::{PackedVerdict, Passage};
use crate::limiter::Charge;
use crate::rule::{Enforcement, MAX_RULES, Rule, Size};
use crate::time::{Ticks, is_alive};

/// Charges the bucket with the open slot.
#[inline(always)]
pub fn charge_by_bucket<H: Host>(host: &H, packet_state: &mut PacketState) -> PackedVerdict {
    let Some(rule) = host.rule(packet_state.span.first) else {
        return PackedVerdict::FREE;
    };
    let (key, size, now) = (
        rule.key_of(&packet_state.subject),
        packet_state.subject.size,
        packet_state.now,
    );
    let cost = rule.cost_of(size);
    let mut open = packet_state.open;
    let mut is_marked = 0;
    let mut is_observed = false;
    let mut turn = Passage::AT_ONCE;
    if open.slot.exists() {
        let result = charge_bucket(host, rule, open.slot, now, cost);
        is_marked = apply_result(host, rule, &mut open, result, now, size);
        is_observed = is_only_observed(rule, result);
        turn = departure(result, rule, cost);
        if open.is_reserved != 0 {
            publish(host, open.slot);
        }
    }
    if open.is_refused != 0 || is_observed {
        // One call for both: an inlined copy for each would double the code.
        let outcome = if is_observed {
            Outcome::WouldThrottle
        } else {
            Outcome::Throttled
        };
        sample_refusal(host, rule, open.slot, key, size, now, outcome);
    }
    if open.is_refused != 0 {
        host.count(rule.counter, Outcome::Throttled, size);
        return PackedVerdict::REFUSED;
    }
    passed(host, rule, open.slot, key, size);
    host.count(rule.counter, Outcome::Passed, size);
    PackedVerdict::pass(is_marked, turn)
}

/// Whether the nth rule passes the packet in its present state; counts the packet if not.
#[inline(always)]
pub fn look<H: Host>(host: &H, packet_state: &mut PacketState, nth: u32) -> bool {
    let Some(rule) = host.rule(packet_state.span.first + nth) else {
        return true;
    };
    if rule.opens_key != 0 {
        packet_state.open.slot =
            Slot::at_home(host, &rule.key_of(&packet_state.subject)).or_alternate(host);
    }
    let slot = packet_state.open.slot;
    let cost = rule.cost_of(packet_state.subject.size);
    // A key without a slot has its whole allowance.
    let conforms = if slot.exists() {
        conforms(host, rule, slot, packet_state.now, cost)
    } else {
        cost <= rule.most
    };
    if conforms || !has_last_word(host, rule, packet_state.now) {
        return true;
    }
    refuse(
        host,
        rule,
        slot,
        rule.key_of(&packet_state.subject),
        packet_state.subject.size,
        packet_state.now,
    );
    false
}

/// Counts a refusal by the nth rule on the fast path, of the key with the open slot. True if [`Host::add_hot`] has to follow.
#[inline(always)]
pub fn refuse_by<H: Host>(host: &H, packet_state: &PacketState, nth: u32) -> bool {
    let index = packet_state.span.first + nth;
    let Some(rule) = host.rule(index) else {
        return false;
    };
    let slot = packet_state.open.slot;
    let refusal = Refusal {
        rule: index,
        slot,
        key: rule.key_of(&packet_state.subject),
        size: packet_state.subject.size,
        now: packet_state.now,
    };
    refuse_on_fast_path(host, || host.set(slot.set), rule, refusal)
}

/// Charges the nth rule; `false` if it refuses after all, or its key finds no room.
#[inline(always)]
pub fn charge<H: Host>(host: &H, packet_state: &mut PacketState, nth: u32) -> bool {
    let Some(rule) = host.rule(packet_state.span.first + nth) else {
        return true;
    };
    let cost = rule.cost_of(packet_state.subject.size);
    let slot = packet_state.open.slot;
    let mut result = Charge::REFUSED;
    if slot.exists() {
        result = charge_rule(host, rule, slot, packet_state.now, cost);
        let is_marked = apply_result(
            host,
            rule,
            &mut packet_state.open,
            result,
            packet_state.now,
            packet_state.subject.size,
        );
        if is_marked != 0 && packet_state.marked_by == Passage::UNMARKED {
            packet_state.marked_by = packet_state.span.first + nth;
        }
        // The latest departure of all rules.
        let turn = departure(result, rule, cost);
        let is_later =
            is_alive(turn, packet_state.departure) || packet_state.departure == Passage::AT_ONCE;
        if turn != Passage::AT_ONCE && is_later {
            packet_state.departure = turn;
        }
        if packet_state.open.is_reserved != 0
            && (packet_state.open.is_refused != 0 || rule.closes_key != 0)
        {
            publish(host, slot);
            packet_state.open.is_reserved = 0;
        }
    }
    if let Some(charged) = packet_state.charges.get_mut(nth as usize) {
        charged.slot = slot;
        charged.charge = result;
    }
    packet_state.open.is_refused == 0
}

/// Counts the result of charging the nth rule.
#[inline(always)]
pub fn conclude<H: Host>(host: &H, packet_state: &PacketState, nth: u32) {
    let Some(rule) = host.rule(packet_state.span.first + nth) else {
        return;
    };
    let key = rule.key_of(&packet_state.subject);
    let charge = packet_state
        .charges
        .get(nth as usize)
        .map_or(Charge::LOST, |charged| charged.charge);
    let (slot, size) = (packet_state.open.slot, packet_state.subject.size);
    let is_observed = slot.exists() && is_only_observed(rule, charge);
    if packet_state.open.is_refused != 0 || is_observed {
        let outcome = if is_observed {
            Outcome::WouldThrottle
        } else {
            Outcome::Throttled
        };
        sample_refusal(host, rule, slot, key, size, packet_state.now, outcome);
    }
    if packet_state.open.is_refused != 0 {
        host.count(rule.counter, Outcome::Throttled, size);
    } else if rule.closes_key != 0 {
        passed(host, rule, slot, key, size);
    }
}

/// Refunds the charges of the first `count` rules.
#[inline(always)]
pub fn take_back<H: Host>(host: &H, packet_state: &mut PacketState, count: u32) {
    for (nth, charged) in (0..MAX_RULES).zip(&packet_state.charges) {
        if nth >= count || nth >= host.most_rules() {
            break;
        }
        if let (Some(rule), true) = (
            host.rule(packet_state.span.first + nth),
            charged.charge.is_done(),
        ) {
            refund(
                host,
                rule,
                charged.slot,
                charged.charge,
                packet_state.now,
                rule.cost_of(packet_state.subject.size),
            );
        }
    }
}

/// Determines whether a charge's result refuses the packet, and counts packets that pass in spite of it. Returns 1 if
/// the packet is to be marked.
#[inline(always)]
fn apply_result<H: Host>(
    host: &H,
    rule: &Rule,
    open: &mut Opened,
    result: Charge,
    now: Ticks,
    size: Size,
) -> u32 {
    if result == Charge::LOST {
        open.is_refused = lost(host, rule, size);
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

/// Whether the packet only passes because the rule is on `observe`.
#[inline(always)]
fn is_only_observed(rule: &Rule, result: Charge) -> bool {
    result == Charge::REFUSED && rule.enforcement == Enforcement::Observe as u8
}
