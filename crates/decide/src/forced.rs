//! Forced charges and refunds of a key.

use std::sync::atomic::Ordering;
use std::time::Duration;

use common::limiter::Refund;
use common::rate_limiter::{Outcome, Policy};
use common::share::Share;
use config::policy::OnFull;

use super::account::is_bucket;
use super::charge::{Charge, ChargeKind};
use super::fingerprint::Fingerprint;
use super::state_store::{LockedShard, StateStore};
use super::tiers::{self, Charges, TierCharge, Tiers};

impl StateStore {
    /// Charges `cost`, whether it conforms or not: use that is reported after the work.
    pub fn force(&self, key: Fingerprint, now: u64, cost: u64) -> Outcome {
        self.lock(key).force(key, now, cost)
    }

    /// Returns the unused units of a charge, as far as they still count.
    pub fn refund(&self, key: Fingerprint, now: u64, refund: Refund, charges: &Charges) -> Outcome {
        self.lock(key).refund(key, now, refund, charges)
    }
}

impl LockedShard<'_> {
    /// Makes a charge, unless it is refused.
    pub(super) fn charge(&mut self, charge: &Charge, now: u64) -> Outcome {
        let Charge { key, cost, .. } = *charge;
        match charge.kind {
            ChargeKind::Conforming => self.decide(key, now, cost),
            ChargeKind::Peek => self.peek(key, now, cost),
            ChargeKind::Forced => self.force(key, now, cost),
            ChargeKind::Refund => {
                self.refund(key, now, Refund::newest(cost, now), &Charges::default())
            }
        }
    }

    /// As [`StateStore::force`]. Other hosts that exchange the key are charged as for units that conform.
    pub fn force(&mut self, key: Fingerprint, now: u64, cost: u64) -> Outcome {
        let at = self.store.instant(now);
        let is_exchanged = self.store.keyed.is_some();
        let (whole, share) = (self.store.tiers(), self.store.share());
        let charged = self.with_state(key, at, |tiers, words| {
            if is_exchanged {
                tiers::align(tiers, words, at);
            }
            if is_exchanged && is_bucket(tiers) {
                // Under a share, the others' units take what is left; only the cost itself is owed.
                tiers::force(whole, words, at, cost);
                let others = share.unwrap_or(Share::WHOLE).others(cost);
                tiers::charge_within(whole, words, at, others);
            } else {
                tiers::force(tiers, words, at, cost);
            }
            tiers::charged(tiers, words, at)
        });
        let Some(outcome) = charged else {
            return self.force_without_room(at, cost);
        };
        if let Some(keyed) = &self.store.keyed
            && cost > 0
        {
            let mut account = self.account(keyed, key);
            account.spent = account.spent.saturating_add(cost);
            if !is_bucket(&self.tiers) {
                account.open = account.open.saturating_add(cost);
            }
            self.shard.accounts.insert(key, account);
        }
        outcome
    }

    /// Without room for the key, all such keys share an allowance, or the use is not recorded: it is counted.
    fn force_without_room(&self, now: u64, cost: u64) -> Outcome {
        if self.store.on_full != OnFull::Share {
            return Outcome {
                allowed: true,
                retry_after: Some(Duration::ZERO),
                ..self.when_full(now, cost)
            };
        }
        self.store.without_room.fetch_add(1, Ordering::Relaxed);
        self.store.with_overflow(now, |tiers, words| {
            tiers::force(tiers, words, now, cost);
            tiers::charged(tiers, words, now)
        })
    }

    /// Whether a charge that has passed was made to the allowance that all keys without room share.
    pub(super) fn shares_allowance(&self, charge: &Charge) -> bool {
        let is_charged = matches!(charge.kind, ChargeKind::Conforming | ChargeKind::Forced);
        is_charged && self.store.on_full == OnFull::Share && !self.knows(charge.key)
    }

    /// Returns a charge that a key without room has made at the same instant, as far as it still counts: other keys may
    /// have charged the allowance since.
    pub(super) fn return_without_room(&self, charge: &Charge, now: u64) {
        let at = self.store.instant(now);
        self.store.with_overflow(at, |tiers, words| {
            let newest = Refund::newest(charge.cost, at);
            tiers::refund(tiers, words, at, newest, &Charges::default());
        });
    }

    /// The units that a passing charge would take of each tier.
    pub(super) fn shares(&mut self, key: Fingerprint, now: u64, cost: u64) -> Vec<u64> {
        let at = self.store.instant(now);
        match self.shard.get(key) {
            Some(words) => tiers::shares(&self.tiers, words, at, cost).collect(),
            None => {
                let mut words = vec![0; self.store.words];
                tiers::open(&self.tiers, &mut words, at);
                tiers::shares(&self.tiers, &words, at, cost).collect()
            }
        }
    }

    /// The units that the last charge took of each tier, and when their buckets will have made up for all charges of the key until now,
    /// on the agent's clock. `shares`: from [`Self::shares`] before it.
    pub(super) fn charges(&mut self, key: Fingerprint, now: u64, shares: &[u64]) -> Charges {
        let at = self.store.instant(now);
        let charges = |tiers: &Tiers, words: &mut [u64]| Charges {
            of_each: tiers::parts(tiers, words)
                .zip(shares)
                .map(|((tier, part), units)| TierCharge {
                    units: *units,
                    ends: now.saturating_add(tier.reset(part, at)),
                })
                .collect(),
            own: tiers.own().len(),
        };
        self.with_state(key, at, charges).unwrap_or_default()
    }

    /// As [`StateStore::refund`]. Units that other hosts have received stay charged there. `charges`: from
    /// [`Self::charges`]; without them, nothing has been made up for.
    pub fn refund(
        &mut self,
        key: Fingerprint,
        now: u64,
        refund: Refund,
        charges: &Charges,
    ) -> Outcome {
        let instant = |at: u64| self.store.instant(at);
        let mut charges = charges.clone();
        for charge in &mut charges.of_each {
            charge.ends = instant(charge.ends);
        }
        let (at, refund) = (
            instant(now),
            Refund {
                at: instant(refund.at),
                ..refund
            },
        );
        // A new key has its whole allowance, unless it begins with less.
        if !self.knows(key) && !self.store.tiers().iter().any(Policy::opens_short) {
            return Outcome {
                allowed: true,
                ..self.peek(key, now, 0)
            };
        }
        let (whole, is_exchanged) = (self.store.tiers(), self.store.keyed.is_some());
        let refunded = self.with_state(key, at, |tiers, words| {
            let before = words.to_vec();
            // A bucket's units may have been charged with the whole limit, before a share.
            let charged = if is_exchanged && is_bucket(tiers) {
                whole
            } else {
                tiers
            };
            tiers::refund(charged, words, at, refund, &charges);
            let returned = tiers::returned(charged, &before, words, at);
            (tiers::charged(tiers, words, at), returned)
        });
        let Some((outcome, returned)) = refunded else {
            return Outcome {
                allowed: true,
                ..self.peek(key, now, 0)
            };
        };
        if let Some(account) = self.shard.accounts.get_mut(&key) {
            let unpublished = account.spent.min(returned);
            account.spent -= unpublished;
            account.open = account.open.saturating_sub(unpublished);
        }
        outcome
    }
}
