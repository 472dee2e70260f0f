//! A running agent.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use cgroup::GroupManager;
use cluster::Fleet;
use config::policy::Config;
use datapath::PinDirectory;
use datapath::compile::{Layout, Plan};
use notifications::Notifier;

use super::capture::Capturer;
use super::crowdsec::Bouncer;
use super::fair::FairController;
use super::heavy_prefixes::PrefixWatcher;
use super::lists::BanLists;
use super::packets::{PacketEngine, Packets, Purpose};
use super::record::Recorder;
use super::reload::{Changing, Live};
use super::rollout::Rollout;
use super::state::{Keeping, Moment, Restore, Saved};
use super::trace::Tracer;
use crate::daemon::events::{CurrentAttacks, Event, EventKind, EventLog};

/// The packet engine, the servers for applications and the process groups.
pub struct Agent {
    pub(super) file: Option<PathBuf>,
    pub(super) started: Instant,
    pub(super) packets: Packets,
    pub(super) requests: decide::Service,
    pub(crate) groups: GroupManager,
    pub(super) changing: Changing,
    pub(super) fleet: Fleet,
    pub(super) crowdsec: Arc<Bouncer>,
    pub(super) events: Arc<EventLog>,
    pub(super) notifier: Arc<Notifier>,
    pub(super) attacks: Arc<CurrentAttacks>,
    pub(super) state: Arc<Keeping>,
    pub(super) counter_resets: AtomicU64,
    pub(super) tracer: Tracer,
    pub(super) capturer: Capturer,
    pub(crate) prefixes: PrefixWatcher,
    pub(super) fair: FairController,
    pub(super) recorder: Recorder,
    pub(super) lists: Arc<BanLists>,
    pub(super) rollout: Arc<Rollout>,
    /// The bans and counters of limits on packets, while none is in effect.
    parked: Mutex<Option<Saved>>,
}

