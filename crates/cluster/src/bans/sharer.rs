//! The thread that shares this host's bans. Neither packets, nor decisions, nor orders of bans wait for it or the store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use api::cluster::{ClusterStatus, SharedBansStatus};
use api::event::{Event, EventKind, seconds_since_1970};
use config::PrefixKey;
use config::policy::{Cluster, Config};
use events::EventLog;
use host::PROGRAM;
use host::backoff::Backoff;
use host::clock::{boot_nanoseconds, monotonic_nanoseconds};
use redis::Value;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::entry::{Kind, MOST};
use super::host_bans::{Applied, HostBans, HostBansError};
use super::known_bans::{KnownBans, ORDERS, PAGE, Reply, Request, SharedBan, Update, Verdict};
use super::outbox::BanOutbox;
use crate::connect::Connection;
use crate::error::{ClusterError, StoreError};
use crate::health::{Health, StoreUsers, Turn, store_event};
use crate::member::{LEAVE_TIMEOUT, Terms};
use crate::store::{Script, Store};

/// The script that the store runs.
pub const SCRIPT: &str = include_str!("share_bans.lua");
/// The longest interval between two requests, so that a ban reaches all hosts within a second.
const LONGEST_INTERVAL: Duration = Duration::from_millis(250);
/// The interval at which everything in the store is compared.
const COMPARE_EVERY: Duration = Duration::from_secs(30);
/// The pause after a failed request. It does not grow: bans are shared as soon as the store is back.
const PAUSE: Backoff = Backoff::steady(Duration::from_millis(200));
/// The most requests in a row, before a stop or a reload is noticed.
const IN_A_ROW: usize = 20;
/// The most new bans of one reply with separate events; one event counts the rest.
const NAMED: usize = 10;

/// A command to the thread.
enum Command {
    /// The limits on packets have been replaced, and may exempt others.
    ApplyAgain,
    End,
}

/// The sharing of bans, until [`BanSharer::stop`].
pub struct BanSharer {
    cluster: Cluster,
    commands: UnboundedSender<Command>,
    status: Arc<Mutex<ClusterStatus>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl BanSharer {
    /// Shares bans; `None` without `share_bans`.
    ///
    /// # Errors
    ///
    /// When the system has no threads or no randomness.
    pub fn start(
        config: &Config,
        bans: Arc<dyn HostBans>,
        events: &Arc<EventLog>,
        users: &StoreUsers,
    ) -> Result<Option<Self>, ClusterError> {
        let Some(cluster) = config.cluster.clone().filter(|cluster| cluster.share_bans) else {
            return Ok(None);
        };
        let patience = Terms::patience_for(cluster.sync.min(LONGEST_INTERVAL));
        let reports_store = !has_clustered_limits(config);
        let alone = StoreUsers::default();
        let users = if reports_store { users } else { &alone };
        let (commands, given) = unbounded_channel();
        let mut worker = Worker {
            known: KnownBans::new(cluster.node.clone()),
            bans,
            outbox: Arc::default(),
            store: Store::new(cluster.clone(), patience),
            connection: None,
            script: Script::new(SCRIPT),
            epoch: format!("{:016x}", getrandom::u64().map_err(ClusterError::Random)?),
            skipped: BTreeSet::new(),
            is_synced: true,
            trouble: None,
            health: Health::new(patience, boot_nanoseconds(), users),
            ask_after: 0,
            compared_at: None,
            pruned_at: 0,
            reports_store,
            events: Arc::clone(events),
            status: Arc::default(),
            cluster: cluster.clone(),
        };
        worker.attend();
        worker.report_status();
        let status = Arc::clone(&worker.status);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ClusterError::Thread)?;
        let work = move || runtime.block_on(worker.run(given));
        let thread = thread::Builder::new()
            .name("weir-share".to_owned())
            .spawn(work)
            .map_err(ClusterError::Thread)?;
        Ok(Some(Self {
            cluster,
            commands,
            status,
            thread: Mutex::new(Some(thread)),
        }))
    }

    /// Whether it can continue under another config.
    #[must_use]
    pub fn goes_on(&self, config: &Config) -> bool {
        config.cluster.as_ref() == Some(&self.cluster)
    }

    /// Applies the bans of other hosts again: the limits on packets have been replaced.
    pub fn apply_again(&self) {
        // Fails only if the thread has ended already.
        let _ = self.commands.send(Command::ApplyAgain);
    }

    /// The current status and its notes, without waiting.
    #[must_use]
    pub fn status(&self) -> (ClusterStatus, Vec<String>) {
        let status = self
            .status
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let notes = self.notes(&status);
        (status, notes)
    }

