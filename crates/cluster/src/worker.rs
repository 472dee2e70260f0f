//! The thread of leases: reports demand, requests shares, and puts them in effect.
//!
//! Only this thread uses the store, and nothing waits for it. Packets and decisions are evaluated with the last share
//! in effect; while the store is silent, a lease ends by this thread's clock. Each limit has its own requests, so that
//! a damaged ledger, or an unavailable node of a Cluster, does not delay other limits.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use api::cluster::ClusterStatus;
use api::event::EventKind;
use config::policy::Cluster;
use events::EventLog;
use host::backoff::Backoff;
use host::clock::boot_nanoseconds;
use host::{StateDirectory, StateError};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::{JoinError, JoinSet};

use super::connect::Connection;
use super::error::StoreError;
use super::health::{Health, StoreUsers, Turn, store_event};
use super::ledger::{Grant, Report};
use super::member::{LEAVE_TIMEOUT, Terms};
use super::part::{Part, Shared};
use super::past::Past;
use super::shared_status::SharedStatus;
use super::store::{HostShare, Store};
use super::zones::Leads;

/// The shortest interval between two reads of all hosts' shares, for `weir status`; it grows with the number of hosts.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The time that each host adds to it.
const LOOK_LATER_BY: Duration = Duration::from_millis(10);
/// The shortest pause after a failed request.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// The shortest time between two writes of the state for the next run.
const SAVE_EVERY: Duration = Duration::from_secs(5);

/// A command to the thread.
pub(super) enum Order {
    /// Leases shares of another config's limits; limits that stay keep their leases.
    Replace {
        cluster: Box<Cluster>,
        limits: Vec<Shared>,
        /// Receives a message when all limits are enforced.
        done: Sender<()>,
    },
    /// Returns all shares, and ends the thread.
    End,
}

/// The connection for leases.
enum Link {
    Closed,
    Opening,
    Open(Connection),
}

/// The result of a task.
enum Done {
    Opened {
        link: u64,
        result: Result<Connection, StoreError>,
    },
    Leased {
        link: u64,
        limit: String,
        sequence: u64,
        at: u64,
        grant: Result<Option<Grant>, StoreError>,
    },
    Looked {
        connection: Option<Connection>,
        hosts: Vec<(String, Result<Vec<HostShare>, StoreError>)>,
    },
    Saved {
        past: Past,
        result: Result<(), StateError>,
    },
    Left(Result<(), StoreError>),
}

pub(super) struct Worker {
    cluster: Cluster,
    store: Store,
    /// The name of new members.
    host: String,
    link: Link,
    /// The server of the last connection.
    server: Option<Arc<str>>,
    /// The number of connections so far, so that an error of an earlier one does not close the current one.
    links: u64,
    /// The connection for reading all hosts' shares; `None` while a read is under way.
    looking: Option<Option<Connection>>,
    parts: Vec<Part>,
    /// Of this host's zone.
    leads: Leads,
    health: Health,
    /// Of the store of all hosts.
    users: StoreUsers,
    counted_at: u64,
    looked_at: u64,
    reported_at: u64,
    /// The contents of the state directory, and when they were written; `None` during a write.
    saved: Option<(Past, u64)>,
    cannot_save: bool,
    directory: StateDirectory,
    tasks: JoinSet<Done>,
    status: Arc<SharedStatus>,
    events: Arc<EventLog>,
}

impl Worker {
    pub(super) fn new(
        cluster: Cluster,
        host: String,
        limits: Vec<Shared>,
        past: &Past,
        directory: StateDirectory,
        (events, users): (Arc<EventLog>, &StoreUsers),
    ) -> Self {
        let now = boot_nanoseconds();
        let patience = Terms::patience_for(cluster.sync);
        let leads = Leads::new(host.clone(), users.clone(), Arc::clone(&events));
        let mut worker = Self {
            store: Store::new(cluster.of_zone(), patience),
            host,
            leads,
            link: Link::Closed,
            server: None,
            links: 0,
            looking: Some(None),
            parts: Vec::new(),
            health: Health::new(patience, now, &users_of(&cluster, users)),
            users: users.clone(),
            counted_at: now,
            looked_at: 0,
            reported_at: now,
            saved: Some((past.clone(), 0)),
            cannot_save: false,
            directory,
            tasks: JoinSet::new(),
            status: Arc::default(),
            events,
            cluster,
        };
        worker.parts = limits
            .into_iter()
            .map(|shared| worker.begin(shared, past, now))
            .collect();
        worker.report();
        worker
    }

    pub(super) fn status(&self) -> Arc<SharedStatus> {
        Arc::clone(&self.status)
    }

    fn begin(&self, shared: Shared, past: &Past, now: u64) -> Part {
        let usage = shared.enforcer.demand().unwrap_or_default();
        let member = shared
            .definition
            .member(&self.cluster, past, self.host.clone(), usage, now);
        Part::new(shared, member, usage, now)
    }

