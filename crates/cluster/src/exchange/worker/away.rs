//! A host's time without the store: how it joins the others, parts from them, and returns.

use common::share::Share;
use config::policy::WhenStoreIsDown;
use decide::EffectiveShare;

use super::super::exchange_state::{
    ExchangeState, HOSTS_OF_A_NEW_STORE, RETURN_REPLIES, replies_after,
};
use super::super::use_log::LEAST_LIFE;
use super::{Worker, request_series};

/// The time between two removals of keys whose use has ended, in nanoseconds.
const PRUNE_EVERY: u64 = 10_000_000_000;

impl Worker {
    /// Exchanges keys from now on, once all use is read. A new store may not have it yet; until then, a host that joins has
    /// its part of what others use.
    pub(super) fn join(&mut self, is_new: bool) {
        let is_behind = is_new || self.uses.is_behind();
        match self.state {
            ExchangeState::Exchanging => {}
            ExchangeState::Joining if is_behind => {
                let hosts = self.peer.hosts().max(HOSTS_OF_A_NEW_STORE);
                self.held.enforce(EffectiveShare {
                    share: Share::one_of(hosts),
                    is_open: false,
                });
            }
            ExchangeState::Joining if self.held.in_effect() == EffectiveShare::WHOLE => {
                self.state = ExchangeState::Exchanging;
            }
            ExchangeState::Joining => self.exchange(),
            // It may know of more hosts now than when it was alone.
            ExchangeState::Alone if is_behind => self.held.enforce(self.alone()),
            ExchangeState::Alone => self.go_back(),
            ExchangeState::Returning(replies) => {
                self.return_after(replies_after(replies, &self.peer, &self.uses));
            }
        }
    }

    fn exchange(&mut self) {
        self.end_share();
        self.state = ExchangeState::Exchanging;
        self.held.enforce(EffectiveShare::WHOLE);
    }

    fn end_share(&self) {
        let (now, threshold) = ((self.now)(), self.peer.threshold());
        for (.., store) in self.held.engine.load().exchanged() {
            store.end_share(now, threshold);
        }
    }

    /// After a time without the store, when all use is read: writes what this host used. With shares, the others may have
    /// used theirs.
    fn go_back(&mut self) {
        for (limit, multiplier, store) in self.held.engine.load().exchanged() {
            // The refill of others pays for what they passed.
            if store.is_slow_bucket(LEAST_LIFE) {
                self.uses.restore(request_series(limit, multiplier));
            }
        }
        self.uses.set_apart(false);
        if self.cluster.when_store_is_down == WhenStoreIsDown::Share {
            // From now on, units are published; those until now are in the states.
            self.end_share();
            self.return_after(0);
        } else {
            self.exchange();
        }
    }

    fn return_after(&mut self, replies: u32) {
        if replies >= RETURN_REPLIES {
            self.exchange();
        } else {
            self.state = ExchangeState::Returning(replies);
            let share = Share::one_of(self.hosts.most());
            self.held.enforce_on_slow_buckets(share);
        }
    }

    /// What `when_store_is_down` makes of the hosts that this one knows.
    pub(super) fn alone(&self) -> EffectiveShare {
        EffectiveShare::alone(self.cluster.when_store_is_down, self.hosts.most())
    }

    /// Enforces a share, and charges buckets for what the others may have passed since they received this host's units. While it
    /// returned, slow buckets had a share, and were charged for the others with each unit.
    pub(super) fn part(&mut self, returned: bool) {
        let engine = self.held.engine.load();
        let (now, threshold) = ((self.now)(), self.peer.threshold());
        let mut parted = Vec::new();
        for (limit, multiplier, store) in engine.exchanged() {
            if !store.has_windows() {
                let number = request_series(limit, multiplier);
                let cuts = store.cut(now, threshold);
                self.uses
                    .changed(number, cuts.iter().map(|cut| cut.key), now);
                parted.push((store, number, cuts));
            }
        }
        let alone = self.alone();
        self.held.enforce(alone);
        let hosts = if alone.share == Share::WHOLE || alone.is_open {
            1
        } else {
            self.hosts.most()
        };
        for (store, number, cuts) in parted {
            let had_share = returned && store.is_slow_bucket(LEAST_LIFE);
            let hosts = if had_share { 1 } else { hosts };
            for (key, others) in self.peer.part(number, &cuts, hosts) {
                store.charge_for_others(key, others, now);
            }
        }
    }

    /// At each sync without the store: drops the units of buckets, whose states have them, and enforces the share.
    pub(super) fn be_alone(&mut self) {
        let (engine, now) = (self.held.engine.load(), (self.now)());
        let is_due = now.saturating_sub(self.pruned_at) >= PRUNE_EVERY;
        for (limit, multiplier, store) in engine.exchanged() {
            let number = request_series(limit, multiplier);
            // Under the share, the others' part stays free.
            let used = store.separate(now, LEAST_LIFE);
            self.uses.changed(number, used.into_iter(), now);
            if is_due {
                store.forget_ended(now);
                let is_used = |key| store.key_use(key, now, 1).is_some();
                self.peer.retain(number, is_used);
                self.uses.retain(number, is_used);
                self.pruned_at = now;
            }
        }
        self.sources.clear();
        self.held.enforce(self.alone());
    }

    /// Keeps this host's units charged in the kernel: they are no longer exchanged.
    pub(super) fn leave_behind(&self) {
        let part = Share::one_of(self.hosts.most());
        let takes_all = matches!(
            self.cluster.when_store_is_down,
            WhenStoreIsDown::Local | WhenStoreIsDown::Open
        );
        if !takes_all && part < self.held.in_effect().share {
            self.held.enforce(EffectiveShare {
                share: part,
                is_open: false,
            });
        }
    }
}
