//! Charges units that other hosts passed to a key's slot, while packets are evaluated.

use common::key::Key;
use common::rule::Rule;
use common::table::{Claimed, NO_SLOT, Request, Set, Tag};
use common::time::{Ticks, is_alive};

use crate::table::sources::Sources;

impl Sources {
    /// Charges units that other hosts passed since an instant, beyond the bucket's tolerance if necessary; negative
    /// units are returned. A key without a slot gets one, unless busier keys occupy all slots of its set.
    pub fn charge_beyond(&self, key: &Key, rule: &Rule, (since, now): (Ticks, Ticks), units: i64) {
        let (hash, bucket, shape) = (
            self.settings.seed.hash(key),
            rule.token_bucket(),
            self.shape(),
        );
        let (home, tag) = (shape.set(hash), Tag::new(hash, key));
        let charged = |state: u64| match u64::try_from(units) {
            Ok(units) => bucket.charge_beyond(state, since, units),
            Err(_) => bucket.give_back(state, now, units.unsigned_abs()),
        };
        let (mut number, _, mut slot) = shape.locate(|set| self.mapped(set), home, tag);
        if slot == NO_SLOT && units > 0 {
            let state = charged(since);
            if !is_alive(state, now) {
                return;
            }
            let request = Request {
                set: home,
                tag,
                life: state.wrapping_sub(now),
                is_confined: false,
            };
            let claim = shape.claim(|set| Some(self.mapped(set)), request, now, |_, _| ());
            let (set, tag) = shape.claimed(&request, &claim);
            match claim.outcome {
                Claimed::Reserved | Claimed::Displaced => {
                    self.mapped(set)
                        .store(claim.slot + u32::from(rule.position), state);
                    shape.publish(self.mapped(set), claim.slot, tag);
                    return;
                }
                Claimed::Found => (number, slot) = (set, claim.slot),
                Claimed::Full | Claimed::Contended | Claimed::Shared => {}
            }
        }
        if slot == NO_SLOT {
            return;
        }
        let (set, word) = (self.mapped(number), slot + u32::from(rule.position));
        let mut current = set.load(word);
        loop {
            let found = set.compare_exchange(word, current, charged(current));
            if found == current {
                return;
            }
            current = found;
        }
    }
}
