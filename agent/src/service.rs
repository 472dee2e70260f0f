//! What is in force, and what is asked of it while it is.

mod bans;

pub(crate) use bans::Escalated;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::ban::Ban;
use common::counters::{BYPASS_ROWS, Traffic};
use common::packet::Direction;
use common::settings::Runtime;

use crate::bans::{BanList, By, Change as BanChange};
use crate::change::Change;
use crate::cluster::{self, Usage};
use crate::compile::{Layout, Plan, PrefixKey};
use crate::config::policy::{Config, Mode, OnExit, Unit};
use crate::config::prefix;
use crate::control::{BanOrder, Handler, Request, Reset};
use crate::counts;
use crate::datapath::{
    AttachError, AttachMode, Bans, Datapath, EventRing, Generation, LoadError, OwnAddresses, PinDirectory, PinLock,
    SavedTable, Turn,
};
use crate::events::Event;
use crate::host_links;
use crate::host_load::{HostLoad, ROOM, RoomDecision};
use crate::memory::{Footprint, Lasting, MemoryStatus, Room};
use crate::stacking;
use crate::state::{MOST_TABLE_WORDS, Moment, Restore, Saved};
use crate::stats::{
    BanStatus, BansRow, Counted, CountedDocument, InterfaceState, InterfaceStatus, Live, Reader, Status, View,
    ViewQuery, monotonic_nanoseconds, seconds_until,
};

/// How often bans that have ended are cleared away and the host's load is looked at.
pub const PERIOD: Duration = Duration::from_millis(500);

/// With more bans than this, how many packets each has refused does not survive a reboot.
const MOST_BANS_WITH_COUNTS: usize = 50_000;

/// The agent at work: answers requests while a policy is in force.
pub struct Service {
    file: Option<String>,
    started: Instant,
    pins: PinDirectory,
    /// Nobody else uses the pins meanwhile.
    _lock: PinLock,
    in_force: Mutex<InForce>,
    /// What whoever watches has seen last.
    live: Mutex<Live>,
}

/// What changes while the agent runs.
struct InForce {
    config: Config,
    ingress: Datapath,
    egress: Option<Datapath>,
    /// What was noteworthy when it was put in force.
    notes: Vec<String>,
    /// Interfaces of the config that the host was last reported not to have.
    missing: Vec<String>,
    bans: BanList,
    runtime: Runtime,
    load: Option<HostLoad>,
    room: RoomDecision,
    /// What it takes in memory.
    footprint: Footprint,
    /// What policies before this one counted.
    counted: Counted,
    /// Where this one counts.
    generation: Generation,
    /// This host's shares of limits that many hosts keep together, by the limits' names.
    shares: HashMap<String, cluster::InForce>,
}

impl Service {
    /// Puts a policy in force on these interfaces, with what an earlier boot left, and each limit that many hosts keep
    /// together at this host's share of it.
    ///
    /// # Errors
    ///
    /// When the kernel refuses to load or attach it; then what was in force before is, and nothing else.
    pub fn start(
        config: Config,
        file: Option<String>,
        plan: Plan,
        pins: PinDirectory,
        interfaces: &[String],
        restore: Option<&Restore>,
        shares: HashMap<String, cluster::InForce>,
    ) -> Result<Self, AttachError> {
        let lock = pins.lock()?;
        let in_force = InForce::put(config, plan, &pins, interfaces, restore, shares)?;
        Ok(Self {
            file,
            started: Instant::now(),
            pins,
            _lock: lock,
            in_force: Mutex::new(in_force),
            live: Mutex::default(),
        })
    }

    /// Puts another policy in force in place of the one that is. Returns what of it an operator should know.
    ///
    /// # Errors
    ///
    /// When the kernel refuses to load or attach it; then the policy before is in force as it was.
    pub fn replace(
        &self,
        config: Config,
        plan: Plan,
        interfaces: &[String],
        lasting: Lasting,
    ) -> Result<Vec<String>, AttachError> {
        // Others go on being answered while it is loaded and verified.
        let change = Change::load(&config, plan, &self.pins, interfaces, None, lasting)?;
        self.lock().replace(change, config, &self.pins, interfaces)
    }

