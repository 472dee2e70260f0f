//! The thread that keeps this host's shares: counts, asks, and puts in force.
//!
//! It is the only one that talks to the store, and nobody waits for it: packets and decisions are held to the share
//! that was put in force last, and what runs out while the store is silent runs out by this thread's clock.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use common::limiter::Rate;
use common::share::Share;
use thiserror::Error;
use tokio::sync::oneshot;

use super::ledger::{Grant, Report};
use super::member::{InForce, Member, Standing, Terms, Usage};
use super::status::{ClusterLimitStatus, ClusterStatus, HostShareStatus};
use super::store::{HostShare, Store, StoreError};
use crate::config::policy::{Cluster, Config, Limit, RequestLimit};

/// Every host's share is read for people no more often than this, and by each host less often the more there are.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How much longer between two looks each host makes it.
const LOOK_LATER_BY: Duration = Duration::from_millis(10);
/// How long after a failure the store is asked again, at the least.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// How long the last request, which gives everything back, may take.
const FAREWELL: Duration = Duration::from_millis(500);

/// What holds a limit on this host.
pub trait Holder: Send {
    /// What has been asked of it; `None` if that cannot be read now.
    fn asked(&self) -> Option<Usage>;
    /// Holds it to a share from now on.
    fn hold(&self, in_force: InForce);
    /// Whether nothing passes by the share once the agent has ended, so that it may be given back at once.
    fn gives_back(&self) -> bool;
}

/// A limit that many hosts keep together, and what holds it here.
pub struct Shared {
    /// Its name.
    pub name: String,
    /// In units a second.
    pub rate: f64,
    /// Units that pass at once at the most, of the strictest of its rates.
    pub units: u64,
    /// What holds it.
    pub holder: Box<dyn Holder>,
}

impl Shared {
    /// A limit on packets.
    #[must_use]
    pub fn packets(limit: &Limit, holder: Box<dyn Holder>) -> Self {
        let bursts = limit.tiers.iter().map(|tier| tier.burst).chain([limit.burst]);
        Self { name: limit.name.clone(), rate: per_second(limit.rate), units: bursts.min().unwrap_or(1), holder }
    }

    /// A limit on requests.
    #[must_use]
    pub fn requests(limit: &RequestLimit, holder: Box<dyn Holder>) -> Self {
        let bursts = limit.tiers.iter().map(|tier| tier.burst).chain([limit.burst]);
        Self { name: limit.name.clone(), rate: per_second(limit.rate), units: bursts.min().unwrap_or(1), holder }
    }
}

fn per_second(rate: Rate) -> f64 {
    rate.count as f64 * 1e9 / rate.per_nanoseconds as f64
}

/// Shares cannot be kept.
#[derive(Debug, Error)]
pub enum KeeperError {
    /// The system has no randomness.
    #[error("reading a number that tells this agent from others of the same name failed: {0}")]
    Random(getrandom::Error),
    /// The system has no thread to give.
    #[error("starting the thread that asks the cluster's store failed: {0}")]
    Thread(io::Error),
}

/// One limit, while it is kept.
struct Part {
    shared: Shared,
    member: Member,
    held: InForce,
    usage: Usage,
    shares: Vec<HostShareStatus>,
}

impl Part {
    fn count(&mut self, now: u64) {
        if let Some(usage) = self.shared.holder.asked() {
            self.usage = usage;
        }
        self.member.count(self.usage, now);
    }

    fn hold(&mut self, now: u64) {
        let in_force = self.member.in_force(now);
        if in_force != self.held {
            self.shared.holder.hold(in_force);
            self.held = in_force;
        }
    }

    fn status(&self, cluster: &Cluster) -> ClusterLimitStatus {
        let share_from = match self.member.standing() {
            Standing::Joining => "joining".to_owned(),
            Standing::Leased => "lease".to_owned(),
            Standing::Alone => cluster.when_store_is_down.to_string(),
        };
        ClusterLimitStatus {
            name: self.shared.name.clone(),
            share: self.held.share.factor(),
            share_from,
            demand_per_second: self.member.demand(),
            hosts: self.member.hosts(),
            is_settling: self.member.is_quiet(),
            shares: self.shares.clone(),
        }
    }
}

