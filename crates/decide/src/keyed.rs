//! A store's record of the cluster, and the data that hosts exchange about a key.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::rate_limiter::Policy;

use super::account::{Account, PeerConsumption, is_bucket};

/// A store's record of the cluster.
#[derive(Debug)]
pub(super) struct Keyed {
    /// How far the cluster's clock is ahead of this host's, in nanoseconds modulo 2⁶⁴.
    pub(super) ahead: AtomicU64,
    /// Hosts in the exchange, this one included.
    pub(super) hosts: AtomicU64,
    /// Of them, those with a lower rank.
    pub(super) rank: AtomicU64,
    /// Until when this host may pass its part of a window, by this host's clock.
    pub(super) valid_until: AtomicU64,
    /// When consumption was last cut off, by this host's clock; 0 before the first time.
    pub(super) cut_at: AtomicU64,
    pub(super) sync: Duration,
}

/// A key's consumption on this host since the last cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    pub key: u64,
    /// Units that passed.
    pub spent: u64,
    /// Used units of the limit in this host's record.
    pub used: u64,
    /// Units charged to a bucket on behalf of the other hosts.
    pub over: u64,
    /// Units that were refused.
    pub refused: u64,
    /// Windows: units passed here that not all other hosts are known to have received, `spent` included.
    pub open: u64,
}

/// The result of an exchange for a key on this host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adjustment {
    pub key: u64,
    /// Units that other hosts passed.
    pub charge: u64,
    /// Units that all hosts have used at least, as others have counted them; 0 if that is known already.
    pub at_least: u64,
    /// The instant at which they passed, on the cluster's clock: of the last unit for windows, the first for buckets.
    pub charged_at: Option<u64>,
    /// Units to return to a bucket: charged on behalf of others, but not used.
    pub give_back: u64,
    /// Units passed here that all other hosts have received.
    pub release: u64,
    /// See [`Account::peers`].
    pub peers: PeerConsumption,
    /// Whether the key is still exchanged.
    pub is_hot: bool,
    /// See [`Account::is_parted`].
    pub is_parted: bool,
    /// See [`Account::is_new`].
    pub is_new: bool,
}

impl Adjustment {
    /// For a key without room in publications.
    #[must_use]
    pub const fn parted(key: u64, peers: PeerConsumption) -> Self {
        Self {
            key,
            charge: 0,
            at_least: 0,
            charged_at: None,
            give_back: 0,
            release: 0,
            peers,
            is_hot: true,
            is_parted: true,
            is_new: false,
        }
    }
}

impl Keyed {
    pub(super) fn new(sync: Duration) -> Self {
        Self {
            ahead: AtomicU64::new(0),
            hosts: AtomicU64::new(1),
            rank: AtomicU64::new(0),
            valid_until: AtomicU64::new(u64::MAX),
            cut_at: AtomicU64::new(0),
            sync,
        }
    }

    /// The cluster's clock at this host's `now`.
    pub(super) fn instant(&self, now: u64) -> u64 {
        now.wrapping_add(self.ahead.load(Ordering::Relaxed))
    }

    /// Whether this host may pass anything: a lease after its last exchange, the others use its part of a window.
    pub(super) fn may_pass(&self, tiers: &[Policy], now: u64) -> bool {
        is_bucket(tiers) || now < self.valid_until.load(Ordering::Relaxed)
    }

    /// Syncs since the last cut, the one under way included: more than one while the store does not reply.
    pub(super) fn syncs(&self, now: u64) -> u64 {
        match self.cut_at.load(Ordering::Relaxed) {
            0 => 1,
            cut_at => 1 + now.saturating_sub(cut_at) / (self.sync.as_nanos() as u64).max(1),
        }
    }

    pub(super) fn follow(&self, other: &Self) {
        self.cut_at
            .store(other.cut_at.load(Ordering::Relaxed), Ordering::Relaxed);
        self.ahead
            .store(other.ahead.load(Ordering::Relaxed), Ordering::Relaxed);
        self.hosts
            .store(other.hosts.load(Ordering::Relaxed), Ordering::Relaxed);
        self.rank
            .store(other.rank.load(Ordering::Relaxed), Ordering::Relaxed);
        self.valid_until
            .store(other.valid_until.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The account of a key that no host has published: it may be new on every host at once.
    pub(super) fn account(&self, tiers: &[Policy]) -> Account {
        if is_bucket(tiers) {
            return Account::new(PeerConsumption::new(1.0, 0));
        }
        Account::new(self.part())
    }

    /// The same part on every host.
    pub(super) fn part(&self) -> PeerConsumption {
        let (hosts, rank) = (
            self.hosts.load(Ordering::Relaxed),
            self.rank.load(Ordering::Relaxed),
        );
        PeerConsumption::new(hosts as f64, rank)
    }
}
