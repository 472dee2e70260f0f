//! Charges that belong together: made all, or not at all.

use common::rate_limiter::Outcome;

use super::engine::{Charge, Engine};
use super::fingerprint::Fingerprint;
use super::store::{Held, Place, Store};

/// What to put back if a later charge is refused.
struct Undo {
    held: usize,
    key: Fingerprint,
    state: Option<Box<[u64]>>,
}

impl Engine {
    /// Holds the shards of all charges, and says which of them is each charge's.
    fn hold_all(&self, charges: &[Charge]) -> (Vec<Held<'_>>, Vec<Option<usize>>) {
        loop {
            let places: Vec<Option<(Place, &Store, Fingerprint)>> = charges
                .iter()
                .map(|charge| {
                    let (place, store) = charge.store(self)?.place(charge.key);
                    Some((place, store, charge.key))
                })
                .collect();
            let mut distinct: Vec<_> = places.iter().flatten().copied().collect();
            distinct.sort_unstable_by_key(|(place, ..)| *place);
            distinct.dedup_by_key(|(place, ..)| *place);
            let held = distinct.iter().map(|(_, store, key)| store.hold_here(*key).ok());
            // A shard whose keys have been moved meanwhile is looked for again.
            let Some(held) = held.collect::<Option<Vec<_>>>() else { continue };
            let find = |place: Place| distinct.iter().position(|(other, ..)| *other == place);
            let at = places.iter().map(|place| find(place.as_ref()?.0)).collect();
            return (held, at);
        }
    }

    /// Decides on charges that are made all together or not at all; what each of them would have said.
    ///
    /// Shards are held in the order of their places, so that two callers never wait for each other.
    pub(super) fn settle_all(&self, charges: &[Charge], now: u64) -> Vec<Outcome> {
        // Whoever waits for one of the keys is in front of all of them.
        let somebody_waits = charges.iter().any(|charge| !self.line_of(charge).is_empty());
        let lines = somebody_waits.then(|| self.waiting().lock());
        let behind = |charge: &Charge| Some(self.behind(lines.as_ref()?, charge, now)?.outcome);
        let behind: Vec<Option<Outcome>> = charges.iter().map(behind).collect();
        let (mut held, at) = self.hold_all(charges);
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
            let outcome = if charge.peek {
                held.peek(charge.key, now, charge.cost)
            } else {
                undo.push(Undo { held: at, key: charge.key, state: held.save(charge.key) });
                held.decide(charge.key, now, charge.cost)
            };
            all_pass &= outcome.allowed || self.limits[charge.limit].observes_now();
            outcomes.push(outcome);
        }
        if !all_pass {
            // In reverse, since one key may have been charged twice.
            for Undo { held: at, key, state } in undo.into_iter().rev() {
                if let Some(held) = held.get_mut(at) {
                    held.restore(key, state.as_deref());
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
        drop(held);
        let count = |(charge, outcome): (&Charge, Outcome)| {
            // What passed by itself was not charged if another refused: it counts as neither.
            if all_pass || !outcome.allowed { self.count(charge, outcome, now) } else { outcome }
        };
        charges.iter().zip(outcomes).map(count).collect()
    }
}
