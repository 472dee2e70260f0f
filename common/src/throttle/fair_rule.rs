//! One fair rule: its sample, its charge, and taking it back.

use super::charge::{charge_at, take_back_from};
use super::counting::{lost, passed, sample_refusal};
use super::host::Host;
use super::open::publish;
use super::outcome::Outcome;
use super::packet_state::{FAIR_PLACES, FairCharge, Opened, PacketState, ROOM_FOR_PLACES};
use super::slot::Slot;
use crate::fair::{Bucket, Level, MOST_FAIR};
use crate::limiter::Charge;
use crate::rule::{OnFull, Rule};

/// The wider keys that are out of step with each other: there is one of all sources together.
const NETWORKS: u32 = 1;

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

/// The row of the rule at a place, after the first of the packet's fair rules.
#[inline(always)]
pub(super) fn offset_of(packet_state: &PacketState, place: u32) -> u32 {
    packet_state.fair(place).offset
}

/// The same place, by a mask that the compiler cannot leave out for what it knows of the number: the kernel's verifier may not
/// know it.
#[inline(always)]
fn bounded<H: Host>(host: &H, packet_state: &PacketState, place: u32) -> u32 {
    let place = host.forget_number(place.into(), packet_state.subject.lo);
    place as u32 & (ROOM_FOR_PLACES - 1)
}

/// Charges the rule at a place if its key has a slot: places below [`MOST_FAIR`] are those of fair rules at their own key, the
/// others those at wider ones. At its own key, it samples the packet, and sets the wider keys that have a level.
#[inline(always)]
pub fn charge_fair<H: Host>(host: &H, packet_state: &mut PacketState, place: u32) -> FairStep {
    let place = bounded(host, packet_state, place);
    let (nth, key) = (place % MOST_FAIR, place / MOST_FAIR);
    let offset = if key == 0 {
        packet_state.wider = 0;
        nth
    } else {
        let distance = packet_state.wider().distance(key - 1);
        if distance == 0 {
            return FairStep::Passed;
        }
        nth + distance
    };
    packet_state.fair_mut(place).offset = offset;
    let Some(rule) = host.rule(packet_state.first_fair + offset) else {
        return FairStep::Passed;
    };
    let (words, now) = (host.fair_words(rule), packet_state.now);
    let slot_key = rule.key_of(&packet_state.subject);
    let cost = rule.cost_of(packet_state.subject.size);
    if words.one_in != 0 && words.sample_has(host.random(), now) {
        let class = packet_state.subject.class;
        host.sample_offered(rule, &slot_key, class, cost, words.one_in);
    }
    let level = words.level_at(now);
    if level.is_off() {
        return FairStep::Passed;
    }
    if key == 0 {
        packet_state.wider = words.wider.to_bits();
    }
    let bucket = level.bucket(rule.shift);
    packet_state.fair_mut(place).level = level.to_bits();
    let slot = Slot::at_home(host, &slot_key).or_alternate(host);
    packet_state.open = Opened::own(slot);
    if slot.exists() {
        return charge_slot(host, packet_state, (rule, place), &bucket);
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

/// Charges the rule at a place, whose key has a new slot or none.
#[inline(always)]
pub fn charge_new_fair<H: Host>(host: &H, packet_state: &mut PacketState, place: u32) -> FairStep {
    let place = bounded(host, packet_state, place);
    let charge = packet_state.fair(place);
    let level = Level::from_bits(charge.level);
    let Some(rule) = host.rule(packet_state.first_fair + charge.offset) else {
        return FairStep::Passed;
    };
    charge_slot(host, packet_state, (rule, place), &level.bucket(rule.shift))
}

/// Charges the key's slot, if it has one, and counts a refusal.
#[inline(always)]
fn charge_slot<H: Host>(
    host: &H,
    packet_state: &mut PacketState,
    (rule, place): (&Rule, u32),
    bucket: &Bucket,
) -> FairStep {
    let bucket = if place / MOST_FAIR == NETWORKS {
        bucket.out_of_step(packet_state.open.slot.tag.0)
    } else {
        *bucket
    };
    let (size, now) = (packet_state.subject.size, packet_state.now);
    let key = rule.key_of(&packet_state.subject);
    let open = &mut packet_state.open;
    if open.slot.exists() {
        let charge = charge_at(host, &bucket, (rule, open.slot), now, rule.cost_of(size));
        if charge == Charge::LOST {
            open.is_refused = lost(host, rule, size);
        } else if charge == Charge::REFUSED {
            open.is_refused = 1;
        }
        if open.is_reserved != 0 {
            publish(host, open.slot);
            open.is_reserved = 0;
        }
        let slot = open.slot;
        let charged = packet_state.fair_mut(place);
        (charged.slot, charged.charge) = (slot, charge);
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

/// Takes back the charges of the first `count` fair rules, at all of their keys.
#[inline(always)]
pub fn take_back_fair<H: Host>(host: &H, packet_state: &PacketState, count: u32) {
    for place in 0..FAIR_PLACES {
        if place % MOST_FAIR >= count {
            continue;
        }
        let charged = packet_state.fair(place);
        if !charged.charge.is_done() {
            continue;
        }
        let FairCharge {
            slot,
            charge,
            level,
            offset,
            ..
        } = *charged;
        if let Some(rule) = host.rule(packet_state.first_fair + offset) {
            let bucket = Level::from_bits(level).bucket(rule.shift);
            let cost = rule.cost_of(packet_state.subject.size);
            take_back_from(host, &bucket, (rule, slot), charge, cost);
        }
    }
}
