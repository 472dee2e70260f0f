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

use super::error::GroupsError;
use super::host_paths::Host;
use super::limit::{self, Origin};
use super::plan::Merge;
use super::properties;
use super::restrict;
use super::tree::{Tree, write};
use super::units::{Properties, Units, Value};
use super::written::{Written, compare, content, take_back};

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

/// The properties of a unit that Weir set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Changed {
    /// The values before.
    before: Properties,
    /// The values that systemd reported afterwards.
    set: Properties,
    /// The properties that another program had set until the next boot: their files stay.
    #[serde(default)]
    at_runtime: BTreeSet<String>,
}

impl Changed {
    /// Whether a property still has Weir's value.
    fn is_ours(&self, name: &str, now: &Properties) -> bool {
        // Earlier versions did not record the values that they set.
        self.before.contains_key(name)
            && self.set.get(name).is_none_or(|set| {
                now.get(name)
                    .is_some_and(|now| properties::is_same(name, set, now))
            })
    }

    /// The properties as they would be without Weir.
    fn without(&self, now: &Properties) -> Properties {
        let value = |(name, now_set): (&String, &Value)| {
            let before = self.before.get(name).filter(|_| self.is_ours(name, now));
            (name.clone(), before.unwrap_or(now_set).clone())
        };
        now.iter().map(value).collect()
    }

    /// Restores the properties of a unit that no other program has set since.
    fn put_back(&self, units: &dyn Units, unit: &str) -> Result<(), GroupsError> {
        let now = units.get(unit, &names(&self.before))?;
        let mut back = self.before.clone();
        back.retain(|name, _| self.is_ours(name, &now));
        if !back.is_empty() {
            units.set(unit, &back)?;
            self.forget(units, unit, &back);
        }
        Ok(())
    }

    /// Removes the files of restored properties, except those that had one before.
    fn forget(&self, units: &dyn Units, unit: &str, back: &Properties) {
        let mut own = names(back);
        own.retain(|name| !self.at_runtime.contains(*name));
        units.forget(unit, &own);
    }
}

fn names(properties: &Properties) -> Vec<&str> {
    properties.keys().map(String::as_str).collect()
}