/// How the store has been answering.
#[derive(Debug, Default)]
struct Health {
    answered_at: Option<u64>,
    answered_in: Duration,
    failures: u64,
    failing: u64,
    last_error: Option<String>,
}

/// The shares of this host, kept until this is stopped.
pub struct Keeper {
    status: Arc<Mutex<ClusterStatus>>,
    answered_at: Arc<Mutex<Option<u64>>>,
    work: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

impl Keeper {
    /// Keeps limits together with others; `None` if none is the cluster's. Each is held to what holds without a store
    /// until the store has answered.
    ///
    /// # Errors
    ///
    /// When there is no thread to be had.
    pub fn start(config: &Config, limits: Vec<Shared>) -> Result<Option<Self>, KeeperError> {
        let Some(cluster) = config.cluster.clone().filter(|_| !limits.is_empty()) else { return Ok(None) };
        let run = getrandom::u64().map_err(KeeperError::Random)?;
        // Two hosts that go by one name are told apart, and so is an agent from the one before it.
        let host = format!("{}/{:08x}", cluster.node, run as u32);
        let now = boot_nanoseconds();
        let part = |shared: Shared| {
            let terms = Terms {
                sync: cluster.sync,
                lease: Terms::lease_for(cluster.sync),
                when_store_is_down: cluster.when_store_is_down,
                rate: shared.rate,
                units: shared.units.clamp(1, Share::PARTS),
            };
            let usage = shared.holder.asked().unwrap_or_default();
            let mut member = Member::new(terms, host.clone(), usage, now);
            let held = member.in_force(now);
            shared.holder.hold(held);
            Part { shared, member, held, usage, shares: Vec::new() }
        };
        let parts: Vec<Part> = limits.into_iter().map(part).collect();
        let patience = Terms::patience_for(cluster.sync);
        let worker = Worker {
            store: Store::new(cluster.clone(), patience),
            parts,
            health: Health::default(),
            looked_at: 0,
            told_at: now,
            status: Arc::new(Mutex::new(ClusterStatus::default())),
            answered_at: Arc::new(Mutex::new(None)),
            cluster,
        };
        worker.tell();
        let (status, answered_at) = (Arc::clone(&worker.status), Arc::clone(&worker.answered_at));
        let (stop, stopped) = oneshot::channel();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(KeeperError::Thread)?;
        let work = move || runtime.block_on(worker.run(stopped));
        let thread = thread::Builder::new().name("weir-cluster".to_owned()).spawn(work).map_err(KeeperError::Thread)?;
        Ok(Some(Self { status, answered_at, work: Mutex::new(Some((stop, thread))) }))
    }

    /// What there is to tell, without waiting for anybody.
    #[must_use]
    pub fn status(&self) -> ClusterStatus {
        let mut status = lock(&self.status).clone();
        let answered_at = *lock(&self.answered_at);
        status.last_answer_seconds_ago = answered_at.map(|at| boot_nanoseconds().saturating_sub(at) as f64 / 1e9);
        status
    }

