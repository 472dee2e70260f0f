//! Limits on cgroups that are not Weir's: set where no other program set one, recorded in a file, and restored at the
//! end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use config::group::{CpuShare, Group};
use host::read_saved;
use host::replace::{Survives, replace};
use serde::{Deserialize, Serialize};

use super::changed::{Changed, names};
use super::error::GroupsError;
use super::host_paths::Host;
use super::limit;
use super::properties;
use super::restrict;
use super::tree::Tree;
use super::units::{Properties, Units, Value};
use super::written::{Plan, Written, take_back};

/// The largest file that is read.
const LARGEST: u64 = 64 << 20;
/// The permissions of a new file.
const MODE: u32 = 0o600;

/// The settings of Weir on one cgroup or unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Set {
    Cgroup(Vec<Written>),
    /// The unit's previous properties, as earlier versions recorded them.
    Unit(Properties),
    Properties(Changed),
}

/// All limits set in place, saved in a file for the next agent.
#[derive(Debug)]
pub struct InPlace {
    path: PathBuf,
    sets: BTreeMap<String, Set>,
    /// Whether changes are collected for one save.
    is_collecting: bool,
    /// The saves of the file.
    #[cfg(test)]
    pub saves: std::cell::Cell<usize>,
}

impl InPlace {
    /// Continues with the file of an earlier agent at `path`, if it exists. One that is damaged is an error beside empty
    /// records.
    #[must_use]
    pub fn open(path: &Path) -> (Self, Option<GroupsError>) {
        let saved = read_saved(path, LARGEST, |text| serde_json::from_slice(text));
        let (mut sets, problem): (BTreeMap<String, Set>, _) = GroupsError::or_damaged(
            saved,
            "limits that an earlier agent set on cgroups and units of others stay when Weir ends",
        );
        for set in sets.values_mut() {
            if let Set::Unit(before) = set {
                *set = Set::Properties(Changed {
                    before: std::mem::take(before),
                    ..Changed::default()
                });
            }
        }
        let in_place = Self {
            path: path.to_owned(),
            sets,
            is_collecting: false,
            #[cfg(test)]
            saves: std::cell::Cell::default(),
        };
        (in_place, problem)
    }

