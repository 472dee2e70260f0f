//! One rule and one slot: looking, charging by compare-and-swap, and taking a charge back.

use super::host::{Cell, Host, Passage};
use super::slot::Slot;
use crate::limiter::sliding_log::LOOK_AHEAD;
use crate::limiter::sliding_window::{Step, Word};
use crate::limiter::{Decision, SlidingWindow};
use crate::rule::{Action, Algorithm, Rule};
use crate::table::Set;
use crate::time::{Ticks, is_alive};

/// How often a state that others keep changing is decided upon again.
pub const CHARGE_TRIES: u32 = 16;

/// What came of charging one rule: what the charge left, or one of two reasons why there was none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(transparent)]
pub(super) struct Charge(u64);

impl Charge {
    /// The rule refuses, and was not charged.
    pub(super) const REFUSED: Self = Self(0);
    /// The slot was given to another key, or its state never stood still: not charged.
    pub(super) const LOST: Self = Self(1);

    /// Charged; what the charge left, for taking it back. A state of 0 or 1 is an instant as good as 2.
    #[inline(always)]
    pub(super) const fn done(left: u64) -> Self {
        Self(if left < 2 { 2 } else { left })
    }

    #[inline(always)]
    pub(super) const fn is_done(self) -> bool {
        self.0 > Self::LOST.0
    }

    /// When it is the packet's turn, if the rule delays; [`Passage::AT_ONCE`] if it does not.
    #[inline(always)]
    pub(super) fn departure(self, rule: &Rule, cost: u64) -> Ticks {
        if self.is_done() && rule.action == Action::Shape as u8 {
            rule.leaky_bucket().departure(self.0, cost)
        } else {
            Passage::AT_ONCE
        }
    }
}

/// Whether the rule would pass `cost` as things are.
#[inline(always)]
pub(super) fn conforms<H: Host>(host: &H, rule: &Rule, slot: Slot, now: Ticks, cost: u64) -> bool {
    let Some(set) = host.set(slot.set) else { return false };
    let word = slot.state(rule);
    let state = set.load(word);
    if host.runs(rule, Algorithm::SlidingWindow) {
        rule.sliding_window().step(state, set.load(word + 1), now, cost) != Step::Refuse
    } else if host.runs(rule, Algorithm::SlidingLog) {
        log_place(host, rule, slot, state, now).is_some()
    } else if host.runs(rule, Algorithm::FixedWindow) {
        rule.fixed_window().decide(state, now, cost) != Decision::Refuse
    } else {
        rule.token_bucket().decide(state, now, cost) != Decision::Refuse
    }
}

#[inline(always)]
pub(super) fn charge_rule<H: Host>(host: &H, rule: &Rule, slot: Slot, now: Ticks, cost: u64) -> Charge {
    if host.runs(rule, Algorithm::SlidingWindow) {
        charge_sliding_window(host, rule, slot, now, cost)
    } else if host.runs(rule, Algorithm::SlidingLog) {
        charge_sliding_log(host, rule, slot, now)
    } else if host.runs(rule, Algorithm::FixedWindow) {
        charge_word(host, slot, slot.state(rule), |state| rule.fixed_window().decide(state, now, cost))
    } else {
        charge_bucket(host, rule, slot, now, cost)
    }
}

#[inline(always)]
pub(super) fn charge_bucket<H: Host>(host: &H, rule: &Rule, slot: Slot, now: Ticks, cost: u64) -> Charge {
    charge_word(host, slot, slot.state(rule), |state| rule.token_bucket().decide(state, now, cost))
}

#[inline(always)]
fn charge_word<H: Host>(host: &H, slot: Slot, word: u32, decide: impl Fn(u64) -> Decision) -> Charge {
    let Some(set) = host.set(slot.set) else { return Charge::LOST };
    let mut state = set.load(word);
    for _ in 0..CHARGE_TRIES {
        let Decision::Pass(next) = decide(state) else { return Charge::REFUSED };
        let found = set.compare_exchange(word, state, next);
        if found == state {
            return Charge::done(next);
        }
        if slot.has_gone(set) {
            return Charge::LOST;
        }
        state = found;
    }
    Charge::LOST
}

