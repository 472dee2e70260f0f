//! A store whose keys several hosts share: cutting consumption off for the others, and charging theirs.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::rate_limiter::Policy;
use common::share::Share;

use super::account::{Account, PeerConsumption, is_bucket};
use super::fingerprint::Fingerprint;
use super::keyed::{Adjustment, Cut, Keyed};
use super::shard::{Guard, Shard};
use super::state_store::{LockedShard, StateStore};
use super::tiers;

/// A larger change of the clock migrates the states; a smaller one only shifts them slightly.
const LARGE_STEP_NANOSECONDS: u64 = 100_000_000;

impl StateStore {
    /// For a limit whose hosts exchange their keys' consumption.
    #[must_use]
    pub fn keyed(mut self, sync: Duration) -> Self {
        self.keyed = Some(Keyed::new(sync));
        self.shared()
    }

    /// Whether its keys are windows, which return nothing before they end.
    #[must_use]
    pub fn has_windows(&self) -> bool {
        !is_bucket(self.tiers())
    }

    /// Whether it is a bucket that refills in more than `time` nanoseconds.
    #[must_use]
    pub fn is_slow_bucket(&self, time: u64) -> bool {
        let tiers = self.tiers();
        is_bucket(tiers)
            && tiers
                .iter()
                .any(|tier| tier.most() as f64 > tier.refilled_in(time))
    }

    /// Sets the number of hosts in the exchange, and how many have a lower rank.
    pub fn set_hosts(&self, hosts: u64, rank: u64) {
        if let Some(keyed) = &self.keyed {
            keyed.hosts.store(hosts.max(1), Ordering::Relaxed);
            keyed.rank.store(rank, Ordering::Relaxed);
        }
    }

    /// Until when, by this host's clock, windows may pass what the last exchange has left them.
    pub fn set_valid_until(&self, until: u64) {
        if let Some(keyed) = &self.keyed {
            keyed.valid_until.store(until, Ordering::Relaxed);
        }
    }

    /// How far the cluster's clock is ahead of this host's, modulo 2⁶⁴; `None` if keys are not exchanged.
    pub(super) fn ahead(&self) -> Option<u64> {
        Some(self.keyed.as_ref()?.ahead.load(Ordering::Relaxed))
    }

    /// The cluster's clock at this host's `now`.
    #[must_use]
    pub fn instant(&self, now: u64) -> u64 {
        self.keyed.as_ref().map_or(now, |keyed| keyed.instant(now))
    }

    /// Sets how far the cluster's clock is ahead of this host's. Used units stay used.
    pub fn set_clock(&self, ahead: u64, now: u64) {
        let Some(keyed) = &self.keyed else { return };
        let before = keyed.ahead.load(Ordering::Relaxed);
        let step = ahead.wrapping_sub(before);
        if step.min(step.wrapping_neg()) <= LARGE_STEP_NANOSECONDS {
            keyed.ahead.store(ahead, Ordering::Relaxed);
            return;
        }
        // Clock and states must change together for all readers.
        let mut shards: Vec<Guard<'_, Shard>> = self.all_shards().collect();
        keyed.ahead.store(ahead, Ordering::Relaxed);
        let (from, to) = (now.wrapping_add(before), now.wrapping_add(ahead));
        for shard in &mut shards {
            shard.replace_each(|words| tiers::rebased(self.tiers(), words, from, to));
        }
        self.rebase_overflow(from, to);
    }

