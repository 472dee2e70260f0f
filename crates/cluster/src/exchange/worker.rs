//! The thread that exchanges the consumption of busy keys, and enforces the share without a store while there is none.

mod away;

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::cluster::{ClusterLimitStatus, ClusterStatus};
use api::event::EventKind;
use common::share::Share;
use config::human;
use config::policy::{Cluster, ClusterMode, Multiplier};
use decide::{Adjustment, Cut, LastResets};
use events::EventLog;
use host::StateDirectory;
use host::clock::boot_nanoseconds;
use tokio::sync::{oneshot, watch};

use super::exchange_state::ExchangeState;
use super::exchanged_limits::ExchangedLimits;
use super::peer::{News, Peer, series_number};
use super::request::{Reply, Request, SCRIPT, keys};
use super::reset_log::ResetLog;
use super::saved_host_count::SavedHostCount;
use super::sources::Sources;
use super::timeout::ExchangeTimeout;
use super::use_log::{Changes, LEAST_LIFE, UseLog, Writes};
use crate::connect::Connection;
use crate::error::StoreError;
use crate::health::{Health, StoreUsers, Turn, store_event};
use crate::member::{LEAVE_TIMEOUT, Terms};
use crate::recent_hosts::RecentHosts;
use crate::store::{Script, Store};

/// Replaces a class's multiplier in the number of a series of packets.
const PACKETS: &str = "packets";
/// The difference from the store's clock above which the clock is set.
const CLOCK_ERROR_NANOSECONDS: u64 = 2_000_000;

/// The most exchanges in a row, before a reload is processed.
const IN_A_ROW: usize = 20;

pub(super) struct Worker {
    cluster: Cluster,
    peer: Peer,
    hosts: RecentHosts,
    store: Store,
    timeout: ExchangeTimeout,
    connection: Option<Connection>,
    script: Script,
    held: Arc<ExchangedLimits>,
    seen: SavedHostCount,
    /// By the name of the limit on packets.
    sources: HashMap<String, Sources>,
    uses: UseLog,
    resets: ResetLog,
    /// The resets in `definitions`.
    last_resets: Arc<LastResets>,
    /// The definition of each limit's states, by the limit's number.
    definitions: HashMap<u64, u64>,
    /// A random number of this run.
    run: u64,
    now: fn() -> u64,
    /// When keys whose use has ended were last removed, while the store is unavailable.
    pruned_at: u64,
    /// The sequence of the last request with a reply.
    replied: u64,
    /// How far the store's clock is ahead of this host's.
    ahead: Option<u64>,
    health: Health,
    state: ExchangeState,
    events: Arc<EventLog>,
    status: Arc<Mutex<ClusterStatus>>,
}

impl Worker {
    /// Enforces the share without a store until the first reply. `run` is a random number of this run.
    pub(super) fn new(
        cluster: Cluster,
        (peer, run): (Peer, u64),
        held: &Arc<ExchangedLimits>,
        now: fn() -> u64,
        directory: StateDirectory,
        (events, users): (&Arc<EventLog>, &StoreUsers),
    ) -> Self {
        let lease = Terms::lease_for(cluster.sync);
        let patience = Terms::patience_for(cluster.sync);
        let mut worker = Self {
            hosts: RecentHosts::new(peer.hosts(), boot_nanoseconds()),
            peer,
            held: Arc::clone(held),
            seen: SavedHostCount::new(directory),
            store: Store::new(cluster.clone(), lease),
            timeout: ExchangeTimeout::new(cluster.sync),
            connection: None,
            script: Script::new(SCRIPT),
            sources: HashMap::new(),
            uses: UseLog::default(),
            resets: ResetLog::default(),
            last_resets: Arc::default(),
            definitions: HashMap::new(),
            run,
            now,
            pruned_at: 0,
            replied: 0,
            ahead: None,
            health: Health::new(patience, boot_nanoseconds(), users),
            state: ExchangeState::Joining,
            events: Arc::clone(events),
            status: Arc::default(),
            cluster,
        };
        let engine = worker.held.engine.load();
        for (limit, multiplier, store) in engine.exchanged() {
            store.separate(now(), LEAST_LIFE);
            let number = request_series(limit, multiplier);
            worker
                .definitions
                .insert(number, engine.definition(limit, store));
        }
        worker.report();
        worker
    }