#[inline(always)]
fn charge_sliding_window<H: Host>(host: &H, rule: &Rule, slot: Slot, now: Ticks, cost: u64) -> Charge {
    let Some(set) = host.set(slot.set) else { return Charge::LOST };
    let limiter: SlidingWindow = rule.sliding_window();
    let even = slot.state(rule);
    for _ in 0..CHARGE_TRIES {
        match limiter.step(set.load(even), set.load(even + 1), now, cost) {
            Step::Refuse => return Charge::REFUSED,
            Step::Seal { word, from, to } => {
                set.compare_exchange(even + offset(word), from, to);
            }
            Step::Pass { word, from, to } => {
                if set.compare_exchange(even + offset(word), from, to) == from {
                    return Charge::done(to);
                }
            }
        }
        if slot.has_gone(set) {
            return Charge::LOST;
        }
    }
    Charge::LOST
}

#[inline(always)]
const fn offset(word: Word) -> u32 {
    match word {
        Word::Even => 0,
        Word::Odd => 1,
    }
}

/// A place of the log that may be taken: (place, its cell, what it holds, what to put there).
#[inline(always)]
fn log_place<H: Host>(host: &H, rule: &Rule, slot: Slot, head: u64, now: Ticks) -> Option<(u32, H::Cell, u64, u64)> {
    let log = rule.sliding_log();
    for ahead in 0..LOOK_AHEAD {
        if ahead >= log.places() {
            break;
        }
        let place = log.place(head, ahead);
        let cell = host.cell(slot.ring(host, rule) + place)?;
        let instant = cell.load();
        if let Some(next) = log.take(instant, now) {
            return Some((place, cell, instant, next));
        }
    }
    None
}

#[inline(always)]
fn charge_sliding_log<H: Host>(host: &H, rule: &Rule, slot: Slot, now: Ticks) -> Charge {
    let Some(set) = host.set(slot.set) else { return Charge::LOST };
    let word = slot.state(rule);
    let log = rule.sliding_log();
    let mut head = set.load(word);
    for _ in 0..CHARGE_TRIES {
        let Some((place, cell, instant, next)) = log_place(host, rule, slot, head, now) else { return Charge::REFUSED };
        if cell.compare_exchange(instant, next) == instant {
            // The head is a hint: if another CPU moves it at the same time, one of the two moves stands.
            set.compare_exchange(word, head, log.advance(head, place, now));
            return Charge(u64::from(place) + FIRST_PLACE);
        }
        if slot.has_gone(set) {
            return Charge::LOST;
        }
        head = set.load(word);
    }
    Charge::LOST
}

/// What a charge of a log says instead of the state it left: the place it took, counted from here.
const FIRST_PLACE: u64 = Charge::LOST.0 + 1;

/// Takes back one charge, as far as it is still there.
#[inline(always)]
pub(super) fn refund<H: Host>(host: &H, rule: &Rule, slot: Slot, charged: Charge, cost: u64) {
    let Some(set) = host.set(slot.set) else { return };
    let now = host.now();
    let word = slot.state(rule);
    if host.runs(rule, Algorithm::SlidingLog) {
        // The place is free again; the head passes by it once more.
        if let Some(cell) = host.cell(slot.ring(host, rule) + charged.0.wrapping_sub(FIRST_PLACE) as u32) {
            let instant = cell.load();
            if is_alive(instant, now) {
                cell.compare_exchange(instant, now);
            }
        }
    } else if host.runs(rule, Algorithm::SlidingWindow) {
        for side in 0..2 {
            refund_word(set, word + side, |state| rule.sliding_window().refund(state, charged.0, cost));
        }
    } else if host.runs(rule, Algorithm::FixedWindow) {
        refund_word(set, word, |state| rule.fixed_window().refund(state, charged.0, cost));
    } else {
        refund_word(set, word, |state| rule.token_bucket().refund(state, charged.0, now, cost));
    }
}

#[inline(always)]
fn refund_word(set: impl Set, word: u32, refunded: impl Fn(u64) -> Option<u64>) {
    for _ in 0..CHARGE_TRIES {
        let state = set.load(word);
        let Some(next) = refunded(state) else { return };
        if set.compare_exchange(word, state, next) == state {
            return;
        }
    }
}
