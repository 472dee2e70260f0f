//! The use of a key by all hosts, as one of them writes it to their store for hosts that join later.

use common::rate_limiter::Policy;

use super::exchange::{Used, used};
use super::fingerprint::{Fingerprint, fnv1a};
use super::state_store::StateStore;
use super::tiers;

/// The resolution of the end of a use: the clocks of two hosts agree to some milliseconds.
const END_RESOLUTION: u64 = 10_000_000;

/// The state of a key, with its order among the states that hosts write of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyUse {
    pub key: u64,
    /// Not less than that of an earlier state of the key.
    pub order: [u64; 2],
    /// Nanoseconds until the whole allowance is available.
    pub life: u64,
    /// The state, on the cluster's clock.
    pub words: Vec<u64>,
}

impl StateStore {
    /// A number for the tiers: states of other tiers cannot be compared.
    #[must_use]
    pub fn definition(&self) -> u64 {
        let text = format!("{:?}", &**self.tiers());
        fnv1a(text.bytes())
    }

    /// The use of a key, unless it ends within `least` nanoseconds.
    #[must_use]
    pub fn key_use(&self, key: u64, now: u64, least: u64) -> Option<KeyUse> {
        let held = self.lock(Fingerprint::of_word(key));
        let (now, tiers) = (held.store.instant(now), held.store.tiers());
        let words = held.shard.get(Fingerprint::of_word(key))?;
        let life = tiers::reset(tiers, words, now);
        (life >= least).then(|| KeyUse {
            key,
            order: order(tiers, words, now),
            life,
            words: words.to_vec(),
        })
    }

    /// The keys whose use the other hosts have received, unless it ends within `least` nanoseconds.
    #[must_use]
    pub fn received_keys(&self, now: u64, least: u64) -> Vec<u64> {
        let mut keys = Vec::new();
        self.each_slow(now, least, |key, _, _| keys.push(key));
        keys.retain(|key| self.is_received(*key));
        keys.into_iter().map(Fingerprint::word).collect()
    }

    /// Whether the other hosts have received the use of a key.
    pub(super) fn is_received(&self, key: Fingerprint) -> bool {
        self.lock(key).shard.received.contains(&key)
    }

    /// Sets the state of a key to at least `words`, which another host has written. Units that this host has not
    /// published are added, and published next.
    pub fn adopt_use(&self, key: u64, words: &[u64], now: u64) {
        let key = Fingerprint::of_word(key.max(1));
        let mut held = self.lock(key);
        let store = held.store;
        let now = store.instant(now);
        if words.len() != store.words() || !tiers::is_alive(store.tiers(), words, now) {
            return;
        }
        let is_received = held.shard.received.contains(&key);
        let own = match held.shard.get(key) {
            Some(words) if !is_received => store.own(used(store.tiers(), words, now)),
            _ => Used::default(),
        };
        let adopted = held.with_state(key, now, |_, ours| {
            if is_received {
                tiers::take_fuller(store.tiers(), ours, words, now);
            } else {
                ours.copy_from_slice(words);
                tiers::charge_beyond(store.tiers(), ours, (now, now), own.units);
            }
        });
        // Without room for the key, `on_full` applies to it.
        let (Some(()), Some(keyed)) = (adopted, &store.keyed) else {
            return;
        };
        let shard = &mut *held.shard;
        if own.units == 0 {
            shard.received.insert(key);
            return;
        }
        let mut account = shard
            .accounts
            .get(&key)
            .copied()
            .unwrap_or_else(|| keyed.account(store.tiers()));
        account.begin(key, own, &mut shard.received);
        shard.accounts.insert(key, account);
    }
}

