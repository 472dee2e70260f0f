//! The model of hosts, their store and the network between them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::rate_limiter::Policy;
use common::share::Share;
use config::policy::OnFull;
use decide::{Cut, Fingerprint, Fingerprints, StateStore};
use testbed::random::Random;

use super::super::exchange_state::{
    ExchangeState, HOSTS_OF_A_NEW_STORE, RETURN_REPLIES, replies_after,
};
use super::super::peer::{News, Peer, PeerHost};
use super::super::use_log::{Changes, LEAST_LIFE, Name, UseLog, Writes};
use super::super::wire::decode_words;
use crate::recent_hosts::RecentHosts;

pub(super) const MS: u64 = 1_000_000;
pub(super) const SECOND: u64 = 1_000 * MS;
/// The interval of requests.
pub(super) const TICK: u64 = 5 * MS;
/// The limit's number in publications.
pub(super) const NUMBER: u64 = 7;

/// The lease of a host, as [`Terms::lease_for`](crate::member::Terms::lease_for).
const fn lease_of(sync: u64) -> u64 {
    if 10 * sync > SECOND {
        10 * sync
    } else {
        SECOND
    }
}

/// What a host has published, and its terms in nanoseconds.
#[derive(Clone)]
pub(super) struct Published {
    pub(super) at: u64,
    pub(super) lease: u64,
    pub(super) sync: u64,
    pub(super) bytes: Vec<u8>,
}

/// A key's use in the store.
#[derive(Clone)]
pub(super) struct Use {
    pub(super) version: u64,
    pub(super) order: [u64; 2],
    pub(super) state: Vec<u8>,
}

/// The function of `exchange.lua`, in nanoseconds.
#[derive(Clone, Default)]
pub(super) struct Ledger {
    pub(super) clock: u64,
    pub(super) publications: BTreeMap<String, Published>,
    pub(super) epoch: u64,
    pub(super) version: u64,
    pub(super) restored: u64,
    pub(super) used: BTreeMap<Vec<u8>, Use>,
    /// The sequence of each host's last request.
    pub(super) sequences: BTreeMap<String, u64>,
    /// When it was new.
    pub(super) begun: Option<u64>,
    /// Whether it refuses commands that need memory.
    pub(super) is_full: bool,
    pub(super) is_away: bool,
}

impl Ledger {
    /// Loses everything.
    pub(super) fn empty(&mut self) {
        *self = Self {
            epoch: self.epoch + 1,
            ..Self::default()
        };
    }

    pub(super) fn exchange(
        &mut self,
        now: u64,
        (lease, sync): (u64, u64),
        peer: &Peer,
        (publication, replied): (Vec<u8>, u64),
        writes: &Writes,
    ) -> Option<Reply> {
        if self.is_full || self.is_away {
            return None;
        }
        self.clock = (now / 1_000).max(self.clock + 1);
        let now = self.clock;
        let is_new = now < *self.begun.get_or_insert(now) + lease / 1_000;
        let name = peer.name().to_owned();
        let sequence = self.sequences.insert(name, peer.sequence());
        self.publications
            .retain(|_, host| host.at + host.lease / 1_000 > now);
        let published = Published {
            at: now,
            lease,
            sync,
            bytes: publication,
        };
        self.publications.insert(peer.name().to_owned(), published);
        for row in &writes.rows {
            let before = self.used.get(&row.name.encode());
            if before.is_some_and(|before| before.state == row.state || before.order > row.order) {
                continue;
            }
            self.version += 1;
            if writes.restores {
                self.restored = self.version;
            }
            let written = Use {
                version: self.version,
                order: row.order,
                state: row.state.clone(),
            };
            self.used.insert(row.name.encode(), written);
        }
        let host = |(name, host): (&String, &Published)| PeerHost {
            name: name.clone(),
            at: host.at,
            sync: host.sync / 1_000,
        };
        let is_news =
            |(name, host): &(&String, &Published)| host.at > peer.read() && *name != peer.name();
        let news = self.publications.iter().filter(is_news);
        let news = News {
            now,
            hosts: self.publications.iter().map(host).collect(),
            publications: news
                .map(|(name, host)| (name.clone(), host.bytes.clone()))
                .collect(),
        };
        let keys = self.used.iter().filter(|(_, used)| {
            writes.page > 0 && (used.version > writes.version || writes.version > self.version)
        });
        let keys = keys.map(|(name, used)| {
            let words = decode_words(&used.state).unwrap();
            (Name::decode(name).unwrap(), words)
        });
        let changes = Changes {
            epoch: self.epoch.to_string(),
            version: self.version,
            restored: self.restored,
            has_lost: sequence.unwrap_or(0) < replied,
            until: None,
            keys: keys.collect(),
        };
        Some((news, changes, is_new))
    }
}