    /// What is where in the table of sources.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.lock().ingress.image().layout.clone()
    }

    /// Takes every limit on packets out of force.
    ///
    /// # Errors
    ///
    /// When a pin cannot be removed.
    pub fn detach(&self) -> Result<(), LoadError> {
        self.lock().ingress.detach()
    }

    /// How each interface is attached for what comes in.
    #[must_use]
    pub fn modes(&self) -> Vec<(String, AttachMode)> {
        let in_force = self.lock();
        in_force.ingress.attached().iter().map(|attached| (attached.interface.clone(), attached.mode)).collect()
    }

    /// What has to survive a reboot.
    ///
    /// # Errors
    ///
    /// When a map cannot be read.
    pub fn snapshot(&self) -> Result<Saved, LoadError> {
        let mut in_force = self.lock();
        let mut counted = in_force.counted.clone();
        let names: Vec<String> = in_force.config.limits.iter().map(|limit| limit.name.clone()).collect();
        for datapath in std::iter::once(&in_force.ingress).chain(&in_force.egress) {
            let catalogue: Vec<_> =
                datapath.image().catalogue.iter().map(|counted| (counted.limit, counted.span)).collect();
            counted.add(&names, BYPASS_ROWS, &catalogue, &datapath.counters()?, datapath.table_counters()?);
        }
        let (sources, layout) = (in_force.ingress.sources()?, in_force.ingress.image().layout.clone());
        // Reading a million entries of the trie takes seconds, for which nobody else is answered.
        let mut bans = match in_force.bans.len() {
            0..=MOST_BANS_WITH_COUNTS => in_force.ingress.bans()?.all()?,
            _ => in_force.bans.iter().collect(),
        };
        drop(in_force);
        // Going through a table takes up to a second, for which nobody is kept waiting: the mapping outlives a reload.
        let at = Moment::now();
        let table = Some(SavedTable::copy(&sources, &layout, at.monotonic, MOST_TABLE_WORDS));
        bans.retain(|entry| Ban::is_in_force(entry.ban.own_until, at.monotonic));
        Ok(Saved { at: Some(at), id: 0, counted: CountedDocument::from(&counted), bans, table })
    }

    /// What an operator should know.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        self.lock().notes()
    }

    /// What has to be done from time to time: every [`PERIOD`].
    ///
    /// # Errors
    ///
    /// When a map cannot be written.
    pub fn tick(&self) -> Result<(), LoadError> {
        self.live().forget_if_unwatched();
        let mut in_force = self.lock();
        in_force.clear_ended_bans()?;
        in_force.follow_addresses()?;
        in_force.follow_the_host()
    }

    /// Attaches to what the host has of the config's interfaces, and releases what it has no more. Without a change only
    /// what was taken off by others is looked for.
    ///
    /// # Errors
    ///
    /// When the kernel does not tell which interfaces there are.
    pub fn follow_host(&self, is_changed: bool) -> Result<Vec<Turn>, LoadError> {
        self.lock().follow_interfaces(is_changed)
    }

    /// Leaves, as the config has it: with the limits in force or without.
    ///
    /// # Errors
    ///
    /// When something cannot be taken out of the kernel.
    pub fn leave(&self) -> Result<OnExit, LoadError> {
        let in_force = self.lock();
        if in_force.config.agent.on_exit == OnExit::Detach {
            in_force.ingress.detach()?;
        }
        Ok(in_force.config.agent.on_exit)
    }

    /// What has been asked of a limit, in its unit; `None` if there is no such limit, or its counters cannot be read now:
    /// somebody who looks at the whole table of sources is not waited for.
    #[must_use]
    pub fn asked(&self, name: &str) -> Option<Usage> {
        let mut in_force = self.in_force.try_lock().ok()?;
        let nth = in_force.config.limits.iter().position(|limit| limit.name == name)?;
        let (direction, unit) = (in_force.config.limits[nth].direction, in_force.config.limits[nth].unit);
        let (asked, refused) = in_force.datapath(direction).asked(nth).ok()?;
        let before = in_force.counted.limits.get(name).copied().unwrap_or_default();
        let units = |traffic: Traffic| if unit == Unit::Bytes { traffic.bytes } else { traffic.packets };
        let before = (units(before.passed) + units(before.throttled), units(before.throttled));
        Some(Usage { wanted: units(asked) + before.0, refused: units(refused) + before.1 })
    }

    /// Holds a limit to this host's share of it, from the next packet on.
    pub fn hold(&self, name: &str, share: cluster::InForce) {
        let mut in_force = self.lock();
        let Some(nth) = in_force.config.limits.iter().position(|limit| limit.name == name) else { return };
        let direction = in_force.config.limits[nth].direction;
        in_force.datapath(direction).set_share(nth, share.share, share.is_open);
        in_force.shares.insert(name.to_owned(), share);
    }

    /// Has the next policy begin with these shares of limits that the one in force does not share; those that it shares go
    /// on as they are.
    pub fn expect_shares(&self, shares: &HashMap<String, cluster::InForce>) {
        let mut in_force = self.lock();
        in_force.shares.retain(|name, _| shares.contains_key(name));
        for (name, share) in shares {
            in_force.shares.entry(name.clone()).or_insert(*share);
        }
    }

    /// The rings that the programs in force tell their events through.
    #[must_use]
    pub fn event_rings(&self) -> Vec<Arc<EventRing>> {
        let in_force = self.lock();
        std::iter::once(&in_force.ingress).chain(&in_force.egress).map(|of| Arc::clone(of.events())).collect()
    }

    /// Takes out what those programs have told: events, and how many were lost.
    #[must_use]
    pub fn drain_events(&self) -> (Vec<Event>, u64) {
        self.reader(&self.lock()).drain_events()
    }

    fn lock(&self) -> MutexGuard<'_, InForce> {
        // A panic elsewhere left no half-done change that the next request does not put right.
        self.in_force.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reader<'a>(&'a self, in_force: &'a InForce) -> Reader<'a> {
        let datapaths = (&in_force.ingress, in_force.egress.as_ref());
        Reader::new(&in_force.config, datapaths, &in_force.bans, &in_force.counted)
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        // A panic elsewhere left figures for people to look at, no more.
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is said of sources; the rest of the document is of more than packets.
    fn view(&self, in_force: &InForce, query: &ViewQuery) -> Result<View, String> {
        let within = query.within.as_deref().map(prefix::parse).transpose();
        let within = within.map_err(|wrong| format!("{}: {}", wrong.message, wrong.help))?;
        let within = within.as_ref().map(PrefixKey::from);
        self.live().view(&self.reader(in_force), query, within).map_err(|error| error.to_string())
    }

    fn status(&self, in_force: &InForce) -> Result<Status, LoadError> {
        let (totals, sources, bypass) = self.reader(in_force).totals()?;
        let interfaces = in_force.interfaces()?;
        Ok(Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mode: in_force.config.agent.mode.to_string(),
            uptime_seconds: self.started.elapsed().as_secs(),
            config: self.file.clone(),
            interfaces,
            totals,
            sources,
            bypass,
            bans: in_force.bans.len() as u64,
            groups: Vec::new(),
            has_room: in_force.is_elastic().then_some(in_force.runtime.room_until > monotonic_nanoseconds()),
            memory: Some(MemoryStatus { in_effect: in_force.footprint, limit: Room::now().tightest().cloned() }),
            notes: in_force.notes(),
            ..Status::default()
        })
    }
}

