//! The engine of limits on packets.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use api::request::CountersReset;
use arc_swap::ArcSwapOption;
use cluster::Usage;
use common::ban::Ban;
use common::capture::CaptureSettings;
use common::counters::Traffic;
use common::settings::Runtime;
use common::stream::StreamSettings;
use common::trace::TracedSources;
use config::policy::{ClusterMode, Config, Limit, OnExit, Unit};
use config::{PrefixKey, prefix};
use datapath::compile::Plan;
use datapath::translations::{self, Translations, Unknown};
use datapath::{
    AttachError, AttachMode, CaptureRings, Datapath, EventRing, FairHandle, ListMap, LoadError,
    PinDirectory, PinLock, RecordMaps, SavedTable, StreamRings, Turn,
};

use super::change::{Change, Purpose, wait_for_packets};
use super::in_effect::InEffect;
use super::proving::Proving;
use crate::daemon::state::{BanJournal, MOST_TABLE_WORDS, Moment, Restore, Saved, SavedBan};
use crate::stats::{self, CountedDocument, Extent, Live, View, ViewQuery, monotonic_nanoseconds};

/// The packet engine; empty while the config has no limits on packets: then the kernel's packet path is not needed.
pub type Packets = Arc<ArcSwapOption<PacketEngine>>;

/// The interval at which expired bans are removed and the host's load is sampled.
pub const PERIOD: Duration = Duration::from_millis(500);

/// With more bans than this, their counts of refused packets do not survive a reboot.
const MOST_BANS_WITH_COUNTS: usize = 50_000;

/// A config, and its fair limits in effect.
pub type FairPolicy = (Arc<Config>, Vec<FairHandle>);

/// The limits on packets in effect.
pub struct PacketEngine {
    pins: PinDirectory,
    /// Locks the pins.
    _lock: PinLock,
    in_effect: Mutex<InEffect>,
    /// Locked by one client at a time before [`PacketEngine::in_effect`], so that the agent's own work competes with
    /// only one of many clients.
    clients: Mutex<()>,
    /// The last live view.
    live: Mutex<Live>,
    /// Replacements of the policy so far.
    changes: AtomicU64,
}

/// The packets of a limit: all that it evaluated, and those that it refused, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evaluated {
    pub all: u64,
    pub refused: u64,
}

impl PacketEngine {
    /// Puts a policy in effect on these interfaces, with the state saved before a reboot, and each shared limit with
    /// this host's share.
    ///
    /// # Errors
    ///
    /// When the kernel refuses to load or attach it; then the previous state is unchanged.
    pub fn start(
        config: Arc<Config>,
        plan: Plan,
        pins: PinDirectory,
        restore: Option<&Restore>,
        shares: HashMap<String, cluster::EffectiveShare>,
    ) -> Result<Self, AttachError> {
        let lock = pins.lock()?;
        let in_effect = InEffect::put(config, plan, &pins, restore, shares)?;
        Ok(Self {
            pins,
            _lock: lock,
            in_effect: Mutex::new(in_effect),
            clients: Mutex::default(),
            live: Mutex::default(),
            changes: AtomicU64::new(0),
        })
    }

    /// Replaces the policy in effect. Returns notes for the operator.
    ///
    /// # Errors
    ///
    /// When the kernel refuses to load or attach it; then the previous policy stays in effect.
    pub fn replace(
        &self,
        config: Arc<Config>,
        plan: Plan,
        purpose: Purpose,
    ) -> Result<Vec<String>, AttachError> {
        let replaced = self.put(config, plan, purpose);
        self.changes.fetch_add(1, Ordering::Release);
        replaced
    }

    fn put(
        &self,
        config: Arc<Config>,
        plan: Plan,
        purpose: Purpose,
    ) -> Result<Vec<String>, AttachError> {
        {
            let mut in_effect = self.lock();
            if in_effect.can_switch_to(&config, &plan) {
                return Ok(in_effect.switch_to(config, plan)?);
            }
        }
        // Other requests are served while it is loaded and verified.
        let change = match Change::load(&config, plan, &self.pins, None, purpose.lasting()) {
            Ok(change) => change,
            Err(error) => {
                self.lock().remove_unused_pins();
                return Err(error);
            }
        };
        self.lock().replace(change, config, &self.pins, purpose)
    }

    /// Puts ban lists in effect instead of all others; `None` is no list. Afterwards no packet uses the others.
    ///
    /// # Errors
    ///
    /// When the kernel refuses the map.
    pub fn put_lists(&self, lists: Option<&ListMap>) -> Result<(), LoadError> {
        let may_use_others = self.lock().ingress.set_lists(lists)?;
        if may_use_others {
            wait_for_packets();
        }
        Ok(())
    }