/// The last one: whether the store is new.
type Reply = (News, Changes, bool);

/// A request under way.
pub(super) struct Request {
    requested_at: u64,
    /// When the store processes it; none if it has, or never does.
    arrives: Option<u64>,
    is_answered: bool,
    publication: Vec<u8>,
    writes: Writes,
    /// When the reply arrives.
    reply: Option<(u64, Reply)>,
}

pub(super) struct Host {
    request: Option<Request>,
    pub(super) peer: Peer,
    pub(super) recent: RecentHosts,
    pub(super) store: Arc<StateStore>,
    pub(super) uses: UseLog,
    /// How far its clock is ahead of the store's.
    pub(super) ahead: u64,
    pub(super) sync: u64,
    pub(super) next_sync: u64,
    pub(super) owed: Vec<f64>,
    /// The last reply.
    pub(super) replied: u64,
    /// The sequence of the last request with a reply.
    sequence: u64,
    state: ExchangeState,
    /// Whether it decides. If not, it does from its next reply on, or from the first one that fails to come.
    pub(super) is_serving: bool,
    /// Whether it has no connection to the store.
    pub(super) is_cut_off: bool,
    /// Whether it stands still.
    pub(super) is_stopped: bool,
    /// The units that it has passed since its last exchange.
    pub(super) unpublished: u64,
}

impl Host {
    /// As a reload with another `sync` or another number of units does.
    pub(super) fn reload(&mut self, now: u64, policy: Policy, sync: u64) {
        let interval = Duration::from_nanos(sync);
        let next = StateStore::new(vec![policy], 100_000, OnFull::Share).keyed(interval);
        let next = Arc::new(next);
        self.store.move_to(&next, now + self.ahead);
        (self.store, self.sync) = (next, sync);
        self.peer.reconfigure(10_000, interval);
    }

    fn cut(&mut self, here: u64) -> Vec<Cut> {
        let cuts = self.store.cut(here, self.peer.threshold());
        self.uses
            .changed(NUMBER, cuts.iter().map(|cut| cut.key), here);
        cuts
    }

    fn separate(&mut self, here: u64) {
        let used = self.store.separate(here, LEAST_LIFE);
        self.uses.changed(NUMBER, used.into_iter(), here);
    }

    /// Publishes, as the exchanger does. `arrives` is when the store processes it, if it does; the reply takes as long.
    fn publish(&mut self, now: u64, (arrives, is_answered): (Option<u64>, bool)) {
        let here = now + self.ahead;
        let has_windows = self.store.has_windows();
        let mut published = Vec::new();
        if self.state == ExchangeState::Alone && !has_windows {
            self.separate(here);
        } else {
            published.push((NUMBER, has_windows, self.cut(here)));
        }
        let publication = self.peer.publish(self.store.instant(here), &published);
        for adjustment in self
            .peer
            .take_parted()
            .iter()
            .flat_map(|(_, parted)| parted)
        {
            self.store.adjust(adjustment, here);
        }
        self.uses.set_hosts(self.peer.hosts());
        let (peer, store) = (&self.peer, &self.store);
        let writes = self.uses.writes(
            (here, self.sync),
            false,
            |number, key| peer.is_own(number, key),
            |_, key| Some((store.definition(), store.key_use(key, here, LEAST_LIFE)?)),
        );
        self.request = Some(Request {
            requested_at: now,
            arrives: arrives.filter(|_| !self.is_cut_off),
            is_answered,
            publication,
            writes,
            reply: None,
        });
    }

    /// Lets the store process the request when it arrives, and processes the reply, as the exchanger does.
    fn advance(&mut self, now: u64, ledger: &mut Ledger) {
        let lease = lease_of(self.sync);
        let Some(request) = &mut self.request else {
            return;
        };
        if request.arrives.is_some_and(|at| at <= now) {
            let at = request.arrives.take().unwrap_or(now);
            let publication = (std::mem::take(&mut request.publication), self.sequence);
            let terms = (lease, self.sync);
            let reply = ledger.exchange(now, terms, &self.peer, publication, &request.writes);
            request.reply = reply
                .filter(|_| request.is_answered)
                .map(|reply| (2 * at - request.requested_at, reply));
        }
        let is_pending = request.arrives.is_some() || request.reply.is_some();
        let is_late = now >= request.requested_at + lease / 3;
        if is_pending && !is_late && request.reply.as_ref().is_none_or(|(at, _)| *at > now) {
            return;
        }
        let reply = request.reply.take().filter(|_| !is_late);
        let requested_at = request.requested_at + self.ahead;
        self.request = None;
        self.is_serving = true;
        match reply {
            Some((_, reply)) => self.replied(now, requested_at, &reply),
            None => self.unanswered(now),
        }
    }