    fn notes(&self, status: &ClusterStatus) -> Vec<String> {
        let mut notes = Vec::new();
        let Some(bans) = &status.bans else {
            return notes;
        };
        if let Some(error) = &bans.error {
            notes.push(format!(
                "sharing bans with other hosts fails: {error}; known bans apply until they expire"
            ));
        }
        if bans.left_out > 0 {
            notes.push(format!(
                "{} bans of this host are not shared: the store has {MOST} prefixes, the most that hosts share; a quarter of \
                 them is for operators",
                bans.left_out
            ));
        }
        if bans.ignored > 0 {
            notes.push(format!(
                "{} entries of the store are no shared bans and are ignored: another program may write to the keys of \
                 cluster {:?}",
                bans.ignored, self.cluster.name
            ));
        }
        notes
    }

    /// Publishes what waits, if the store is available, and ends the thread; takes at most a second. Bans stay.
    pub fn stop(&self) {
        let Some(thread) = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        else {
            return;
        };
        // Fails only if the thread has ended already.
        let _ = self.commands.send(Command::End);
        let _ = thread.join();
    }
}

impl Drop for BanSharer {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Worker {
    cluster: Cluster,
    known: KnownBans,
    bans: Arc<dyn HostBans>,
    outbox: Arc<BanOutbox>,
    store: Store,
    connection: Option<Connection>,
    script: Script,
    /// The epoch of a store that has none.
    epoch: String,
    /// Prefixes whose bans were not changed, because later orders of this host waited.
    skipped: BTreeSet<PrefixKey>,
    /// Whether the kernel has all bans of other hosts.
    is_synced: bool,
    /// Why it does not.
    trouble: Option<String>,
    health: Health,
    /// No request before this instant of the boot clock.
    ask_after: u64,
    /// When everything was compared last.
    compared_at: Option<u64>,
    pruned_at: u64,
    /// Whether the store's events are this thread's: limits that share it have others.
    reports_store: bool,
    events: Arc<EventLog>,
    status: Arc<Mutex<ClusterStatus>>,
}

impl Worker {
    async fn run(mut self, mut commands: UnboundedReceiver<Command>) {
        let mut ticks = tokio::time::interval(self.cluster.sync.min(LONGEST_INTERVAL));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let outbox = Arc::clone(&self.outbox);
        loop {
            tokio::select! {
                biased;
                command = commands.recv() => match command {
                    Some(Command::ApplyAgain) => self.is_synced = false,
                    Some(Command::End) | None => break,
                },
                () = outbox.woken() => {}
                _ = ticks.tick() => {}
            }
            self.attend();
            let now = boot_nanoseconds();
            if now >= self.ask_after {
                // The requests' timeouts bound this wait.
                self.sync(IN_A_ROW).await;
            }
            self.report_status();
        }
        if !self.outbox.is_empty() {
            let _ = tokio::time::timeout(LEAVE_TIMEOUT, self.sync(IN_A_ROW)).await;
        }
    }

    /// Reports this host's bans to the outbox, also if the packet engine is another one, and completes earlier changes.
    fn attend(&mut self) {
        if self.bans.report_to(Some(&self.outbox)) {
            self.is_synced = false;
            self.known.read_all();
        }
        let now = monotonic_nanoseconds();
        if now.saturating_sub(self.pruned_at) >= 1_000_000_000 {
            self.pruned_at = now;
            self.known.prune(now);
        }
        // Before the first comparison, bans that an earlier agent left in the kernel are kept.
        if !self.is_synced && self.compared_at.is_some() {
            let result = self.bans.set(self.known.others());
            self.applied(result, &BTreeMap::new());
        }
    }

    async fn sync(&mut self, most: usize) {
        let is_due =
            |at: u64| boot_nanoseconds().saturating_sub(at) >= COMPARE_EVERY.as_nanos() as u64;
        if self.compared_at.is_some_and(is_due) {
            self.compared_at = Some(boot_nanoseconds());
            self.known.read_all();
        }
        for _ in 0..most {
            if let Err(error) = self.connect().await {
                self.failed(&error);
                break;
            }
            let (orders, now) = (self.outbox.take(ORDERS), monotonic_nanoseconds());
            let request = self.known.request(orders, now);
            let requested_at = boot_nanoseconds();
            match self.send(&request).await {
                Ok(reply) => {
                    self.answered(requested_at);
                    if !self.take(&reply) && self.outbox.is_empty() {
                        break;
                    }
                }
                Err(error) => {
                    self.outbox.put_back(self.known.failed());
                    self.failed(&error);
                    break;
                }
            }
        }
    }

