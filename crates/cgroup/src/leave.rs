//! The end of groups: processes are moved back and limits in place restored, or everything stays for the next agent.

use std::fs;

use config::group::Group;
use config::policy::AgentConfig;

use super::error::GroupsError;
use super::groups::{CONNECT, Groups};
use super::host_paths::Host;
use super::lock::Lock;
use super::place::{last, managed_unit, prefixes, unit_name};
use super::process::{Membership, Process};
use super::scopes::set_scope;
use super::tree::{Controller, Cpuset, Tree, Version, write};
use super::units::reachable;
use super::{limit, network};

impl Groups {
    /// Ends the groups that this config no longer has, and own cgroups that are no longer needed.
    pub(super) fn retire_others(&mut self) {
        for group in self.tree.present() {
            let is_kept = self
                .members
                .iter()
                .any(|member| member.has_own && member.group.name == group);
            if is_kept {
                continue;
            }
            let has_links = self.members.iter().any(|member| member.group.name == group);
            let mut problems = self.retire(&group);
            if !has_links {
                problems.extend(network::release(&network::pins_of(&self.host.pins, &group)).err());
            }
            problems.iter().for_each(|problem| self.note(problem));
        }
        for (path, group) in self.scopes() {
            if self.members.iter().all(|member| member.group.name != group) {
                self.retire_scope(&path)
                    .iter()
                    .for_each(|problem| self.note(problem));
            }
        }
    }

    /// The path and the group's name of each of Weir's scopes.
    fn scopes(&self) -> Vec<(String, String)> {
        let scope = |path: String| {
            let group = self.scope_of(&path).filter(|(_, scope)| *scope == path)?;
            Some((path.clone(), group.0.to_owned()))
        };
        if self.units.is_none() {
            Vec::new()
        } else {
            self.tree.paths().into_iter().filter_map(scope).collect()
        }
    }

    /// Moves every process of every group back, restores limits in place, and removes the cgroups, also of earlier
    /// configs. Returns the failures.
    pub fn give_back(&mut self) -> Vec<GroupsError> {
        // Nothing that these records had is given back.
        let mut problems = std::mem::take(&mut self.lost);
        for key in self.in_place.keys() {
            problems.extend(self.in_place.unset(&key, reachable(self.units.as_deref())));
        }
        for group in self.tree.present() {
            problems.extend(self.retire(&group));
        }
        for (path, _) in self.scopes() {
            problems.extend(self.retire_scope(&path));
        }
        self.tree.remove_parent();
        let folder = self.host.pins.join("groups");
        for pins in fs::read_dir(&folder).into_iter().flatten().flatten() {
            problems.extend(network::release(&pins.path()).err());
        }
        for folder in [folder, self.host.pins.clone()] {
            // It fails if limits on packets are pinned there, too.
            let _ = fs::remove_dir(folder);
        }
        if problems.is_empty() {
            self.origins.forget();
        }
        problems
    }

    /// Ends one group's own cgroup. If processes stay in it, its limits are removed.
    fn retire(&self, group: &str) -> Vec<GroupsError> {
        let path = self.tree.own(group);
        // A frozen process would stay frozen for ever.
        let _ = self
            .tree
            .unified(&path)
            .map(|directory| write(&directory.join("cgroup.freeze"), "0"));
        if let Some((Version::V1, directory)) = self.tree.directory(&path, Controller::Freezer) {
            let _ = write(&directory.join("freezer.state"), "THAWED");
        }
        let stay = self.send_all_home(&path);
        if !stay.is_empty() {
            let none = Group::default();
            // Processes that stay are the larger problem, which is reported.
            let _ = limit::apply(&self.tree, &self.host, &path, &none);
            return stay;
        }
        self.tree.remove(group).err().into_iter().collect()
    }

    /// Ends a scope, which disappears with its last process.
    fn retire_scope(&self, path: &str) -> Vec<GroupsError> {
        let stay = self.send_all_home(path);
        if let (Some(units), false) = (&self.units, stay.is_empty()) {
            let none = Group::default();
            let _ = set_scope(units.as_ref(), &self.host, unit_name(last(path)), &none);
        }
        stay
    }

    /// Moves the processes of a cgroup back. Returns the failures.
    fn send_all_home(&self, path: &str) -> Vec<GroupsError> {
        let mut stay = Vec::new();
        // A process may fork while it is moved; its child is found in the next pass.
        for _ in 0..10 {
            let pids = self.tree.pids(path);
            if pids.is_empty() {
                return Vec::new();
            }
            stay = pids
                .into_iter()
                .filter_map(|pid| self.send_home(pid).err())
                .collect();
        }
        stay
    }