    fn unanswered(&mut self, now: u64) {
        if now + self.ahead >= self.replied + lease_of(self.sync) {
            let here = now + self.ahead;
            if self.state.is_among_others() && !self.store.has_windows() {
                let has_returned = self.state != ExchangeState::Exchanging;
                let had_share = has_returned && self.store.is_slow_bucket(LEAST_LIFE);
                let hosts = if had_share { 1 } else { self.recent.most() };
                let cuts = self.cut(here);
                for (key, others) in self.peer.part(NUMBER, &cuts, hosts) {
                    self.store.charge_for_others(key, others, here);
                }
            }
            self.state = ExchangeState::Alone;
            self.uses.set_apart(true);
            self.separate(here);
            self.store.set_share(Share::one_of(self.recent.most()));
        }
    }

    fn replied(&mut self, now: u64, requested_at: u64, (news, changes, is_new): &Reply) {
        let here = now + self.ahead;
        (self.replied, self.sequence) = (here, self.peer.sequence());
        self.unpublished = 0;
        if *is_new {
            self.peer.expect_all(news);
        }
        let adjustments = self.peer.receive(news);
        self.recent.record(self.peer.hosts(), here);
        for (number, keys) in self.peer.take_orphaned() {
            self.uses.lost(number, keys);
        }
        let (hosts, rank) = (self.peer.window_hosts(), self.peer.rank());
        if self.state.is_among_others() {
            self.store.set_hosts(hosts, rank);
        } else {
            self.store.rejoin(hosts, rank);
        }
        for adjustment in adjustments.iter().flat_map(|(_, adjustments)| adjustments) {
            self.store.adjust(adjustment, here);
        }
        self.store
            .set_valid_until(requested_at + lease_of(self.sync));
        let has_lost = self.uses.replied(changes);
        for (name, words) in &changes.keys {
            assert_eq!(name.definition, self.store.definition());
            self.store.adopt_use(name.key, words, here);
        }
        if has_lost {
            self.uses
                .lost(NUMBER, self.store.received_keys(here, LEAST_LIFE));
        }
        let is_behind = *is_new || self.uses.is_behind();
        match self.state {
            ExchangeState::Exchanging => {}
            ExchangeState::Joining if is_behind => {
                let hosts = self.peer.hosts().max(HOSTS_OF_A_NEW_STORE);
                self.store.set_share(Share::one_of(hosts));
            }
            ExchangeState::Joining => {
                if self.store.share() != Some(Share::WHOLE) {
                    self.store.end_share(here, self.peer.threshold());
                }
                self.exchange();
            }
            ExchangeState::Alone if is_behind => {
                self.store.set_share(Share::one_of(self.recent.most()));
            }
            ExchangeState::Alone => {
                if self.store.is_slow_bucket(LEAST_LIFE) {
                    self.uses.restore(NUMBER);
                }
                self.uses.set_apart(false);
                self.store.end_share(here, self.peer.threshold());
                self.return_after(0);
            }
            ExchangeState::Returning(replies) => {
                self.return_after(replies_after(replies, &self.peer, &self.uses));
            }
        }
    }

    fn return_after(&mut self, replies: u32) {
        if replies >= RETURN_REPLIES {
            self.store.end_share(self.replied, self.peer.threshold());
            self.exchange();
        } else {
            self.state = ExchangeState::Returning(replies);
            let share = if self.store.is_slow_bucket(LEAST_LIFE) {
                Share::one_of(self.recent.most())
            } else {
                Share::WHOLE
            };
            self.store.set_share(share);
        }
    }

    fn exchange(&mut self) {
        self.state = ExchangeState::Exchanging;
        self.store.set_share(Share::WHOLE);
    }
}

pub(super) struct World {
    pub(super) now: u64,
    pub(super) sync: u64,
    pub(super) lost: u64,
    /// Per mille of exchanges that are late, and the longest delay: the host continues to decide meanwhile.
    pub(super) stalls: (u64, u64),
    /// How long a request and a reply take, each.
    pub(super) one_way: u64,
    pub(super) random: Random,
    pub(super) ledger: Ledger,
    pub(super) hosts: Vec<Option<Host>>,
    pub(super) keys: Vec<Fingerprint>,
    pub(super) policy: Policy,
    /// The most keys of the hosts that join.
    pub(super) capacity: usize,
    /// Passed units by tick and key.
    pub(super) passed: Vec<Vec<u32>>,
}

impl World {
    pub(super) fn new(policy: Policy, hosts: usize, keys: usize, sync: u64) -> Self {
        let names = Fingerprints::under([1, 2]);
        let mut world = Self {
            now: 1_000 * SECOND,
            sync,
            lost: 0,
            stalls: (0, 1),
            one_way: 0,
            random: Random::new(7),
            // Its store is not new.
            ledger: Ledger {
                begun: Some(0),
                ..Ledger::default()
            },
            hosts: Vec::new(),
            keys: (0..keys).map(|key| names.of(&key)).collect(),
            policy,
            capacity: 100_000,
            passed: Vec::new(),
        };
        (0..hosts).for_each(|_| world.join());
        // All hosts have exchanged before the first request.
        (0..3 * sync / TICK).for_each(|_| world.step(&|_, _, _| 0.0));
        world.passed.clear();
        world
    }