    pub(super) async fn run(mut self, mut orders: UnboundedReceiver<Order>) {
        let mut sync = self.cluster.sync;
        let mut ticks = ticks(sync);
        self.lead();
        loop {
            let soon = self.until_due();
            tokio::select! {
                biased;
                order = orders.recv() => match order {
                    Some(Order::Replace { cluster, limits, done }) => {
                        self.replace(*cluster, limits);
                        // The receiver may have timed out.
                        let _ = done.send(());
                    }
                    Some(Order::End) | None => break,
                },
                Some(done) = self.tasks.join_next() => self.take(done),
                _ = ticks.tick() => {}
                () = tokio::time::sleep(soon) => {}
            }
            while let Some(done) = self.tasks.try_join_next() {
                self.take(done);
            }
            if sync != self.cluster.sync {
                sync = self.cluster.sync;
                ticks = self::ticks(sync);
            }
            self.go_on();
        }
        self.leave().await;
    }

    /// Does everything that is due now.
    fn go_on(&mut self) {
        let now = boot_nanoseconds();
        let sync = self.cluster.sync.as_nanos() as u64;
        let counts = now.saturating_sub(self.counted_at) >= sync / 5;
        for part in &mut self.parts {
            if counts {
                part.count(now);
            }
            part.enforce(now);
        }
        if counts {
            self.counted_at = now;
        }
        self.request_due(now);
        self.look(now);
        if now.saturating_sub(self.reported_at) >= sync {
            self.reported_at = now;
            self.report();
            self.save(now);
        }
    }

    fn lead(&mut self) {
        let limits = self.parts.iter().map(|part| &part.shared.definition);
        self.leads.replace(&self.cluster, limits);
    }

    fn until_due(&self) -> Duration {
        let now = boot_nanoseconds();
        let is_due = |part: &Part| part.is_due(now + 5_000_000) && !part.is_due(now);
        // Between two ticks, a released share is reported within two milliseconds.
        if matches!(self.link, Link::Open(_))
            && !self.health.is_failing()
            && self.parts.iter().any(is_due)
        {
            Duration::from_millis(2)
        } else {
            Duration::from_secs(3_600)
        }
    }

    /// Requests each lease that is due, over one connection.
    fn request_due(&mut self, now: u64) {
        let mut due = self
            .parts
            .iter_mut()
            .filter(|part| part.is_due(now))
            .peekable();
        if due.peek().is_none() {
            return;
        }
        let (store, link) = (self.store.clone(), self.links);
        match &self.link {
            Link::Opening => {}
            Link::Closed => {
                self.links += 1;
                let link = self.links;
                self.link = Link::Opening;
                self.tasks.spawn(async move {
                    Done::Opened {
                        link,
                        result: store.connect().await,
                    }
                });
            }
            Link::Open(connection) => {
                for part in due {
                    let ((limit, report), mut connection) = (part.request(now), connection.clone());
                    let store = store.clone();
                    self.tasks.spawn(async move {
                        let grant = store.lease(&mut connection, &limit, &report).await;
                        Done::Leased {
                            link,
                            limit,
                            sequence: report.sequence,
                            at: now,
                            grant,
                        }
                    });
                }
            }
        }
    }

    /// Reads every host's share, over a separate connection so that leases do not wait for it.
    fn look(&mut self, now: u64) {
        let hosts = self
            .parts
            .iter()
            .map(|part| part.member.hosts())
            .max()
            .unwrap_or(1);
        let every = LOOK_EVERY + LOOK_LATER_BY * u32::try_from(hosts).unwrap_or(u32::MAX);
        let is_due = now.saturating_sub(self.looked_at) >= every.as_nanos() as u64;
        if !is_due || self.health.is_failing() || self.health.granted_at().is_none() {
            return;
        }
        let Some(connection) = self.looking.take() else {
            return;
        };
        self.looked_at = now;
        let (store, limits) = (
            self.store.clone(),
            self.parts
                .iter()
                .map(|part| part.name().to_owned())
                .collect(),
        );
        self.tasks.spawn(async move {
            let connection = match connection {
                Some(connection) => Ok(connection),
                None => store.connect().await,
            };
            // If this fails, the next read follows.
            let Ok(connection) = connection else {
                return Done::Looked {
                    connection: None,
                    hosts: Vec::new(),
                };
            };
            let hosts = store.hosts(&connection, limits).await;
            let is_open = hosts
                .iter()
                .all(|(_, read)| read.as_ref().err().is_none_or(StoreError::is_reply));
            Done::Looked {
                connection: Some(connection).filter(|_| is_open),
                hosts,
            }
        });
    }

    fn part(&mut self, limit: &str) -> Option<&mut Part> {
        self.parts.iter_mut().find(|part| part.name() == limit)
    }

