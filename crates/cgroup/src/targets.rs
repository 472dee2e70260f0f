//! Units, containers and cgroups that are limited in place, and the scopes of moved processes.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use config::group::{CpuShare, Group};
use host::backoff::Backoff;

use super::error::GroupsError;
use super::groups::Groups;
use super::host_paths::Host;
use super::place::{
    Kind as PlaceKind, Manager, Place, is_within, last, managed_unit, prefixes, unit_name,
};
use super::restrict::is_trusted;
use super::target::{Kind, Target};
use super::units::{Service, Units, reachable};
use super::{containers, limit, properties, threads};

/// The interval at which containers are listed again, because of renames: Podman's service may start for each request.
const LIST: Duration = Duration::from_secs(60);
const LIST_THREAD: &str = "groups-containers";
/// The pauses before a container that no runtime lists is requested again; at least five times what listing takes.
const UNKNOWN: Backoff = Backoff::new(Duration::from_millis(200), LIST);
/// How long a new container waits for the reply. A later reply is processed at a tick.
const REPLY: Duration = Duration::from_millis(100);
/// The interval at which the limits of units without a cgroup are compared.
const COMPARE: Duration = Duration::from_secs(30);
/// The pauses before a unit without a cgroup that could not be limited is tried again.
const FAILED: Backoff = Backoff::new(Duration::from_secs(1), COMPARE);
/// The shortest interval between two walks over the cgroups; also at least this multiple of a walk's duration.
const WALK: Duration = Duration::from_secs(1);
const WALK_SHARE: u32 = 400;

