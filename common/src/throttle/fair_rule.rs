//! One fair rule: its sample, its charge, and taking it back.

use super::charge::{charge_at, take_back_from};
use super::counting::{lost, passed, sample_refusal};
use super::host::Host;
use super::open::publish;
use super::outcome::Outcome;
use super::packet_state::{Charged, Opened, PacketState};
use super::slot::Slot;
use crate::fair::{Bucket, Level, MOST_FAIR};
use crate::limiter::Charge;
use crate::rule::{MAX_RULES, OnFull, Rule};

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
