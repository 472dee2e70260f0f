//! Parts of a config that this host cannot enforce.

use std::fs;

use config::policy::{Config, Mode};

use super::error::GroupsError;
use super::fill::primary;
use super::groups::{CONNECT, Groups, LINKS, Stay};
use super::host_paths::Host;
use super::limit;
use super::matcher::{By, Matchers};
use super::plan::Decision;
use super::process::{Process, is_untouchable};
use super::tree::Tree;

/// The parts of a config that this host cannot enforce, for `check`: missing controllers, and matching processes that
/// would not be enforced. Changes nothing.
#[must_use]
pub fn lacking(config: &Config) -> Vec<String> {
    if config.groups.is_empty() {
        return Vec::new();
    }
    let host = Host::this(&config.agent);
    let tree = match Tree::detect(&host.proc, &config.agent.cgroup) {
        Ok(tree) => tree,
        Err(error) => return vec![error.to_string()],
    };
    let mut lacking = Vec::new();
    for group in &config.groups {
        let mut report =
            |problem: &GroupsError| lacking.push(format!("group {}: {problem}", group.name));
        limit::cannot(&tree, group).iter().for_each(&mut report);
        limit::missing(&tree, &host, group)
            .iter()
            .for_each(&mut report);
    }
    let (_, wrong) = Matchers::new(&config.groups);
    lacking.extend(
        wrong
            .iter()
            .map(|(nth, problem)| format!("group {}: {problem}", config.groups[*nth].name)),
    );
    lacking.extend(Groups::new(&config.groups, Mode::Enforce, host, tree).would_stay());
    lacking
}

impl Groups {
    /// The matches that would not be enforced, for `check`. Moves nothing.
    fn would_stay(mut self) -> Vec<String> {
        self.connect(CONNECT);
        self.follow_links(LINKS);
        self.list_containers(CONNECT);
        for process in Process::all(&self.host.proc) {
            let cgroups = process.cgroups();
            if is_untouchable(process.pid) || cgroups.iter().any(|one| self.is_own(&one.path)) {
                continue;
            }
            if let Some((group, By::Itself)) = self.matchers.find(&process, &cgroups, &self.known) {
                let place = self.place_of(primary(&cgroups));
                if let Decision::Stay(reason) = self.decision(process.pid, &place, group, &cgroups)
                {
                    let name =
                        fs::read_link(self.host.proc.join(process.pid.to_string()).join("exe"));
                    let name = name
                        .map(|name| name.display().to_string())
                        .unwrap_or_default();
                    let reason = reason.to_string();
                    let stay = Stay {
                        group,
                        is_starting: false,
                        name,
                        cgroup: place.cgroup,
                        reason,
                    };
                    self.stays.insert(process.pid, stay);
                }
            }
        }
        let texts = self
            .members
            .iter()
            .enumerate()
            .map(|(nth, member)| (self.view_of(nth, member), &member.group.name));
        let texts = texts.filter(|(view, _)| !view.not_enforced.is_empty());
        texts
            .flat_map(|(view, name)| {
                view.stay_notes()
                    .into_iter()
                    .map(move |note| format!("group {name}: {note}"))
            })
            .collect()
    }
}