    /// Gives all shares back, as far as the store lets it, and ends. Takes no longer than a second.
    pub fn stop(&self) {
        let Some((stop, thread)) = lock(&self.work).take() else { return };
        // If nobody is there to be told, it has ended already.
        let _ = stop.send(());
        let _ = thread.join();
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Worker {
    cluster: Cluster,
    store: Store,
    parts: Vec<Part>,
    health: Health,
    looked_at: u64,
    told_at: u64,
    status: Arc<Mutex<ClusterStatus>>,
    answered_at: Arc<Mutex<Option<u64>>>,
}

/// What is being asked, and what came of it.
type Answer = (Store, Asked);

enum Asked {
    Leases { at: u64, parts: Vec<usize>, grants: Result<Vec<Option<Grant>>, StoreError> },
    Hosts { shares: Vec<(usize, Vec<HostShare>)> },
}

impl Worker {
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        let mut ticks = tokio::time::interval(self.cluster.sync / 5);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut asking: Option<JoinAnswer> = None;
        loop {
            let soon = self.until_due(asking.is_some());
            tokio::select! {
                biased;
                _ = &mut stopped => break,
                answer = wait(&mut asking), if asking.is_some() => {
                    asking = None;
                    if let Some((store, asked)) = answer {
                        self.store = store;
                        self.take(asked);
                    }
                }
                _ = ticks.tick() => {}
                () = tokio::time::sleep(soon) => {}
            }
            let now = boot_nanoseconds();
            for part in &mut self.parts {
                part.count(now);
                part.hold(now);
            }
            if asking.is_none() {
                asking = self.ask(now);
            }
            if now.saturating_sub(self.told_at) >= self.cluster.sync.as_nanos() as u64 {
                self.told_at = now;
                self.tell();
            }
        }
        if let Some(answer) = asking {
            // What is on its way gives back the connection.
            if let Ok(Ok((store, _))) = tokio::time::timeout(FAREWELL, answer).await {
                self.store = store;
            }
        }
        self.leave().await;
    }

    fn until_due(&self, is_asking: bool) -> Duration {
        let now = boot_nanoseconds();
        let is_due = |part: &Part| part.member.is_due(now + 5_000_000) && !part.member.is_due(now);
        // What is due between two ticks: a share that was just given up is told of within two milliseconds.
        if !is_asking && self.health.failing == 0 && self.parts.iter().any(is_due) {
            Duration::from_millis(2)
        } else {
            Duration::from_secs(3_600)
        }
    }

    /// Starts to ask, if it is time for anything.
    fn ask(&mut self, now: u64) -> Option<JoinAnswer> {
        let due: Vec<usize> = (0..self.parts.len()).filter(|nth| self.parts[*nth].member.is_due(now)).collect();
        if !due.is_empty() {
            let reports: Vec<(String, Report)> = due
                .iter()
                .map(|nth| {
                    let part = &mut self.parts[*nth];
                    (part.shared.name.clone(), part.member.report(now))
                })
                .collect();
            let mut store = self.lend();
            return Some(tokio::spawn(async move {
                let grants = store.lease(&reports).await;
                (store, Asked::Leases { at: now, parts: due, grants })
            }));
        }
        let hosts = self.parts.iter().map(|part| part.member.hosts()).max().unwrap_or(1);
        let every = LOOK_EVERY + LOOK_LATER_BY * u32::try_from(hosts).unwrap_or(u32::MAX);
        if self.health.failing > 0 || now.saturating_sub(self.looked_at) < every.as_nanos() as u64 {
            return None;
        }
        self.looked_at = now;
        let names: Vec<String> = self.parts.iter().map(|part| part.shared.name.clone()).collect();
        let mut store = self.lend();
        Some(tokio::spawn(async move {
            let mut shares = Vec::new();
            for (nth, name) in names.iter().enumerate() {
                // What cannot be looked at now is looked at the next time.
                let Ok(hosts) = store.hosts(name).await else { break };
                shares.push((nth, hosts));
            }
            (store, Asked::Hosts { shares })
        }))
    }

    /// The store, for as long as it is being asked; what stays here is one that is not connected.
    fn lend(&mut self) -> Store {
        let patience = Terms::patience_for(self.cluster.sync);
        std::mem::replace(&mut self.store, Store::new(self.cluster.clone(), patience))
    }

    fn take(&mut self, asked: Asked) {
        let now = boot_nanoseconds();
        match asked {
            Asked::Leases { at, parts, grants: Ok(grants) } => {
                for (nth, grant) in parts.into_iter().zip(grants) {
                    if let (Some(part), Some(grant)) = (self.parts.get_mut(nth), grant) {
                        part.member.granted(at, &grant, now);
                        part.hold(now);
                    }
                }
                if self.health.failing > 0 {
                    eprintln!("cluster: the store answers again, after {} failed requests", self.health.failing);
                }
                self.health.failing = 0;
                self.health.answered_at = Some(now);
                self.health.answered_in = Duration::from_nanos(now.saturating_sub(at));
            }
            Asked::Leases { grants: Err(error), parts, .. } => {
                if self.health.failing == 0 {
                    eprintln!(
                        "cluster: the store does not answer: {error}; when shares run out, when_store_is_down = \"{}\" holds",
                        self.cluster.when_store_is_down
                    );
                }
                self.health.failures += 1;
                self.health.failing += 1;
                if matches!(error, StoreError::Slow(_)) && self.health.failing.is_multiple_of(2) {
                    // A host that is gone says nothing: another may go by its name now.
                    self.store.disconnect();
                }
                self.health.last_error = Some(error.to_string());
                for nth in parts {
                    if let Some(part) = self.parts.get_mut(nth) {
                        part.member.ask_after(now + ASK_AGAIN.max(self.cluster.sync).as_nanos() as u64);
                    }
                }
            }
            Asked::Hosts { shares } => {
                for (nth, hosts) in shares {
                    let Some(part) = self.parts.get_mut(nth) else { continue };
                    let factor = |parts: u64| parts as f64 / Share::PARTS as f64;
                    let rate = part.shared.rate;
                    let status = |host: HostShare| HostShareStatus {
                        share: factor(host.share),
                        demand_per_second: factor(host.demand) * rate,
                        host: host.host,
                    };
                    part.shares = hosts.into_iter().map(status).collect();
                    part.shares.sort_by(|a, b| a.host.cmp(&b.host));
                }
            }
        }
    }

    fn tell(&self) {
        let health = &self.health;
        let word = match health.answered_at {
            _ if health.failing > 0 => "down",
            None => "connecting",
            Some(_) if health.answered_in >= self.cluster.sync => "slow",
            Some(_) => "up",
        };
        let status = ClusterStatus {
            node: self.cluster.node.clone(),
            store: self.cluster.store.iter().map(ToString::to_string).collect(),
            health: word.to_owned(),
            answered_in_seconds: health.answered_at.map(|_| health.answered_in.as_secs_f64()),
            last_answer_seconds_ago: None,
            failures: health.failures,
            last_error: health.last_error.clone(),
            when_store_is_down: self.cluster.when_store_is_down.to_string(),
            sync_seconds: self.cluster.sync.as_secs_f64(),
            hosts: self.parts.iter().map(|part| part.member.hosts()).max().unwrap_or(1),
            limits: self.parts.iter().map(|part| part.status(&self.cluster)).collect(),
        };
        *lock(&self.status) = status;
        *lock(&self.answered_at) = health.answered_at;
    }

    async fn leave(&mut self) {
        if self.health.failing > 0 {
            // Nobody would hear it: the leases run out by themselves.
            return;
        }
        let now = boot_nanoseconds();
        let reports: Vec<(String, Report)> = self
            .parts
            .iter_mut()
            .filter(|part| part.shared.holder.gives_back())
            .map(|part| (part.shared.name.clone(), part.member.leave(now)))
            .collect();
        if let Err(error) | Ok(Err(error)) =
            tokio::time::timeout(FAREWELL, self.store.lease(&reports)).await.map_err(|_| StoreError::Slow(FAREWELL))
        {
            eprintln!("cluster: giving shares back failed: {error}; they run out by themselves");
        }
    }
}

type JoinAnswer = tokio::task::JoinHandle<Answer>;

/// What was being asked; `None` if the task that asked has failed.
async fn wait(asking: &mut Option<JoinAnswer>) -> Option<Answer> {
    match asking {
        Some(answer) => answer.await.ok(),
        None => std::future::pending().await,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is one assignment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A clock of this host alone, which goes on while the host sleeps and never goes back, whatever the time of day is set
/// to.
#[must_use]
pub fn boot_nanoseconds() -> u64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME)
        .map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}
