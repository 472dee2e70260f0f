//! Charges that are made together or not at all.

use common::rate_limiter::Outcome;

use super::charge::{Charge, ChargeKind};
use super::engine::Engine;
use super::fingerprint::Fingerprint;
use super::periods::within;
use super::state_store::{LockedShard, Place, Saved, StateStore};

/// The charge to undo if a later one is refused.
struct Undo<'c> {
    held: usize,
    charge: &'c Charge,
    state: Saved,
    /// Whether it was made to the allowance that all keys without room share.
    is_without_room: bool,
}

/// The outcome to report of several: one that refuses, and of those the one with the least left.
pub(super) fn tightest(outcomes: &[Outcome]) -> Option<usize> {
    let order = |nth: &usize| (outcomes[*nth].allowed, outcomes[*nth].remaining);
    (0..outcomes.len()).min_by_key(order)
}

impl Engine {
    /// Locks the shards of all charges; returns them and each charge's index among them.
    fn lock_all(&self, charges: &[Charge]) -> (Vec<LockedShard<'_>>, Vec<Option<usize>>) {
        loop {
            let places: Vec<Option<(Place, &StateStore, Fingerprint)>> = charges
                .iter()
                .map(|charge| {
                    let (place, store) = self.store_of(charge)?.place(charge.key);
                    Some((place, store, charge.key))
                })
                .collect();
            let mut distinct: Vec<_> = places.iter().flatten().copied().collect();
            distinct.sort_unstable_by_key(|(place, ..)| *place);
            distinct.dedup_by_key(|(place, ..)| *place);
            let held = distinct
                .iter()
                .map(|(_, store, key)| store.hold_here(*key).ok());
            // A shard whose keys have been moved is looked up again.
            let Some(held) = held.collect::<Option<Vec<_>>>() else {
                continue;
            };
            let find = |place: Place| distinct.iter().position(|(other, ..)| *other == place);
            let at = places.iter().map(|place| find(place.as_ref()?.0)).collect();
            return (held, at);
        }
    }

    /// Decides charges that are made together or not at all; returns the outcome of each.
    ///
    /// Shards are locked in the order of their places, so that callers cannot deadlock.
    pub(super) fn decide_together(&self, charges: &[Charge], now: u64) -> Vec<Outcome> {
        self.expire(now);
        // Requests that wait for one of the keys are ahead of all charges.
        let somebody_waits = charges
            .iter()
            .any(|charge| !self.line_of(charge).is_empty());
        let lines = somebody_waits.then(|| self.waiting().lock());
        let behind = |charge: &Charge| Some(self.behind(lines.as_ref()?, charge, now)?.outcome);
        let behind: Vec<Option<Outcome>> = charges.iter().map(behind).collect();
        let (mut held, at) = self.lock_all(charges);
        let mut outcomes = Vec::with_capacity(charges.len());
        let mut undo: Vec<Undo> = Vec::new();
        let mut all_pass = true;
        for ((charge, at), behind) in charges.iter().zip(&at).zip(behind) {
            if let Some(refused) = behind {
                all_pass = false;
                outcomes.push(refused);
                continue;
            }
            let Some((at, held)) = at.and_then(|at| Some((at, held.get_mut(at)?))) else {
                outcomes.push(self.free_outcome(charge));
                continue;
            };
            let state = held.save(charge.key);
            let outcome = held.charge(charge, now);
            if !charge.is_peek() {
                undo.push(Undo {
                    held: at,
                    charge,
                    state,
                    is_without_room: outcome.allowed && held.shares_allowance(charge),
                });
            }
            all_pass &= outcome.allowed || self.limits[charge.limit].observes_now();
            outcomes.push(outcome);
        }
        if !all_pass {
            // In reverse, since a key may have been charged twice.
            for Undo {
                held: at,
                charge,
                state,
                is_without_room,
            } in undo.into_iter().rev()
            {
                match held.get_mut(at) {
                    // Other threads may have charged it since: their charges stay.
                    Some(held) if is_without_room => held.return_without_room(charge, now),
                    Some(held) => held.restore(charge.key, &state),
                    None => {}
                }
            }
            for ((charge, at), outcome) in charges.iter().zip(&at).zip(&mut outcomes) {
                if let Some(held) = at.and_then(|at| held.get(at))
                    && outcome.allowed
                {
                    outcome.remaining = held.peek(charge.key, now, charge.cost).remaining;
                }
            }
        }
        drop((held, lines));
        if all_pass {
            charges
                .iter()
                .filter(|charge| charge.kind == ChargeKind::Refund)
                .for_each(|charge| self.wake(self.line_of(charge)));
        }
        let count = |(charge, outcome): (&Charge, Outcome)| {
            // A charge that conformed was not made if another one was refused: it is not counted.
            if all_pass || !outcome.allowed {
                self.count(charge, outcome, now)
            } else {
                within(outcome, charge.left)
            }
        };
        charges.iter().zip(outcomes).map(count).collect()
    }
}