    /// Cuts off what busy keys consumed since the last cut. A key is busy if it was refused, another host has published
    /// it, or it has used or passes more than `threshold` of its allowance or refill. Other keys are dropped here and
    /// count on this host only.
    #[must_use]
    pub fn cut(&self, now: u64, threshold: f64) -> Vec<Cut> {
        let mut cuts = Vec::new();
        let Some(keyed) = &self.keyed else {
            return cuts;
        };
        let flow = self
            .tiers()
            .iter()
            .map(|tier| tier.refilled_in(keyed.sync.as_nanos() as u64));
        let busy = threshold * flow.fold(f64::INFINITY, f64::min);
        keyed.cut_at.store(now, Ordering::Relaxed);
        for mut shard in self.all_shards() {
            if shard.accounts.is_empty() {
                continue;
            }
            let now = self.instant(now);
            let mut accounts = std::mem::take(&mut shard.accounts);
            accounts.retain(|key, account| {
                if account.spent == 0 && account.refused == 0 {
                    let is_kept = !account.is_parted || shard.get(*key).is_some();
                    return account.is_hot && is_kept;
                }
                let used = shard
                    .get(*key)
                    .map_or(Used::default(), |words| used(self.tiers(), words, now));
                if !account.is_hot {
                    let is_received = shard.received.contains(key);
                    let is_busy = used.share >= threshold
                        || account.spent as f64 > busy
                        || account.refused > 0;
                    if !is_received && !is_busy {
                        return false;
                    }
                    account.begin(*key, self.own(used), &mut shard.received);
                }
                account.open = account.open.min(used.units);
                let Account {
                    spent,
                    over,
                    refused,
                    open,
                    ..
                } = *account;
                cuts.push(Cut {
                    key: key.word(),
                    spent,
                    used: used.units,
                    over,
                    refused,
                    open,
                });
                (account.spent, account.over, account.refused) = (0, 0, 0);
                true
            });
            shard.accounts = accounts;
        }
        cuts
    }

    /// Charges a key with the other hosts' consumption.
    pub fn adjust(&self, adjustment: &Adjustment, now: u64) {
        let key = Fingerprint::of_word(adjustment.key);
        let mut held = self.lock(key);
        let now = self.instant(now);
        held.charge_beyond(key, adjustment, now);
        if !adjustment.is_hot {
            let accounts = &mut held.shard.accounts;
            if !accounts.get(&key).is_some_and(|account| account.is_parted) {
                accounts.remove(&key);
            }
            return;
        }
        let mut account = held
            .shard
            .accounts
            .get(&key)
            .copied()
            .unwrap_or_else(|| Account::new(adjustment.peers));
        account.open = account.open.saturating_sub(adjustment.release);
        (account.peers, account.is_new) = (adjustment.peers, adjustment.is_new);
        account.is_parted = adjustment.is_parted;
        held.shard.accounts.insert(key, account);
    }

    /// Charges a bucket for units that the other hosts may have passed: at most what it has left, so that nobody pays for units
    /// that nobody passed.
    pub fn charge_for_others(&self, key: u64, units: u64, now: u64) {
        let key = Fingerprint::of_word(key);
        let mut held = self.lock(key);
        let (now, whole) = (held.store.instant(now), held.store.tiers());
        held.with_state(key, now, |_, words| {
            tiers::charge_within(whole, words, now, units);
        });
    }

    /// Starts to enforce a share without the other hosts. Windows keep the units that the others have not received; buckets
    /// drop them, since the others adopt the state afterwards: under a share, a unit is charged as if each had passed one.
    /// Returns the keys of buckets that were used and whose use ends in `least` nanoseconds or later.
    pub fn separate(&self, now: u64, least: u64) -> Vec<u64> {
        self.set_hosts(1, 0);
        self.set_valid_until(u64::MAX);
        let mut used = Vec::new();
        if self.has_windows() {
            self.replace_peers(PeerConsumption::new(1.0, 0));
            return used;
        }
        let has_share = self.share().is_some_and(|share| share != Share::WHOLE);
        for mut shard in self.all_shards() {
            let now = self.instant(now);
            let accounts = std::mem::take(&mut shard.accounts);
            let spent = accounts.iter().filter(|(_, account)| account.spent > 0);
            for (key, _) in spent {
                let Some(words) = shard.get(*key) else {
                    continue;
                };
                if tiers::reset(self.tiers(), words, now) >= least {
                    used.push(key.word());
                }
                // Its units are those of all hosts: they are not added to the state of another one.
                if has_share {
                    shard.received.insert(*key);
                }
            }
        }
        used
    }

    /// Starts to exchange keys again: until the next adjustment of a key, every host may use it.
    pub fn rejoin(&self, hosts: u64, rank: u64) {
        self.set_hosts(hosts, rank);
        if self.has_windows() {
            self.replace_peers(PeerConsumption::new(hosts as f64, rank));
        }
    }