    /// Applies a reply; returns whether another request must follow.
    fn take(&mut self, reply: &Reply) -> bool {
        let now = monotonic_nanoseconds();
        let mut update = self.known.replied(reply, now);
        self.outbox.put_back(std::mem::take(&mut update.orders));
        for prefix in std::mem::take(&mut self.skipped) {
            update
                .bans
                .entry(prefix)
                .or_insert_with(|| self.known.others().get(&prefix).cloned());
        }
        if !update.bans.is_empty() || !update.lifted.is_empty() {
            let result = self.bans.change(&update.bans, &update.lifted);
            self.applied(result, &update.bans);
        }
        if update.is_whole {
            self.compare(now);
        }
        update.is_more
    }

    /// Compares everything in the store with this host's bans.
    fn compare(&mut self, now: u64) {
        let own = self.bans.own(MOST);
        let outbox = Arc::clone(&self.outbox);
        let is_waiting = |prefix: &PrefixKey| outbox.is_waiting(prefix);
        let Update {
            orders,
            lifted,
            bans: news,
            ..
        } = self
            .known
            .compare(&own, is_waiting, now, seconds_since_1970() as u64);
        drop(own);
        self.outbox.put_back(orders);
        if !lifted.is_empty() {
            let result = self.bans.change(&BTreeMap::new(), &lifted);
            self.applied(result, &BTreeMap::new());
        }
        let result = self.bans.set(self.known.others());
        self.compared_at = Some(boot_nanoseconds());
        self.applied(result, &news);
    }

    /// Records a change of the kernel's bans, and reports new ones.
    fn applied(
        &mut self,
        result: Result<Applied, HostBansError>,
        news: &BTreeMap<PrefixKey, Option<SharedBan>>,
    ) {
        match result {
            Ok(applied) => {
                self.report(news, &applied);
                self.skipped.extend(applied.skipped);
                (self.is_synced, self.trouble) = (true, None);
            }
            Err(error) => {
                if self.trouble.is_none() {
                    tracing::error!(
                        "banning what other hosts banned failed: {error}; the agent tries again"
                    );
                }
                (self.is_synced, self.trouble) = (false, Some(error.to_string()));
            }
        }
    }

    /// Events of new bans: of the first few, and the number of the others.
    fn report(&self, news: &BTreeMap<PrefixKey, Option<SharedBan>>, applied: &Applied) {
        let is_left = |prefix: &PrefixKey| {
            applied.exempt.contains(prefix) || applied.skipped.contains(prefix)
        };
        let bans = news
            .iter()
            .filter_map(|(prefix, ban)| Some((prefix, ban.as_ref()?)));
        let mut bans = bans.filter(|(prefix, _)| !is_left(prefix));
        let kind = if applied.is_observing {
            EventKind::WouldBan
        } else {
            EventKind::Banned
        };
        for (prefix, ban) in bans.by_ref().take(NAMED) {
            let by = match (&ban.entry.kind, &ban.entry.detail.limit) {
                (Kind::Limit, Some(limit)) => format!("limit {limit}"),
                (Kind::Limit, None) => "a limit".to_owned(),
                _ => "an operator".to_owned(),
            };
            let detail = ban
                .entry
                .detail
                .reason
                .as_ref()
                .map(|reason| format!(": {reason}"))
                .unwrap_or_default();
            let reason = format!("banned by {by} on host {}{detail}", ban.entry.host);
            tracing::info!("{prefix} {reason}");
            self.events.push(Event {
                source: Some(prefix.to_string()),
                owner: Some(format!("host:{}", ban.entry.host)),
                ..Event::now(kind, 1, reason)
            });
        }
        let others = bans.count() as u64;
        if others > 0 {
            let reason =
                format!("other bans of other hosts: {PROGRAM} bans lists the banned sources");
            tracing::info!("{others} {reason}");
            self.events.push(Event::now(kind, others, reason));
        }
    }

    async fn connect(&mut self) -> Result<(), StoreError> {
        if self.connection.is_none() {
            self.connection = Some(self.store.connect().await?);
            // A promoted replica may lack the last changes.
            self.known.read_all();
            self.outbox
                .put_back(self.known.recent_removals(monotonic_nanoseconds()));
        }
        Ok(())
    }