impl InForce {
    fn put(
        config: Config,
        plan: Plan,
        pins: &PinDirectory,
        interfaces: &[String],
        restore: Option<&Restore>,
        shares: HashMap<String, cluster::InForce>,
    ) -> Result<Self, AttachError> {
        let mut change = Change::load(&config, plan, pins, interfaces, restore, Lasting::Indefinite)?;
        // What an agent of this boot has taken up already, one that was killed as it started, is in effect.
        let restore = restore.filter(|restore| !counts::is_restored(&pins.generations(), restore.saved.id));
        let mut restored = Vec::new();
        let mut put = |change: &mut Change| {
            change.release_locks(pins)?;
            let entries = change.ingress.bans()?.all()?;
            let mut bans = BanList::resume(entries.into_iter().map(|entry| (entry.prefix, entry.ban.own_until)));
            if let Some(restore) = restore {
                let lost = restore_bans(&mut change.ingress.bans()?, &mut bans, restore);
                restored.extend(lost.map(|error| format!("bans of before the reboot are not all in effect: {error}")));
                let result = counts::restore(&pins.generations(), restore.saved.id, &restore.saved.counted);
                restored.extend(result.err().map(|error| format!("counters of before the reboot are lost: {error}")));
            }
            let runtime = Runtime { bans: bans.len() as u32, ..Runtime::default() };
            change.ingress.set_runtime(runtime)?;
            set_shares(change, &config, &shares);
            Ok((change.put_in_force(&config, pins, interfaces)?, bans, runtime))
        };
        let (mut notes, bans, runtime) = match put(&mut change) {
            Ok(put) => put,
            Err(error) => {
                undo(change, pins);
                return Err(error);
            }
        };
        let (generation, footprint) = (change.generation().clone(), change.footprint());
        notes.extend(restored);
        let counted = fold(pins, &generation, &mut notes).unwrap_or_default();
        Ok(Self {
            config,
            ingress: change.ingress,
            egress: change.egress,
            notes,
            missing: Vec::new(),
            bans,
            runtime,
            footprint,
            load: HostLoad::new().ok(),
            room: RoomDecision::default(),
            counted,
            generation,
            shares,
        })
    }