/// All limits set in place, saved in a file for the next agent.
#[derive(Debug)]
pub struct InPlace {
    path: PathBuf,
    sets: BTreeMap<String, Set>,
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
        };
        (in_place, problem)
    }

    /// The cgroups and units with limits of Weir.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        self.sets.keys().cloned().collect()
    }

    /// Sets a group's limits on the cgroup at `path`. Returns those that are not enforced there.
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
        let (mut planned, mut is_recorded) = (Vec::new(), true);
        for (directory, setting) in settings
            .iter()
            .filter(|(_, setting)| setting.origin == Origin::Wanted)
        {
            let file = directory.join(setting.file);
            let now = match content(&file, setting) {
                Ok(now) => now,
                Err(source) => {
                    problems.push(GroupsError::read(&file, source));
                    continue;
                }
            };
            let is_ours = before
                .iter()
                .any(|one| one.is_for(&file, setting) && (one.is_pending || one.content == now));
            match compare(setting, &now) {
                Merge::Lower if !is_ours => {}
                Merge::Higher if !is_ours => problems.push(GroupsError::SetByOthers {
                    path: path.to_owned(),
                    file: setting.file.to_owned(),
                    theirs: now,
                    ours: setting.value.clone(),
                }),
                _ => {
                    is_recorded &= is_ours && now == setting.value;
                    planned.push((file, setting, is_ours));
                }
            }
        }
        let is_planned = |one: &Written| {
            let mut planned = planned.iter();
            planned.any(|(file, setting, _)| one.is_for(file, setting))
        };
        // Limits of an earlier config that this one does not have.
        let gone: Vec<Written> = before.into_iter().filter(|one| !is_planned(one)).collect();
        let mut written: Vec<Written> = planned
            .iter()
            .map(|(file, setting, _)| Written {
                file: file.clone(),
                content: setting.value.clone(),
                default: setting.default.clone(),
                is_pending: true,
            })
            .collect();
        if !is_recorded {
            // If the agent is killed in between, the record has too much rather than too little.
            let all = written.iter().chain(&gone).cloned().collect();
            self.sets.insert(path.to_owned(), Set::Cgroup(all));
            // The save at the end reports a failure.
            let _ = self.save();
            self.sets.remove(path);
        }
        let mut planned = planned.into_iter();
        written.retain_mut(|one| {
            let Some((file, setting, is_ours)) = planned.next() else {
                return false;
            };
            let result = write(&file, &setting.value);
            // A limit that could not be changed is still Weir's, with its earlier content.
            if let Ok(content) = content(&file, setting) {
                (one.content, one.is_pending) = (content, false);
            }
            let is_there = result.is_ok() || is_ours;
            problems.extend(result.err());
            is_there
        });
        problems.extend(gone.iter().filter_map(|one| take_back(one).err()));
        if !written.is_empty() {
            self.sets.insert(path.to_owned(), Set::Cgroup(written));
        }
        problems.extend(self.save());
        problems
    }

    /// Sets a group's limits on a unit; the lower of both where the unit has its own, also if it was set later.
    pub fn set_unit(
        &mut self,
        units: &dyn Units,
        host: &Host,
        unit: &str,
        group: &Group,
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
        let mut wanted = properties::tightened(&before, &ours, units.default_tasks());
        // The unit's own limit is enough.
        wanted.retain(|name, value| {
            before
                .get(name)
                .is_none_or(|before| !properties::is_equal(before, value))
        });
        // Limits of Weir that are no longer needed, as those of an earlier config.
        let mut gone = before.clone();
        gone.retain(|name, _| !wanted.contains_key(name) && known.is_ours(name, &now));
        if wanted.is_empty() && gone.is_empty() {
            if self.sets.remove(unit).is_some() {
                problems.extend(self.save());
            }
            return problems;
        }
        before.retain(|name, _| wanted.contains_key(name) || gone.contains_key(name));
        let mut at_runtime = units.set_at_runtime(unit, &names(&before));
        at_runtime.retain(|name| !known.is_ours(name, &now) || known.at_runtime.contains(name));
        let mut changed = Changed {
            before,
            set: Properties::new(),
            at_runtime,
        };
        // Recorded first: if the agent is killed in between, the record has too much rather than too little.
        self.sets
            .insert(unit.to_owned(), Set::Properties(changed.clone()));
        problems.extend(self.save());
        let all = wanted.iter().chain(&gone);
        let all = all.map(|(name, value)| (name.clone(), value.clone()));
        match units.set(unit, &all.collect()) {
            Ok(()) => {
                changed.forget(units, unit, &gone);
                changed.before.retain(|name, _| wanted.contains_key(name));
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

    /// Changes the CPU quota of a cgroup or unit, if its limit is only Weir's.
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
                if units.is_some()
                    && changed.before.get(QUOTA).is_some_and(properties::is_unset) =>
            {
                changed.set.remove(QUOTA);
            }
            Some(Set::Cgroup(written)) => match written.iter_mut().find(|one| one.is_quota()) {
                Some(one) => one.is_pending = true,
                None => return Ok(()),
            },
            _ => return Ok(()),
        }
        self.save().map_or(Ok(()), Err)?;
        match (self.sets.get_mut(key), units) {
            (Some(Set::Properties(changed)), Some(units)) => {
                let quota =
                    Properties::from([(QUOTA.to_owned(), Value::Number(properties::quota(share)))]);
                units.set(key, &quota)?;
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
            (Some(Set::Properties(changed)), Some(units)) => match changed.put_back(units, key) {
                Err(problem) if units.get(key, &[]).is_ok() => problems.push(problem),
                // The unit no longer exists.
                _ => {}
            },
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

    fn save(&self) -> Option<GroupsError> {
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