    /// Moves a process back; if its cgroup no longer exists, into the nearest existing parent. One of unknown origin
    /// stays: the root has no limits at all.
    pub(super) fn send_home(&self, pid: u32) -> Result<(), GroupsError> {
        let known = self.origins.of(&self.host.proc, pid);
        let Some(home) = known.or_else(|| self.home_of_all_with(pid)) else {
            return self.has_no_origin(pid);
        };
        let mut first = None;
        for root in self.tree.roots(Cpuset::Wanted) {
            let was = home
                .iter()
                .find(|one| self.tree.is_hierarchy(root, &one.controllers));
            let was = was.map_or("/", |one| one.path.as_str());
            let above: Vec<&str> = std::iter::once("/").chain(prefixes(was)).collect();
            for path in above.into_iter().rev() {
                let file = root.join(path.trim_start_matches('/')).join("cgroup.procs");
                match write(&file, &pid.to_string()) {
                    Ok(()) => break,
                    // It has ended.
                    Err(GroupsError::Write { source, .. })
                        if source.raw_os_error() == Some(libc::ESRCH) =>
                    {
                        return Ok(());
                    }
                    // Without its cgroup it moves up; if the kernel refuses, it stays and keeps its limits.
                    Err(GroupsError::Write { source, .. })
                        if source.kind() == std::io::ErrorKind::NotFound => {}
                    // A cgroup of another owner, below a unit that systemd delegates to it.
                    Err(_) if self.attach(pid, path).is_ok() => break,
                    Err(problem) => {
                        first = first.or(Some(self.stays_in(pid, was, &problem)));
                        break;
                    }
                }
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// Lets systemd move a process into the cgroup at `path`, of a unit or below one.
    fn attach(&self, pid: u32, path: &str) -> Result<(), GroupsError> {
        let place = self.place_of(path);
        let (Some(units), Some(unit)) = (&self.units, managed_unit(&place.cgroup)) else {
            return Err(GroupsError::Systemd {
                what: format!("moving process {pid}"),
                reason: "no unit".to_owned(),
            });
        };
        units.attach(unit, path.strip_prefix(&place.cgroup).unwrap_or(""), &[pid])
    }

    /// The origin of all processes of the group's cgroup that a process is in, if they have the same. The process may be a
    /// child whose parent has ended.
    fn home_of_all_with(&self, pid: u32) -> Option<Vec<Membership>> {
        let cgroups = Process::new(&self.host.proc, pid).cgroups();
        cgroups.iter().find_map(|one| {
            let own = self.tree.group_of(&one.path);
            let own = own.map(|group| self.tree.own(group));
            let scope = || Some(self.scope_of(&one.path)?.1.to_owned());
            self.origins.of_all_in(&own.or_else(scope)?)
        })
    }

    /// The error of a process of unknown origin, unless it has ended.
    fn has_no_origin(&self, pid: u32) -> Result<(), GroupsError> {
        let process = Process::new(&self.host.proc, pid);
        match process.parent_and_start() {
            Some(_) => Err(GroupsError::NoOrigin {
                pid,
                at: self.own_of(&process),
            }),
            None => Ok(()),
        }
    }

    /// The cgroup of Weir that a process is in.
    fn own_of(&self, process: &Process) -> String {
        let mut paths = process.cgroups().into_iter().map(|one| one.path);
        let own = paths.find(|path| self.is_own(path));
        own.unwrap_or_else(|| "its cgroup".to_owned())
    }

    fn stays_in(&self, pid: u32, from: &str, problem: &GroupsError) -> GroupsError {
        let reason = match problem {
            GroupsError::Write { source, .. } => format!("takes no process ({source})"),
            other => other.to_string(),
        };
        GroupsError::Stays {
            pid,
            at: self.own_of(&Process::new(&self.host.proc, pid)),
            from: from.to_owned(),
            reason,
        }
    }

    /// Saves the state for the next agent; limits and processes stay as they are.
    pub fn keep(&mut self) {
        // An elastic group gets its configured share: without an agent, nothing would reduce it.
        for nth in 0..self.members.len() {
            if let (Some(_), Some(share)) =
                (self.members[nth].elastic, self.members[nth].group.cpu.max)
            {
                self.set_cpu_max(nth, share);
            }
        }
        // A failure was reported when it first occurred; without the file, processes stay in the groups.
        let _ = self.origins.save(&self.host.proc, &self.tree);
    }
}

/// Removes the groups of an earlier agent. Returns whether there were any, and the failures.
#[must_use]
pub fn detach(agent: &AgentConfig) -> (bool, Vec<GroupsError>) {
    let host = Host::this(agent);
    let Ok(tree) = Tree::detect(&host.proc, &agent.cgroup) else {
        return (false, Vec::new());
    };
    let was_there = host.has_notes() || !tree.present().is_empty();
    if !was_there {
        return (false, Vec::new());
    }
    let lock = match Lock::take(&tree, &host) {
        Ok(lock) => lock,
        Err(problem) => return (true, vec![problem]),
    };
    let mut groups = Groups::new(&[], agent.mode, host, tree);
    groups.lock = Some(lock);
    groups.connect(CONNECT);
    (was_there, groups.give_back())
}