    async fn send(&mut self, request: &Request) -> Result<Reply, StoreError> {
        let tag = format!("weir:{{{}}}:bans:1", self.cluster.name);
        let keys = [
            tag.clone(),
            format!("{tag}:versions"),
            format!("{tag}:ends"),
        ];
        let mut arguments = vec![
            request.epoch.clone(),
            request.read.to_string(),
            PAGE.to_string(),
            MOST.to_string(),
            self.epoch.clone(),
        ];
        for change in &request.changes {
            let (age, lasts) = (change.age.to_string(), change.lasts.to_string());
            let host = self.cluster.node.clone();
            let letter = change.kind.letter().to_owned();
            arguments.extend([
                letter,
                change.prefix.to_string(),
                age,
                lasts,
                host,
                change.detail.text(),
            ]);
        }
        let arguments: Vec<&[u8]> = arguments.iter().map(String::as_bytes).collect();
        let Some(connection) = &mut self.connection else {
            return Err(StoreError::Gone("there is no connection".to_owned()));
        };
        let reply = self
            .store
            .run(connection, &self.script, &keys, &arguments)
            .await?;
        parse(reply, request.changes.len()).ok_or_else(|| {
            StoreError::Foreign("the result of share_bans.lua cannot be parsed".to_owned())
        })
    }

    fn answered(&mut self, requested_at: u64) {
        if let Some(Turn::Up { failures, is_last }) =
            self.health.granted(requested_at, boot_nanoseconds())
        {
            tracing::info!("cluster: bans are shared again, after {failures} failed requests");
            if is_last && self.reports_store {
                let reason =
                    format!("the store is available again, after {failures} failed requests");
                self.events.push(store_event(
                    &self.cluster,
                    EventKind::StoreUp,
                    failures,
                    reason,
                ));
            }
        }
    }

    fn failed(&mut self, error: &StoreError) {
        let now = boot_nanoseconds();
        self.ask_after = now + PAUSE.pause(1).as_nanos() as u64;
        if let Some(Turn::Down { is_first }) = self.health.failed(error, now) {
            let reason =
                format!("sharing bans failed: {error}; known bans apply until they expire");
            tracing::error!("cluster: {reason}");
            if is_first && self.reports_store {
                self.events.push(store_event(
                    &self.cluster,
                    EventKind::StoreDown,
                    self.health.failures(),
                    reason,
                ));
            }
        }
        let is_broken = matches!(error, StoreError::Gone(_))
            && self.connection.as_ref().is_some_and(Connection::is_one);
        if is_broken || self.health.is_silent(now) {
            self.connection = None;
        }
    }

    fn report_status(&self) {
        let ago = |at: u64| boot_nanoseconds().saturating_sub(at) as f64 / 1e9;
        let health = self.health.status(&self.cluster);
        let failure = health
            .last_error
            .clone()
            .filter(|_| self.health.is_failing());
        let bans = SharedBansStatus {
            others: self.known.others().len() as u64,
            published: self.known.published() as u64,
            waiting: self.outbox.len() as u64,
            left_out: self.known.left_out() as u64 + self.outbox.dropped(),
            ignored: self.known.ignored(),
            failed_requests: self.health.failures(),
            compared_seconds_ago: self.compared_at.map(ago),
            error: failure.or_else(|| self.trouble.clone()),
        };
        let status = ClusterStatus {
            last_answer_seconds_ago: self.health.granted_at().map(ago),
            bans: Some(bans),
            ..health
        };
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }
}

/// Parses the script's reply.
fn parse(answer: Value, changes: usize) -> Option<Reply> {
    type Answer = (
        String,
        String,
        String,
        String,
        Vec<usize>,
        Vec<(Vec<u8>, String, Vec<u8>)>,
    );
    let (now, epoch, version, from, verdicts, entries): Answer =
        redis::from_redis_value(answer).ok()?;
    let verdicts: Vec<Verdict> = verdicts
        .into_iter()
        .map(|verdict| Verdict::ALL.get(verdict).copied())
        .collect::<Option<_>>()?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let entries = entries.into_iter().map(|(prefix, version, value)| {
        Some((
            text(prefix),
            version.parse::<f64>().ok()? as u64,
            text(value),
        ))
    });
    let reply = Reply {
        now: now.parse().ok()?,
        epoch,
        version: version.parse().ok()?,
        from: from.parse().ok()?,
        verdicts,
        entries: entries.collect::<Option<_>>()?,
    };
    (reply.verdicts.len() == changes).then_some(reply)
}

fn has_clustered_limits(config: &Config) -> bool {
    let packets = config.limits.iter().map(|limit| limit.cluster);
    packets
        .chain(config.decide.limits.iter().map(|limit| limit.cluster))
        .any(|cluster| cluster.is_some())
}
