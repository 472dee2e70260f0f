//! A host's record of a key, besides its state, while hosts exchange their busy keys' consumption.
//!
//! Between two exchanges a host decides alone. The key's *factor* bounds what it passes meanwhile: for each unit passed
//! here, the host assumes that all hosts together pass `factor` units. A bucket is charged that many at once, and
//! returns the difference when the others have published theirs. Windows cannot return units, so they only reserve the
//! others' units.

use common::rate_limiter::Policy;

use super::tiers::{self, Tiers};

/// The assumed consumption of the other hosts until they publish it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeerConsumption {
    /// Units that all hosts together are assumed to pass for each unit passed here; at least 1.
    pub factor: f64,
    /// Windows: units reserved for hosts of lower rank when there are fewer units than hosts.
    pub reserve: u64,
    /// Buckets: the most units that the others are assumed to pass in a sync, which is their demand.
    pub most_others: u64,
}

impl PeerConsumption {
    /// Without a bound on the others' units.
    pub const fn new(factor: f64, reserve: u64) -> Self {
        Self {
            factor,
            reserve,
            most_others: u64::MAX,
        }
    }

    /// Units that the others are assumed to pass in so many syncs, while this host passes `spent`.
    pub fn others(&self, spent: u64, syncs: u64) -> u64 {
        let most = self.most_others.saturating_mul(syncs);
        (((self.factor - 1.0) * spent as f64) as u64).min(most)
    }
}

/// One key of one limit on this host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Account {
    /// See [`PeerConsumption`].
    pub peers: PeerConsumption,
    /// Units passed here since the last cut for the others.
    pub spent: u64,
    /// Units passed here that not all other hosts are known to have received, `spent` included.
    pub open: u64,
    /// Buckets: units charged on behalf of the others since the last cut.
    pub over: u64,
    /// Units refused since the last cut.
    pub refused: u64,
    /// Whether its consumption is published, even if it is small.
    pub is_hot: bool,
    /// Whether it has no room in publications, so that each host passes its part. It is kept for as long as its state.
    pub is_parted: bool,
    /// Whether not all other hosts have received that this host uses the key.
    pub is_new: bool,
}

impl Account {
    /// For a key that no other host has published.
    pub const fn new(peers: PeerConsumption) -> Self {
        Self {
            peers,
            spent: 0,
            open: 0,
            over: 0,
            refused: 0,
            is_hot: false,
            is_parted: false,
            is_new: true,
        }
    }

    /// Charges `cost` if it conforms to this host's share and the reserve of the other hosts remains, so many syncs after
    /// the last cut. The other hosts' units count as those of the whole limit.
    pub fn charge(
        &mut self,
        (tiers, whole): (&Tiers, &Tiers),
        words: &mut [u64],
        (now, syncs): (u64, u64),
        cost: u64,
    ) -> bool {
        if cost == 0 {
            return true;
        }
        tiers::align(tiers, words, now);
        if !self.conforms(tiers, words, now, cost) {
            self.refused = self.refused.saturating_add(cost);
            return false;
        }
        tiers::charge(tiers, words, now, cost);
        self.spent = self.spent.saturating_add(cost);
        if is_bucket(tiers) {
            let more = self.peers.others(self.spent, syncs);
            let more = more.saturating_sub(self.over);
            self.over += more;
            tiers::charge_beyond(whole, words, (now, now), more);
        } else {
            self.open = self.open.saturating_add(cost);
        }
        true
    }

    /// Whether `cost` would pass.
    pub fn conforms(&self, tiers: &Tiers, words: &[u64], now: u64, cost: u64) -> bool {
        if !tiers::conform(tiers, words, now, cost) {
            return false;
        }
        // A limit of fewer units than hosts would refuse the first request on some hosts.
        let has_few = tiers::most(tiers) as f64 <= self.peers.factor - 1.0;
        let is_first = self.is_new && self.open == 0 && cost == 1;
        if is_bucket(tiers) || (is_first && has_few) {
            return true;
        }
        tiers::parts(tiers, words).all(|(tier, part)| {
            let remaining = tier.remaining(part, now);
            // Units of windows that have ended count no more.
            let open = self.open.min(tier.most() - remaining);
            let alike = (open + cost).saturating_sub(1) as f64;
            let others = ((self.peers.factor - 1.0) * alike).ceil() as u64;
            let reserved = others.saturating_add(self.peers.reserve);
            remaining >= cost.saturating_add(reserved)
        })
    }
}

/// Whether the limit's allowance refills continuously; all tiers of a limit use one algorithm.
pub fn is_bucket(tiers: &[Policy]) -> bool {
    tiers.first().is_some_and(Policy::is_bucket)
}
