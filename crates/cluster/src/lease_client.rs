//! The agent's handle of the thread that leases this host's shares.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use api::cluster::ClusterStatus;
use config::policy::Config;
use decide::EffectiveShare;
use events::EventLog;
use host::StateDirectory;
use host::clock::boot_nanoseconds;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::error::ClusterError;
use super::exchange;
use super::health::StoreUsers;
use super::member::Usage;
use super::part::{Definition, Shared};
use super::past::Past;
use super::shared_status::SharedStatus;
use super::worker::{Order, Worker};

/// How long a reload waits for the thread to enforce the new config's limits.
const PATIENCE: Duration = Duration::from_secs(1);

/// This host's share of each limit before the store's first reply, by the limit's name: that of an earlier run of the
/// agent, or the fallback without a store.
#[must_use]
pub fn first_shares(config: &Config, past: &Past) -> HashMap<String, EffectiveShare> {
    let Some(cluster) = &config.cluster else {
        return HashMap::new();
    };
    let now = boot_nanoseconds();
    let share = |limit: Definition| {
        let in_effect = limit
            .member(cluster, past, cluster.node.clone(), Usage::default(), now)
            .in_effect(now);
        (limit.name, in_effect)
    };
    let alone = EffectiveShare::alone(cluster.when_store_is_down, past.hosts());
    let keyed = exchange::limits(config).map(|name| (name.to_owned(), alone));
    Definition::all(config).map(share).chain(keyed).collect()
}

/// The leases of this host's shares, until [`LeaseClient::stop`].
pub struct LeaseClient {
    status: Arc<SharedStatus>,
    orders: UnboundedSender<Order>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl LeaseClient {
    /// Leases shares of limits; `None` if no limit is shared. Until the store's first reply, each is enforced with the
    /// share of an earlier run, or with the fallback without a store.
    ///
    /// # Errors
    ///
    /// When the thread cannot be started.
    pub(super) fn start(
        config: &Config,
        limits: Vec<Shared>,
        past: &Past,
        (events, users): (Arc<EventLog>, &StoreUsers),
    ) -> Result<Option<Self>, ClusterError> {
        let Some(cluster) = config.cluster.clone().filter(|_| !limits.is_empty()) else {
            return Ok(None);
        };
        let run = getrandom::u64().map_err(ClusterError::Random)?;
        // Distinguishes two hosts with one name, and two runs of one host's agent.
        let host = format!("{}/{:08x}", cluster.node, run as u32);
        let directory = StateDirectory::at(&config.agent.state_dir);
        let worker = Worker::new(cluster, host, limits, past, directory, (events, users));
        let status = worker.status();
        let (orders, given) = unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ClusterError::Thread)?;
        let work = move || runtime.block_on(worker.run(given));
        let thread = thread::Builder::new()
            .name("weir-cluster".to_owned())
            .spawn(work)
            .map_err(ClusterError::Thread)?;
        Ok(Some(Self {
            status,
            orders,
            thread: Mutex::new(Some(thread)),
        }))
    }

    /// Leases shares of another config's limits. Leases of limits that stay remain valid; those of removed limits are
    /// returned.
    pub fn replace(&self, config: &Config, limits: Vec<Shared>) {
        let Some(cluster) = config.cluster.clone() else {
            return;
        };
        let (done, all) = mpsc::channel();
        // The thread may have ended; `stop` waits for it.
        if self
            .orders
            .send(Order::Replace {
                cluster: Box::new(cluster),
                limits,
                done,
            })
            .is_ok()
        {
            let _ = all.recv_timeout(PATIENCE);
        }
    }

    /// The last reported status and its notes; does not wait for the store.
    #[must_use]
    pub fn status(&self) -> (ClusterStatus, Vec<String>) {
        let last = self.status.lock();
        let ago = last
            .granted_at
            .map(|at| boot_nanoseconds().saturating_sub(at) as f64 / 1e9);
        let status = ClusterStatus {
            last_answer_seconds_ago: ago,
            ..last.status.clone()
        };
        (status, last.notes.clone())
    }

    /// This host's share of each limit of a config: the current one, or the first of a new limit.
    #[must_use]
    pub fn shares(&self, config: &Config) -> HashMap<String, EffectiveShare> {
        let last = self.status.lock();
        let mut shares = first_shares(config, &last.past);
        for (name, share) in &mut shares {
            *share = last.shares.get(name).copied().unwrap_or(*share);
        }
        shares
    }

    /// Returns all shares, if the store is available, and ends the thread; takes at most a second.
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
        let _ = self.orders.send(Order::End);
        let _ = thread.join();
    }
}

impl Drop for LeaseClient {
    fn drop(&mut self) {
        self.stop();
    }
}
