//! Replaces one policy by another while packets are evaluated, all or nothing.
//!
//! All steps that can fail and can be done in advance are done first: the new programs are loaded and verified, their
//! table is created and filled. Then each hook's program is replaced atomically. Charges in the old table meanwhile are
//! added to the new one once the old programs evaluate no packets any more.

use std::collections::BTreeSet;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use common::packet::Direction;
use config::policy::Config;
use datapath::compile::{CarryPlan, Layout, Plan, plan_after};
use datapath::host_links::HostLinks;
use datapath::memory::{self, Demand, Footprint, Lasting, Room};
use datapath::translations::{self, Translations};
use datapath::{
    AttachError, Before, Carry, Datapath, Generation, Interface, LoadError, OwnAddresses,
    PinDirectory, SavedTable, Step, TablePlace,
};
use rustix::thread::{MembarrierCommand, membarrier};

use super::counts;
use crate::daemon::state::Restore;
use crate::stats::monotonic_nanoseconds;

/// The time after which all current packets have been evaluated, if the kernel cannot report it: a hundred times the
/// slowest evaluation.
const GRACE_PERIOD: Duration = Duration::from_millis(20);

/// The interfaces that may be left without limits when a policy is put in effect. They are attached when that is possible.
pub enum MayLack {
    /// At a start and in a rollback: all but one. One interface must not keep the others without limits, or on trial.
    AllButOne,
    /// In a change by an operator: those with these indices, which lack limits already.
    These(BTreeSet<u32>),
}

impl MayLack {
    fn includes(&self, device: &Interface) -> bool {
        match self {
            Self::AllButOne => true,
            Self::These(indices) => indices.contains(&device.index),
        }
    }
}

/// Why a policy is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Change(Lasting),
    Rollback,
}

impl Purpose {
    pub const fn lasting(self) -> Lasting {
        match self {
            Self::Change(lasting) => lasting,
            Self::Rollback => Lasting::Indefinite,
        }
    }
}

/// A loaded policy that is not in effect yet.
pub struct Change {
    /// For ingress.
    pub ingress: Datapath,
    /// For egress, if a limit is on egress.
    pub egress: Option<Datapath>,
    before: Option<Before>,
    place: TablePlace,
    carry: CarryPlan,
    notes: Vec<String>,
    generation: Generation,
    /// The table saved before a reboot, if no table is pinned.
    saved: Option<Restore>,
    footprint: Footprint,
}