    /// The cgroups and units with limits of Weir.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        self.sets.keys().cloned().collect()
    }

    /// Sets a group's limits on the cgroup at `path`, or again those that another program has lifted. Returns those that
    /// are not enforced there.
    pub fn set_cgroup(
        &mut self,
        tree: &Tree,
        host: &Host,
        path: &str,
        group: &Group,
    ) -> Vec<GroupsError> {
        if let Some(user) = restrict::owner_above(tree, path) {
            return vec![GroupsError::Delegated {
                path: path.to_owned(),
                user,
            }];
        }
        let mut problems = tree.enable(path, &limit::controllers(group));
        let (settings, cannot) = limit::settings(tree, host, path, group);
        problems.extend(cannot);
        let before = match self.sets.remove(path) {
            Some(Set::Cgroup(written)) => written,
            _ => Vec::new(),
        };
        let mut plan = Plan::new(path, &settings, &before);
        problems.append(&mut plan.problems);
        // Limits of an earlier config that this one does not have.
        let is_gone = |one: &&Written| !plan.has(one);
        let gone: Vec<Written> = before.iter().filter(is_gone).cloned().collect();
        let mut recorded = before;
        if !plan.is_recorded {
            // If the agent is killed in between, the record has too much rather than too little.
            recorded = plan.pending().chain(gone.iter().cloned()).collect();
            self.sets
                .insert(path.to_owned(), Set::Cgroup(recorded.clone()));
            // The save at the end reports a failure.
            let _ = self.save();
            self.sets.remove(path);
        }
        let (written, failed) = plan.write();
        problems.extend(failed);
        problems.extend(gone.iter().filter_map(|one| take_back(one).err()));
        let is_changed = written != recorded;
        if !written.is_empty() {
            self.sets.insert(path.to_owned(), Set::Cgroup(written));
        }
        if is_changed {
            problems.extend(self.save());
        }
        problems
    }

    /// Sets a group's limits on a unit; the lower of both where the unit has its own, also if it was set later. `lifted`
    /// are properties whose limits are not in effect although systemd may have them: it writes these again.
    pub fn set_unit(
        &mut self,
        units: &dyn Units,
        host: &Host,
        unit: &str,
        group: &Group,
        lifted: &BTreeSet<&str>,
    ) -> Vec<GroupsError> {
        let (ours, mut problems) = properties::properties(host, group);
        let known = match self.sets.get(unit) {
            Some(Set::Properties(changed)) => changed.clone(),
            _ => Changed::default(),
        };
        let all: BTreeSet<&str> = ours
            .keys()
            .chain(known.before.keys())
            .map(String::as_str)
            .collect();
        let now = match units.get(unit, &all.into_iter().collect::<Vec<_>>()) {
            Ok(now) => now,
            Err(problem) => {
                problems.push(problem);
                return problems;
            }
        };
        let mut before = known.without(&now);
        let both = properties::tightened(&before, &ours, units.default_tasks());
        // Where the unit's own limit is enough, Weir leaves it.
        let (enough, wanted): (Properties, Properties) =
            both.into_iter().partition(|(name, value)| {
                before
                    .get(name)
                    .is_some_and(|before| properties::is_equal(before, value))
            });
        // Limits of Weir that are no longer needed, as those of an earlier config; and own limits without effect, which
        // are set to what they are.
        let mut back = before.clone();
        back.retain(|name, _| {
            let is_gone = !wanted.contains_key(name) && known.is_ours(name, &now);
            is_gone || (enough.contains_key(name) && lifted.contains(name.as_str()))
        });
        let is_needed = |(name, value): &(&String, &Value)| {
            lifted.contains(name.as_str()) || !known.has(name, value, &now)
        };
        let to_set: Properties = wanted
            .iter()
            .filter(is_needed)
            .chain(&back)
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        before.retain(|name, _| wanted.contains_key(name) || back.contains_key(name));
        let dropped = |name: &&str| !before.contains_key(*name);
        known.forget_own(
            units,
            unit,
            names(&known.before).into_iter().filter(dropped),
        );
        if to_set.is_empty() {
            self.keep_only(unit, known, &wanted, &mut problems);
            return problems;
        }
        let files = units.runtime_files(unit, &names(&before));
        let mut changed = Changed {
            at_runtime: known.others(&files, &now),
            before,
            set: known.set.clone(),
            files: known.files.clone(),
        };
        changed.set.retain(|name, _| !to_set.contains_key(name));
        changed.files.retain(|name, _| !to_set.contains_key(name));
        // Recorded first: if the agent is killed in between, the record has too much rather than too little.
        self.sets
            .insert(unit.to_owned(), Set::Properties(changed.clone()));
        problems.extend(self.save());
        match units.set(unit, &to_set) {
            Ok(()) => {
                changed.forget(units, unit, &back);
                changed.before.retain(|name, _| wanted.contains_key(name));
                changed.files = units.runtime_files(unit, &names(&wanted));
                changed.set = units.get(unit, &names(&wanted)).unwrap_or(wanted);
                if changed.before.is_empty() {
                    self.sets.remove(unit);
                } else {
                    self.sets.insert(unit.to_owned(), Set::Properties(changed));
                }
            }
            Err(problem) => {
                problems.push(problem);
                if known.before.is_empty() {
                    self.sets.remove(unit);
                } else {
                    self.sets.insert(unit.to_owned(), Set::Properties(known));
                }
            }
        }
        problems.extend(self.save());
        problems
    }

    /// Removes properties from a unit's record that Weir does not limit any more.
    fn keep_only(
        &mut self,
        unit: &str,
        mut known: Changed,
        wanted: &Properties,
        problems: &mut Vec<GroupsError>,
    ) {
        let count = known.before.len();
        known.before.retain(|name, _| wanted.contains_key(name));
        if known.before.len() == count {
            return;
        }
        if known.before.is_empty() {
            self.sets.remove(unit);
        } else {
            self.sets.insert(unit.to_owned(), Set::Properties(known));
        }
        problems.extend(self.save());
    }

    /// Changes the CPU quota of a cgroup or unit, if its limit is only Weir's. What another program has set since is left
    /// to the next comparison.
    pub fn set_cpu_max(
        &mut self,
        tree: &Tree,
        units: Option<&dyn Units>,
        key: &str,
        share: CpuShare,
    ) -> Result<(), GroupsError> {
        const QUOTA: &str = "CPUQuotaPerSecUSec";
        // Recorded first: the next agent would take an unknown value for another program's.
        match self.sets.get_mut(key) {
            Some(Set::Properties(changed))
                if changed.before.get(QUOTA).is_some_and(properties::is_unset) =>
            {
                let Some(units) = units else { return Ok(()) };
                if !changed.is_ours(QUOTA, &units.get(key, &[QUOTA])?) {
                    return Ok(());
                }
                changed.set.remove(QUOTA);
            }
            Some(Set::Cgroup(written)) => match written.iter_mut().find(|one| one.is_quota()) {
                // As of a unit: a limit that another program has set is no promise that more is free.
                Some(one) if one.theirs.is_none() && one.is_in_file() => one.is_pending = true,
                _ => return Ok(()),
            },
            _ => return Ok(()),
        }
        self.save().map_or(Ok(()), Err)?;
        match (self.sets.get_mut(key), units) {
            (Some(Set::Properties(changed)), Some(units)) => {
                let quota =
                    Properties::from([(QUOTA.to_owned(), Value::Number(properties::quota(share)))]);
                units.set(key, &quota)?;
                changed.files.extend(units.runtime_files(key, &[QUOTA]));
                changed.set.extend(quota);
            }
            (Some(Set::Cgroup(written)), _) => {
                let result = limit::set_cpu_max(tree, key, share);
                if let Some(one) = written.iter_mut().find(|one| one.is_quota())
                    && let Ok(content) = fs::read_to_string(&one.file)
                {
                    (one.content, one.is_pending) = (content.trim().to_owned(), false);
                }
                result?;
            }
            _ => return Ok(()),
        }
        self.save().map_or(Ok(()), Err)
    }

    /// Restores the previous values of a cgroup or unit. Returns the failures.
    pub fn unset(&mut self, key: &str, units: Option<&dyn Units>) -> Vec<GroupsError> {
        let mut problems = Vec::new();
        match (self.sets.get(key).cloned(), units) {
            (Some(Set::Cgroup(written)), _) => {
                problems.extend(written.iter().filter_map(|one| take_back(one).err()));
            }
            (Some(Set::Properties(changed)), Some(units)) => {
                match changed.put_back(units, key) {
                    Err(problem) if problem.is_no_such_unit() => {
                        // A unit of this name that is installed later has none of Weir's.
                        changed.forget_own(units, key, names(&changed.before).into_iter());
                    }
                    put_back => problems.extend(put_back.err()),
                }
            }
            (Some(Set::Unit(_) | Set::Properties(_)), None) => {
                problems.push(GroupsError::Systemd {
                    what: format!("putting back the limits of {key}"),
                    reason: "it cannot be reached".to_owned(),
                });
            }
            (Some(Set::Unit(_)) | None, _) => return problems,
        }
        if problems.is_empty() {
            self.sets.remove(key);
        }
        problems.extend(self.save());
        problems
    }

    /// Removes the record of a cgroup that no longer exists.
    pub fn forget(&mut self, key: &str) {
        if matches!(self.sets.get(key), Some(Set::Cgroup(_))) {
            self.sets.remove(key);
            // The next save reports a failure.
            let _ = self.save();
        }
    }

    /// Removes the records of units that no longer exist.
    pub fn forget_units(&mut self, units: &dyn Units, gone: &[String]) {
        for unit in gone {
            if let Some(Set::Properties(changed)) = self.sets.remove(unit) {
                changed.forget_own(units, unit, names(&changed.before).into_iter());
            }
        }
        // The next save reports a failure.
        let _ = self.save();
    }

    /// Collects changes until [`Self::save_collected`].
    pub fn collect(&mut self) {
        self.is_collecting = true;
    }

    /// Saves the collected changes. Returns the failure.
    pub fn save_collected(&mut self) -> Option<GroupsError> {
        self.is_collecting = false;
        self.save()
    }

    /// Records the limits that [`Self::set_cgroup`] will set, as it does itself.
    pub fn record_cgroup(&mut self, tree: &Tree, host: &Host, path: &str, group: &Group) {
        if restrict::owner_above(tree, path).is_some() {
            return;
        }
        let (settings, _) = limit::settings(tree, host, path, group);
        let before = match self.sets.get(path) {
            Some(Set::Cgroup(written)) => written.clone(),
            _ => Vec::new(),
        };
        let plan = Plan::new(path, &settings, &before);
        if !plan.is_recorded {
            let gone = before.iter().filter(|one| !plan.has(one)).cloned();
            let recorded = plan.pending().chain(gone).collect();
            self.sets.insert(path.to_owned(), Set::Cgroup(recorded));
        }
    }

    fn save(&self) -> Option<GroupsError> {
        if self.is_collecting {
            return None;
        }
        #[cfg(test)]
        self.saves.set(self.saves.get() + 1);
        let saved = if self.sets.is_empty() {
            match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }
        } else {
            let text = serde_json::to_vec(&self.sets).map_err(io::Error::from);
            text.and_then(|text| {
                // In /run: a reboot ends the limits.
                replace(&self.path, MODE, Survives::Kill, |file| {
                    file.write_all(&text)
                })
            })
        };
        saved
            .err()
            .map(|source| GroupsError::write(&self.path, "the limits set in place", source))
    }
}
