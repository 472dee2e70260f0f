//! A snapshot of the groups for readers, who do not wait for the thread that moves processes.

use std::sync::{Arc, Mutex, PoisonError};

use api::group::Emergency;
use host::PROGRAM;

use super::account::{self, Enforcement, GroupStatus, MemberStatus, NetworkStatus, NotEnforced};
use super::emergency;
use super::error::GroupsError;
use super::host_paths::Host;
use super::network::Network;
use super::tree::Tree;

/// All groups.
#[derive(Clone, Default)]
pub struct View {
    /// The groups, in the order of the config.
    pub groups: Vec<GroupView>,
    /// The location of their cgroups; `None` while no group is in effect.
    pub place: Option<(Tree, Host)>,
}

#[derive(Clone, Default)]
pub struct GroupView {
    pub name: String,
    /// Its own cgroup, if processes were moved there.
    pub own: String,
    pub limits: Vec<String>,
    /// Whether it limits processes: refusals of others are not its own.
    pub has_pids: bool,
    pub network: Option<Arc<Mutex<Network>>>,
    pub notes: Vec<String>,
    /// The number of limits that are not enforced on all of its members.
    pub problems: usize,
    pub members: Vec<MemberStatus>,
    pub not_enforced: Vec<NotEnforced>,
}

impl GroupView {
    /// The cgroups that its limits are set on.
    fn paths(&self) -> Vec<&str> {
        self.members
            .iter()
            .map(|member| member.cgroup.as_str())
            .filter(|path| !path.is_empty())
            .collect()
    }

    /// The processes and threads that the kernel refused above its `pids`.
    fn pids_refused(&self, tree: &Tree) -> u64 {
        let paths = self.paths().into_iter().filter(|_| self.has_pids);
        paths
            .map(|path| account::read_pids_refused(tree, path))
            .sum()
    }

    fn enforcement(&self) -> Enforcement {
        match (self.not_enforced.is_empty(), self.problems) {
            (true, 0) => Enforcement::Full,
            (false, _) if self.members.is_empty() => Enforcement::None,
            _ => Enforcement::Partial,
        }
    }

    /// Notes for the operator.
    pub fn notes(&self) -> Vec<String> {
        self.notes
            .iter()
            .cloned()
            .chain(self.stay_notes())
            .collect()
    }

    /// A note that some matching processes are not enforced.
    pub fn stay_notes(&self) -> Option<String> {
        let first = self.not_enforced.first()?;
        let (mut processes, mut units) = (0, 0);
        for one in &self.not_enforced {
            processes += one.pids.len();
            units += usize::from(one.pids.is_empty());
        }
        let count = |count: usize, one: &str, more: &str| match count {
            0 => None,
            1 => Some(format!("1 {one}")),
            _ => Some(format!("{count} {more}")),
        };
        let who = [
            count(processes, "process", "processes"),
            count(units, "unit", "units"),
        ];
        let who: Vec<String> = who.into_iter().flatten().collect();
        let how = if self.enforcement() == Enforcement::None {
            "not"
        } else {
            "partly"
        };
        let more = if self.not_enforced.len() > 1 {
            format!("; `{PROGRAM} groups` lists all")
        } else {
            String::new()
        };
        Some(format!(
            "{how} enforced: {} without limits: {} {}{more}",
            who.join(" and "),
            first.name,
            first.reason
        ))
    }
}

impl View {
    /// The usage and refusals of each group.
    #[must_use]
    pub fn statuses(&self) -> Vec<GroupStatus> {
        let Some((tree, host)) = &self.place else {
            return Vec::new();
        };
        let status = |group: &GroupView| {
            let network = group.network.as_ref().and_then(|network| {
                // A panic elsewhere leaves the counters as they are.
                network
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .status()
                    .ok()
            });
            let paths = group.paths();
            let members = group.members.iter().map(|member| MemberStatus {
                processes: if member.cgroup.is_empty() {
                    0
                } else {
                    tree.pids(&member.cgroup).len() as u64
                },
                ..member.clone()
            });
            GroupStatus {
                name: group.name.clone(),
                cgroup: paths
                    .first()
                    .map_or_else(|| group.own.clone(), |path| (*path).to_owned()),
                limits: group.limits.clone(),
                network: network.unwrap_or_default(),
                notes: group.notes(),
                enforcement: group.enforcement(),
                members: members.collect(),
                not_enforced: group.not_enforced.clone(),
                pids_refused: group.pids_refused(tree),
                ..account::read(tree, &host.sys, &paths)
            }
        };
        self.groups.iter().map(status).collect()
    }

    /// The processes of each group that the kernel killed for lack of memory.
    #[must_use]
    pub fn oom_kills(&self) -> Vec<(String, u64)> {
        self.count(|tree, group| {
            let paths = group.paths().into_iter();
            paths.map(|path| account::read_oom_kills(tree, path)).sum()
        })
    }

    /// The processes and threads of each group that the kernel refused above `pids`.
    #[must_use]
    pub fn pids_refused(&self) -> Vec<(String, u64)> {
        self.count(|tree, group| group.pids_refused(tree))
    }

    fn count(&self, read: impl Fn(&Tree, &GroupView) -> u64) -> Vec<(String, u64)> {
        let Some((tree, _)) = &self.place else {
            return Vec::new();
        };
        self.groups
            .iter()
            .map(|group| (group.name.clone(), read(tree, group)))
            .collect()
    }

    /// The refused connections of each group, and the last refusal.
    #[must_use]
    pub fn refusals(&self) -> Vec<(String, NetworkStatus)> {
        let read = |group: &GroupView| {
            let network = group.network.as_ref()?;
            let status = network
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .status()
                .ok()?;
            Some((group.name.clone(), status))
        };
        self.groups.iter().filter_map(read).collect()
    }

    /// Notes for the operator about all groups, for `status`.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let of = |group: &GroupView| {
            let name = group.name.clone();
            group
                .notes()
                .into_iter()
                .map(move |note| format!("group {name}: {note}"))
        };
        self.groups.iter().flat_map(of).collect()
    }

    /// Freezes, thaws or kills a group.
    ///
    /// # Errors
    ///
    /// When there is no such group, one of its cgroups contains the agent, or the kernel refuses.
    pub fn emergency(&self, name: &str, what: Emergency) -> Result<(), GroupsError> {
        let found = self
            .groups
            .iter()
            .find(|group| group.name == name)
            .zip(self.place.as_ref());
        let Some((group, (tree, host))) = found else {
            let names: Vec<&str> = self
                .groups
                .iter()
                .map(|group| group.name.as_str())
                .collect();
            let present = if names.is_empty() {
                "none".to_owned()
            } else {
                names.join(", ")
            };
            return Err(GroupsError::NoGroup {
                name: name.to_owned(),
                present,
            });
        };
        let paths = group.paths();
        emergency::check(tree, host, &paths, what)?;
        paths
            .into_iter()
            .try_for_each(|path| emergency::carry_out(tree, path, what))
    }
}