    pub(super) fn status(&self) -> Arc<Mutex<ClusterStatus>> {
        Arc::clone(&self.status)
    }

    pub(super) async fn run(
        mut self,
        mut stopped: oneshot::Receiver<()>,
        mut reloaded: watch::Receiver<Cluster>,
    ) {
        let mut ticks = ticks(self.cluster.sync);
        loop {
            tokio::select! {
                biased;
                _ = &mut stopped => break,
                Ok(()) = reloaded.changed() => {
                    let cluster = reloaded.borrow_and_update().clone();
                    if cluster.sync != self.cluster.sync {
                        ticks = self::ticks(cluster.sync);
                    }
                    self.reload(cluster);
                }
                _ = ticks.tick() => {}
            }
            let is_stopped = {
                let mut sync = pin!(self.sync_all());
                tokio::select! {
                    biased;
                    _ = &mut stopped => {
                        // A stop waits no longer for a store that is away.
                        let _ = tokio::time::timeout(LEAVE_TIMEOUT, sync).await;
                        true
                    }
                    () = &mut sync => false,
                }
            };
            if is_stopped {
                break;
            }
            self.report();
            if self.state == ExchangeState::Exchanging {
                self.seen.save(self.hosts.most()).await;
            }
        }
        self.cut();
        self.leave_behind();
        self.seen.end(self.hosts.most()).await;
        // So that the other hosts remove this one at once, with all that it has used.
        self.redefine();
        let writes = self.writes(true);
        let _ = tokio::time::timeout(LEAVE_TIMEOUT, self.publish(&[], true, &writes)).await;
    }

    fn reload(&mut self, cluster: Cluster) {
        let patience = Terms::patience_for(cluster.sync);
        self.peer
            .reconfigure(cluster.max_hot_keys as usize, cluster.sync);
        self.store = Store::new(cluster.clone(), Terms::lease_for(cluster.sync));
        self.timeout.set_sync(cluster.sync);
        self.health.set_patience(patience);
        self.cluster = cluster;
        let engine = self.held.engine.load();
        let numbers: HashSet<u64> = engine
            .exchanged()
            .map(|(limit, multiplier, _)| request_series(limit, multiplier))
            .collect();
        // A limit that is removed and added again is new.
        self.definitions
            .retain(|number, _| numbers.contains(number));
        self.uses.retain_limits(|number| numbers.contains(&number));
        self.define();
    }

    /// After a reset of a whole limit, its states are others.
    fn redefine(&mut self) {
        let last = self.held.engine.load().last_resets();
        if !Arc::ptr_eq(&self.last_resets, &last) {
            self.last_resets = last;
            self.define();
        }
    }

    /// Reads and writes the use of limits whose states are others than before.
    fn define(&mut self) {
        let engine = self.held.engine.load();
        for (limit, multiplier, store) in engine.exchanged() {
            let number = request_series(limit, multiplier);
            let definition = engine.definition(limit, store);
            if self.definitions.insert(number, definition) != Some(definition) {
                self.uses
                    .lost(number, store.received_keys((self.now)(), LEAST_LIFE));
                self.uses.read_all();
            }
        }
    }

    /// Exchanges until all use of keys is read, or [`IN_A_ROW`] times.
    async fn sync_all(&mut self) {
        for _ in 0..IN_A_ROW {
            if !self.sync().await {
                return;
            }
        }
    }

