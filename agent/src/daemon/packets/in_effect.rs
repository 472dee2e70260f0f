//! The policy on packets in effect: programs, bans, counters, and their replacement.

use std::collections::HashMap;
use std::sync::Arc;

use api::request::CountersReset;
use cluster::bans::BanOutbox;
use common::capture::CaptureSettings;
use common::counters::{BYPASS_ROWS, Counters, KeyStatistics};
use common::packet::Direction;
use common::settings::{Runtime, TableIdentity};
use common::stream::StreamSettings;
use config::policy::Config;
use datapath::bans::BanList;
use datapath::compile::Plan;
use datapath::memory::{Footprint, Lasting};
use datapath::translations::{self, Unknown};
use datapath::{
    AttachError, CaptureRings, Datapath, Generation, LoadError, PinDirectory, StreamRings, Turn,
};
use host::StateDirectory;
use host::load::ROOM;

use super::change::{Change, LastPackets, MayLack, Purpose};
use super::counts;
use super::proving::Proving;
use super::refusal_counts::Escalation;
use super::saved_bans::{restore_bans, resume_bans};
use crate::daemon::state::{BanJournal, Restore};
use crate::daemon::unopened::Unopened;
use crate::stats::{self, Baseline, Counted, Reader, monotonic_nanoseconds, samples};

/// The mutable state of the packet engine.
pub(in crate::daemon) struct InEffect {
    pub(in crate::daemon) config: Arc<Config>,
    pub(in crate::daemon) ingress: Datapath,
    pub(super) egress: Option<Datapath>,
    /// Notes from when it was put in effect.
    pub(super) notes: Vec<String>,
    /// Missing interfaces of the config, as last reported.
    pub(super) missing: Vec<String>,
    /// Why ports may be translated that are not known to be.
    pub(super) unknown_translations: Unknown,
    pub(in crate::daemon) unopened: Option<Unopened>,
    /// Interfaces attached and released by replacements, until they are reported.
    pub(super) unreported: Vec<Turn>,
    pub(super) bans: BanList,
    pub(super) escalation: Escalation,
    pub(super) runtime: Runtime,
    /// Its memory.
    pub(super) footprint: Footprint,
    /// The counters of earlier policies.
    pub(super) counted: Counted,
    /// The counters at the operator's last reset.
    pub(super) baseline: Baseline,
    /// Its generation of counters.
    pub(super) generation: Generation,
    /// This host's shares of shared limits, by the limits' names.
    pub(super) shares: HashMap<String, cluster::EffectiveShare>,
    /// Packets that the policy before may still evaluate.
    pub(super) last_packets: LastPackets,
    /// Receives this host's bans and removals, if it shares them.
    pub(super) outbox: Option<Arc<BanOutbox>>,
    /// Receives own bans and removals until they are saved.
    pub(super) journal: Option<Arc<BanJournal>>,
}

/// The saved state, if the kernel no longer has it: after a reboot, or after its pins were removed by a detach.
fn due<'r>(
    restore: Option<&'r Restore>,
    pins: &PinDirectory,
) -> Result<Option<&'r Restore>, LoadError> {
    let Some(restore) = restore else {
        return Ok(None);
    };
    if restore.is_reboot {
        return Ok(Some(restore));
    }
    let (generations, id) = (pins.generations(), restore.saved.id);
    if !pins.has_state() {
        // Before anything is pinned: an agent that is killed meanwhile leaves a part of the state.
        counts::begin_restoring(&generations, id)?;
        return Ok(Some(restore));
    }
    let is_begun = counts::is_restoring(&generations, id) || counts::is_restored(&generations, id);
    Ok(Some(restore).filter(|_| is_begun))
}