    /// Ends a share, or the time without the other hosts. A bucket's units from then are not published, but for those of
    /// accounts: all busy keys count as received. `threshold` is that of [`Self::cut`].
    pub fn end_share(&self, now: u64, threshold: f64) {
        if self.has_windows() {
            return;
        }
        let now = self.instant(now);
        for mut shard in self.all_shards() {
            let mut busy = Vec::new();
            shard.each(|key, words| {
                if used(self.tiers(), words, now).share >= threshold {
                    busy.push(key);
                }
            });
            shard.received.extend(busy);
        }
    }

    /// The units of a key's state that this host has used, while the other hosts' are not in it. Under a share of a bucket,
    /// each was charged as if they had passed theirs.
    pub(super) fn own(&self, used: Used) -> Used {
        let share = self.share().unwrap_or(Share::WHOLE);
        let units = if self.has_windows() {
            used.units
        } else {
            share.units(used.units)
        };
        Used { units, ..used }
    }

    /// Removes the accounts of keys whose use has ended.
    pub fn forget_ended(&self, now: u64) {
        let now = self.instant(now);
        for mut shard in self.all_shards() {
            let mut accounts = std::mem::take(&mut shard.accounts);
            accounts.retain(|key, _| {
                let words = shard.get(*key);
                words.is_some_and(|words| tiers::is_alive(self.tiers(), words, now))
            });
            shard.accounts = accounts;
        }
    }

    fn replace_peers(&self, peers: PeerConsumption) {
        for mut shard in self.all_shards() {
            shard
                .accounts
                .values_mut()
                .for_each(|account| account.peers = peers);
        }
    }
}

impl LockedShard<'_> {
    fn charge_beyond(&mut self, key: Fingerprint, adjustment: &Adjustment, now: u64) {
        let shard = &mut *self.shard;
        let is_hot = shard
            .accounts
            .get(&key)
            .is_some_and(|account| account.is_hot);
        if adjustment.is_hot && !is_hot {
            // Units used here before the others published the key are new to them.
            let used = shard.get(key).map_or(Used::default(), |words| {
                used(self.store.tiers(), words, now)
            });
            let mut account = shard
                .accounts
                .get(&key)
                .copied()
                .unwrap_or_else(|| Account::new(adjustment.peers));
            account.begin(key, self.store.own(used), &mut shard.received);
            shard.accounts.insert(key, account);
        }
        if adjustment.charge == 0 && adjustment.give_back == 0 && adjustment.at_least == 0 {
            return;
        }
        let at = adjustment.charged_at.unwrap_or(now).min(now);
        // Units that the others have not received are not in their count.
        let open = shard.accounts.get(&key).map_or(0, |account| account.open);
        let whole = self.store.tiers();
        // Other hosts' units are of the whole limit, whatever this host's share.
        self.with_state(key, now, |_, words| {
            let missing = if adjustment.at_least == 0 {
                0
            } else {
                let at_least = adjustment.at_least.saturating_add(open);
                at_least.saturating_sub(used(whole, words, now).units)
            };
            let charge = adjustment.charge.saturating_add(missing);
            tiers::charge_beyond(whole, words, (now, at), charge);
            tiers::give_back(whole, words, now, adjustment.give_back);
        });
    }
}

impl Account {
    /// Starts to publish the key, with all used units unless the others have received them before.
    pub(super) fn begin(
        &mut self,
        key: Fingerprint,
        used: Used,
        received: &mut HashSet<Fingerprint>,
    ) {
        if received.insert(key) && used.units > self.spent {
            self.open += used.units - self.spent;
            self.spent = used.units;
        }
        self.is_hot = true;
    }
}

/// The used part of a key's allowance.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Used {
    pub(super) units: u64,
    share: f64,
}

pub(super) fn used(tiers: &[Policy], words: &[u64], now: u64) -> Used {
    tiers::each_used(tiers, words, now).fold(Used::default(), |all, (used, most)| Used {
        units: all.units.max(used),
        share: all.share.max(used as f64 / most.max(1) as f64),
    })
}