    /// Puts a policy that is loaded in place of this one.
    fn replace(
        &mut self,
        mut change: Change,
        config: Config,
        pins: &PinDirectory,
        interfaces: &[String],
    ) -> Result<Vec<String>, AttachError> {
        let put = |change: &mut Change| {
            for datapath in std::iter::once(&mut change.ingress).chain(&mut change.egress) {
                datapath.set_runtime(self.runtime)?;
            }
            set_shares(change, &config, &self.shares);
            change.put_in_force(&config, pins, interfaces)
        };
        let notes = match put(&mut change) {
            Ok(notes) => notes,
            Err(error) => {
                undo(change, pins);
                std::iter::once(&mut self.ingress).chain(&mut self.egress).for_each(Datapath::reopen);
                // What it counted for a moment counts on.
                self.counted = fold(pins, &self.generation, &mut Vec::new()).unwrap_or_else(|| self.counted.clone());
                return Err(error);
            }
        };
        // The policy is in force: what people look at is second to that, and told of if it fails.
        let generation = change.generation().clone();
        self.footprint = change.footprint();
        let Change { mut ingress, egress, .. } = change;
        let mut noted = notes.clone();
        self.counted = fold(pins, &generation, &mut noted).unwrap_or_else(|| self.counted.clone());
        self.generation = generation;
        if let Err(error) = self.take_up_samples(&mut ingress, &config) {
            noted.push(format!("statistics of sources under the policy before could not be read: {error}"));
        }
        self.shares.retain(|name, _| config.limits.iter().any(|limit| limit.cluster && limit.name == *name));
        (self.ingress, self.egress) = (ingress, egress);
        if config.agent.mode == Mode::Observe && self.bans.automatic() > 0 {
            let count = self.bans.automatic();
            noted.push(format!("{count} bans that limits made stay in effect in observe mode: agent unban lifts them"));
        }
        (self.config, self.notes) = (config, notes);
        noted.extend(self.interface_notes());
        Ok(noted)
    }

    /// Hands on what is remembered of sources.
    fn take_up_samples(&self, next: &mut Datapath, config: &Config) -> Result<(), LoadError> {
        let old = self.ingress.image();
        let new_rows: HashMap<&str, u32> = (BYPASS_ROWS..)
            .zip(&next.image().catalogue)
            .filter_map(|(row, counted)| Some((config.limits.get(counted.limit)?.name.as_str(), row)))
            .collect();
        let row_of = |row: u32| {
            let counted = old.catalogue.get(row.checked_sub(BYPASS_ROWS)? as usize)?;
            new_rows.get(self.config.limits.get(counted.limit)?.name.as_str()).copied()
        };
        let is_as_before = old.catalogue == next.image().catalogue && old.layout == next.image().layout;
        if !is_as_before {
            let rows: HashMap<u32, Option<u32>> =
                (BYPASS_ROWS..BYPASS_ROWS + old.catalogue.len() as u32).map(|row| (row, row_of(row))).collect();
            let sightings = self.ingress.sightings()?;
            next.take_up_sightings(&sightings, |row| rows.get(&row).copied().flatten())?;
        }
        Ok(())
    }

    /// What holds packets of one direction.
    fn datapath(&mut self, direction: Direction) -> &mut Datapath {
        match (direction, &mut self.egress) {
            (Direction::Egress, Some(egress)) => egress,
            _ => &mut self.ingress,
        }
    }

