//! This host as a member of its cluster: limits shared by leases and by keys, and shared bans.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::cluster::ClusterLimitStatus;
use arc_swap::ArcSwapOption;
use config::policy::Config;
use decide::{Current, EffectiveShare};
use events::EventLog;
use host::{PROGRAM, StateDirectory};

use super::bans::{BanSharer, HostBans};
use super::enforcers::shared;
use super::error::ClusterError;
use super::exchange::Exchanger;
use super::health::StoreUsers;
use super::lease_client::{LeaseClient, first_shares};
use super::packets::Packets;
use super::past::Past;
use super::status::ClusterStatus;

/// How long an agent that starts waits for the store before it decides without it.
const JOIN_TIMEOUT: Duration = Duration::from_secs(1);
/// The interval at which it checks for the reply.
const JOIN_POLL: Duration = Duration::from_millis(2);

/// This host as a member of its cluster: nothing is shared until a config is put in effect.
pub struct Fleet {
    packets: Arc<dyn Packets>,
    bans: Arc<dyn HostBans>,
    /// The clock of decisions on requests.
    now: fn() -> u64,
    events: Arc<EventLog>,
    users: StoreUsers,
    leases: ArcSwapOption<LeaseClient>,
    exchange: ArcSwapOption<Exchanger>,
    sharer: ArcSwapOption<BanSharer>,
}

impl Fleet {
    #[must_use]
    pub fn new(
        packets: Arc<dyn Packets>,
        bans: Arc<dyn HostBans>,
        now: fn() -> u64,
        events: &Arc<EventLog>,
    ) -> Self {
        Self {
            packets,
            bans,
            now,
            events: Arc::clone(events),
            users: StoreUsers::default(),
            leases: ArcSwapOption::empty(),
            exchange: ArcSwapOption::empty(),
            sharer: ArcSwapOption::empty(),
        }
    }

    /// Shares the limits of a config. Those that stay keep their leases, and their keys are exchanged further unless the store differs.
    ///
    /// # Errors
    ///
    /// When the system has no threads or no randomness.
    pub fn share_limits(
        &self,
        config: &Config,
        requests: &Arc<Current>,
    ) -> Result<(), ClusterError> {
        self.replace_leases(config, requests)?;
        self.replace_exchange(config, requests)
    }

    /// Waits for the store's first reply or error, at most [`JOIN_TIMEOUT`].
    pub async fn joined(&self) {
        let begun = Instant::now();
        while !self.has_joined() && begun.elapsed() < JOIN_TIMEOUT {
            tokio::time::sleep(JOIN_POLL).await;
        }
    }

    /// Whether the store has replied for each limit, or a request has failed.
    fn has_joined(&self) -> bool {
        let leased = self.leases.load().as_ref().is_none_or(|leases| {
            let (status, _) = leases.status();
            let is_joining =
                |limit: &ClusterLimitStatus| limit.is_joining() && limit.last_error.is_none();
            status.last_error.is_some() || !status.limits.iter().any(is_joining)
        });
        let exchanges = self.exchange.load().as_ref().is_none_or(|exchange| {
            let status = exchange.status();
            status.last_error.is_some() || status.last_answer_seconds_ago.is_some()
        });
        leased && exchanges
    }

    fn replace_leases(&self, config: &Config, requests: &Arc<Current>) -> Result<(), ClusterError> {
        let shared = shared(config, &self.packets, requests);
        match self.leases.load_full() {
            Some(leases) if shared.is_empty() => {
                self.leases.store(None);
                leases.stop();
            }
            Some(leases) => leases.replace(config, shared),
            None => {
                let (past, events) = (past(config), Arc::clone(&self.events));
                let leases = LeaseClient::start(config, shared, &past, (events, &self.users))?;
                self.leases.store(leases.map(Arc::new));
            }
        }
        Ok(())
    }

    fn replace_exchange(
        &self,
        config: &Config,
        requests: &Arc<Current>,
    ) -> Result<(), ClusterError> {
        if let Some(exchange) = self.exchange_under(config) {
            exchange.reload(config);
            return Ok(());
        }
        if let Some(exchange) = self.exchange.swap(None) {
            exchange.stop();
        }
        let (past, events) = (past(config), (&self.events, &self.users));
        let exchange = Exchanger::start(config, requests, &self.packets, self.now, &past, events)?;
        self.exchange.store(exchange.map(Arc::new));
        Ok(())
    }

    /// The exchange, if it can continue under a config.
    fn exchange_under(&self, config: &Config) -> Option<Arc<Exchanger>> {
        let exchange = self.exchange.load_full()?;
        exchange.goes_on(config).then_some(exchange)
    }

    /// Shares bans, or lifts those of other hosts that an earlier agent or config left in the kernel. The sharing continues with another
    /// config's limits on packets, unless the cluster differs.
    ///
    /// # Errors
    ///
    /// When the system has no threads or no randomness.
    pub fn share_bans(&self, config: &Config) -> Result<(), ClusterError> {
        let sharer = self.sharer.load_full();
        if let Some(sharer) = sharer.filter(|sharer| sharer.goes_on(config)) {
            sharer.apply_again();
            return Ok(());
        }
        if let Some(sharer) = self.sharer.swap(None) {
            sharer.stop();
        }
        let sharer = BanSharer::start(config, Arc::clone(&self.bans), &self.events, &self.users)?;
        if sharer.is_none() {
            self.bans.report_to(None);
            if let Err(error) = self.bans.set(&BTreeMap::new()) {
                tracing::error!(
                    "lifting the bans of other hosts failed: {error}; {PROGRAM} bans lists them"
                );
            }
        }
        self.sharer.store(sharer.map(Arc::new));
        Ok(())
    }

    /// This host's share of each shared limit of a config, before that is put in effect.
    #[must_use]
    pub fn shares(&self, config: &Config) -> HashMap<String, EffectiveShare> {
        let mut shares = match self.leases.load_full() {
            Some(leases) => leases.shares(config),
            None => first_shares(config, &past(config)),
        };
        if let Some(exchange) = self.exchange_under(config) {
            let exchanged = exchange.shares(config);
            shares.extend(exchanged.map(|(name, share)| (name.to_owned(), share)));
        }
        shares
    }

    /// The current status, `None` if nothing is shared, and its notes, of one reading; without waiting.
    #[must_use]
    pub fn status(&self) -> (Option<ClusterStatus>, Vec<String>) {
        let parts = [
            self.leases.load().as_ref().map(|leases| leases.status()),
            self.exchange
                .load()
                .as_ref()
                .map(|exchange| (exchange.status(), Vec::new())),
            self.sharer.load().as_ref().map(|sharer| sharer.status()),
        ];
        let (parts, notes): (Vec<_>, Vec<_>) = parts.into_iter().flatten().unzip();
        (
            parts.into_iter().reduce(ClusterStatus::with),
            notes.concat(),
        )
    }

    /// Returns this host's shares, and ends the sharing; takes at most a second for each part.
    pub fn stop(&self) {
        if let Some(leases) = self.leases.swap(None) {
            leases.stop();
        }
        if let Some(exchange) = self.exchange.swap(None) {
            exchange.stop();
        }
        if let Some(sharer) = self.sharer.swap(None) {
            sharer.stop();
        }
    }
}

/// The saved state of earlier runs of the agent.
fn past(config: &Config) -> Past {
    Past::read(&StateDirectory::at(&config.agent.state_dir))
}