    /// Whether the kernel has ban lists, as those of an earlier agent.
    pub fn has_lists(&self) -> Result<bool, LoadError> {
        self.lock().ingress.has_lists()
    }

    /// The ingress attach mode of each interface.
    #[must_use]
    pub fn modes(&self) -> Vec<(String, AttachMode)> {
        let in_effect = self.lock();
        in_effect
            .ingress
            .attached()
            .iter()
            .map(|attached| (attached.interface.clone(), attached.mode))
            .collect()
    }

    /// The state to save for a reboot.
    ///
    /// # Errors
    ///
    /// When a map cannot be read.
    pub fn snapshot(&self) -> Result<Saved, LoadError> {
        let mut in_effect = self.lock();
        let journal = in_effect.journal.as_ref();
        let journaled = journal.map_or(0, |journal| journal.begin_save());
        let mut counted = in_effect.counted_in_all()?;
        for (name, counters) in &mut counted.limits {
            *counters = in_effect.baseline.of_limit(name, *counters);
        }
        let (sources, layout) = (
            in_effect.ingress.sources()?,
            in_effect.ingress.image().layout.clone(),
        );
        // Reading a million entries of the trie takes seconds, during which no other request would be served.
        let entries = match in_effect.bans.len() {
            0..=MOST_BANS_WITH_COUNTS => in_effect.ingress.bans()?.all()?,
            _ => Vec::new(),
        };
        let packets = entries
            .iter()
            .map(|entry| (entry.prefix, entry.ban.packets()));
        let mut bans = SavedBan::all(&in_effect.bans, &packets.collect());
        let escalations = in_effect.escalation.save(monotonic_nanoseconds());
        drop(in_effect);
        // Scanning a table takes up to a second, without the lock: the mapping stays valid over a reload.
        let at = Moment::now();
        let table = Some(SavedTable::copy(
            &sources,
            &layout,
            at.monotonic,
            MOST_TABLE_WORDS,
        ));
        bans.retain(|ban| Ban::is_in_effect(ban.held.until, at.monotonic));
        let counted = CountedDocument::from(&counted);
        Ok(Saved {
            at: Some(at),
            journaled,
            counted,
            bans,
            escalations,
            table,
            ..Saved::default()
        })
    }

    /// The state that outlives the kernel's copy, without the table of sources.
    ///
    /// # Errors
    ///
    /// When a map cannot be read.
    pub fn snapshot_without_table(&self) -> Result<Saved, LoadError> {
        Ok(Saved {
            table: None,
            ..self.snapshot()?
        })
    }

    /// Records own bans and removals in this journal from now on.
    pub fn record_bans_in(&self, journal: Option<Arc<BanJournal>>) {
        self.lock().journal = journal;
    }