    /// Exchanges once; returns whether more use of keys is to be read at once.
    async fn sync(&mut self) -> bool {
        // An operator may have reset a limit on this host.
        self.redefine();
        let cuts = self.cut();
        let publication = self.peer.publish(self.instant(), &cuts);
        let parted = self.peer.take_parted();
        let parted = parted
            .iter()
            .map(|(number, parted)| (*number, parted.as_slice()));
        self.apply(&parted.collect());
        let writes = self.writes(false);
        let (requested_at, begun) = ((self.now)(), boot_nanoseconds());
        match self.publish(&publication, false, &writes).await {
            Ok(Reply {
                secret,
                news,
                changes,
                resets,
                is_new,
            }) => {
                let answered = (self.now)();
                self.replied = self.peer.sequence();
                self.held.engine.load().name_keys(secret);
                // Units of the others are of the states after these resets.
                let resets = self.resets.replied(resets);
                self.held.engine.load().receive_resets(&resets);
                self.answered(begun);
                self.set_clock(&news, requested_at, answered);
                self.adjust(&news, requested_at, is_new);
                self.adopt(&changes);
                // These changes were requested for the states of before.
                self.redefine();
                let was_alone = self.state == ExchangeState::Alone;
                self.join(is_new);
                // The others wait for what it used without them.
                let returns = was_alone && self.state != ExchangeState::Alone;
                changes.until.is_some() || returns
            }
            Err(error) => {
                self.failed(&error);
                let lease = Terms::lease_for(self.cluster.sync).as_nanos() as u64;
                if self.health.silent_for(boot_nanoseconds()) >= lease {
                    match self.state {
                        ExchangeState::Exchanging => self.part(false),
                        ExchangeState::Returning(_) => self.part(true),
                        ExchangeState::Joining | ExchangeState::Alone => {}
                    }
                    self.state = ExchangeState::Alone;
                    self.uses.set_apart(true);
                }
                if self.state == ExchangeState::Alone {
                    // At every sync: a reload may have brought new limits.
                    self.be_alone();
                }
                false
            }
        }
    }

    /// The use of keys to be written to the store.
    fn writes(&mut self, leaves: bool) -> Writes {
        let (engine, now) = (self.held.engine.load(), (self.now)());
        self.uses.set_hosts(self.peer.hosts());
        let stores: HashMap<u64, _> = engine
            .exchanged()
            .map(|(limit, multiplier, store)| (request_series(limit, multiplier), (limit, store)))
            .collect();
        self.uses.writes(
            (now, self.cluster.sync.as_nanos() as u64),
            leaves,
            |number, key| self.peer.is_own(number, key),
            |number, key| {
                let (limit, store) = stores.get(&number)?;
                let definition = self.definitions.get(&number).copied();
                let definition = definition.unwrap_or_else(|| engine.definition(limit, store));
                Some((definition, store.key_use(key, now, LEAST_LIFE)?))
            },
        )
    }

    /// Takes over the use of keys that other hosts have written.
    fn adopt(&mut self, changes: &Changes) {
        let (engine, now) = (self.held.engine.load(), (self.now)());
        let (has_lost, mut has_new) = (self.uses.replied(changes), false);
        for (limit, multiplier, store) in engine.exchanged() {
            let number = request_series(limit, multiplier);
            // The engine may have a new limit before this thread receives the reload.
            let definition = *self.definitions.entry(number).or_insert_with(|| {
                has_new = true;
                engine.definition(limit, store)
            });
            for (name, words) in &changes.keys {
                if (name.series, name.definition) == (number, definition) {
                    store.adopt_use(name.key, words, now);
                }
            }
            if has_lost {
                self.uses.lost(number, store.received_keys(now, LEAST_LIFE));
            }
        }
        if has_new {
            self.uses.read_all();
        }
    }

    fn cut(&mut self) -> Vec<(u64, bool, Vec<Cut>)> {
        let engine = self.held.engine.load();
        let (now, threshold) = ((self.now)(), self.peer.threshold());
        let is_alone = self.state == ExchangeState::Alone;
        let mut all: Vec<(u64, bool, Vec<Cut>)> = Vec::new();
        // The others could not tell when the units passed.
        if self.ahead.is_none() {
            return all;
        }
        for (limit, multiplier, store) in engine.exchanged() {
            let number = request_series(limit, multiplier);
            // Without the store, units of windows are published afterwards, and of buckets the states are written.
            if is_alone && !store.has_windows() {
                let used = store.separate(now, LEAST_LIFE);
                self.uses.changed(number, used.into_iter(), now);
                continue;
            }
            let cuts = store.cut(now, threshold);
            self.uses
                .changed(number, cuts.iter().map(|cut| cut.key), now);
            all.push((number, store.has_windows(), cuts));
        }
        if !is_alone {
            all.extend(self.cut_packets(threshold));
        }
        all
    }

    fn cut_packets(&mut self, threshold: f64) -> Vec<(u64, bool, Vec<Cut>)> {
        let mut all = Vec::new();
        let packets = &*self.held.packets;
        let share = self.held.in_effect().share;
        for (limit, burst, rate) in packets.exchanged() {
            let sources = self.sources.entry(limit.clone()).or_default();
            let limited = (limit.as_str(), burst, rate);
            match sources.cut(packets, limited, self.cluster.sync, (threshold, share)) {
                Ok(cuts) => all.push((series_number(&limit, PACKETS), false, cuts)),
                Err(error) => tracing::error!(
                    "cluster: reading the sources of limit {limit:?} failed: {error}"
                ),
            }
        }
        all
    }