/// The name of a link in bpffs for a cgroup: names there have no dots.
fn tag(inode: u64) -> String {
    format!("-{inode}")
}

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

    /// Sets limits on units that the config names in full, before they start.
    pub(super) fn limit_named_units(&mut self) {
        let is_due = self.comparisons.units.elapsed() >= COMPARE;
        for (group, unit) in self.matchers.units() {
            // Failed ones are retried: a unit may be installed later.
            let is_set = self
                .idle_units
                .get(unit)
                .is_some_and(|(_, problems)| problems.is_empty());
            let has_cgroup = || self.targets.values().any(|target| target.key == unit);
            let failed = self.comparisons.failed.get(unit).copied();
            if is_set && (!is_due || has_cgroup())
                || failed.is_some_and(|(due, _)| Instant::now() < due)
            {
                continue;
            }
            let Some(units) = reachable(self.units.as_deref()) else {
                return;
            };
            let held = &self.members[group].held;
            let problems = self
                .in_place
                .set_unit(units, &self.host, unit, held, &BTreeSet::new());
            if problems.is_empty() {
                self.comparisons.failed.remove(unit);
            } else {
                let failures = failed.map_or(1, |(_, failures)| failures.saturating_add(1));
                let due = Instant::now() + FAILED.pause(failures);
                self.comparisons
                    .failed
                    .insert(unit.to_owned(), (due, failures));
            }
            let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
            let before = self
                .idle_units
                .insert(unit.to_owned(), (group, problems.clone()));
            self.is_changed |= before.is_none_or(|(_, before)| before != problems);
        }
        if is_due {
            self.forget_gone_units();
            self.comparisons.units = Instant::now();
        }
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

    /// Requests the container runtimes' lists if a group needs them, and waits at most `patience`: the reply of a
    /// runtime that has to start is processed at a later tick.
    pub(super) fn list_containers(&mut self, patience: Duration) {
        if !self.matchers.has_containers() {
            return;
        }
        if self.listing.is_none() {
            let (sender, receiver) = channel();
            let sockets = self.host.containers.clone();
            let started = threads::start(LIST_THREAD, move || {
                // Fails if the groups have ended.
                let _ = sender.send(containers::list(&sockets));
            });
            // The containers that are known stay; their list is requested again at a tick.
            self.listing = started.is_ok().then(|| (Instant::now(), receiver));
            self.note_thread(LIST_THREAD, started);
        }
        self.take_list(patience);
    }

    /// Processes the reply of the container runtimes, if it has arrived. Returns whether it has.
    fn take_list(&mut self, patience: Duration) -> bool {
        let Some((start, listing)) = &self.listing else {
            return false;
        };
        let (known, problems) = match listing.recv_timeout(patience) {
            Ok(listed) => listed,
            Err(RecvTimeoutError::Timeout) => return false,
            Err(RecvTimeoutError::Disconnected) => Default::default(),
        };
        self.listed = Some((Instant::now(), start.elapsed()));
        self.listing = None;
        for (nth, member) in self.members.iter_mut().enumerate() {
            member
                .notes
                .retain(|note| !note.starts_with("listing the containers"));
            if self.matchers.is_of_containers(nth) {
                member.notes.extend(problems.iter().cloned());
            }
        }
        self.is_changed |= !problems.is_empty() || known != self.known;
        self.asked.retain(|id, _| !known.contains_key(id));
        self.known = known;
        true
    }

    /// Lists containers again if the interval has passed, and limits new ones.
    pub(super) fn list_containers_at_tick(&mut self) {
        if self.take_list(Duration::ZERO) {
            self.walk();
        } else if self.listing.is_none() && self.listed.is_none_or(|(at, _)| at.elapsed() >= LIST) {
            self.list_containers(Duration::ZERO);
        }
    }

    /// Lists containers again for a process in an unknown one. The pauses grow for a container that no runtime lists.
    pub(super) fn list_containers_for(&mut self, path: &str) {
        let PlaceKind::Container(id) = self.place_of(path).kind else {
            return;
        };
        let Some((_, took)) = self.listed else { return };
        if self.known.contains_key(&id) || self.listing.is_some() {
            return;
        }
        let (due, requests) = self.asked.get(&id).copied().unwrap_or((Instant::now(), 0));
        if Instant::now() >= due {
            let requests = requests.saturating_add(1);
            let pause = UNKNOWN.pause(requests).max(took * 5);
            self.asked.insert(id, (Instant::now() + pause, requests));
            self.list_containers(REPLY);
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
            let attached = self.members[group].attach_network(&self.tree, path, &tag(inode));
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

    /// Removes the records of units that no longer exist, as scopes of containers and sessions. One that has only stopped
    /// has its limits when it starts again.
    fn forget_gone_units(&mut self) {
        const TRIES: u32 = 3;
        let Some(units) = reachable(self.units.as_deref()) else {
            return;
        };
        let named: BTreeSet<&str> = self.matchers.units().map(|(_, unit)| unit).collect();
        let kept: BTreeSet<&str> = self
            .targets
            .values()
            .map(|target| target.key.as_str())
            .chain(named)
            .collect();
        let mut gone = Vec::new();
        for (unit, tries) in std::mem::take(&mut self.comparisons.gone) {
            if kept.contains(unit.as_str()) {
                continue;
            }
            if !units.is_broken() && units.is_gone(&unit).is_ok_and(|is_gone| is_gone) {
                gone.push(unit);
            } else if tries < TRIES {
                self.comparisons.gone.insert(unit, tries + 1);
            }
        }
        if !gone.is_empty() {
            self.in_place.forget_units(units, &gone);
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
                .filter_map(|(path, _)| self.inode(path).map(tag))
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

    /// The scope of a group's processes: WEIR-GROUP.SERVICE.RUN.scope for one run of a service, else
    /// WEIR-GROUP.SLICE.scope. Group names have no dots.
    pub(super) fn scope_name(&self, group: usize, place: &Place, service: &Service) -> String {
        let from = match &place.kind {
            PlaceKind::Unit(unit) => {
                format!("{}.{}", unit.replace('@', "\\x40"), service.invocation)
            }
            _ if place.slice == "-.slice" => "root".to_owned(),
            _ => place.slice.trim_end_matches(".slice").replace('-', "_"),
        };
        format!(
            "{}-{}.{from}.scope",
            last(self.tree.parent()),
            self.members[group].group.name
        )
    }

    /// Ends scopes with processes of a service's earlier run. systemd ends them when the service is stopped; a scope
    /// that would have to be restarted with it is kept.
    pub(super) fn end_old_scopes(&mut self) {
        let mut problems = Vec::new();
        for (group, name) in self
            .targets
            .values()
            .filter(|target| target.kind == Kind::Scope)
            .map(|target| (target.group, target.name.clone()))
            .collect::<Vec<_>>()
        {
            let Some((unit, run)) = service_of(&name) else {
                continue;
            };
            if reachable(self.units.as_deref()).is_none() {
                break;
            }
            let Ok(service) = self.service(&unit) else {
                continue;
            };
            let is_over = service.has_ended || service.invocation != run;
            if let (true, false, Some(units)) = (is_over, service.keeps_workers, &self.units) {
                problems.extend(units.stop(&name).err().map(|problem| (group, problem)));
            }
        }
        for (group, problem) in problems {
            self.members[group].note(&problem);
        }
    }

    /// The name of the group whose scope contains the cgroup, and the scope's path. Users and containers choose the
    /// names of cgroups below theirs: a scope is a unit of the system's manager, and belongs to root.
    pub(super) fn scope_of<'p>(&self, path: &'p str) -> Option<(&'p str, &'p str)> {
        if self.host.manager == Manager::None {
            return None;
        }
        prefixes(path).find_map(|prefix| {
            let group = self.group_in(managed_unit(prefix)?)?;
            let directory = fs::metadata(self.tree.unified(prefix)?).ok()?;
            is_trusted(directory.uid()).then_some((group, prefix))
        })
    }

    /// The name of the group in a scope's name.
    fn group_in<'n>(&self, scope: &'n str) -> Option<&'n str> {
        let (group, rest) = scope
            .strip_prefix(last(self.tree.parent()))?
            .strip_prefix('-')?
            .split_once('.')?;
        rest.ends_with(".scope").then_some(group)
    }

    /// The group whose scope contains the cgroup.
    pub(super) fn scope_group(&self, path: &str) -> Option<usize> {
        let (name, _) = self.scope_of(path)?;
        self.members
            .iter()
            .position(|member| member.group.name == name)
    }

    /// Sets the limits of a scope of Weir.
    pub(super) fn adopt_scope(&mut self, group: usize, path: &str) {
        let Some(inode) = self.inode(path) else {
            return;
        };
        if self
            .targets
            .get(path)
            .is_some_and(|target| target.inode == inode)
        {
            return;
        }
        let Some(units) = reachable(self.units.as_deref()) else {
            return;
        };
        let scope = unit_name(last(path)).to_owned();
        let problems = set_scope(units, &self.host, &scope, &self.members[group].held);
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let attached = self.members[group].attach_network(&self.tree, path, &tag(inode));
        let network_problem = attached.err().map(|problem| problem.to_string());
        let (kind, name, key) = (Kind::Scope, scope.clone(), path.to_owned());
        let target = Target {
            group,
            kind,
            name,
            key,
            inode,
            is_new: true,
            has_network: true,
            network_problem,
            problems,
        };
        self.targets.insert(path.to_owned(), target);
        self.is_changed = true;
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

    /// Whether a cgroup is one of Weir's, or below one.
    pub(super) fn is_own(&self, path: &str) -> bool {
        is_within(path, &format!("/{}", self.tree.parent())) || self.scope_of(path).is_some()
    }
}

/// The service and the run of a scope's processes.
fn service_of(scope: &str) -> Option<(String, &str)> {
    let (_, from) = scope.strip_suffix(".scope")?.split_once('.')?;
    let (unit, run) = from.rsplit_once('.')?;
    unit.ends_with(".service")
        .then(|| (unit.replace("\\x40", "@"), run))
}

/// Sets a group's limits on a scope, and removes others.
pub(super) fn set_scope(
    units: &dyn Units,
    host: &Host,
    scope: &str,
    group: &Group,
) -> Vec<GroupsError> {
    let (wanted, mut problems) = properties::properties(host, group);
    problems.extend(units.set(scope, &properties::with_defaults(wanted)).err());
    problems
}

/// Sets those limits of a scope again that another program has lifted; the lower of both where the scope has another.
pub(super) fn set_scope_again(
    units: &dyn Units,
    host: &Host,
    scope: &str,
    group: &Group,
    lifted: &BTreeSet<&str>,
) -> Vec<GroupsError> {
    let (mut wanted, mut problems) = properties::properties(host, group);
    wanted.retain(|name, _| lifted.contains(name.as_str()));
    let names: Vec<&str> = wanted.keys().map(String::as_str).collect();
    let set = units.get(scope, &names).and_then(|now| {
        let both = properties::tightened(&now, &wanted, units.default_tasks());
        units.set(scope, &both)
    });
    problems.extend(set.err());
    problems
}