impl Change {
    /// Loads a policy, with a table that can take over the previous one's state.
    ///
    /// # Errors
    ///
    /// When the kernel rejects it, or an interface does not exist. Nothing is left behind then.
    pub fn load(
        config: &Config,
        plan: Plan,
        pins: &PinDirectory,
        restore: Option<&Restore>,
        lasting: Lasting,
    ) -> Result<Self, AttachError> {
        let (before, unreadable) = match pins.before()? {
            Ok(before) => (Some(before), None),
            Err(why) => (None, (!why.is_empty() && pins.has_hooks()).then_some(why)),
        };
        let (saved, unknown) = with_table(restore.filter(|_| before.is_none()));
        let table = saved.as_ref().and_then(|saved| saved.saved.table.as_ref());
        let known = match (&before, table) {
            (Some(before), _) => before.layout().clone(),
            (None, Some(table)) => table.layout.layout.clone(),
            (None, None) => Layout::default(),
        };
        let plan = if plan.after == known {
            plan
        } else {
            plan_after(config, &known).map_err(LoadError::from)?
        };
        let (place, carry) = match table {
            Some(table) => (
                pins.place_after(table)?,
                known.carry_to_another_clock(&plan.ingress.layout),
            ),
            None => {
                let place = pins.place(&plan.ingress.settings, before.as_ref())?;
                let carry = if place.is_next() {
                    known.carry(&plan.ingress.layout)
                } else {
                    CarryPlan::default()
                };
                (place, carry)
            }
        };
        let footprint = memory::footprint(config, &plan);
        let copy = before
            .as_ref()
            .map(|before| memory::copy(&before.settings()));
        let is_new = place.is_next();
        let demand = if is_new {
            Demand::of_table(&footprint, copy, lasting)
        } else {
            Demand::of_rules(&footprint)
        };
        let demand = demand.with_saved(table.map_or(0, SavedTable::bytes));
        let room = Room::now();
        if let Err(error) = demand.check(&room, &plan.ingress.settings) {
            clean_up(pins, before.as_ref());
            return Err(LoadError::from(error).into());
        }
        let memory_notes = room.notes_on(demand.bytes());
        let max_sources = plan.note(config);
        let generation = counts::begin(&pins.generations())?;
        let place = place.with_counters(&generation);
        let loaded = enforcing(config)
            .map_err(AttachError::from)
            .and_then(|devices| {
                let (mut ingress, egress) = load(plan, pins, &place, &devices, config)?;
                if translations::matter(config) {
                    ingress.set_translated(&translations::by_rules().translations())?;
                }
                counts::describe(&generation, &config.limits, &ingress, egress.as_ref())?;
                Ok((ingress, egress))
            });
        if loaded.is_err() {
            let _ = generation.remove();
            clean_up(pins, before.as_ref());
        }
        let (ingress, egress) = loaded?;
        let mut notes = carry.resets.clone();
        notes.extend(max_sources);
        notes.extend(memory_notes);
        let reset = unreadable.or(unknown);
        notes.extend(reset.map(|why| format!("the state of every source is reset: {why}")));
        Ok(Self {
            ingress,
            egress,
            before,
            place,
            carry,
            notes,
            generation,
            saved,
            footprint,
        })
    }

    /// Takes over the translated ports of the policy before, which may be known from connections.
    ///
    /// # Errors
    ///
    /// When the kernel's map cannot be written.
    pub fn keep_translated(&mut self, before: &Translations) -> Result<(), LoadError> {
        let mut ports = self.ingress.translated().clone();
        translations::unite(&mut ports, before.clone());
        self.ingress.set_translated(&ports)
    }

    /// Its memory.
    pub const fn footprint(&self) -> Footprint {
        self.footprint
    }

    /// Its generation of counters.
    pub const fn generation(&self) -> &Generation {
        &self.generation
    }

    /// Puts it in effect on the config's interfaces. Returns notes for the operator.
    ///
    /// # Errors
    ///
    /// When an interface cannot be attached that must be; the caller must then call [`Change::undo`].
    pub fn put_in_effect(
        &mut self,
        config: &Config,
        pins: &PinDirectory,
        may_lack: &MayLack,
    ) -> Result<Vec<String>, AttachError> {
        let mut notes = self.notes.clone();
        for datapath in std::iter::once(&mut self.ingress)
            .chain(&mut self.egress)
            .filter(|datapath| datapath.replies())
        {
            // Without them refused packets get no replies until they can be read, which is no reason to fail.
            datapath.set_own(OwnAddresses::read().unwrap_or_default())?;
        }
        let old = self.before.as_ref().filter(|_| self.place.is_next());
        let carrying = match old {
            Some(before) => {
                let new = self.place.open(self.ingress.settings())?;
                Some(Carry::begin(
                    pins.open_table(before)?,
                    new,
                    self.carry.clone(),
                    monotonic_nanoseconds(),
                )?)
            }
            None => None,
        };
        notes.extend(self.restore_table());
        self.attach(config, may_lack)?;
        pins.commit()?;
        // From here on it is in effect, and failures must not undo it. What fails here fails again below.
        let _ = pins.release_unused();
        wait_for_packets();
        if let Some(carrying) = carrying {
            if carrying.lost() > 0 {
                let lost = carrying.lost();
                notes.push(format!("the state of {lost} sources is reset: max_sources has grown so much that their slots cannot be found"));
            }
            carrying.finish();
        }
        notes.extend(
            self.ingress.count_connections().err().map(|error| {
                format!("connections from before this change are not counted: {error}")
            }),
        );
        notes.extend(pins.finish().err().map(|error| {
            format!("the change is in effect; what is left of the policy before it was not removed: {error}; the next reload or start tries again")
        }));
        Ok(notes)
    }

