//! The thread that exchanges the consumption of busy keys. Decisions wait neither for it nor for the store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use api::cluster::{ClusterLimitStatus, ClusterStatus};
use api::event::EventKind;
use common::share::Share;
use config::policy::{Cluster, ClusterMode, Config, WhenStoreIsDown};
use decide::{Current, Cut, EffectiveShare};
use events::EventLog;
use host::StateDirectory;
use host::clock::boot_nanoseconds;
use redis::Value;
use tokio::sync::oneshot;

use super::exchanged_limits::ExchangedLimits;
use super::limits::{has_keys, limits};
use super::peer::{News, Peer, series_number};
use super::saved_host_count::SavedHostCount;
use super::sources::Sources;
use crate::connect::Connection;
use crate::error::{ClusterError, StoreError};
use crate::health::{Health, Turn, store_event};
use crate::member::Terms;
use crate::packets::Packets;
use crate::past::Past;
use crate::store::{Script, Store};

/// The script that the store runs.
pub const SCRIPT: &str = include_str!("exchange.lua");
/// Replaces a class's multiplier in the number of a series of packets.
const PACKETS: &str = "packets";
/// The timeout of the last request.
const FAREWELL: Duration = Duration::from_millis(500);
/// The difference from the store's clock above which the clock is set.
const CLOCK_ERROR_NANOSECONDS: u64 = 2_000_000;

/// A running exchange, until [`Exchanger::stop`].
pub struct Exchanger {
    cluster: Cluster,
    held: Arc<ExchangedLimits>,
    status: Arc<Mutex<ClusterStatus>>,
    work: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

impl Exchanger {
    /// Exchanges the keys of a config's limits; `None` if no limit has `cluster = "keys"`. `now` is the clock of their
    /// decisions. Until the store's first reply, `when_store_is_down` is in effect, for the number of hosts that an
    /// earlier run of the agent has saved.
    ///
    /// # Errors
    ///
    /// When the system has no threads or no randomness.
    pub fn start(
        config: &Config,
        engine: &Arc<Current>,
        packets: &Arc<dyn Packets>,
        now: fn() -> u64,
        past: &Past,
        events: &Arc<EventLog>,
    ) -> Result<Option<Self>, ClusterError> {
        let Some(cluster) = config.cluster.clone().filter(|_| has_keys(config)) else {
            return Ok(None);
        };
        let run = getrandom::u64().map_err(ClusterError::Random)?;
        let secret = [
            getrandom::u64().map_err(ClusterError::Random)?,
            getrandom::u64().map_err(ClusterError::Random)?,
        ];
        let patience = Terms::patience_for(cluster.sync);
        let node = format!("{}/{:08x}", cluster.node, run as u32);
        let peer = Peer::new(node, cluster.max_hot_keys as usize, cluster.sync).among(past.hosts());
        let alone = EffectiveShare::alone(cluster.when_store_is_down, peer.hosts());
        let held = Arc::new(ExchangedLimits::new(engine, packets, alone));
        let worker = Worker {
            peer,
            held: Arc::clone(&held),
            seen: SavedHostCount::new(StateDirectory::at(&config.agent.state_dir)),
            store: Store::new(cluster.clone(), patience),
            connection: None,
            script: Script::new(SCRIPT),
            sources: HashMap::new(),
            now,
            secret,
            ahead: None,
            health: Health::new(patience, boot_nanoseconds()),
            state: ExchangeState::Joining,
            events: Arc::clone(events),
            status: Arc::default(),
            cluster: cluster.clone(),
        };
        worker.start_anew();
        worker.tell();
        let status = Arc::clone(&worker.status);
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ClusterError::Thread)?;
        let work = move || runtime.block_on(worker.run(stopped));
        let thread = thread::Builder::new()
            .name("weir-exchange".to_owned())
            .spawn(work)
            .map_err(ClusterError::Thread)?;
        Ok(Some(Self {
            cluster,
            held,
            status,
            work: Mutex::new(Some((stop, thread))),
        }))
    }

