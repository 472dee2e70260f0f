//! Decisions on the keys of a locked shard.

use std::sync::atomic::Ordering;
use std::time::Duration;

use common::rate_limiter::{DecidingTier, Outcome};
use config::policy::OnFull;

use super::account::Account;
use super::fingerprint::Fingerprint;
use super::forecast::Forecast;
use super::keyed::Keyed;
use super::state_store::{LockedShard, SWEEP_AGAIN_NANOSECONDS, Saved};
use super::tiers::{self, Tiers};

/// The retry time if there is no room for a key.
const WHEN_FULL: Duration = Duration::from_secs(1);

impl LockedShard<'_> {
    /// As [`StateStore::decide`].
    pub fn decide(&mut self, key: Fingerprint, now: u64, cost: u64) -> Outcome {
        let decided = match &self.store.keyed {
            Some(keyed) => self.decide_keyed(keyed, key, now, cost),
            None => self.with_state(key, now, |tiers, words| {
                tiers::decide(tiers, words, now, cost)
            }),
        };
        decided.unwrap_or_else(|| self.when_full(self.store.instant(now), cost))
    }

    fn decide_keyed(
        &mut self,
        keyed: &Keyed,
        key: Fingerprint,
        now: u64,
        cost: u64,
    ) -> Option<Outcome> {
        let mut account = self.account(keyed, key);
        let (may, syncs) = (keyed.may_pass(&self.tiers, now), keyed.syncs(now));
        let (now, whole) = (keyed.instant(now), self.store.tiers());
        let outcome = self.with_state(key, now, |tiers, words| {
            let allowed =
                (may || cost == 0) && account.charge((tiers, whole), words, (now, syncs), cost);
            let wait = tiers::wait(tiers, words, now, cost);
            // Units that are only reserved for other hosts are free, or theirs, after the next exchange.
            let wait = wait.map(|wait| if wait.is_zero() { keyed.sync } else { wait });
            tiers::outcome(
                tiers,
                words,
                now,
                cost,
                allowed,
                if allowed { Some(Duration::ZERO) } else { wait },
            )
        })?;
        if cost > 0 {
            self.shard.accounts.insert(key, account);
        }
        Some(outcome)
    }

    /// Whether the key has a state.
    #[must_use]
    pub fn knows(&self, key: Fingerprint) -> bool {
        self.shard.get(key).is_some()
    }

    /// As [`StateStore::peek`].
    #[must_use]
    pub fn peek(&self, key: Fingerprint, now: u64, cost: u64) -> Outcome {
        let tiers: &Tiers = &self.tiers;
        let may_pass = self
            .store
            .keyed
            .as_ref()
            .is_none_or(|keyed| keyed.may_pass(tiers, now));
        let now = self.store.instant(now);
        match self.shard.get(key) {
            Some(words) => {
                let mut outcome = tiers::peek(tiers, words, now, cost);
                if let Some(keyed) = &self.store.keyed {
                    let account = self.account(keyed, key);
                    outcome.allowed =
                        cost == 0 || (may_pass && account.conforms(tiers, words, now, cost));
                }
                outcome
            }
            None => {
                if self.store.is_full() && self.store.on_full == OnFull::Share {
                    return self
                        .store
                        .with_overflow(now, |tiers, words| tiers::peek(tiers, words, now, cost));
                }
                let mut words = vec![0; self.store.words];
                tiers::open(tiers, &mut words, now);
                tiers::peek(tiers, &words, now, cost)
            }
        }
    }

    /// A copy of a key's state.
    #[must_use]
    pub fn save(&self, key: Fingerprint) -> Saved {
        Saved {
            words: self.shard.get(key).map(Into::into),
            account: self.shard.accounts.get(&key).copied(),
        }
    }

    /// A forecast of the key; `None` if it has no state.
    #[must_use]
    pub fn forecast(&self, key: Fingerprint, now: u64) -> Option<Forecast> {
        let words = self.shard.get(key)?.into();
        let at = self.store.instant(now);
        let account = self
            .store
            .keyed
            .as_ref()
            .map(|keyed| (self.account(keyed, key), keyed.sync));
        Some(Forecast {
            tiers: Tiers::clone(&self.tiers),
            words,
            at,
            ahead: at.wrapping_sub(now),
            account,
            ends: None,
        })
    }

    pub(super) fn account(&self, keyed: &Keyed, key: Fingerprint) -> Account {
        match self.shard.accounts.get(&key) {
            Some(account) if account.is_parted => Account {
                peers: keyed.part(),
                ..*account
            },
            Some(account) => *account,
            None => keyed.account(&self.tiers),
        }
    }

    /// Restores a copy.
    pub fn restore(&mut self, key: Fingerprint, saved: &Saved) {
        let before = self.shard.len();
        match &saved.words {
            Some(words) => self.shard.insert(key, words),
            None => self.shard.remove(key),
        }
        match saved.account {
            Some(account) => self.shard.accounts.insert(key, account),
            None => self.shard.accounts.remove(&key),
        };
        let (after, keys) = (self.shard.len(), &self.store.keys);
        if after > before {
            keys.fetch_add(after - before, Ordering::Relaxed);
        } else {
            keys.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    /// Sets the state of a key from elsewhere, if there is room for it.
    pub(super) fn put(&mut self, key: Fingerprint, words: &[u64]) {
        if self.shard.get(key).is_none()
            && self.shard.len() < self.store.shard_capacity
            && self.store.take_place()
        {
            self.shard.insert(key, words);
        }
    }

    /// Changes a key's state, a new one if needed; `None` if there is no room for it.
    pub(super) fn with_state<T>(
        &mut self,
        key: Fingerprint,
        now: u64,
        work: impl FnOnce(&Tiers, &mut [u64]) -> T,
    ) -> Option<T> {
        let (tiers, store): (&Tiers, _) = (&self.tiers, self.store);
        if let Some(words) = self.shard.get_mut(key) {
            return Some(work(tiers, words));
        }
        let is_full = self.shard.len() >= store.shard_capacity || store.is_full();
        let may_sweep = !is_full || now.saturating_sub(self.shard.swept) >= SWEEP_AGAIN_NANOSECONDS;
        if (is_full || self.shard.len() >= self.shard.sweep_at) && may_sweep {
            store.forget_decayed(&mut self.shard, now);
        }
        if store.is_full() {
            store.forget_elsewhere(now);
        }
        if self.shard.len() >= store.shard_capacity || !store.take_place() {
            return None;
        }
        let mut short = [0; 2];
        let mut long = Vec::new();
        let words = match short.get_mut(..store.words) {
            Some(words) => words,
            None => {
                long.resize(store.words, 0);
                &mut long[..]
            }
        };
        tiers::open(tiers, words, now);
        let done = work(tiers, words);
        self.shard.insert(key, words);
        Some(done)
    }

    pub(super) fn when_full(&self, now: u64, cost: u64) -> Outcome {
        self.store.without_room.fetch_add(1, Ordering::Relaxed);
        match self.store.on_full {
            OnFull::Pass => Outcome {
                allowed: true,
                over: false,
                remaining: tiers::most(&self.tiers),
                debt: 0,
                retry_after: Some(Duration::ZERO),
                reset_after: Duration::ZERO,
                tier: DecidingTier {
                    remaining: tiers::most(&self.tiers),
                    ..DecidingTier::default()
                },
            },
            OnFull::Throttle => Outcome {
                allowed: false,
                over: false,
                remaining: 0,
                debt: 0,
                retry_after: Some(WHEN_FULL),
                reset_after: WHEN_FULL,
                tier: DecidingTier {
                    reset_after: WHEN_FULL,
                    ..DecidingTier::default()
                },
            },
            OnFull::Share => self
                .store
                .with_overflow(now, |tiers, words| tiers::decide(tiers, words, now, cost)),
        }
    }
}