/// By the end of the longest tier, for a log on average over its units; states of a window by their count.
fn order(tiers: &[Policy], words: &[u64], now: u64) -> [u64; 2] {
    let longest = tiers::parts(tiers, words)
        .map(|(tier, part)| (tier.average_reset(part, now), tier, part))
        .max_by_key(|(life, ..)| *life);
    let Some((life, tier, part)) = longest else {
        return [0; 2];
    };
    let end = now.saturating_add(life).saturating_add(END_RESOLUTION / 2) / END_RESOLUTION;
    let count = match part {
        // It ends later with each unit.
        _ if tier.is_bucket() => 0,
        [_] => tier.most() - tier.remaining(part, now),
        // A word of a window has its end in the upper bits and its count in the lower ones. The previous one's word is
        // smaller, and what it weighs becomes less.
        [even, odd] => even.max(odd) & u64::from(u32::MAX),
        _ => 0,
    };
    [end, count]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use common::limiter::Rate;
    use config::policy::OnFull;

    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const LEAST: u64 = 5 * SECOND;

    fn policies() -> [Policy; 4] {
        let rate = Rate {
            count: 100,
            per_nanoseconds: 3_600 * SECOND,
        };
        [
            Policy::fixed_window(rate).unwrap(),
            Policy::sliding_window(rate).unwrap(),
            Policy::sliding_log(rate).unwrap(),
            Policy::token_bucket(rate, 100),
        ]
    }

    fn store(policy: Policy) -> StateStore {
        StateStore::new(vec![policy], 100, OnFull::Pass).keyed(Duration::from_millis(100))
    }

    fn spend(store: &StateStore, now: u64, units: u64) -> u64 {
        (0..units)
            .map(|_| u64::from(store.allowed(Fingerprint::of_word(7), now, 1)))
            .sum()
    }

    #[test]
    fn adopted_use_is_charged_once_and_own_units_are_added() {
        let now = 1_790_000_000 * SECOND;
        for policy in policies() {
            let (one, other) = (store(policy), store(policy));
            assert_eq!(spend(&one, now, 60), 60);
            let written = one.key_use(7, now, LEAST).unwrap();
            // Ten units that no host has received.
            assert_eq!(spend(&other, now, 10), 10);
            let later = now + SECOND;
            for _ in 0..3 {
                other.adopt_use(7, &written.words, later);
            }
            let cuts = other.cut(later, 1.0);
            assert_eq!((cuts.len(), cuts[0].spent), (1, 10), "{policy:?}");
            assert_eq!(spend(&other, later, 100), 30, "{policy:?}");
            // A state with less changes nothing.
            other.adopt_use(7, &written.words, later);
            assert_eq!(spend(&other, later, 1), 0, "{policy:?}");
        }
    }

    /// Hosts of earlier versions have it, too.
    #[test]
    fn the_definition_is_of_the_policies_alone() {
        let policy = Policy::token_bucket(Rate::per_second(7), 9);
        let text = format!("{:?}", [policy]);
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        assert_eq!(store(policy).definition(), hash);
    }

    /// The host that passed fewer units writes last, or as the window before becomes less.
    #[test]
    fn a_state_with_fewer_units_has_a_smaller_order() {
        let now = 1_790_000_000 * SECOND / (3_600 * SECOND) * 3_600 * SECOND;
        for policy in policies() {
            let (one, other) = (store(policy), store(policy));
            for store in [&one, &other] {
                assert_eq!(spend(store, now, 50), 50, "of the window before");
            }
            let later = now + 3_660 * SECOND;
            spend(&one, later, 40);
            spend(&other, later, 30);
            let order = |store: &StateStore, at: u64| store.key_use(7, at, LEAST).unwrap().order;
            for stale in [later, later + 300 * SECOND] {
                assert!(
                    order(&other, stale) < order(&one, later),
                    "{policy:?}: {:?}, {:?}",
                    order(&other, stale),
                    order(&one, later)
                );
            }
        }
    }

    #[test]
    fn later_states_have_a_greater_order() {
        let now = 1_790_000_000 * SECOND;
        for policy in policies() {
            let store = store(policy);
            let mut before = [0; 2];
            for step in 0..90 {
                assert_eq!(spend(&store, now + step * SECOND, 1), 1);
                let order = store.key_use(7, now + step * SECOND, LEAST).unwrap().order;
                assert!(order >= before, "{policy:?}: {order:?} after {before:?}");
                before = order;
            }
            let ended = now + 3 * 3_600 * SECOND;
            assert_eq!(store.key_use(7, ended, LEAST), None);
        }
    }
}