    /// Whether it can continue under another config; it uses the engine's limits.
    #[must_use]
    pub fn goes_on(&self, config: &Config) -> bool {
        has_keys(config) && config.cluster.as_ref() == Some(&self.cluster)
    }

    /// This host's share of each limit of the next config.
    pub fn shares<'a>(
        &self,
        config: &'a Config,
    ) -> impl Iterator<Item = (&'a str, EffectiveShare)> + use<'a> {
        let in_effect = self.held.in_effect();
        limits(config).map(move |name| (name, in_effect))
    }

    /// Enforces the share again, since the limits may be new.
    pub fn enforce(&self) {
        self.held.enforce_again();
    }

    /// The current status, without waiting.
    #[must_use]
    pub fn status(&self) -> ClusterStatus {
        self.status
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Stops the exchange, and notifies the other hosts if the store is available.
    pub fn stop(&self) {
        let Some((stop, thread)) = self
            .work
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        else {
            return;
        };
        // Fails only if the thread has ended already.
        let _ = stop.send(());
        let _ = thread.join();
    }
}

impl Drop for Exchanger {
    fn drop(&mut self) {
        self.stop();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExchangeState {
    /// Before the first reply.
    Joining,
    Exchanging,
    /// No reply for a lease: `when_store_is_down` is in effect.
    Alone,
}

struct Worker {
    cluster: Cluster,
    peer: Peer,
    store: Store,
    connection: Option<Connection>,
    script: Script,
    held: Arc<ExchangedLimits>,
    seen: SavedHostCount,
    /// By the name of the limit on packets.
    sources: HashMap<String, Sources>,
    now: fn() -> u64,
    secret: [u64; 2],
    /// How far the store's clock is ahead of this host's.
    ahead: Option<u64>,
    health: Health,
    state: ExchangeState,
    events: Arc<EventLog>,
    status: Arc<Mutex<ClusterStatus>>,
}

impl Worker {
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        let mut ticks = tokio::time::interval(self.cluster.sync);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                _ = &mut stopped => break,
                _ = ticks.tick() => {}
            }
            // The request's timeout bounds this wait.
            self.sync().await;
            self.tell();
            if self.state == ExchangeState::Exchanging {
                self.seen.save(self.peer.hosts(), boot_nanoseconds()).await;
            }
        }
        self.leave_behind();
        self.seen.end(self.peer.hosts()).await;
        // So that the other hosts remove this one at once.
        let _ = tokio::time::timeout(FAREWELL, self.ask(&[], true)).await;
    }

    async fn sync(&mut self) {
        let cuts = self.cut();
        let publication = self.peer.publish(self.instant(), &cuts);
        let (asked, begun) = ((self.now)(), boot_nanoseconds());
        match self.ask(&publication, false).await {
            Ok((secret, news)) => {
                let answered = (self.now)();
                self.adopt(secret);
                self.answered(begun);
                if self.state != ExchangeState::Exchanging {
                    self.exchange_again();
                }
                self.set_clock(&news, asked, answered);
                self.settle(&news, asked);
            }
            Err(error) => {
                self.failed(&error);
                let lease = Terms::lease_for(self.cluster.sync).as_nanos() as u64;
                let silent = self.health.silent_for(boot_nanoseconds()) >= lease;
                if silent && self.state != ExchangeState::Alone {
                    self.state = ExchangeState::Alone;
                    self.peer.forget();
                }
            }
        }
        if self.state == ExchangeState::Alone {
            // At every sync: a reload may have brought new limits.
            self.be_alone();
        }
    }

    fn cut(&mut self) -> Vec<(u64, bool, Vec<Cut>)> {
        let engine = self.held.engine.load();
        let (now, threshold) = ((self.now)(), self.peer.threshold());
        let is_alone = self.state == ExchangeState::Alone;
        let mut all: Vec<(u64, bool, Vec<Cut>)> = Vec::new();
        for (limit, multiplier, store) in engine.exchanged() {
            if is_alone {
                // Buckets drop the units of this time; windows keep their count.
                if !store.has_windows() {
                    store.forget_accounts();
                }
                continue;
            }
            let number = series_number(limit, &format!("{multiplier:?}"));
            all.push((number, store.has_windows(), store.cut(now, threshold)));
        }
        if !is_alone {
            all.extend(self.cut_packets(threshold));
        }
        all
    }

    fn cut_packets(&mut self, threshold: f64) -> Vec<(u64, bool, Vec<Cut>)> {
        let mut all = Vec::new();
        let packets = &*self.held.packets;
        for (limit, burst, rate) in packets.exchanged() {
            let sources = self.sources.entry(limit.clone()).or_default();
            match sources.cut(packets, (&limit, burst, rate), self.cluster.sync, threshold) {
                Ok(cuts) => all.push((series_number(&limit, PACKETS), false, cuts)),
                Err(error) => tracing::error!(
                    "cluster: reading the sources of limit {limit:?} failed: {error}"
                ),
            }
        }
        all
    }

    async fn ask(
        &mut self,
        publication: &[u8],
        leaves: bool,
    ) -> Result<([u64; 2], News), StoreError> {
        let tag = format!("weir:{{{}}}", self.cluster.name);
        let keys = [format!("{tag}:keys"), format!("{tag}:hosts")];
        let lease = Terms::lease_for(self.cluster.sync).as_micros().to_string();
        let (read, secret) = (
            self.peer.read().to_string(),
            format!("{:016x}{:016x}", self.secret[0], self.secret[1]),
        );
        let leaves: &[u8] = if leaves { b"1" } else { b"0" };
        let arguments = [
            self.peer.name().as_bytes(),
            lease.as_bytes(),
            read.as_bytes(),
            secret.as_bytes(),
            publication,
            leaves,
        ];
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(self.store.connect().await?),
        };
        let reply = self
            .store
            .run(connection, &self.script, &keys, &arguments)
            .await?;
        parse(reply).ok_or_else(|| {
            StoreError::Foreign("the result of exchange.lua cannot be parsed".to_owned())
        })
    }

    fn settle(&mut self, news: &News, asked: u64) {
        let settlements: HashMap<_, _> = self.peer.hear(news).into_iter().collect();
        let (engine, now) = (self.held.engine.load(), (self.now)());
        let (hosts, rank) = (self.peer.hosts(), self.peer.rank());
        let lease = Terms::lease_for(self.cluster.sync).as_nanos() as u64;
        for (limit, multiplier, store) in engine.exchanged() {
            store.set_hosts(hosts, rank);
            let settled = settlements.get(&series_number(limit, &format!("{multiplier:?}")));
            settled
                .into_iter()
                .flatten()
                .for_each(|settlement| store.settle(settlement, now));
            store.set_valid_until(asked + lease);
        }
        let packets = Arc::clone(&self.held.packets);
        if !packets.is_running() {
            return;
        }
        let instant = self.instant();
        for (limit, sources) in &mut self.sources {
            let settled = settlements
                .get(&series_number(limit, PACKETS))
                .map_or(&[][..], Vec::as_slice);
            if let Err(error) = sources.settle(&*packets, limit, settled, instant) {
                tracing::error!("cluster: charging the sources of limit {limit:?} failed: {error}");
            }
        }
    }

    /// The cluster's clock, after the first reply.
    fn instant(&self) -> u64 {
        (self.now)().wrapping_add(self.ahead.unwrap_or(0))
    }

    fn set_clock(&mut self, news: &News, asked: u64, answered: u64) {
        let half = answered.saturating_sub(asked) / 2;
        let ahead = (news.now * 1_000).wrapping_sub(asked + half);
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

    fn adopt(&mut self, secret: [u64; 2]) {
        if self.secret != secret || self.health.granted_at().is_none() {
            self.secret = secret;
            self.held.engine.load().name_keys(secret);
        }
    }

    /// Removes the state of an earlier exchange.
    fn start_anew(&self) {
        self.held
            .engine
            .load()
            .exchanged()
            .for_each(|(.., store)| store.forget_accounts());
    }

    fn exchange_again(&mut self) {
        self.state = ExchangeState::Exchanging;
        self.held.enforce(EffectiveShare::WHOLE);
    }

    fn be_alone(&mut self) {
        for (.., store) in self.held.engine.load().exchanged() {
            // Under the share, the others' part stays free.
            store.set_hosts(1, 0);
            store.set_valid_until(u64::MAX);
            store.forget_accounts();
        }
        self.sources.clear();
        self.held.enforce(EffectiveShare::alone(
            self.cluster.when_store_is_down,
            self.peer.hosts(),
        ));
    }

    /// Keeps this host's units charged in the kernel: they are no longer exchanged.
    fn leave_behind(&self) {
        let part = Share::one_of(self.peer.hosts());
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

    fn answered(&mut self, begun: u64) {
        let away = self.health.silent_for(boot_nanoseconds());
        if self.state == ExchangeState::Exchanging
            && away >= Terms::lease_for(self.cluster.sync).as_nanos() as u64
        {
            let seconds = away as f64 / 1e9;
            tracing::warn!(
                "cluster: no exchange for {seconds:.1} s: the other hosts removed this host meanwhile"
            );
        }
        if let Some(Turn::Up(failures)) = self.health.granted(begun, boot_nanoseconds()) {
            self.event(
                EventKind::StoreUp,
                failures,
                format!("the store is available again, after {failures} failed exchanges"),
            );
        }
    }

    fn failed(&mut self, error: &StoreError) {
        let now = boot_nanoseconds();
        if self.health.failed(error, now) == Some(Turn::Down) {
            let when = self.cluster.when_store_is_down;
            let reason = format!(
                "exchanging keys failed: {error}; when leases expire, when_store_is_down = \"{when}\" takes effect"
            );
            self.event(EventKind::StoreDown, self.health.failures(), reason);
        }
        let is_broken = matches!(error, StoreError::Gone(_))
            && self.connection.as_ref().is_some_and(Connection::is_one);
        if is_broken || self.health.is_silent(now) {
            self.connection = None;
        }
    }

    fn event(&self, what: EventKind, count: u64, reason: String) {
        tracing::info!("cluster: {reason}");
        self.events
            .push(store_event(&self.cluster, what, count, reason));
    }

    fn tell(&self) {
        let health = &self.health;
        let mut status = ClusterStatus {
            last_answer_seconds_ago: health
                .granted_at()
                .map(|at| boot_nanoseconds().saturating_sub(at) as f64 / 1e9),
            hosts: self.peer.hosts(),
            ..health.status(&self.cluster)
        };
        let share_from = match self.state {
            ExchangeState::Joining => "joining".to_owned(),
            ExchangeState::Exchanging => "keys".to_owned(),
            ExchangeState::Alone => self.cluster.when_store_is_down.to_string(),
        };
        for (name, multiplier, store) in self.held.engine.load().exchanged() {
            let (exchanged, local) = self
                .peer
                .counts(series_number(name, &format!("{multiplier:?}")));
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
                keys_exchanged: exchanged,
                keys_local: local as u64,
                ..ClusterLimitStatus::default()
            });
        }
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }
}

/// Parses the script's reply.
fn parse(answer: Value) -> Option<([u64; 2], News)> {
    type Answer = (
        String,
        String,
        Vec<(String, String)>,
        Vec<(String, Vec<u8>)>,
    );
    let (now, secret, hosts, publications): Answer = redis::from_redis_value(answer).ok()?;
    let word = |text: Option<&str>| u64::from_str_radix(text?, 16).ok();
    let hosts = hosts
        .into_iter()
        .map(|(host, at)| Some((host, at.parse::<f64>().ok()? as u64)));
    let news = News {
        now: now.parse().ok()?,
        hosts: hosts.collect::<Option<_>>()?,
        publications,
    };
    Some(([word(secret.get(..16))?, word(secret.get(16..))?], news))
}
