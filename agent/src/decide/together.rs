//! Charges that belong together: made all, or not at all.

use common::rate_limiter::Outcome;

use super::engine::{Charge, Engine};
use super::fingerprint::Fingerprint;
use super::store::{Held, Store};

/// A shard's place in the order in which shards are held: (where its store is in memory, shard). Two engines may have
/// stores in common while one takes the place of the other, and agree on this order only.
type Place = (usize, usize);

/// What to put back if a later charge is refused.
struct Undo {
    held: usize,
    key: Fingerprint,
    state: Option<Box<[u64]>>,
}

impl Charge {
    fn place(&self, engine: &Engine) -> Option<Place> {
        let store = self.store(engine)?;
        Some((std::ptr::from_ref(store).addr(), store.shard_of(self.key)))
    }
}

impl Engine {
    /// Decides on charges that are made all together or not at all; what each of them would have said.
    ///
    /// Shards are held in the order of their places, so that two callers never wait for each other.
    pub(super) fn settle_all(&self, charges: &[Charge], now: u64) -> Vec<Outcome> {
        let place = |charge: &Charge| Some((charge.place(self)?, charge.key, charge.store(self)?));
        let mut places: Vec<(Place, Fingerprint, &Store)> = charges.iter().filter_map(place).collect();
        places.sort_unstable_by_key(|(place, ..)| *place);
        places.dedup_by_key(|(place, ..)| *place);
        let mut held: Vec<(Place, Held<'_>)> =
            places.into_iter().map(|(place, key, store)| (place, store.hold(key))).collect();
        let find = |charge: &Charge| {
            let place = charge.place(self)?;
            held.iter().position(|(other, _)| *other == place)
        };
        let at: Vec<Option<usize>> = charges.iter().map(find).collect();

        let mut outcomes = Vec::with_capacity(charges.len());
        let mut undo: Vec<Undo> = Vec::new();
        let mut all_pass = true;
        for (charge, at) in charges.iter().zip(&at) {
            let Some((at, (_, held))) = at.and_then(|at| Some((at, held.get_mut(at)?))) else {
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
                if let Some((_, held)) = held.get_mut(at) {
                    held.restore(key, state.as_deref());
                }
            }
            for ((charge, at), outcome) in charges.iter().zip(&at).zip(&mut outcomes) {
                if let Some((_, held)) = at.and_then(|at| held.get(at))
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