impl Agent {
    /// Assembles the running parts; `file` is the config's path, and `state` saves the state for a reboot.
    #[must_use]
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of an agent, which nothing else puts together"
    )]
    pub fn new(
        file: Option<PathBuf>,
        live: Live,
        packets: Packets,
        requests: decide::Service,
        groups: GroupManager,
        fleet: Fleet,
        crowdsec: Arc<Bouncer>,
        (events, notifier, attacks): (Arc<EventLog>, Arc<Notifier>, Arc<CurrentAttacks>),
        state: Arc<Keeping>,
        lists: Arc<BanLists>,
        recorder: Recorder,
    ) -> Self {
        let changing = Changing::new(live);
        let (started, counter_resets) = (Instant::now(), AtomicU64::new(0));
        let tracer = Tracer::new(Arc::clone(&packets));
        let capturer = Capturer::new(Arc::clone(&packets));
        let prefixes = PrefixWatcher::new(Arc::clone(&packets));
        let loads = Arc::clone(requests.loads());
        let fair = FairController::start(Arc::clone(&packets), Arc::clone(&events), loads);
        Self {
            file,
            started,
            packets,
            requests,
            groups,
            changing,
            fleet,
            crowdsec,
            events,
            notifier,
            attacks,
            state,
            counter_resets,
            tracer,
            capturer,
            prefixes,
            fair,
            recorder,
            lists,
            rollout: Arc::default(),
            parked: Mutex::default(),
        }
    }

    /// Keeps saved bans and counters until limits on packets are in effect, if none are.
    pub fn park(&self, restore: Option<&Restore>) {
        if self.packets.load().is_none() {
            *self.parked() = restore.map(Restore::parked);
        }
    }

    fn parked(&self) -> MutexGuard<'_, Option<Saved>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) const fn changing(&self) -> &Changing {
        &self.changing
    }

    pub(crate) fn packets(&self) -> Option<Arc<PacketEngine>> {
        self.packets.load_full()
    }

    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    pub(crate) const fn requests(&self) -> &decide::Service {
        &self.requests
    }

    /// The state to save for a reboot; `None` if it cannot be read now, or there is none.
    #[must_use]
    pub fn snapshot(&self) -> Option<Saved> {
        let saved = match self.packets.load_full().map(|packets| packets.snapshot()) {
            Some(Ok(saved)) => Some(saved),
            Some(Err(error)) => {
                tracing::error!("reading the state to save failed: {error}");
                return None;
            }
            None => self.parked().clone(),
        };
        let requests = Some(self.requests.engine().save(self.requests.now()))
            .filter(|requests| !requests.is_empty());
        if saved.is_none() && requests.is_none() {
            return None;
        }
        let saved = saved.unwrap_or_else(|| Saved {
            at: Some(Moment::now()),
            ..Saved::default()
        });
        Some(Saved { requests, ..saved })
    }

    pub(crate) fn lists(&self) -> &BanLists {
        &self.lists
    }

    pub(crate) fn crowdsec(&self) -> &Bouncer {
        &self.crowdsec
    }

    pub(crate) const fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    pub(crate) fn rollout(&self) -> &Rollout {
        &self.rollout
    }

    pub(crate) const fn tracer(&self) -> &Tracer {
        &self.tracer
    }

    pub(crate) fn events(&self) -> &EventLog {
        &self.events
    }

    /// Shares another config's limits and bans. Returns a note for the operator.
    pub(crate) fn replace_cluster(&self, config: &Config) -> Option<String> {
        let result = self.fleet.share_limits(config, &self.requests.current());
        let result = result.and_then(|()| self.fleet.share_bans(config));
        result.err().map(|error| {
            format!(
                "joining the cluster failed: {error}; neither limits with cluster nor bans are shared with other hosts"
            )
        })
    }

    /// Refuses all waiting requests before the agent stops.
    pub fn close_lines(&self) {
        self.requests.close();
    }

    pub(crate) fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    pub(crate) fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// The layout of the table of sources.
    pub(crate) fn layout(&self) -> Layout {
        self.packets
            .load_full()
            .map(|packets| packets.lock().ingress.image().layout.clone())
            .unwrap_or_default()
    }

    /// Replaces the limits on packets, all or none. Returns notes for the operator.
    pub(crate) fn replace_packets(
        &self,
        config: &Arc<Config>,
        plan: Plan,
        purpose: Purpose,
    ) -> Result<Vec<String>, String> {
        let shares = self.fleet.shares(config);
        match (self.packets.load_full(), holds_packets(config)) {
            (Some(packets), true) => {
                packets.expect_shares(&shares);
                packets
                    .replace(Arc::clone(config), plan, purpose)
                    .map_err(|error| error.to_string())
            }
            (None, true) => {
                let pins =
                    PinDirectory::open(&config.agent.pins).map_err(|error| error.to_string())?;
                let restore = self.parked().clone().map(Restore::of_this_boot);
                let packets =
                    PacketEngine::start(Arc::clone(config), plan, pins, restore.as_ref(), shares)
                        .map_err(|error| error.to_string())?;
                if let Some(restore) = &restore {
                    packets.take_up_escalations(restore);
                }
                packets.record_bans_in(self.state.journal());
                let notes = packets.notes();
                self.packets.store(Some(Arc::new(packets)));
                *self.parked() = None;
                Ok(notes)
            }
            (Some(packets), false) => {
                let saved = packets
                    .snapshot_without_table()
                    .map_err(|error| error.to_string())?;
                let detached = packets.lock().ingress.detach();
                detached.map_err(|error| error.to_string())?;
                *self.parked() = Some(saved);
                self.packets.store(None);
                Ok(vec![
                    "the config has no limits on packets: their programs are detached".to_owned(),
                ])
            }
            (None, false) => Ok(Vec::new()),
        }
    }

    /// Attaches to new interfaces, releases removed ones, and reports it. `is_changed`: an interface or address may
    /// have changed since the last call. Returns whether no second attempt is needed.
    pub(crate) fn follow_host(&self, is_changed: bool) -> bool {
        // Not while another config is put in effect.
        let Ok(_one) = self.changing.lock() else {
            return true;
        };
        if is_changed {
            self.lists.check_own_network();
        }
        let Some(packets) = self.packets.load_full() else {
            return true;
        };
        let turns = match packets.follow_host(is_changed) {
            Ok(turns) => turns,
            Err(error) => {
                tracing::error!("following this host's interfaces failed: {error}");
                return false;
            }
        };
        for turn in turns {
            let verdict = if turn.is_attached {
                EventKind::Attached
            } else {
                EventKind::Detached
            };
            match verdict {
                EventKind::Attached => {
                    tracing::info!(
                        interface = turn.interface,
                        "{} attached: {}",
                        turn.interface,
                        turn.reason
                    );
                }
                _ => tracing::warn!(
                    interface = turn.interface,
                    "{} detached: {}",
                    turn.interface,
                    turn.reason
                ),
            }
            let source = Some(format!("interface {}", turn.interface));
            self.events.push(Event {
                source,
                ..Event::now(verdict, 1, turn.reason)
            });
        }
        true
    }
}

/// Whether a config has limits on packets, or nothing else.
#[must_use]
pub fn holds_packets(config: &Config) -> bool {
    let has_others =
        !config.groups.is_empty() || !config.decide.limits.is_empty() || config.fleet.is_some();
    // Also if none of the interfaces exists yet.
    !config.agent.interfaces.is_empty() || !has_others
}
