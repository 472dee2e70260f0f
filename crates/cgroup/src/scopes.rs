//! Scopes of moved processes, in the slices that the processes come from.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use config::group::Group;

use super::error::GroupsError;
use super::groups::Groups;
use super::host_paths::Host;
use super::place::{
    Kind as PlaceKind, Manager, Place, is_within, last, managed_unit, prefixes, unit_name,
};
use super::properties;
use super::restrict::is_trusted;
use super::target::{Kind, Target, link_tag};
use super::units::{Service, Units, reachable};

impl Groups {
    /// Whether a cgroup is one of Weir's, or below one.
    pub(super) fn is_own(&self, path: &str) -> bool {
        is_within(path, &format!("/{}", self.tree.parent())) || self.scope_of(path).is_some()
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
        let attached = self.members[group].attach_network(&self.tree, path, &link_tag(inode));
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