impl InEffect {
    pub(super) fn put(
        config: Arc<Config>,
        plan: Plan,
        pins: &PinDirectory,
        restore: Option<&Restore>,
        shares: HashMap<String, cluster::EffectiveShare>,
    ) -> Result<Self, AttachError> {
        let saved = restore;
        let restore = due(restore, pins)?;
        let mut change = Change::load(&config, plan, pins, restore, Lasting::Indefinite)?;
        // If an agent of this boot has already restored the state, and was killed during its start, the state is in
        // effect.
        let generations = pins.generations();
        let restore =
            restore.filter(|restore| !counts::is_restored(&generations, restore.saved.id));
        let mut restored = Vec::new();
        let mut put = |change: &mut Change| {
            change.release_locks(pins)?;
            let entries = change.ingress.bans()?.all()?;
            let bans = if let Some(restore) = restore {
                let (bans, lost) = restore_bans(&mut change.ingress.bans()?, entries, restore);
                restored.extend(lost.map(|error| {
                    format!("restoring saved bans failed: {error}; some are not in effect")
                }));
                let result = counts::restore(
                    &generations,
                    restore.saved.id,
                    &restore.saved.counted,
                    &restore.present,
                );
                restored.extend(result.err().map(|error| {
                    format!("restoring saved counters failed: {error}; they start at 0")
                }));
                bans
            } else {
                let restored =
                    saved.and_then(|saved| counts::restored_at(&generations, saved.saved.id));
                resume_bans(entries, saved, restored.as_ref())
            };
            let runtime = Runtime {
                bans: bans.len() as u32,
                ..Runtime::default()
            };
            change.ingress.set_runtime(runtime)?;
            set_shares(change, &config, &shares);
            let notes = change.put_in_effect(&config, pins, &MayLack::AllButOne)?;
            Ok((notes, bans, runtime))
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
        let baseline = Baseline {
            limits: counts::cleared(&pins.generations()),
            ..Baseline::default()
        };
        let unreported = change.ingress.refusals().collect();
        let mut in_effect = Self {
            config,
            ingress: change.ingress,
            egress: change.egress,
            notes,
            missing: Vec::new(),
            unknown_translations: Unknown::default(),
            unopened: None,
            unreported,
            bans,
            escalation: Escalation::default(),
            runtime,
            footprint,
            counted,
            baseline,
            generation,
            shares,
            last_packets: LastPackets::default(),
            outbox: None,
            journal: None,
        };
        if let Err(error) = in_effect.follow_mode() {
            in_effect.notes.push(format!(
                "applying the mode to bans that limits made failed: {error}"
            ));
        }
        in_effect.begin_escalation();
        Ok(in_effect)
    }

    /// Removes what was pinned for a policy that was not put in effect.
    pub(super) fn remove_unused_pins(&self) {
        if let Err(error) = self.ingress.remove_unused_pins() {
            tracing::warn!("{error}");
        }
    }

    /// Replaces this policy by a loaded one.
    pub(super) fn replace(
        &mut self,
        mut change: Change,
        config: Arc<Config>,
        pins: &PinDirectory,
        purpose: Purpose,
    ) -> Result<Vec<String>, AttachError> {
        let may_lack = match purpose {
            Purpose::Rollback => MayLack::AllButOne,
            Purpose::Change(_) => {
                MayLack::These(self.datapaths().flat_map(Datapath::lacking).collect())
            }
        };
        let put = |change: &mut Change| {
            for datapath in std::iter::once(&mut change.ingress).chain(&mut change.egress) {
                if self.runtime.capture != CaptureSettings::default()
                    && let Err(error) = datapath.capture().open()
                {
                    tracing::warn!("{error}; it is tried again");
                }
                datapath.set_runtime(self.runtime)?;
            }
            if self.runtime.stream != StreamSettings::default()
                && let Err(error) = change.ingress.stream().open()
            {
                tracing::warn!("{error}; it is tried again");
            }
            set_shares(change, &config, &self.shares);
            change.keep_translated(self.ingress.translated())?;
            change.put_in_effect(&config, pins, &may_lack)
        };
        let notes = match put(&mut change) {
            Ok(notes) => notes,
            Err(error) => {
                undo(change, pins);
                self.remove_unused_pins();
                std::iter::once(&mut self.ingress)
                    .chain(&mut self.egress)
                    .for_each(Datapath::reopen);
                // The replaced policy's last counts are kept.
                self.counted = fold(pins, &self.generation, &mut Vec::new())
                    .unwrap_or_else(|| self.counted.clone());
                return Err(error);
            }
        };
        // The policy is in effect: a failure that only affects displayed figures is reported, not fatal.
        let generation = change.generation().clone();
        self.footprint = change.footprint();
        let Change {
            mut ingress,
            egress,
            ..
        } = change;
        let mut noted = notes.clone();
        self.counted = fold(pins, &generation, &mut noted).unwrap_or_else(|| self.counted.clone());
        self.generation = generation;
        // With another policy's keys, fewer than 64 packets of each count again.
        self.baseline.keys.clear();
        if let Err(error) = self.take_up_samples(&mut ingress, &config) {
            noted.push(format!(
                "reading statistics of sources of the previous policy failed: {error}"
            ));
        }
        self.end_escalation();
        self.unreported.extend(ingress.turns_since(&self.ingress));
        (self.ingress, self.egress) = (ingress, egress);
        self.last_packets = LastPackets::default();
        Ok(self.go_on_with(config, notes, noted))
    }

    /// Goes on with a config whose policy is in effect. Returns the notes for the operator: those of its change, and those
    /// of the present state.
    pub(super) fn go_on_with(
        &mut self,
        config: Arc<Config>,
        notes: Vec<String>,
        mut noted: Vec<String>,
    ) -> Vec<String> {
        self.shares.retain(|name, _| {
            config
                .limits
                .iter()
                .any(|limit| limit.cluster.is_some() && limit.name == *name)
        });
        let mode = self.config.agent.mode;
        (self.config, self.notes) = (config, notes);
        let followed = self.follow_mode();
        noted.extend(
            followed
                .err()
                .map(|error| format!("applying the mode to bans that limits made failed: {error}")),
        );
        noted.extend(self.suspension_note());
        noted.extend(self.interface_notes());
        self.follow_escalation(mode);
        noted
    }

    /// Copies the samples of sources if the next policy has other maps.
    pub(super) fn take_up_samples(
        &self,
        next: &mut Datapath,
        config: &Config,
    ) -> Result<(), LoadError> {
        if TableIdentity::of(self.ingress.settings()).fits(next.settings()) {
            return Ok(());
        }
        let (old, new) = (&self.ingress.image().groups, &next.image().groups);
        let moved = samples::moved(
            &self.ingress.samples_with_rest(self.egress.as_ref())?,
            &self.ingress.sources()?,
            (old, &|limit| {
                self.config
                    .limits
                    .get(limit)
                    .map(|limit| limit.name.as_str())
            }),
            (new, &|limit| {
                config.limits.get(limit).map(|limit| limit.name.as_str())
            }),
        );
        next.take_over_samples(&moved)
    }

    pub(in crate::daemon) fn reader(&self) -> Reader<'_> {
        let datapaths = (&self.ingress, self.egress.as_ref());
        Reader::new(
            &self.config,
            datapaths,
            &self.bans,
            &self.counted,
            &self.baseline,
        )
    }