    fn take(&mut self, done: Result<Done, JoinError>) {
        let now = boot_nanoseconds();
        match done {
            Ok(Done::Opened { link, result }) => {
                if link == self.links {
                    self.opened(result, now);
                }
            }
            Ok(Done::Leased {
                link,
                limit,
                sequence,
                at,
                grant,
            }) => {
                // The reply may be for a limit or a store of an earlier config.
                if self.part(&limit).is_some_and(|part| part.takes(sequence)) {
                    self.leased(link, &limit, at, grant, now);
                }
            }
            Ok(Done::Looked { connection, hosts }) => {
                self.looking = Some(connection);
                for (limit, hosts) in hosts {
                    if let (Some(part), Ok(hosts)) = (self.part(&limit), hosts) {
                        part.looked(hosts);
                    }
                }
            }
            Ok(Done::Saved { past, result }) => {
                if let (Err(error), false) = (&result, self.cannot_save) {
                    tracing::warn!("saving the cluster's hosts for the next start failed: {error}");
                }
                self.cannot_save = result.is_err();
                self.saved = Some((past, now));
            }
            Ok(Done::Left(result)) => log_leave_failure(result),
            Err(error) => {
                // A task that panicked has lost its connection and its limits: all tasks restart.
                tracing::error!("querying the cluster's store failed: {error}");
                self.links += 1;
                (self.link, self.looking) = (Link::Closed, Some(None));
                self.saved.get_or_insert_with(|| (Past::default(), now));
                self.parts.iter_mut().for_each(Part::give_up);
            }
        }
    }

    fn opened(&mut self, result: Result<Connection, StoreError>, now: u64) {
        match result {
            Ok(connection) => {
                let server = connection.server().cloned();
                // The same server has all grants. With another one, no host's share would grow for a lease.
                if server.is_none() || server != self.server {
                    self.parts
                        .iter_mut()
                        .for_each(|part| part.member.reconnected());
                }
                (self.link, self.server) = (Link::Open(connection), server);
            }
            Err(error) => {
                self.link = Link::Closed;
                let pause = self.pause();
                for part in self.parts.iter_mut().filter(|part| part.is_due(now)) {
                    part.failed(&error, now, pause);
                }
                self.failed(&error, now);
            }
        }
    }

    fn leased(
        &mut self,
        link: u64,
        limit: &str,
        at: u64,
        grant: Result<Option<Grant>, StoreError>,
        now: u64,
    ) {
        let pause = self.pause();
        let Some(part) = self.part(limit) else { return };
        match grant {
            Ok(grant) => {
                part.granted(at, grant, now);
                if let Some(Turn::Up { failures, is_last }) = self.health.granted(at, now) {
                    let reason =
                        format!("the store is available again, after {failures} failed requests");
                    tracing::info!("cluster: {reason}");
                    if is_last {
                        self.event(EventKind::StoreUp, failures, reason);
                    }
                }
            }
            Err(error) => {
                part.failed(&error, now, pause);
                self.failed(&error, now);
                let is_open = matches!(&self.link, Link::Open(connection) if link == self.links
                    && !(matches!(error, StoreError::Gone(_)) && connection.is_one())
                    && !self.health.is_silent(now));
                if link == self.links && !is_open {
                    self.link = Link::Closed;
                }
            }
        }
    }

    /// The pause after a failed request. It does not grow: leases are short.
    fn pause(&self) -> Duration {
        Backoff::steady(ASK_AGAIN.max(self.cluster.sync)).pause(1)
    }

    fn failed(&mut self, error: &StoreError, now: u64) {
        let Some(Turn::Down { is_first }) = self.health.failed(error, now) else {
            return;
        };
        let what = if error.is_reply() {
            "refuses every limit"
        } else {
            "is unavailable"
        };
        let when = self.cluster.when_store_is_down;
        let reason = format!(
            "the store {what}: {error}; when leases expire, when_store_is_down = \"{when}\" takes effect"
        );
        tracing::error!("cluster: {reason}");
        if is_first {
            self.event(EventKind::StoreDown, self.health.failures(), reason);
        }
    }

    fn event(&self, what: EventKind, count: u64, reason: String) {
        self.events
            .push(store_event(&self.cluster.of_zone(), what, count, reason));
    }

    fn past(&self) -> Past {
        self.parts.iter().map(Part::past).collect()
    }

    fn report(&self) {
        let health = &self.health;
        let (zone, refused) = self.leads.status().unzip();
        let status = ClusterStatus {
            zone,
            hosts: self
                .parts
                .iter()
                .map(|part| part.member.hosts())
                .max()
                .unwrap_or(1),
            limits: self
                .parts
                .iter()
                .map(|part| part.status(&self.cluster))
                .collect(),
            ..health.status(&self.cluster.of_zone())
        };
        let notes = self.parts.iter().filter_map(Part::note);
        let notes = notes.chain(refused.unwrap_or_default()).collect();
        let shares = self
            .parts
            .iter()
            .map(|part| (part.name().to_owned(), part.held()))
            .collect();
        self.status
            .set(status, notes, shares, self.past(), health.granted_at());
    }

