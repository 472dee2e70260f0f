//! Puts processes in their groups: all there are, and each as it starts.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::group::Started;

use super::Groups;
use super::error::GroupsError;
use super::process::{Membership, Process};
use super::tree::{Cpuset, write};

/// For how long a process that was moved is remembered: longer than events of what it forked are on their way.
const RECENT: Duration = Duration::from_secs(5);

/// An agent that froze or throttled itself could let nobody go, and the first process is everybody's.
fn is_untouchable(pid: u32) -> bool {
    pid == std::process::id() || pid == 1
}

impl Groups {
    /// Looks at every process there is.
    pub fn scan(&mut self) {
        self.recent.retain(|_, (_, moved)| moved.elapsed() < RECENT);
        for process in Process::all(&self.host.proc) {
            self.place(&process);
        }
        if let Err(error) = self.origins.save(&self.host.proc) {
            let note = format!("noting where processes came from in {} failed: {error}", self.host.origins.display());
            self.members.iter_mut().for_each(|member| {
                member.notes.insert(note.clone());
            });
        }
    }

    /// Puts a process where it belongs that has just started.
    pub fn started(&mut self, started: &Started) {
        let process = Process::new(&self.host.proc, started.process);
        if started.parent == 0 {
            return self.place(&process);
        }
        // A child of one that was moved a moment ago may have been forked before that.
        let Some((group, _)) = self.recent.get(&started.parent).copied() else { return };
        let cgroups = process.cgroups();
        if self.group_of(&cgroups).is_none() {
            match self.matchers.find(&process, &cgroups) {
                Some(own) if own != group => {}
                _ => self.move_into(&process, group, cgroups),
            }
        }
    }

    fn place(&mut self, process: &Process) {
        if is_untouchable(process.pid) {
            return;
        }
        let cgroups = process.cgroups();
        let current = self.group_of(&cgroups);
        // A process that Weir has moved still matches by where it came from.
        let home = if current.is_some() { self.origins.of(&self.host.proc, process.pid) } else { None };
        let Some(found) = self.matchers.find(process, home.as_ref().unwrap_or(&cgroups)) else {
            // Children follow: who is in a group without matching any was forked there.
            if let Some(member) = current.and_then(|current| self.members.get_mut(current)) {
                member.had_processes = true;
            }
            return;
        };
        self.members[found].had_processes = true;
        if current == Some(found) && self.is_whole(&cgroups, found) {
            return;
        }
        self.move_into(process, found, home.unwrap_or(cgroups));
    }

    /// Moves a process, and the children that it forked before it was moved; later ones are born in the group.
    fn move_into(&mut self, process: &Process, to: usize, from: Vec<Membership>) {
        let mut left = vec![(process.clone(), from)];
        let mut moved = BTreeSet::new();
        while let Some((process, from)) = left.pop() {
            if is_untouchable(process.pid) {
                continue;
            }
            self.origins.note(&process, &from);
            let member = &mut self.members[to];
            for root in self.tree.roots(member.cpuset()) {
                let path = root.join(self.tree.parent()).join(&member.group.name).join("cgroup.procs");
                match write(&path, &process.pid.to_string()) {
                    // It has ended in the meantime, or is about to.
                    Err(GroupsError::Write { source, .. }) if source.raw_os_error() == Some(libc::ESRCH) => break,
                    Err(problem) => member.note(&GroupsError::without_value(problem)),
                    Ok(()) => {}
                }
            }
            self.recent.insert(process.pid, (to, Instant::now()));
            moved.insert(process.pid);
            for pid in process.children() {
                let child = Process::new(&self.host.proc, pid);
                let cgroups = child.cgroups();
                let belongs_elsewhere = self.matchers.find(&child, &cgroups).is_some_and(|other| other != to);
                if !moved.contains(&pid) && self.group_of(&cgroups).is_none() && !belongs_elsewhere {
                    left.push((child, cgroups));
                }
            }
        }
    }

    /// Which group a process is in, going by any hierarchy.
    fn group_of(&self, cgroups: &[Membership]) -> Option<usize> {
        let name = cgroups.iter().find_map(|one| self.tree.group_of(&one.path))?;
        self.members.iter().position(|member| member.group.name == name)
    }

    /// Whether a process is in the group in as many hierarchies as the group lies in: an agent may have died while it
    /// moved it.
    fn is_whole(&self, cgroups: &[Membership], group: usize) -> bool {
        let member = &self.members[group];
        let is_in = |one: &&Membership| self.tree.group_of(&one.path) == Some(member.group.name.as_str());
        cgroups.iter().filter(is_in).count() >= self.tree.roots(member.cpuset()).len()
    }

    /// The processes in a group, below it included, in any hierarchy.
    pub(super) fn pids(&self, group: &str) -> BTreeSet<u32> {
        let mut pids = BTreeSet::new();
        let mut folders: Vec<PathBuf> =
            self.tree.roots(Cpuset::Any).into_iter().map(|root| root.join(self.tree.parent()).join(group)).collect();
        while let Some(folder) = folders.pop() {
            let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            pids.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
            let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
            folders.extend(entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|e| e.path()));
        }
        pids
    }
}