    /// Restores the saved table into the new one, which no program uses yet. Returns a note about losses.
    fn restore_table(&self) -> Option<String> {
        let restore = self.saved.as_ref()?;
        let tables = restore.saved.table.as_ref()?.open().and_then(|old| {
            let new = self.place.open(self.ingress.settings())?;
            Ok((old, new))
        });
        match tables {
            Ok((old, new)) => {
                match Carry::restore(old, new, self.carry.clone(), restore.then, restore.now) {
                    0 => None,
                    lost => Some(format!(
                        "the state of {lost} sources is reset: max_sources has grown so much that their slots cannot be found"
                    )),
                }
            }
            Err(error) => Some(format!(
                "the state of every source is reset after the reboot: {error}"
            )),
        }
    }

    /// Unlocks sets of the table that an earlier agent left locked.
    ///
    /// # Errors
    ///
    /// When the table cannot be mapped.
    pub fn release_locks(&mut self, pins: &PinDirectory) -> Result<(), LoadError> {
        let Some(before) = &self.before else {
            return Ok(());
        };
        let released = pins.open_table(before)?.release_locks(wait_for_packets);
        if released > 0 {
            self.notes.push(format!(
                "an agent was killed while {released} sets of the table of sources were locked; they are unlocked"
            ));
        }
        Ok(())
    }

    /// Steps that may fail come first. Programs are replaced last, so that the old and the new policy are in effect
    /// side by side as briefly as possible.
    fn attach(&mut self, config: &Config, may_lack: &MayLack) -> Result<(), AttachError> {
        // They may have changed while the programs were loaded.
        let devices = enforcing(config)?;
        let attach = config.agent.attach;
        let mut datapaths: Vec<&mut Datapath> = std::iter::once(&mut self.ingress)
            .chain(&mut self.egress)
            .collect();
        let mut steps = Vec::new();
        for (nth, datapath) in datapaths.iter().enumerate() {
            steps.extend(
                devices
                    .iter()
                    .map(|device| (datapath.step(device, attach), nth, device)),
            );
        }
        steps.sort_by_key(|(step, ..)| *step);
        let mut failed = [None, None];
        for (step, nth, device) in steps {
            let Some(datapath) = datapaths.get_mut(nth) else {
                continue;
            };
            // One with limits keeps them.
            let is_optional = step == Step::New && may_lack.includes(device);
            match datapath.attach_in_change(device, attach) {
                Err(error) if is_optional && error.spares_other_interfaces() => {
                    datapath.attach_later(device, &error);
                    failed[nth].get_or_insert(error);
                }
                attached => attached?,
            }
        }
        if matches!(may_lack, MayLack::AllButOne) {
            for (datapath, failed) in datapaths.iter().zip(failed) {
                if datapath.attached().is_empty() {
                    failed.map_or(Ok(()), Err)?;
                }
            }
        }
        Ok(())
    }

    /// Undoes [`Change::put_in_effect`] after it failed: every hook gets its previous program.
    ///
    /// # Errors
    ///
    /// When the kernel rejects it; the next change or agent retries.
    pub fn undo(self, pins: &PinDirectory) -> Result<(), LoadError> {
        drop((self.ingress, self.egress));
        pins.roll_back()?;
        if self.before.is_none() {
            pins.clear_unless_linked();
        }
        wait_for_packets();
        Ok(())
    }
}

/// Removes the pins of a change that failed, and leaves those of the policy before it, which may be on no hook at present. The next
/// attempt removes what remains; the failure itself is reported.
fn clean_up(pins: &PinDirectory, before: Option<&Before>) {
    let _ = pins.discard_change();
    if before.is_none() {
        pins.clear_unless_linked();
    }
}