    pub(super) fn join(&mut self) {
        let host = self.host(self.sync);
        self.hosts.push(Some(host));
    }

    pub(super) fn host(&mut self, sync: u64) -> Host {
        let store = StateStore::new(vec![self.policy], self.capacity, OnFull::Share)
            .keyed(Duration::from_nanos(sync));
        let ahead = self.random.below(1_000_000) * SECOND;
        let name = format!("host-{}-{}", self.hosts.len(), self.now);
        let peer = Peer::new(name, 10_000, Duration::from_nanos(sync));
        let next_sync = self.now + self.random.below(sync);
        // Its estimate of the store's clock is wrong by up to two milliseconds.
        let error = self.random.below(4 * MS);
        store.set_clock(
            0u64.wrapping_sub(ahead)
                .wrapping_add(error)
                .wrapping_sub(2 * MS),
            self.now + ahead,
        );
        Host {
            request: None,
            recent: RecentHosts::new(peer.hosts(), self.now + ahead),
            peer,
            store: Arc::new(store),
            uses: UseLog::default(),
            ahead,
            sync,
            next_sync,
            owed: vec![0.0; self.keys.len()],
            replied: self.now + ahead,
            sequence: 0,
            state: ExchangeState::Joining,
            is_serving: true,
            is_cut_off: false,
            is_stopped: false,
            unpublished: 0,
        }
    }

    /// Replaces a host by its next run, without its state.
    pub(super) fn restart(&mut self, nth: usize) {
        let host = self.host(self.sync);
        self.hosts[nth] = Some(host);
    }

    /// Advances by a tick. `demand` returns the units of a key that are requested of a host.
    pub(super) fn step(&mut self, demand: &dyn Fn(usize, usize, u64) -> f64) {
        let mut passed = vec![0; self.keys.len()];
        for (nth, host) in self.hosts.iter_mut().enumerate() {
            let Some(host) = host.as_mut().filter(|host| !host.is_stopped) else {
                continue;
            };
            let now = self.now + host.ahead;
            if self.now >= host.next_sync && host.request.is_none() {
                host.next_sync = self.now + host.sync * 9 / 10 + self.random.below(host.sync / 5);
                if self.random.below(1_000) < self.stalls.0 {
                    host.next_sync += self.random.below(self.stalls.1);
                }
                let arrives = self.random.below(1_000) >= self.lost;
                let is_answered = self.random.below(1_000) >= self.lost;
                let arrives = arrives.then_some(self.now + self.one_way);
                host.publish(self.now, (arrives, is_answered));
            }
            host.advance(self.now, &mut self.ledger);
            if !host.is_serving {
                continue;
            }
            for (key, fingerprint) in self.keys.iter().enumerate() {
                host.owed[key] += demand(nth, key, self.passed.len() as u64 * TICK);
                while host.owed[key] >= 1.0 {
                    host.owed[key] -= 1.0;
                    let is_allowed = host.store.allowed(*fingerprint, now, 1);
                    passed[key] += u32::from(is_allowed);
                    host.unpublished += u64::from(is_allowed);
                }
            }
        }
        self.passed.push(passed);
        self.now += TICK;
    }

    pub(super) fn run(&mut self, time: u64, demand: &dyn Fn(usize, usize, u64) -> f64) {
        (0..time / TICK).for_each(|_| self.step(demand));
    }

    pub(super) fn total(&self, key: usize) -> u64 {
        self.passed
            .iter()
            .map(|passed| u64::from(passed[key]))
            .sum()
    }

    /// The most units of a key in a window that starts at a multiple of its length.
    pub(super) fn most_in_windows(&self, key: usize, span: u64) -> u64 {
        let begun = self.now - self.passed.len() as u64 * TICK;
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        for (tick, passed) in self.passed.iter().enumerate() {
            *counts
                .entry((begun + tick as u64 * TICK) / span)
                .or_default() += u64::from(passed[key]);
        }
        counts.values().copied().max().unwrap_or(0)
    }

    /// The most units of a key in any span of this length.
    pub(super) fn most_in(&self, key: usize, span: u64) -> u64 {
        let ticks = (span / TICK) as usize;
        let all: Vec<u64> = self
            .passed
            .iter()
            .map(|passed| u64::from(passed[key]))
            .collect();
        let sums = all
            .windows(ticks.min(all.len()))
            .map(|window| window.iter().sum());
        sums.max().unwrap_or(0)
    }
}
