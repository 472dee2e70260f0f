//! Units, containers and cgroups that are limited in place.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use config::group::CpuShare;

use super::error::GroupsError;
use super::groups::Groups;
use super::place::{Kind as PlaceKind, Manager, managed_unit};
use super::target::{Kind, Target, link_tag};
use super::units::reachable;
use super::{limit, properties};

/// The shortest interval between two walks over the cgroups; also at least this multiple of a walk's duration.
const WALK: Duration = Duration::from_secs(1);
const WALK_SHARE: u32 = 400;

impl Groups {
    /// The cgroups that a group's limits are set on.
    pub(super) fn paths(&self, group: usize) -> Vec<String> {
        let own = self.members[group]
            .has_own
            .then(|| self.tree.own(&self.members[group].group.name));
        let targets = self
            .targets
            .iter()
            .filter(|(_, target)| target.group == group)
            .map(|(path, _)| path.clone());
        own.into_iter().chain(targets).collect()
    }

    /// The same, and whether their whole usage is the group's.
    pub(super) fn used_paths(&self, group: usize) -> Vec<(String, bool)> {
        let is_groups = |path: &String| self.targets.get(path).is_none_or(|target| target.is_new);
        self.paths(group)
            .into_iter()
            .map(|path| (path.clone(), is_groups(&path)))
            .collect()
    }

    /// Finds cgroups that match a group, and Weir's scopes.
    pub(super) fn walk(&mut self) {
        if !self.matchers.has_cgroups() && self.host.manager == Manager::None {
            return;
        }
        let start = Instant::now();
        for path in self.tree.paths() {
            if self.matchers.has_containers() {
                self.list_containers_for(&path);
            }
            if self.is_own(&path) {
                // Only moved processes are there.
                if let Some((_, scope)) = self.scope_of(&path).filter(|(_, scope)| *scope == path)
                    && let Some(group) = self.scope_group(scope)
                {
                    self.adopt_scope(group, &path);
                }
            } else if let Some((group, outermost)) = self.matchers.find_cgroup(&path, &self.known)
                && outermost == path
            {
                self.limit_in_place(group, &path);
            }
        }
        self.walked = Some((Instant::now(), start.elapsed()));
    }

    /// Walks again if the interval has passed.
    pub(super) fn walk_again(&mut self) {
        let is_due = |(at, took): (Instant, Duration)| at.elapsed() >= WALK.max(took * WALK_SHARE);
        if self.walked.is_some_and(is_due) {
            self.walk();
        }
    }

    /// Sets a group's limits on a cgroup that is not Weir's.
    pub(super) fn limit_in_place(&mut self, group: usize, path: &str) {
        let Some(inode) = self.inode(path) else {
            return;
        };
        if self
            .targets
            .get(path)
            .is_some_and(|target| target.group == group && target.inode == inode)
        {
            return;
        }
        self.members[group].had_processes = true;
        self.is_changed = true;
        let unit = managed_unit(path).filter(|_| self.host.manager == Manager::Systemd);
        let held = &self.members[group].held;
        let mut set = true;
        let problems = match (unit, reachable(self.units.as_deref())) {
            (Some(unit), Some(units)) => {
                self.in_place
                    .set_unit(units, &self.host, unit, held, &BTreeSet::new())
            }
            (Some(_), None) => {
                set = false;
                Vec::new()
            }
            (None, _) => self.in_place.set_cgroup(&self.tree, &self.host, path, held),
        };
        // Its owner chooses what is in it.
        let has_network = !problems
            .iter()
            .any(|problem| matches!(problem, GroupsError::Delegated { .. }));
        let network_problem = if has_network {
            let attached = self.members[group].attach_network(&self.tree, path, &link_tag(inode));
            attached.err().map(|problem| problem.to_string())
        } else {
            None
        };
        let place = self.place_of(path);
        let (kind, name) = match (&place.kind, unit) {
            (PlaceKind::Container(id), _) if place.cgroup == path => {
                let named = self
                    .known
                    .get(id)
                    .and_then(|container| container.names.first().cloned());
                (
                    Kind::Container,
                    named.unwrap_or_else(|| id.chars().take(12).collect()),
                )
            }
            (_, Some(unit)) => (Kind::Unit, unit.to_owned()),
            _ => (Kind::Cgroup, path.to_owned()),
        };
        // systemd may have been busy: it is retried.
        set &= !problems
            .iter()
            .any(|problem| matches!(problem, GroupsError::Systemd { .. }));
        let is_reachable = reachable(self.units.as_deref()).is_some();
        let mut problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        if unit.is_some() && !is_reachable {
            problems.push("systemd cannot be reached, and is tried again every second".to_owned());
        }
        let inode = if set { inode } else { 0 };
        let key = unit.unwrap_or(path).to_owned();
        let is_new = self.has_begun;
        self.targets.insert(
            path.to_owned(),
            Target {
                group,
                kind,
                name,
                key,
                inode,
                is_new,
                has_network,
                network_problem,
                problems,
            },
        );
    }