    /// The datapath of one direction.
    pub(super) fn datapath(&mut self, direction: Direction) -> &mut Datapath {
        match (direction, &mut self.egress) {
            (Direction::Egress, Some(egress)) => egress,
            _ => &mut self.ingress,
        }
    }

    pub(super) fn notes(&self) -> Vec<String> {
        let queueing = self.egress.iter().flat_map(Datapath::queueing_notes);
        let directory = StateDirectory::at(&self.config.agent.state_dir);
        let proving = Proving::of_config(&self.config).and_then(|proving| proving.note(&directory));
        let own = self
            .notes
            .iter()
            .cloned()
            .chain(self.interface_notes())
            .chain(queueing);
        own.chain(self.suspension_note())
            .chain(self.uncounted_note())
            .chain(proving)
            .chain(self.unopened.as_ref().map(ToString::to_string))
            .chain(translations::notes(
                &self.config,
                self.ingress.translated(),
                &self.unknown_translations,
            ))
            .chain(self.ingress.reset_note())
            .collect()
    }

    /// A note about connections that found no room in the kernel's map.
    fn uncounted_note(&self) -> Option<String> {
        let uncounted = self
            .ingress
            .connections()?
            .uncounted()
            .ok()
            .filter(|uncounted| *uncounted > 0)?;
        Some(format!(
            "{uncounted} connections were not counted: the kernel's map of open connections was full"
        ))
    }

    pub(super) fn datapaths(&self) -> impl Iterator<Item = &Datapath> {
        std::iter::once(&self.ingress).chain(&self.egress)
    }

    pub(super) fn is_elastic(&self) -> bool {
        self.datapaths()
            .any(|datapath| datapath.settings().elastic_in_use != 0)
    }

    /// Writes changed settings to the kernel, once for each direction.
    pub(super) fn set_runtime(&mut self, runtime: Runtime) -> Result<(), LoadError> {
        if runtime != self.runtime {
            self.ingress.set_runtime(runtime)?;
            if let Some(egress) = &mut self.egress {
                egress.set_runtime(runtime)?;
            }
            self.runtime = runtime;
        }
        Ok(())
    }