    fn notes(&self) -> Vec<String> {
        let queueing = self.egress.iter().flat_map(Datapath::queueing_notes);
        let stacked = stacking::gaps(&self.config);
        self.notes.iter().cloned().chain(self.interface_notes()).chain(queueing).chain(stacked).collect()
    }

    fn datapaths(&self) -> impl Iterator<Item = &Datapath> {
        std::iter::once(&self.ingress).chain(&self.egress)
    }

    fn interface_notes(&self) -> Vec<String> {
        let missing = host_links::missing_notes(&self.config);
        missing.into_iter().chain(self.datapaths().flat_map(Datapath::interface_notes)).collect()
    }

    /// Each interface of the config, as the kernel says now.
    fn interfaces(&self) -> Result<Vec<InterfaceStatus>, LoadError> {
        let names = host_links::interfaces(&self.config).map_err(LoadError::Interfaces)?;
        let devices = host_links::present(&names).map_err(LoadError::Interfaces)?;
        let missing = host_links::missing(&self.config).map_err(LoadError::Interfaces)?;
        let plain =
            |name, attach, state| InterfaceStatus { name, attach, state, enforced_by: Vec::new(), reason: None };
        let mut interfaces: Vec<_> = devices
            .into_iter()
            .map(|device| {
                let (attach, state) = self.state_of(device.index);
                plain(device.name, attach, state)
            })
            .collect();
        for covered in stacking::placements(&self.config).map_err(LoadError::Interfaces)? {
            if covered.enforces() {
                continue;
            }
            let is_attached =
                |name: &String| interfaces.iter().any(|on| on.name == *name && on.state == InterfaceState::Attached);
            let is_enforced = covered.enforced_by.iter().all(is_attached);
            let state = if is_enforced { InterfaceState::Attached } else { InterfaceState::Detached };
            let (enforced_by, reason) = (covered.enforced_by, covered.reason);
            interfaces.push(InterfaceStatus { enforced_by, reason, ..plain(covered.interface, None, state) });
        }
        interfaces.extend(missing.into_iter().map(|name| plain(name, None, InterfaceState::Missing)));
        Ok(interfaces)
    }

    fn state_of(&self, index: u32) -> (Option<AttachMode>, InterfaceState) {
        let on_it: Vec<_> = self.datapaths().map(|datapath| datapath.in_force_on(index)).collect();
        let attach = on_it.iter().flatten().next().map(|attached| attached.mode);
        let trouble = self.datapaths().find_map(|datapath| datapath.trouble_on(index));
        let state = match trouble {
            _ if on_it.iter().all(Option::is_some) => InterfaceState::Attached,
            Some(trouble) if trouble.is_down() => InterfaceState::Down,
            Some(_) => InterfaceState::Failed,
            None => InterfaceState::Detached,
        };
        (attach, state)
    }

    fn follow_interfaces(&mut self, is_changed: bool) -> Result<Vec<Turn>, LoadError> {
        if !is_changed && !self.datapaths().any(Datapath::needs_a_look) {
            return Ok(Vec::new());
        }
        let names = host_links::interfaces(&self.config).map_err(LoadError::Interfaces)?;
        let devices = host_links::present(&names).map_err(LoadError::Interfaces)?;
        let missing = host_links::missing(&self.config).map_err(LoadError::Interfaces)?;
        let mut turns: Vec<Turn> = Vec::new();
        for datapath in std::iter::once(&mut self.ingress).chain(&mut self.egress) {
            for turn in datapath.follow(&devices, self.config.agent.attach) {
                // Both directions have the same to report, as a rule.
                if !turns
                    .iter()
                    .any(|known| (&known.interface, known.is_attached) == (&turn.interface, turn.is_attached))
                {
                    turns.push(turn);
                }
            }
        }
        for name in missing.iter().filter(|name| !self.missing.contains(name)) {
            if !turns.iter().any(|turn| turn.interface == *name) {
                let reason = "this host has no such interface; it will be attached when it appears".to_owned();
                turns.push(Turn { interface: name.clone(), is_attached: false, reason });
            }
        }
        self.missing = missing;
        Ok(turns)
    }

    /// Has the kernel programs reply in the name of the addresses that this host has now.
    fn follow_addresses(&mut self) -> Result<(), LoadError> {
        let mut replying: Vec<&mut Datapath> =
            std::iter::once(&mut self.ingress).chain(&mut self.egress).filter(|datapath| datapath.replies()).collect();
        if replying.is_empty() {
            return Ok(());
        }
        let own = OwnAddresses::read().map_err(LoadError::Addresses)?;
        replying.iter_mut().try_for_each(|datapath| datapath.set_own(own.clone()))
    }

