//! What the agent knows of the thread that keeps this host's shares.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use thiserror::Error;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::member::{InForce, Usage};
use super::part::{Definition, Shared};
use super::past::Past;
use super::status::ClusterStatus;
use super::worker::{Order, Worker};
use crate::config::policy::Config;
use crate::events::EventLog;
use crate::state::StateDirectory;

/// How long another config's limits are waited for.
const PATIENCE: Duration = Duration::from_secs(1);

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

/// This host's share of each limit by the limit's name, before the store has replied: what an earlier run of the agent
/// has left, or what holds without a store.
#[must_use]
pub fn first_shares(config: &Config, past: &Past) -> HashMap<String, InForce> {
    let Some(cluster) = &config.cluster else { return HashMap::new() };
    let now = boot_nanoseconds();
    let share = |limit: Definition| {
        let in_force = limit.member(cluster, past, cluster.node.clone(), Usage::default(), now).in_force(now);
        (limit.name, in_force)
    };
    Definition::all(config).map(share).collect()
}

/// What the thread has to tell, for those who ask.
#[derive(Default)]
pub(super) struct Told(Mutex<Tale>);

#[derive(Default)]
struct Tale {
    status: ClusterStatus,
    notes: Vec<String>,
    shares: HashMap<String, InForce>,
    past: Past,
    granted_at: Option<u64>,
}

impl Told {
    pub(super) fn set(
        &self,
        status: ClusterStatus,
        notes: Vec<String>,
        shares: HashMap<String, InForce>,
        past: Past,
        granted_at: Option<u64>,
    ) {
        *lock(&self.0) = Tale { status, notes, shares, past, granted_at };
    }
}

/// The shares of this host, kept until this is stopped.
pub struct Keeper {
    told: Arc<Told>,
    orders: UnboundedSender<Order>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Keeper {
    /// Keeps limits together with others; `None` if none is the cluster's. Each is held to what an earlier run has left,
    /// or to what holds without a store, until the store has answered.
    ///
    /// # Errors
    ///
    /// When there is no thread to be had.
    pub fn start(
        config: &Config,
        limits: Vec<Shared>,
        past: &Past,
        events: Arc<EventLog>,
    ) -> Result<Option<Self>, KeeperError> {
        let Some(cluster) = config.cluster.clone().filter(|_| !limits.is_empty()) else { return Ok(None) };
        let run = getrandom::u64().map_err(KeeperError::Random)?;
        // Two hosts that go by one name are told apart, and so is an agent from the one before it.
        let host = format!("{}/{:08x}", cluster.node, run as u32);
        let directory = StateDirectory::at(&config.agent.state_dir);
        let worker = Worker::new(cluster, host, limits, past, directory, events);
        let told = worker.told();
        let (orders, given) = unbounded_channel();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(KeeperError::Thread)?;
        let work = move || runtime.block_on(worker.run(given));
        let thread = thread::Builder::new().name("weir-cluster".to_owned()).spawn(work).map_err(KeeperError::Thread)?;
        Ok(Some(Self { told, orders, thread: Mutex::new(Some(thread)) }))
    }

    /// Keeps the limits of another config from now on. Leases of those that were kept before stay valid; those that are
    /// gone are given back.
    pub fn replace(&self, config: &Config, limits: Vec<Shared>) {
        let Some(cluster) = config.cluster.clone() else { return };
        let (done, all) = mpsc::channel();
        // A thread that has ended keeps nothing; `stop` waits for it.
        if self.orders.send(Order::Replace { cluster: Box::new(cluster), limits, done }).is_ok() {
            let _ = all.recv_timeout(PATIENCE);
        }
    }

    /// What there is to tell, without waiting for anybody.
    #[must_use]
    pub fn status(&self) -> ClusterStatus {
        let tale = lock(&self.told.0);
        let ago = tale.granted_at.map(|at| boot_nanoseconds().saturating_sub(at) as f64 / 1e9);
        ClusterStatus { last_answer_seconds_ago: ago, ..tale.status.clone() }
    }

    /// What an operator should know.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        lock(&self.told.0).notes.clone()
    }

    /// This host's share of each limit of a config, as it is, or as it will be at first.
    #[must_use]
    pub fn shares(&self, config: &Config) -> HashMap<String, InForce> {
        let tale = lock(&self.told.0);
        let mut shares = first_shares(config, &tale.past);
        for (name, share) in &mut shares {
            *share = tale.shares.get(name).copied().unwrap_or(*share);
        }
        shares
    }

    /// Gives all shares back, as far as the store lets it, and ends. Takes no longer than a second.
    pub fn stop(&self) {
        let Some(thread) = lock(&self.thread).take() else { return };
        // If nobody is there to be told, it has ended already.
        let _ = self.orders.send(Order::End);
        let _ = thread.join();
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop();
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