    /// Lets the kernel programs capture packets, or none with the default; returns their rings.
    pub(super) fn capture(
        &mut self,
        settings: CaptureSettings,
    ) -> Result<Vec<Arc<CaptureRings>>, LoadError> {
        let rings: Vec<_> = self
            .datapaths()
            .map(|datapath| Arc::clone(datapath.capture()))
            .collect();
        if settings != CaptureSettings::default()
            && let Err(error) = rings.iter().try_for_each(|rings| rings.open())
        {
            rings.iter().for_each(|rings| rings.close());
            return Err(error);
        }
        self.set_runtime(Runtime {
            capture: settings,
            ..self.runtime
        })?;
        Ok(rings)
    }

    /// Lets the kernel programs send the sources of sampled packets, or none with the default; returns their rings.
    pub(super) fn stream(
        &mut self,
        settings: StreamSettings,
    ) -> Result<Arc<StreamRings>, LoadError> {
        let rings = Arc::clone(self.ingress.stream());
        if settings != StreamSettings::default()
            && let Err(error) = rings.open()
        {
            rings.close();
            return Err(error);
        }
        self.set_runtime(Runtime {
            stream: settings,
            ..self.runtime
        })?;
        Ok(rings)
    }

    /// Lets elastic limits pass more than their rate for a while, or not.
    pub(super) fn set_room(&mut self, has_room: impl FnOnce() -> bool) -> Result<(), LoadError> {
        if !self.is_elastic() {
            return Ok(());
        }
        let room_until = if has_room() {
            monotonic_nanoseconds() + ROOM.as_nanos() as u64
        } else {
            0
        };
        self.set_runtime(Runtime {
            room_until,
            ..self.runtime
        })
    }

    /// A limit's index in the config, and its counters under this policy; `None` if there is no such limit, or they cannot
    /// be read.
    pub(super) fn counters_of(&self, name: &str) -> Option<(usize, Counters)> {
        let mut limits = self.config.limits.iter();
        let nth = limits.position(|limit| limit.name == name)?;
        let datapath = self.reader().datapath_of(&self.config.limits[nth]);
        Some((nth, datapath.counters_of(nth).ok()?))
    }

    /// The counters of this policy and earlier ones.
    pub(super) fn counted_in_all(&self) -> Result<Counted, LoadError> {
        let mut counted = self.counted.clone();
        let limits = &self.config.limits;
        let names = stats::names(limits);
        for datapath in self.datapaths() {
            let catalogue = stats::rows(limits, datapath.image());
            counted.add(
                &names,
                BYPASS_ROWS,
                &catalogue,
                &datapath.counters()?,
                datapath.table_counters()?,
            );
        }
        Ok(counted)
    }

    /// Sets the counters of limits and of their sources to 0; returns the number of limits.
    pub(super) fn reset_counters(
        &mut self,
        pins: &PinDirectory,
    ) -> Result<CountersReset, LoadError> {
        let limits = self.counted_in_all()?.limits;
        counts::clear(&pins.generations(), limits.clone())?;
        let samples = self.ingress.samples_with_rest(self.egress.as_ref())?;
        let zeros: Vec<_> = samples
            .into_iter()
            .map(|(key, _)| (key, KeyStatistics::default()))
            .collect();
        self.ingress.take_over_samples(&zeros)?;
        self.baseline = Baseline {
            limits,
            ..Baseline::default()
        };
        let keys = self.reader().counted_by_key()?;
        self.baseline.keys = keys;
        Ok(CountersReset {
            limits: self.config.limits.len() as u64,
        })
    }
}

/// Adds up the counters of all policies except that of `generation`; `None` if that fails.
fn fold(pins: &PinDirectory, generation: &Generation, notes: &mut Vec<String>) -> Option<Counted> {
    match counts::fold(&pins.generations(), generation) {
        Ok((counted, lost)) => {
            notes.extend(lost);
            Some(counted)
        }
        Err(error) => {
            notes.push(format!(
                "adding up counters of earlier policies failed: {error}"
            ));
            None
        }
    }
}

/// Sets a policy's shares of shared limits before the first packet, which would otherwise be evaluated under the whole
/// limit on every host.
fn set_shares(
    change: &mut Change,
    config: &Config,
    shares: &HashMap<String, cluster::EffectiveShare>,
) {
    for datapath in std::iter::once(&mut change.ingress).chain(&mut change.egress) {
        for (nth, limit) in config.limits.iter().enumerate() {
            if let Some(share) = shares.get(&limit.name).filter(|_| limit.cluster.is_some()) {
                datapath.set_share(nth, share.share, share.is_open);
            }
        }
    }
}

fn undo(change: Change, pins: &PinDirectory) {
    if let Err(error) = change.undo(pins) {
        tracing::error!("{error}");
    }
}