    fn is_elastic(&self) -> bool {
        std::iter::once(&self.ingress).chain(&self.egress).any(|datapath| datapath.settings().elastic_in_use != 0)
    }

    /// Tells the kernel what has changed, in one write for each direction.
    fn tell(&mut self, runtime: Runtime) -> Result<(), LoadError> {
        if runtime != self.runtime {
            self.ingress.set_runtime(runtime)?;
            if let Some(egress) = &mut self.egress {
                egress.set_runtime(runtime)?;
            }
            self.runtime = runtime;
        }
        Ok(())
    }

    fn follow_the_host(&mut self) -> Result<(), LoadError> {
        if !self.is_elastic() {
            return Ok(());
        }
        // A host that cannot be looked at has nothing to spare.
        let sample = self.load.as_mut().and_then(|load| load.sample().ok());
        let has_room = sample.is_some_and(|sample| self.room.decide(&sample));
        let room_until = if has_room { monotonic_nanoseconds() + ROOM.as_nanos() as u64 } else { 0 };
        self.tell(Runtime { room_until, ..self.runtime })
    }

    /// Bans prefixes; returns those whose longer bans stay.
    fn ban(&mut self, orders: &[(PrefixKey, u64)], by: By, now: u64) -> Result<Vec<BanStatus>, LoadError> {
        let mut kept = Vec::new();
        for (prefix, until) in orders {
            if let Some(held) = self.bans.kept(prefix, *until, by, now) {
                kept.push(BanStatus { cidr: prefix.to_string(), expires_in_seconds: seconds_until(held, now) });
                continue;
            }
            let before = self.bans.own_end(prefix);
            let changes = self.bans.ban(*prefix, *until);
            if let Err(error) = self.write(&changes) {
                // The list has what the kernel has, or a repetition would report a ban that is not in effect.
                match before {
                    Some(until) => drop(self.bans.ban(*prefix, until)),
                    None => drop(self.bans.unban(prefix)),
                }
                self.count_bans()?;
                return Err(error);
            }
            self.bans.note(prefix, by);
        }
        self.count_bans()?;
        Ok(kept)
    }

    /// Has the kernel program look bans up, if there are any.
    fn count_bans(&mut self) -> Result<(), LoadError> {
        self.tell(Runtime { bans: self.bans.len() as u32, ..self.runtime })
    }

    fn unban(&mut self, prefix: &PrefixKey) -> Result<bool, LoadError> {
        let before = self.bans.own_end(prefix);
        let Some(changes) = self.bans.unban(prefix) else { return Ok(false) };
        // What lies within it first, so that nothing is let through that another ban holds.
        if let Err(error) = self.write(&changes).and_then(|()| self.ingress.bans()?.lift(prefix)) {
            let _ = before.map(|until| self.bans.ban(*prefix, until));
            return Err(error);
        }
        self.count_bans()?;
        Ok(true)
    }

    fn write(&mut self, changes: &[BanChange]) -> Result<(), LoadError> {
        let mut trie = self.ingress.bans()?;
        changes.iter().try_for_each(|change| trie.write(change))
    }

    fn clear_ended_bans(&mut self) -> Result<(), LoadError> {
        for prefix in self.bans.ended(monotonic_nanoseconds()) {
            self.unban(&prefix)?;
        }
        Ok(())
    }

    fn list_bans(&mut self) -> Result<Vec<BansRow>, LoadError> {
        let now = monotonic_nanoseconds();
        let mut entries = self.ingress.bans()?.all()?;
        entries.retain(|entry| Ban::is_in_force(entry.ban.own_until, now));
        entries.sort_unstable_by_key(|entry| (entry.prefix.address, entry.prefix.length));
        let row = |(prefix, ban): (PrefixKey, Ban)| BansRow {
            ban: BanStatus { cidr: prefix.to_string(), expires_in_seconds: seconds_until(ban.own_until, now) },
            throttled_packets: ban.refused,
        };
        Ok(entries.into_iter().map(|entry| row((entry.prefix, entry.ban))).collect())
    }
}

