//! The agent's handle of the thread that exchanges the consumption of busy keys. Decisions wait neither for it nor for the
//! store.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use api::cluster::ClusterStatus;
use config::policy::{Cluster, Config};
use decide::{Current, EffectiveShare};
use events::EventLog;
use host::StateDirectory;
use tokio::sync::{oneshot, watch};

use super::exchanged_limits::{ExchangedLimits, has_keys, limits};
use super::peer::Peer;
use super::worker::Worker;
use crate::error::ClusterError;
use crate::health::StoreUsers;
use crate::packets::Packets;
use crate::past::Past;

/// A running exchange, until [`Exchanger::stop`].
pub struct Exchanger {
    cluster: watch::Sender<Cluster>,
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
    pub(crate) fn start(
        config: &Config,
        engine: &Arc<Current>,
        packets: &Arc<dyn Packets>,
        now: fn() -> u64,
        past: &Past,
        (events, users): (&Arc<EventLog>, &StoreUsers),
    ) -> Result<Option<Self>, ClusterError> {
        let Some(cluster) = config.cluster.clone().filter(|_| has_keys(config)) else {
            return Ok(None);
        };
        let run = getrandom::u64().map_err(ClusterError::Random)?;
        let node = format!("{}/{:08x}", cluster.node, run as u32);
        let peer = Peer::new(node, cluster.max_hot_keys as usize, cluster.sync).among(past.hosts());
        let alone = EffectiveShare::alone(cluster.when_store_is_down, peer.hosts());
        let held = Arc::new(ExchangedLimits::new(engine, packets, alone));
        let directory = StateDirectory::at(&config.agent.state_dir);
        let worker = Worker::new(
            cluster.clone(),
            (peer, run),
            &held,
            now,
            directory,
            (events, users),
        );
        let status = worker.status();
        let (stop, stopped) = oneshot::channel();
        let (cluster, reloaded) = watch::channel(cluster);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ClusterError::Thread)?;
        let work = move || runtime.block_on(worker.run(stopped, reloaded));
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

    /// Whether it can continue under another config: with the same store, as the same host of the same cluster.
    #[must_use]
    pub fn goes_on(&self, config: &Config) -> bool {
        let current = self.cluster.borrow();
        let is_same = |next: &Cluster| {
            let current = Cluster {
                sync: next.sync,
                max_hot_keys: next.max_hot_keys,
                when_store_is_down: next.when_store_is_down,
                share_bans: next.share_bans,
                zone: next.zone.clone(),
                ..current.clone()
            };
            current == *next
        };
        has_keys(config) && config.cluster.as_ref().is_some_and(is_same)
    }

    /// This host's share of each limit of the next config.
    pub fn shares<'a>(
        &self,
        config: &'a Config,
    ) -> impl Iterator<Item = (&'a str, EffectiveShare)> + use<'a> {
        let in_effect = self.held.in_effect();
        limits(config).map(move |name| (name, in_effect))
    }

    /// Continues with another config: its limits may be new.
    pub fn reload(&self, config: &Config) {
        self.held.enforce_again();
        if let Some(cluster) = &config.cluster {
            self.cluster.send_replace(cluster.clone());
        }
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