    /// Removes cgroups that no longer exist, and sets limits again on those that were created again.
    pub(super) fn check_targets(&mut self) {
        let mut is_gone = false;
        for (path, target) in self.targets.clone() {
            match self.inode(&path) {
                Some(inode) if inode == target.inode => {}
                Some(_) if target.kind == Kind::Scope => self.adopt_scope(target.group, &path),
                Some(_) if target.inode == 0 && reachable(self.units.as_deref()).is_none() => {}
                Some(_) => {
                    self.in_place.forget(&target.key);
                    self.limit_in_place(target.group, &path);
                }
                None => {
                    self.in_place.forget(&target.key);
                    if target.kind != Kind::Scope && target.is_of_systemd() {
                        self.comparisons.gone.insert(target.key, 0);
                    }
                    self.targets.remove(&path);
                    is_gone = true;
                }
            }
        }
        if is_gone {
            self.is_changed = true;
            self.keep_links();
        }
    }

    /// Removes links of cgroups that are no longer members.
    pub(super) fn keep_links(&self) {
        for (nth, member) in self.members.iter().enumerate() {
            let Some(network) = &member.network else {
                continue;
            };
            let targets = self
                .targets
                .iter()
                .filter(|(_, target)| target.group == nth && target.has_network);
            let mut tags: BTreeSet<String> = targets
                .filter_map(|(path, _)| self.inode(path).map(link_tag))
                .collect();
            if member.has_own {
                tags.insert(String::new());
            }
            network
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .keep_only(&tags);
        }
    }

    /// Restores units and cgroups that no longer match a group.
    pub(super) fn unset_others(&mut self) {
        let keys = self.in_place.keys();
        self.unset_of(keys);
    }

    /// Does so for those that could not be restored, once the service manager replies.
    pub(super) fn unset_again(&mut self) {
        if reachable(self.units.as_deref()).is_some() {
            let keys = std::mem::take(&mut self.unset_later);
            self.unset_of(keys);
        }
    }

    fn unset_of(&mut self, keys: impl IntoIterator<Item = String>) {
        let kept: BTreeSet<String> = self
            .targets
            .values()
            .map(|target| target.key.clone())
            .chain(self.idle_units.keys().cloned())
            .collect();
        for key in keys.into_iter().filter(|key| !kept.contains(key)) {
            let problems = self.in_place.unset(&key, reachable(self.units.as_deref()));
            problems.iter().for_each(|problem| self.note(problem));
            if reachable(self.units.as_deref()).is_none() {
                self.unset_later.insert(key);
            }
        }
    }

    pub(super) fn inode(&self, path: &str) -> Option<u64> {
        self.tree.inode(path)
    }

    /// Sets the CPU quota of an elastic group's cgroups.
    pub(super) fn set_cpu_max(&mut self, group: usize, share: CpuShare) {
        for path in self.paths(group) {
            self.set_cpu_max_at(group, &path, share);
        }
    }

    /// Sets the CPU quota of one of its cgroups, unless another program has set one below `max`.
    pub(super) fn set_cpu_max_at(&mut self, group: usize, path: &str, share: CpuShare) {
        // systemd rounds quotas to whole percents.
        const PERCENT: u64 = 10_000;
        let max = self.members[group].group.cpu.max.map(properties::quota);
        let quota = limit::cpu_quota(&self.tree, path);
        if max
            .zip(quota)
            .is_some_and(|(max, quota)| quota + PERCENT <= max)
        {
            return;
        }
        let set = match self.targets.get(path) {
            None => limit::set_cpu_max(&self.tree, path, share),
            Some(target) if target.kind == Kind::Scope => {
                limit::set_cpu_max(&self.tree, path, share)
            }
            Some(target) => {
                let key = target.key.clone();
                self.in_place
                    .set_cpu_max(&self.tree, self.units.as_deref(), &key, share)
            }
        };
        if let Err(problem) = set {
            self.members[group].note(&problem);
            self.is_changed = true;
        }
    }
}