    /// Notes for the operator.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        self.lock().notes()
    }

    /// The periodic work, every [`PERIOD`]. `has_room` is asked whether elastic limits may pass more than their rate.
    ///
    /// # Errors
    ///
    /// When a map cannot be written.
    pub fn tick(&self, has_room: impl FnOnce() -> bool) -> Result<(), LoadError> {
        self.live().forget_if_unwatched();
        let mut in_effect = self.lock();
        in_effect.clear_ended_bans()?;
        in_effect.set_room(has_room)?;
        in_effect.ingress.follow_connections()
    }

    /// Attaches to the config's interfaces that exist, releases removed ones, and updates the addresses for replies.
    /// Without a change it only checks for programs that others detached.
    ///
    /// # Errors
    ///
    /// When the kernel does not list the interfaces.
    pub fn follow_host(&self, is_changed: bool) -> Result<Vec<Turn>, LoadError> {
        let mut in_effect = self.lock();
        let turns = in_effect.follow_interfaces(is_changed)?;
        if is_changed && let Err(error) = in_effect.follow_addresses() {
            in_effect.unreported = turns;
            return Err(error);
        }
        Ok(turns)
    }

    /// Stops as configured: the limits stay in effect or are detached.
    ///
    /// # Errors
    ///
    /// When a pin cannot be removed.
    pub fn leave(&self) -> Result<OnExit, LoadError> {
        let mut in_effect = self.lock();
        // No process would read the logs of programs that stay.
        for ring in in_effect.datapaths().filter_map(Datapath::trace) {
            if let Err(error) = ring.trace(TracedSources::default()) {
                tracing::warn!(
                    "ending traces failed: {error}; the kernel programs go on logging traced sources"
                );
            }
        }
        // Nor would any empty the counters of recorded sources.
        let (capture, stream) = (CaptureSettings::default(), StreamSettings::default());
        let runtime = Runtime {
            record: 0,
            capture,
            stream,
            ..in_effect.runtime
        };
        if let Err(error) = in_effect.set_runtime(runtime) {
            tracing::warn!(
                "ending the recording, the capture and the stream of samples in the kernel failed: {error}"
            );
        }
        if in_effect.config.agent.on_exit == OnExit::Detach {
            in_effect.ingress.detach()?;
        }
        Ok(in_effect.config.agent.on_exit)
    }

    /// The demand for a limit, in its unit; `None` if there is no such limit, or its counters cannot be read now: this
    /// does not wait for a scan of the table of sources.
    #[must_use]
    pub fn demand(&self, name: &str) -> Option<Usage> {
        let in_effect = self.in_effect.try_lock().ok()?;
        let (nth, now) = in_effect.counters_of(name)?;
        let limit = &in_effect.config.limits[nth];
        let before = stats::of_limit(nth, limit, |at| {
            in_effect.counted.named(&stats::name_at(limit, at.level))
        });
        let units = |traffic: Traffic| match limit.unit {
            Unit::Bytes => traffic.bytes,
            _ => traffic.packets,
        };
        let refused = units(now.throttled) + units(before.throttled);
        Some(Usage {
            wanted: units(now.passed) + units(before.passed) + refused,
            refused,
        })
    }

    /// Packets that a limit has evaluated since its policy was loaded; `None` if there is no such limit.
    #[must_use]
    pub fn evaluated(&self, name: &str) -> Option<Evaluated> {
        let (_, counters) = self.lock().counters_of(name)?;
        Some(Evaluated {
            all: counters.passed.plus(counters.throttled).packets,
            refused: counters.throttled.packets,
        })
    }

    /// The limits whose sources prove their address, and the counters of proofs; `None` without any, or if the counters
    /// cannot be read.
    #[must_use]
    pub fn proving(&self) -> Option<Proving> {
        let in_effect = self.lock();
        let proving = Proving::of_config(&in_effect.config)?;
        let (.., proofs) = in_effect.reader().totals(Extent::Counters).ok()?;
        let proofs = proofs?;
        Some(Proving {
            answered: proofs.syns_answered,
            accepted: proofs.acks_accepted + proofs.acks_limited,
            passed: proofs.acks_accepted,
            ..proving
        })
    }

    /// Answers no SYN to these ports by a cookie; returns those of limits with `prove`. Others may be translated as well, which
    /// is unknown.
    ///
    /// # Errors
    ///
    /// When the kernel's map cannot be written.
    pub fn set_translated(
        &self,
        ports: &Translations,
        unknown: &Unknown,
    ) -> Result<Vec<u16>, LoadError> {
        let mut in_effect = self.lock();
        in_effect.unknown_translations.clone_from(unknown);
        in_effect.ingress.set_translated(ports)?;
        Ok(translations::unproven(&in_effect.config, ports))
    }

    /// Enforces this host's share of a limit from the next packet on.
    pub fn enforce(&self, name: &str, share: cluster::EffectiveShare) {
        let mut in_effect = self.lock();
        let Some(nth) = in_effect
            .config
            .limits
            .iter()
            .position(|limit| limit.name == name)
        else {
            return;
        };
        let direction = in_effect.config.limits[nth].direction;
        in_effect
            .datapath(direction)
            .set_share(nth, share.share, share.is_open);
        in_effect.shares.insert(name.to_owned(), share);
    }

    /// The limits with `cluster = "keys"`: name, burst, and packets a second.
    pub(crate) fn exchanged(&self) -> Vec<(String, u64, f64)> {
        let in_effect = self.lock();
        let limits = in_effect
            .config
            .limits
            .iter()
            .filter(|limit| limit.cluster == Some(ClusterMode::Keys));
        let rate = |limit: &Limit| {
            limit.rates.rate.count as f64 * 1e9 / limit.rates.rate.per_nanoseconds as f64
        };
        limits
            .map(|limit| (limit.name.clone(), limit.rates.burst, rate(limit)))
            .collect()
    }

    /// Sets the initial shares of the next policy for limits that the one in effect does not share; current shares
    /// stay.
    pub fn expect_shares(&self, shares: &HashMap<String, cluster::EffectiveShare>) {
        let mut in_effect = self.lock();
        in_effect.shares.retain(|name, _| shares.contains_key(name));
        for (name, share) in shares {
            in_effect.shares.entry(name.clone()).or_insert(*share);
        }
    }

    /// The event rings of the programs in effect.
    #[must_use]
    pub fn event_rings(&self) -> Vec<Arc<EventRing>> {
        let in_effect = self.lock();
        in_effect
            .datapaths()
            .map(|of| Arc::clone(of.events()))
            .collect()
    }

    /// Lets the kernel programs count one in `one_in` sources, a power of two, or none with 0; returns their counters.
    ///
    /// # Errors
    ///
    /// When a map cannot be written.
    pub fn record(&self, one_in: u32) -> Result<Arc<RecordMaps>, LoadError> {
        let mut in_effect = self.lock();
        let runtime = Runtime {
            record: one_in,
            ..in_effect.runtime
        };
        in_effect.set_runtime(runtime)?;
        Ok(Arc::clone(in_effect.ingress.record()))
    }

    /// Lets the kernel programs capture packets, or none with the default; returns their rings.
    ///
    /// # Errors
    ///
    /// When a map cannot be written, or there is no memory for the rings.
    pub fn capture(&self, settings: CaptureSettings) -> Result<Vec<Arc<CaptureRings>>, LoadError> {
        self.lock().capture(settings)
    }

    /// The same, unless the policy is being changed or read: then `None`.
    #[must_use]
    pub fn try_capture(
        &self,
        settings: CaptureSettings,
    ) -> Option<Result<Vec<Arc<CaptureRings>>, LoadError>> {
        match self.in_effect.try_lock() {
            Ok(mut in_effect) => Some(in_effect.capture(settings)),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner().capture(settings)),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Lets the kernel programs send the sources of sampled packets, or none with the default; returns their rings.
    ///
    /// # Errors
    ///
    /// When a map cannot be written, or there is no memory for the rings.
    pub fn stream(&self, settings: StreamSettings) -> Result<Arc<StreamRings>, LoadError> {
        self.lock().stream(settings)
    }

    /// The same, unless the policy is being changed or read: then `None`.
    #[must_use]
    pub fn try_stream(
        &self,
        settings: StreamSettings,
    ) -> Option<Result<Arc<StreamRings>, LoadError>> {
        match self.in_effect.try_lock() {
            Ok(mut in_effect) => Some(in_effect.stream(settings)),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner().stream(settings)),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Replacements of the policy so far, also those that failed.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The fair limits of the policy in effect, and its config; `None` while it is being changed or read.
    #[must_use]
    pub fn try_fair_handles(&self) -> Option<Result<FairPolicy, LoadError>> {
        let in_effect = match self.in_effect.try_lock() {
            Ok(in_effect) => in_effect,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let config = Arc::clone(&in_effect.config);
        let handles = in_effect.ingress.fair_handles(&config);
        Some(handles.map(|handles| (config, handles)))
    }

    /// Lets the kernel programs log verdicts on exactly these sources; `false` if they log none at all.
    ///
    /// # Errors
    ///
    /// When a map cannot be written.
    pub fn trace(&self, sources: TracedSources) -> Result<bool, LoadError> {
        let in_effect = self.lock();
        let rings: Vec<_> = in_effect.datapaths().filter_map(Datapath::trace).collect();
        rings.iter().try_for_each(|ring| ring.trace(sources))?;
        Ok(!rings.is_empty())
    }

    /// Sets the counters of every limit to 0.
    ///
    /// # Errors
    ///
    /// When they cannot be read, or their present values cannot be saved.
    pub fn reset_counters(&self) -> Result<CountersReset, LoadError> {
        self.for_client(|in_effect| in_effect.reset_counters(&self.pins))
    }

    /// Sources for `weir top`; other parts of the document are added elsewhere.
    ///
    /// # Errors
    ///
    /// When the query is invalid or a map cannot be read.
    pub fn view(&self, query: &ViewQuery) -> Result<View, String> {
        let within = query.within.as_deref().map(prefix::parse).transpose();
        let within = within.map_err(|wrong| wrong.to_string())?;
        let within = within.as_ref().map(PrefixKey::from);
        self.for_client(|in_effect| self.live().view(&in_effect.reader(), query, within))
            .map_err(|error| error.to_string())
    }

    /// The policy in effect for a client: one at a time, so that the agent's own work waits for at most one.
    pub(in crate::daemon) fn for_client<T>(&self, answer: impl FnOnce(&mut InEffect) -> T) -> T {
        let _turn = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        answer(&mut self.lock())
    }

    /// The policy in effect for the agent's own work.
    pub(in crate::daemon) fn lock(&self) -> MutexGuard<'_, InEffect> {
        // After a panic elsewhere, the next request completes any partial change.
        self.in_effect
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        // A panic elsewhere only affects displayed figures.
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