/// The saved state, if it has a table that this version can read; else why not, if it has another one.
fn with_table(restore: Option<&Restore>) -> (Option<Restore>, Option<&'static str>) {
    let table = restore.and_then(|restore| restore.saved.table.as_ref());
    match table {
        Some(table) if table.is_known() => (restore.cloned(), None),
        Some(_) => (
            None,
            Some("the table of sources in the state file is of another version"),
        ),
        None => (None, None),
    }
}

/// The interfaces that charge packets at present.
pub(super) fn enforcing(config: &Config) -> Result<Vec<Interface>, LoadError> {
    let host = HostLinks::read(config).map_err(LoadError::Interfaces)?;
    Ok(host.enforcing)
}

fn load(
    plan: Plan,
    pins: &PinDirectory,
    place: &TablePlace,
    devices: &[Interface],
    config: &Config,
) -> Result<(Datapath, Option<Datapath>), AttachError> {
    for device in devices {
        pins.check_others(device, Direction::Ingress)?;
        if plan.egress.is_some() {
            pins.check_others(device, Direction::Egress)?;
        }
    }
    let mut ingress = Datapath::load_at(plan.ingress, pins, place)?;
    let mut egress = plan
        .egress
        .map(|image| Datapath::load_at(image, pins, place))
        .transpose()?;
    let prepare = |datapath: &mut Datapath| {
        devices
            .iter()
            .try_for_each(|device| datapath.prepare_for(device, config.agent.attach))
    };
    match &mut egress {
        None => prepare(&mut ingress)?,
        // Verification is most of a start's time: both directions at once, where there are CPUs for them.
        Some(egress) => {
            let (of_ingress, of_egress) = thread::scope(|scope| {
                let verifier = scope.spawn(|| prepare(egress));
                (prepare(&mut ingress), verifier.join())
            });
            of_ingress?;
            of_egress.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
    }
    Ok((ingress, egress))
}

/// Waits until all packets that arrived before now have been evaluated.
pub(super) fn wait_for_packets() {
    // Programs run under RCU, whose grace period this barrier waits for (Linux 4.3, commit 5b25b13ab08f).
    if membarrier(MembarrierCommand::Global).is_err() {
        thread::sleep(GRACE_PERIOD);
    }
}

/// Packets that are still evaluated by the bank of the policy before.
#[derive(Debug, Default)]
pub(super) struct LastPackets(Option<JoinHandle<()>>);

impl LastPackets {
    /// All packets that have begun by now.
    pub(super) fn until_now() -> Self {
        // Without a thread there is nothing to wait with but this one.
        let waiting = thread::Builder::new()
            .name("last packets".to_owned())
            .spawn(wait_for_packets);
        Self(waiting.map_err(|_| wait_for_packets()).ok())
    }

    /// Waits until they have been evaluated.
    pub(super) fn wait(&mut self) {
        if self.0.take().is_some_and(|waiting| waiting.join().is_err()) {
            wait_for_packets();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::state::Saved;
    use common::key::SEED_WORDS;
    use common::settings::TableIdentity;
    use serde_json::json;

    #[test]
    fn a_saved_table_of_another_version_is_reported() {
        let saved_by = |version: u32| {
            let layout = json!({
                "version": version, "seed": vec![1; SEED_WORDS], "sets": 1, "slot_words": 2, "scale": [1, 0], "ring_words": 0,
                "layout": serde_json::to_value(Layout::default()).unwrap(),
            });
            let table = SavedTable {
                layout: serde_json::from_value(layout).unwrap(),
                words: Vec::new(),
            };
            Restore::of_this_boot(Saved {
                table: Some(table),
                ..Saved::default()
            })
        };
        let known = saved_by(TableIdentity::VERSION);
        let (restore, reason) = with_table(Some(&known));
        assert!(restore.is_some() && reason.is_none());
        let (restore, reason) = with_table(Some(&saved_by(TableIdentity::VERSION + 1)));
        assert!(restore.is_none() && reason.unwrap().contains("another version"));
        let without = Restore::of_this_boot(Saved::default());
        for none in [None, Some(&without)] {
            let (restore, reason) = with_table(none);
            assert!(restore.is_none() && reason.is_none());
        }
    }
}