    async fn publish(
        &mut self,
        publication: &[u8],
        leaves: bool,
        writes: &Writes,
    ) -> Result<Reply, StoreError> {
        let (secret, last_resets) = {
            let engine = self.held.engine.load();
            (engine.exchanged_secret(), engine.last_resets())
        };
        let resets = self.resets.writes(&last_resets);
        let request = Request {
            host: self.peer.name(),
            sync: self.cluster.sync,
            read: self.peer.read(),
            secret,
            sequences: (self.peer.sequence(), self.replied),
            publication,
            leaves,
            // New with each request: an epoch that a host has seen before would hide a loss.
            epoch: format!("{:016x}{:x}", self.run, boot_nanoseconds()),
            writes,
            resets: (self.resets.version(), &resets),
        };
        let arguments = request.arguments();
        let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => {
                let lease = Terms::lease_for(self.cluster.sync);
                // A longer time would delay `when_store_is_down`.
                let time = if self.state.is_among_others() {
                    lease
                } else {
                    lease * 3 / 2
                };
                none.insert(self.store.connect_within(time).await?)
            }
        };
        let keys = keys(&self.cluster.name);
        let begun = Instant::now();
        let reply = self
            .store
            .within(self.timeout.get())
            .run(connection, &self.script, &keys, &arguments)
            .await?;
        self.timeout.replied(begun.elapsed());
        Reply::parse(reply, self.resets.version()).ok_or_else(|| {
            StoreError::Foreign("the result of exchange.lua cannot be parsed".to_owned())
        })
    }

    fn adjust(&mut self, news: &News, requested_at: u64, is_new: bool) {
        if is_new {
            self.peer.expect_all(news);
        }
        let adjustments = self.peer.receive(news);
        self.hosts.record(self.peer.hosts(), boot_nanoseconds());
        for (number, keys) in self.peer.take_orphaned() {
            self.uses.lost(number, keys);
        }
        let (hosts, rank) = (self.peer.window_hosts(), self.peer.rank());
        let is_back = matches!(self.state, ExchangeState::Joining | ExchangeState::Alone);
        for (.., store) in self.held.engine.load().exchanged() {
            if is_back {
                store.rejoin(hosts, rank);
            } else {
                store.set_hosts(hosts, rank);
            }
        }
        let adjustments = adjustments.iter();
        let adjustments = adjustments.map(|(number, keys)| (*number, keys.as_slice()));
        self.apply(&adjustments.collect());
        let lease = Terms::lease_for(self.cluster.sync).as_nanos() as u64;
        for (.., store) in self.held.engine.load().exchanged() {
            store.set_valid_until(requested_at + lease);
        }
    }

    /// Applies adjustments, by the limit's number.
    fn apply(&mut self, adjustments: &HashMap<u64, &[Adjustment]>) {
        let (engine, now) = (self.held.engine.load(), (self.now)());
        for (limit, multiplier, store) in engine.exchanged() {
            let of_limit = adjustments.get(&request_series(limit, multiplier));
            of_limit
                .into_iter()
                .copied()
                .flatten()
                .for_each(|adjustment| store.adjust(adjustment, now));
        }
        let packets = Arc::clone(&self.held.packets);
        if !packets.is_running() {
            return;
        }
        let instant = self.instant();
        for (limit, sources) in &mut self.sources {
            let Some(of_limit) = adjustments.get(&series_number(limit, PACKETS)) else {
                continue;
            };
            if let Err(error) = sources.adjust(&*packets, limit, of_limit, instant) {
                tracing::error!("cluster: charging the sources of limit {limit:?} failed: {error}");
            }
        }
    }

    /// The cluster's clock, after the first reply.
    fn instant(&self) -> u64 {
        (self.now)().wrapping_add(self.ahead.unwrap_or(0))
    }

    fn set_clock(&mut self, news: &News, requested_at: u64, answered: u64) {
        let half = answered.saturating_sub(requested_at) / 2;
        let ahead = (news.now * 1_000).wrapping_sub(requested_at + half);
        let is_off = |known: u64| {
            let step = ahead.wrapping_sub(known);
            step.min(step.wrapping_neg()) > half + CLOCK_ERROR_NANOSECONDS
        };
        if self.ahead.is_none_or(is_off) {
            self.ahead = Some(ahead);
        }
        let Some(ahead) = self.ahead else { return };
        for (.., store) in self.held.engine.load().exchanged() {
            // A reload may have created the store.
            store.set_clock(ahead, (self.now)());
        }
    }

    fn answered(&mut self, begun: u64) {
        let away = self.health.silent_for(boot_nanoseconds());
        if self.state == ExchangeState::Exchanging
            && away >= Terms::lease_for(self.cluster.sync).as_nanos() as u64
        {
            tracing::warn!(
                "cluster: no exchange for {}: the other hosts removed this host meanwhile",
                human::time(Duration::from_nanos(away))
            );
        }
        if let Some(Turn::Up { failures, is_last }) = self.health.granted(begun, boot_nanoseconds())
        {
            let reason = format!("the store is available again, after {failures} failed exchanges");
            tracing::info!("cluster: {reason}");
            if is_last {
                self.event(EventKind::StoreUp, failures, reason);
            }
        }
    }

    fn failed(&mut self, error: &StoreError) {
        let now = boot_nanoseconds();
        self.timeout.failed(error);
        if let Some(Turn::Down { is_first }) = self.health.failed(error, now) {
            let when = self.cluster.when_store_is_down;
            let reason = format!(
                "exchanging keys failed: {error}; when leases expire, when_store_is_down = \"{when}\" takes effect"
            );
            tracing::error!("cluster: {reason}");
            if is_first {
                self.event(EventKind::StoreDown, self.health.failures(), reason);
            }
        }
        let is_broken = matches!(error, StoreError::Gone(_))
            && self.connection.as_ref().is_some_and(Connection::is_one);
        if is_broken || self.health.is_silent(now) {
            self.connection = None;
        }
    }

    fn event(&self, what: EventKind, count: u64, reason: String) {
        self.events
            .push(store_event(&self.cluster, what, count, reason));
    }

    fn report(&self) {
        let health = &self.health;
        let mut status = ClusterStatus {
            last_answer_seconds_ago: health
                .granted_at()
                .map(|at| boot_nanoseconds().saturating_sub(at) as f64 / 1e9),
            hosts: self.peer.hosts(),
            ..health.status(&self.cluster)
        };
        let share_from = match self.state {
            ExchangeState::Joining => ClusterLimitStatus::JOINING.to_owned(),
            ExchangeState::Exchanging | ExchangeState::Returning(_) => {
                ClusterLimitStatus::KEYS.to_owned()
            }
            ExchangeState::Alone => self.cluster.when_store_is_down.to_string(),
        };
        for (name, multiplier, store) in self.held.engine.load().exchanged() {
            let (exchanged, local) = self.peer.counts(request_series(name, multiplier));
            // The multipliers of one limit are adjacent.
            if status
                .limits
                .last()
                .is_none_or(|limit: &ClusterLimitStatus| limit.name != name)
            {
                status.limits.push(ClusterLimitStatus {
                    name: name.to_owned(),
                    mode: ClusterMode::Keys.to_string(),
                    share: store.share().unwrap_or(Share::WHOLE).factor(),
                    share_from: share_from.clone(),
                    hosts: self.peer.hosts(),
                    zones: 1,
                    ..ClusterLimitStatus::default()
                });
            }
            if let Some(limit) = status.limits.last_mut() {
                limit.keys_exchanged += exchanged;
                limit.keys_local += local as u64;
            }
        }
        for (limit, ..) in self.held.packets.exchanged() {
            let (exchanged, local) = self.peer.counts(series_number(&limit, PACKETS));
            status.limits.push(ClusterLimitStatus {
                share: self.held.in_effect().share.factor(),
                name: limit,
                mode: ClusterMode::Keys.to_string(),
                share_from: share_from.clone(),
                hosts: self.peer.hosts(),
                zones: 1,
                keys_exchanged: exchanged,
                keys_local: local as u64,
                ..ClusterLimitStatus::default()
            });
        }
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }
}

/// The number of a limit on requests for one class multiplier.
fn request_series(limit: &str, multiplier: Multiplier) -> u64 {
    series_number(limit, &format!("{multiplier:?}"))
}

fn ticks(every: Duration) -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks
}