    /// Writes the state for the next run, on a thread that may wait for the disk.
    fn save(&mut self, now: u64) {
        let past = self.past();
        let is_due = |at: u64, hosts| {
            now.saturating_sub(at) >= SAVE_EVERY.as_nanos() as u64 || hosts != past.hosts()
        };
        if self
            .saved
            .as_ref()
            .is_none_or(|(saved, at)| *saved == past || !is_due(*at, saved.hosts()))
        {
            return;
        }
        self.saved = None;
        let directory = self.directory.clone();
        self.tasks.spawn(async move {
            let write = tokio::task::spawn_blocking(move || {
                let result = past.write(&directory);
                (past, result)
            });
            match write.await {
                Ok((past, result)) => Done::Saved { past, result },
                // The runtime is shutting down.
                Err(_) => Done::Saved {
                    past: Past::default(),
                    result: Ok(()),
                },
            }
        });
    }

    fn replace(&mut self, cluster: Cluster, limits: Vec<Shared>) {
        let now = boot_nanoseconds();
        let past = self.past();
        let mut before = std::mem::take(&mut self.parts);
        if cluster != self.cluster {
            let patience = Terms::patience_for(cluster.sync);
            self.store = Store::new(cluster.of_zone(), patience);
            self.health = Health::new(patience, now, &users_of(&cluster, &self.users));
            self.links += 1;
            (self.link, self.looking) = (Link::Closed, self.looking.take().map(|_| None));
            self.cluster = cluster;
            before.iter_mut().for_each(Part::give_up);
        }
        for shared in limits {
            let known = before
                .iter()
                .position(|part| part.name() == shared.definition.name);
            let part = match known {
                Some(nth) => before.swap_remove(nth).under(shared, &self.cluster, now),
                None => self.begin(shared, &past, now),
            };
            self.parts.push(part);
        }
        self.lead();
        self.report();
        let Link::Open(connection) = &self.link else {
            return;
        };
        let (store, connection, reports) = (
            self.store.clone(),
            connection.clone(),
            leave_reports(&mut before, now),
        );
        if !reports.is_empty() {
            self.tasks
                .spawn(async move { Done::Left(give_back(&store, &connection, reports).await) });
        }
    }

    async fn leave(&mut self) {
        let now = boot_nanoseconds();
        let reports = match &self.link {
            // Without a connection the leases expire.
            Link::Open(_) if !self.health.is_failing() => leave_reports(&mut self.parts, now),
            _ => Vec::new(),
        };
        let give_back = async {
            if let (Link::Open(connection), false) = (&self.link, reports.is_empty()) {
                log_leave_failure(give_back(&self.store, connection, reports).await);
            }
        };
        tokio::join!(self.leads.stop(), give_back);
        if let Err(error) = self.past().write(&self.directory) {
            tracing::warn!("saving the cluster's hosts for the next start failed: {error}");
        }
    }
}

/// A zone's store fails on its own: it has no other users.
fn users_of(cluster: &Cluster, users: &StoreUsers) -> StoreUsers {
    if cluster.zone.is_some() {
        StoreUsers::default()
    } else {
        users.clone()
    }
}

fn ticks(sync: Duration) -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(sync / 5);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks
}

/// The last requests of removed limits.
fn leave_reports(parts: &mut [Part], now: u64) -> Vec<(String, Report)> {
    let gives_back = parts
        .iter_mut()
        .filter(|part| part.shared.enforcer.gives_back());
    gives_back
        .map(|part| (part.name().to_owned(), part.member.leave(now)))
        .collect()
}

async fn give_back(
    store: &Store,
    connection: &Connection,
    reports: Vec<(String, Report)>,
) -> Result<(), StoreError> {
    let mut requests = JoinSet::new();
    for (limit, report) in reports {
        let (store, mut connection) = (store.clone(), connection.clone());
        requests.spawn(async move { store.lease(&mut connection, &limit, &report).await });
    }
    let all = async {
        while let Some(reply) = requests.join_next().await {
            reply.map_err(|error| StoreError::Gone(error.to_string()))??;
        }
        Ok(())
    };
    tokio::time::timeout(LEAVE_TIMEOUT, all)
        .await
        .unwrap_or(Err(StoreError::Slow(LEAVE_TIMEOUT)))
}

fn log_leave_failure(result: Result<(), StoreError>) {
    if let Err(error) = result {
        tracing::warn!(
            "cluster: returning leases to the store failed: {error}; they expire by themselves"
        );
    }
}
