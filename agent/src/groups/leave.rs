//! The end of groups: processes go back where they came from, or stay for the next agent.

use std::collections::HashMap;
use std::fs;

use super::error::GroupsError;
use super::matcher::Matchers;
use super::origins::Origins;
use super::tree::{Controller, Cpuset, Tree, Version, write};
use super::{Groups, Host, kernel, limit};
use crate::config::policy::AgentConfig;

impl Groups {
    /// Ends the groups of an earlier config that this one has not.
    pub(super) fn retire_others(&mut self) {
        for group in self.tree.present() {
            if self.members.iter().all(|member| member.group.name != group)
                && let Err(problem) = self.retire(&group)
            {
                self.members.iter_mut().for_each(|member| member.note(&problem));
            }
        }
    }

    /// Sends every process of every group back where it came from, and removes the cgroups, those of earlier configs
    /// included. Returns what could not be done.
    pub fn give_back(&mut self) -> Vec<GroupsError> {
        let present = self.tree.present();
        let problems: Vec<GroupsError> = present.iter().filter_map(|group| self.retire(group).err()).collect();
        self.tree.remove_parent();
        for folder in [self.host.pins.join("groups"), self.host.pins.clone()] {
            // Limits on packets may be pinned there, too.
            let _ = fs::remove_dir(folder);
        }
        if problems.is_empty() {
            self.origins.forget();
        }
        problems
    }

    /// Ends one group.
    fn retire(&self, group: &str) -> Result<(), GroupsError> {
        // A frozen process would stay so for ever, with nobody left to thaw it.
        let _ = self.tree.unified(group).map(|directory| write(&directory.join("cgroup.freeze"), "0"));
        if let Some((Version::V1, directory)) = self.tree.directory(group, Controller::Freezer) {
            let _ = write(&directory.join("freezer.state"), "THAWED");
        }
        // A process may fork while it is moved; its child is found the next time.
        for _ in 0..10 {
            let pids = self.pids(group);
            if pids.is_empty() {
                break;
            }
            for pid in pids {
                self.send_home(pid);
            }
        }
        // The links first: they go with the cgroup, and their pins would be left.
        kernel::release(&kernel::pins_of(&self.host.pins, group))?;
        self.tree.remove(group)
    }

    pub(super) fn send_home(&self, pid: u32) {
        let home = self.origins.of(&self.host.proc, pid).unwrap_or_default();
        for root in self.tree.roots(Cpuset::Wanted) {
            let was = home.iter().find(|one| self.tree.is_hierarchy(root, &one.controllers));
            let path = was.map_or("/", |one| one.path.as_str()).trim_start_matches('/');
            let back = write(&root.join(path).join("cgroup.procs"), &pid.to_string());
            // Where it came from may be gone, or have become an inner node.
            if back.is_err() {
                // It has ended, then; or removing the cgroup will tell.
                let _ = write(&root.join("cgroup.procs"), &pid.to_string());
            }
        }
    }

    /// Saves what the next agent needs; limits and processes stay as they are.
    pub fn keep(&mut self) {
        // An elastic group is left with what it was promised: nobody will take back the rest.
        for member in &self.members {
            if let (Some(_), Some(share)) = (member.elastic, member.group.cpu.max) {
                let _ = limit::set_cpu_max(&self.tree, &member.group.name, share);
            }
        }
        // A failure was told when it first failed; without the file, processes go back to the roots.
        let _ = self.origins.save(&self.host.proc);
    }
}

/// Takes out what an earlier agent left of its groups. Returns whether there was anything, and what could not be taken out.
#[must_use]
pub fn detach(agent: &AgentConfig) -> (bool, Vec<GroupsError>) {
    let host = Host::this(agent);
    let Ok(tree) = Tree::detect(&host.proc, &agent.cgroup) else { return (false, Vec::new()) };
    let is_there = !tree.present().is_empty();
    let origins = Origins::open(&host.origins);
    let (members, matchers, recent) = (Vec::new(), Matchers::default(), HashMap::new());
    let mut groups = Groups { host, tree, members, matchers, origins, recent };
    (is_there, groups.give_back())
}
