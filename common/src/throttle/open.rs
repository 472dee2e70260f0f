//! Finds the slot of a key, or room for a new one.

use super::counting::{has_last_word, lost};
use super::host::{Cell, Host};
use super::outcome::TableEvent;
use super::packet_state::{Opened, PacketState};
use super::slot::Slot;
use crate::rule::OnFull;
use crate::table::{Claim, Claimed};

#[inline(always)]
pub(super) fn publish<H: Host>(host: &H, slot: Slot) {
    if let Some(set) = host.set(slot.set) {
        host.shape().publish(set, slot.word, slot.tag);
    }
}

/// Finds the slot for the key that the nth rule opens, or requests one.
#[inline(always)]
pub fn open<H: Host>(host: &H, packet_state: &mut PacketState, nth: u32) {
    let Some(rule) = host.rule(packet_state.span.first + nth) else {
        return;
    };
    let key = rule.key_of(&packet_state.subject);
    let cost = rule.cost_of(packet_state.subject.size);
    let slot = if packet_state.is_new != 0 {
        Slot::for_new(host, &key)
    } else {
        Slot::at_home(host, &key)
    };
    let slot = slot.or_alternate(host);
    packet_state.open = Opened::own(slot);
    if slot.exists() {
        return;
    }
    if cost > rule.most && has_last_word(host, rule, packet_state.now) {
        packet_state.open.is_refused = 1;
        return;
    }
    packet_state.open.wants_slot = 1;
    let newcomer = &mut packet_state.newcomer;
    newcomer.set = slot.set;
    newcomer.tag = slot.tag;
    newcomer.charge = if rule.is_bucket() && cost <= rule.most {
        rule.token_bucket().charge(cost)
    } else {
        0
    };
    newcomer.most = rule.tolerance;
    newcomer.position = u32::from(rule.position);
    newcomer.moves = rule.moves() as u32;
    newcomer.is_slow = u32::from(rule.is_slow());
    newcomer.shares = u32::from(rule.does_on_full(OnFull::Share));
}

/// Processes the result of a request for a slot.
#[inline(always)]
pub fn take<H: Host>(host: &H, packet_state: &mut PacketState, nth: u32, claim: Claim) {
    let Some(rule) = host.rule(packet_state.span.first + nth) else {
        return;
    };
    let size = packet_state.subject.size;
    let open = &mut packet_state.open;
    open.wants_slot = 0;
    open.slot.word = claim.slot;
    if claim.is_alternate {
        open.slot = open.slot.in_alternate(host);
    }
    match claim.outcome {
        Claimed::Reserved | Claimed::Displaced => {
            open.is_reserved = 1;
            if host.shape().has_refusal_words()
                && let Some(cell) = host.cell(open.slot.refusals(host))
            {
                cell.store(0);
            }
        }
        Claimed::Found => {}
        Claimed::Shared => {
            host.note(TableEvent::FullShared);
            let place = host.shape().cell(open.slot.set, open.slot.tag, claim.slot);
            open.shared = claim.slot + 1;
            (open.slot.set, open.slot.word) = (place.set, place.word);
        }
        Claimed::Full if rule.does_on_full(OnFull::Throttle) && rule.may_refuse() => {
            host.note(TableEvent::FullThrottled);
            open.is_refused = 1;
        }
        Claimed::Full => host.note(TableEvent::FullPassed),
        Claimed::Contended => {
            open.is_refused = lost(host, rule, size);
        }
    }
}