/// Bans what was banned when the host went down and would still be. Returns why some are not.
fn restore_bans(trie: &mut Bans<'_>, bans: &mut BanList, restore: &Restore) -> Option<LoadError> {
    let mut failure = None;
    for entry in &restore.saved.bans {
        let until = match entry.ban.own_until {
            Ban::FOREVER => Ban::FOREVER,
            until if until > restore.then => restore.now.saturating_add(until - restore.then),
            _ => continue,
        };
        if bans.holds(&entry.prefix) {
            continue;
        }
        for change in bans.ban(entry.prefix, until) {
            let refused = if change.prefix == entry.prefix { Some(entry.ban.refused) } else { None };
            failure = failure.or(trie.restore(&change, refused).err());
        }
    }
    failure
}

/// Adds up what all policies but that of `generation` counted; `None` if that cannot be.
fn fold(pins: &PinDirectory, generation: &Generation, notes: &mut Vec<String>) -> Option<Counted> {
    match counts::fold(&pins.generations(), generation) {
        Ok((counted, lost)) => {
            notes.extend(lost);
            Some(counted)
        }
        Err(error) => {
            notes.push(format!("counters of earlier policies could not be added up: {error}"));
            None
        }
    }
}

/// Has a policy begin with these shares of limits that many hosts keep together. Before the first packet: it would be held
/// to the whole of the limit, on every host.
fn set_shares(change: &mut Change, config: &Config, shares: &HashMap<String, cluster::InForce>) {
    for datapath in std::iter::once(&mut change.ingress).chain(&mut change.egress) {
        for (nth, limit) in config.limits.iter().enumerate() {
            if let Some(share) = shares.get(&limit.name).filter(|_| limit.cluster) {
                datapath.set_share(nth, share.share, share.is_open);
            }
        }
    }
}

fn undo(change: Change, pins: &PinDirectory) {
    if let Err(error) = change.undo(pins) {
        eprintln!("error: {error}");
    }
}

impl Service {
    /// Carries out a ban that a limit escalates to.
    ///
    /// # Errors
    ///
    /// When the order is wrong, or a map cannot be written.
    pub(crate) fn escalate(&self, order: &BanOrder) -> Result<Escalated, String> {
        self.lock().escalate(order)
    }
}

impl Handler for Service {
    fn handle(&self, request: Request) -> Result<serde_json::Value, String> {
        let mut in_force = self.lock();
        let failed = |error: LoadError| error.to_string();
        match request {
            Request::Status => json(self.status(&in_force).map_err(failed)?),
            Request::Limits => json(self.reader(&in_force).limits().map_err(failed)?),
            Request::Top => json(self.reader(&in_force).top().map_err(failed)?),
            Request::View { query } => json(self.view(&in_force, &query)?),
            Request::Show { source } => json(self.reader(&in_force).show(source).map_err(failed)?),
            Request::Reset { source } => {
                json(Reset { forgotten: self.reader(&in_force).reset(source).map_err(failed)? })
            }
            Request::ResetLimit { limit } => {
                let forgotten = self.reader(&in_force).reset_limit(&limit).map_err(failed)?.ok_or_else(|| {
                    let names: Vec<&str> = in_force.config.limits.iter().map(|limit| limit.name.as_str()).collect();
                    format!("there is no limit {limit:?}: this agent has {}", names.join(", "))
                })?;
                json(Reset { forgotten })
            }
            Request::Ban { orders } => json(in_force.order_bans(&orders)?),
            Request::Unban { cidrs } => json(in_force.lift_bans(&cidrs)?),
            Request::UnbanAll => json(in_force.lift_all_bans()?),
            Request::Bans => json(in_force.list_bans().map_err(failed)?),
            Request::Groups | Request::Emergency { .. } => Err("groups are kept elsewhere".to_owned()),
            Request::Reload { .. } | Request::Try { .. } | Request::Compare | Request::Confirm | Request::Revert => {
                Err("configs are kept elsewhere".to_owned())
            }
            Request::Events | Request::Follow { .. } => Err("events are kept elsewhere".to_owned()),
            Request::Decide { question } => {
                Err(format!("there is no limit {:?} on requests: the config has none", question.limit))
            }
        }
    }
}

fn json(document: impl serde::Serialize) -> Result<serde_json::Value, String> {
    serde_json::to_value(document).map_err(|error| error.to_string())
}
