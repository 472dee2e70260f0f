//! One rule and one slot: evaluating, charging by compare-and-swap, and taking a charge back.

use super::host::{Cell, Host};
use super::slot::Slot;
use super::verdict::Passage;
use crate::fair::Bucket;
use crate::limiter::{
    Algorithm, Charge, LeakyBucket, SharedCharge, SharedState, Swap, TokenBucket, algorithms,
};
use crate::rule::{Action, Rule};
use crate::table::Set;
use crate::time::Ticks;

/// Evaluates an expression with the rule's limiter. A rule of no listed algorithm is a bucket.
macro_rules! with_limiter {
    ([$host:expr, $rule:expr, $limiter:ident => $body:expr] $($name:ident = $number:literal),+) => {
        $(if $host.runs($rule, Algorithm::$name) {
            let $limiter: $crate::limiter::$name = $rule.limiter();
            $body
        } else)+ {
            let $limiter = $rule.token_bucket();
            $body
        }
    };
}

/// The state of a rule in a slot.
struct SlotState<'s, H: Host> {
    host: &'s H,
    set: H::Set,
    slot: Slot,
    rule: &'s Rule,
    /// The state's first word in the set, read from the rule once.
    first: u32,
}

impl<'s, H: Host> SlotState<'s, H> {
    #[inline(always)]
    fn new(host: &'s H, set: H::Set, slot: Slot, rule: &'s Rule) -> Self {
        Self {
            host,
            set,
            slot,
            rule,
            first: slot.state(rule),
        }
    }
}

impl<H: Host> SharedState for SlotState<'_, H> {
    type Place = H::Cell;

    #[inline(always)]
    fn load(&self, word: u32) -> u64 {
        self.set.load(self.first + word)
    }

    #[inline(always)]
    fn compare_exchange(&self, word: u32, current: u64, new: u64) -> u64 {
        self.set.compare_exchange(self.first + word, current, new)
    }

    #[inline(always)]
    fn place(&self, nth: u32) -> Option<H::Cell> {
        self.host.cell(self.slot.ring(self.host, self.rule) + nth)
    }

    #[inline(always)]
    fn load_place(&self, place: H::Cell) -> u64 {
        place.load()
    }

    #[inline(always)]
    fn compare_exchange_place(&self, place: H::Cell, current: u64, new: u64) -> u64 {
        place.compare_exchange(current, new)
    }

    #[inline(always)]
    fn has_gone(&self) -> bool {
        self.slot.has_gone(self.set)
    }
}

/// When it is the packet's turn, if the rule delays; [`Passage::AT_ONCE`] if it does not.
#[inline(always)]
pub(super) fn departure(charge: Charge, rule: &Rule, cost: u64) -> Ticks {
    if charge.is_done() && rule.action == Action::Shape as u8 {
        rule.limiter::<LeakyBucket>().departure(charge.left(), cost)
    } else {
        Passage::AT_ONCE
    }
}

/// The exchange that charging the rule would make in the current state.
#[inline(always)]
pub(super) fn swap<H: Host>(
    host: &H,
    set: H::Set,
    rule: &Rule,
    slot: Slot,
    now: Ticks,
    cost: u64,
) -> Swap {
    let state = SlotState::new(host, set, slot, rule);
    let first = state.load(0);
    algorithms!(with_limiter! host, rule, limiter => limiter.swap_shared(&state, first, now, cost))
}

/// The same for a bucket.
#[inline(always)]
pub(super) fn swap_bucket<H: Host>(
    host: &H,
    set: H::Set,
    rule: &Rule,
    slot: Slot,
    now: Ticks,
    cost: u64,
) -> Swap {
    let state = SlotState::new(host, set, slot, rule);
    rule.token_bucket()
        .swap_shared(&state, state.load(0), now, cost)
}

/// Whether the rule passes `cost` in the present state.
#[inline(always)]
pub(super) fn conforms<H: Host>(host: &H, rule: &Rule, slot: Slot, now: Ticks, cost: u64) -> bool {
    let Some(set) = host.set(slot.set) else {
        return false;
    };
    let state = SlotState::new(host, set, slot, rule);
    let first = state.load(0);
    algorithms!(with_limiter! host, rule, limiter => limiter.conforms_shared(&state, first, now, cost))
}

#[inline(always)]
pub(super) fn charge_rule<H: Host>(
    host: &H,
    rule: &Rule,
    slot: Slot,
    now: Ticks,
    cost: u64,
) -> Charge {
    let Some(set) = host.set(slot.set) else {
        return Charge::LOST;
    };
    let state = SlotState::new(host, set, slot, rule);
    algorithms!(with_limiter! host, rule, limiter => limiter.charge_shared(&state, now, cost))
}

#[inline(always)]
pub(super) fn charge_bucket<H: Host>(
    host: &H,
    rule: &Rule,
    slot: Slot,
    now: Ticks,
    cost: u64,
) -> Charge {
    let Some(set) = host.set(slot.set) else {
        return Charge::LOST;
    };
    let bucket: TokenBucket = rule.token_bucket();
    bucket.charge_shared(&SlotState::new(host, set, slot, rule), now, cost)
}

/// The same for a fair rule, at a level.
#[inline(always)]
pub(super) fn charge_at<H: Host>(
    host: &H,
    bucket: &Bucket,
    (rule, slot): (&Rule, Slot),
    now: Ticks,
    cost: u64,
) -> Charge {
    let Some(set) = host.set(slot.set) else {
        return Charge::LOST;
    };
    bucket.charge_shared(&SlotState::new(host, set, slot, rule), now, cost)
}

/// Refunds one charge at a level, if it is still in the state.
#[inline(always)]
pub(super) fn take_back_from<H: Host>(
    host: &H,
    bucket: &Bucket,
    (rule, slot): (&Rule, Slot),
    charged: Charge,
    cost: u64,
) {
    if let Some(set) = host.set(slot.set) {
        bucket.refund_shared(&SlotState::new(host, set, slot, rule), charged, cost);
    }
}

/// Refunds one charge, if it is still in the state.
#[inline(always)]
pub(super) fn refund<H: Host>(
    host: &H,
    rule: &Rule,
    slot: Slot,
    charged: Charge,
    now: Ticks,
    cost: u64,
) {
    let Some(set) = host.set(slot.set) else {
        return;
    };
    let state = SlotState::new(host, set, slot, rule);
    algorithms!(with_limiter! host, rule, limiter => limiter.refund_shared(&state, charged, now, cost));
}
