//! Process groups: makes their cgroups, puts processes in, holds them to their limits, and tells what they used.
//!
//! Nothing here ends the agent: what cannot be had is a note, and the group's other limits, other groups and limits on
//! packets stand.

pub mod account;
mod btf;
mod disk;
mod elastic;
mod error;
mod kernel;
mod limit;
mod matcher;
mod origins;
mod process;
#[cfg(test)]
mod tests;
mod tree;
mod watch;

pub use account::GroupStatus;
pub use error::GroupsError;
pub use limit::host_percent;
pub use watch::Keeper;

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::group::Started;

use self::elastic::{Demand, Elastic};
use self::kernel::Network;
use self::matcher::Matchers;
use self::origins::Origins;
use self::process::{Membership, Process};
use self::tree::{Controller, Cpuset, Tree, Version, write};
use crate::config::policy::{AgentConfig, Config};
use crate::config::policy_group::{self, Group};
use crate::host_load::Sample;

/// The host's directories that groups need; tests supply their own.
#[derive(Clone, Debug)]
pub struct Host {
    /// /proc.
    pub proc: PathBuf,
    /// /sys.
    pub sys: PathBuf,
    /// The directory of pins, in a BPF file system.
    pub pins: PathBuf,
    /// Where it is noted which processes were moved, and from where.
    pub origins: PathBuf,
}

impl Host {
    /// This host. The file of origins lies beside the control socket.
    #[must_use]
    pub fn this(agent: &AgentConfig) -> Self {
        Self {
            proc: "/proc".into(),
            sys: "/sys".into(),
            pins: agent.pins.clone(),
            origins: agent.control.with_extension("origins.json"),
        }
    }
}

/// For how long a process that was moved is remembered: longer than events of what it forked are on their way.
const RECENT: Duration = Duration::from_secs(5);

/// One group at work.
struct Member {
    group: Group,
    elastic: Option<Elastic>,
    throttled_seconds: f64,
    had_processes: bool,
    notes: BTreeSet<String>,
    network: Option<Network>,
}

/// All groups of a config, at work.
pub struct Groups {
    host: Host,
    tree: Tree,
    members: Vec<Member>,
    matchers: Matchers,
    origins: Origins,
    /// Processes that were moved lately, and into which group: those that they forked just before follow them.
    recent: HashMap<u32, (usize, Instant)>,
}

/// What can be done to a group in an emergency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Emergency {
    /// Its processes stop where they are.
    Freeze,
    /// They go on.
    Thaw,
    /// They are killed.
    Kill,
}

impl Groups {
    /// Makes the cgroups of a config's groups, puts their limits in force and puts in every process that matches.
    ///
    /// # Errors
    ///
    /// When the host has no cgroups at all. Everything else is told in the groups' notes.
    pub fn start(config: &Config, host: Host) -> Result<Self, GroupsError> {
        let tree = Tree::detect(&host.proc, &config.agent.cgroup)?;
        let (matchers, wrong) = Matchers::new(&config.groups);
        let member = |group: &Group| Member {
            elastic: group.cpu.max.filter(|_| group.cpu.elastic).map(Elastic::new),
            throttled_seconds: 0.0,
            had_processes: false,
            notes: BTreeSet::new(),
            network: None,
            group: group.clone(),
        };
        let mut members: Vec<Member> = config.groups.iter().map(member).collect();
        for (nth, problem) in wrong {
            members[nth].note(&problem);
        }
        for member in &mut members {
            match tree.make(&member.group.name, member.cpuset()) {
                Ok(()) => limit::apply(&tree, &host.sys, &member.group).iter().for_each(|problem| member.note(problem)),
                Err(problem) => member.note(&problem),
            }
            if let Err(problem) = member.hold_network(&tree, &host.pins) {
                member.note(&problem);
            }
        }
        let origins = Origins::open(&host.origins);
        let mut groups = Self { host, tree, members, matchers, origins, recent: HashMap::new() };
        groups.retire_others();
        groups.scan();
        Ok(groups)
    }

    /// Ends the groups of an earlier config that this one has not.
    fn retire_others(&mut self) {
        for group in self.tree.present() {
            if self.members.iter().all(|member| member.group.name != group)
                && let Err(problem) = self.retire(&group)
            {
                self.members.iter_mut().for_each(|member| member.note(&problem));
            }
        }
    }

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
        // An agent that froze or throttled itself could let nobody go.
        if process.pid == std::process::id() || process.pid == 1 {
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

    /// What each group has used and been refused.
    #[must_use]
    pub fn statuses(&self) -> Vec<GroupStatus> {
        self.members.iter().map(|member| self.status(member)).collect()
    }

    fn status(&self, member: &Member) -> GroupStatus {
        let name = &member.group.name;
        GroupStatus {
            pids: self.pids(name).into_iter().collect(),
            limits: member.group.limit_texts(),
            network: member.network.as_ref().and_then(|network| network.status().ok()).unwrap_or_default(),
            notes: member.all_notes(),
            ..account::read(&self.tree, &self.host.sys, name)
        }
    }

    /// What an operator should know of all groups, for `status`.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let told = |member: &Member| {
            let name = member.group.name.clone();
            member.all_notes().into_iter().map(move |note| format!("group {name}: {note}"))
        };
        self.members.iter().flat_map(told).collect()
    }

    /// The processes in a group, below it included, in any hierarchy.
    fn pids(&self, group: &str) -> BTreeSet<u32> {
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

    /// Freezes, thaws or kills a group.
    ///
    /// # Errors
    ///
    /// When there is no such group, or the kernel refuses.
    pub fn emergency(&self, group: &str, what: Emergency) -> Result<(), GroupsError> {
        if !self.members.iter().any(|member| member.group.name == group) {
            let names: Vec<&str> = self.members.iter().map(|member| member.group.name.as_str()).collect();
            let present = if names.is_empty() { "is none".to_owned() } else { format!("is {}", names.join(", ")) };
            return Err(GroupsError::NoGroup { name: group.to_owned(), present });
        }
        let unified = self.tree.unified(group);
        let freezer = self.tree.directory(group, Controller::Freezer);
        match (what, unified, freezer) {
            (Emergency::Kill, Some(directory), _) if directory.join("cgroup.kill").exists() => {
                write(&directory.join("cgroup.kill"), "1")
            }
            (Emergency::Kill, _, _) => {
                self.kill_each(group);
                Ok(())
            }
            (Emergency::Freeze, Some(directory), _) => write(&directory.join("cgroup.freeze"), "1"),
            (Emergency::Thaw, Some(directory), _) => write(&directory.join("cgroup.freeze"), "0"),
            (Emergency::Freeze, None, Some((Version::V1, directory))) => {
                write(&directory.join("freezer.state"), "FROZEN")
            }
            (Emergency::Thaw, None, Some((Version::V1, directory))) => {
                write(&directory.join("freezer.state"), "THAWED")
            }
            (_, None, _) => Err(GroupsError::NoController { controller: "freezer", what: "freeze" }),
        }
    }

    /// Before Linux 5.14 there is no cgroup.kill: until nobody is left, or forks outrun the agent.
    fn kill_each(&self, group: &str) {
        for _ in 0..100 {
            let pids = self.pids(group);
            if pids.is_empty() {
                return;
            }
            for pid in pids {
                // Gone already is as good as killed.
                let _ = nix::sys::signal::kill(
                    nix::unistd::Pid::from_raw(pid.cast_signed()),
                    nix::sys::signal::Signal::SIGKILL,
                );
            }
        }
    }

    /// Gives elastic groups what the host has idle, or takes it back.
    pub fn adjust(&mut self, sample: &Sample) {
        let mut demands = Vec::new();
        for member in &mut self.members {
            let throttled = account::read_throttled(&self.tree, &member.group.name);
            let more = throttled > member.throttled_seconds;
            member.throttled_seconds = throttled;
            demands.push(if more { Demand::Throttled } else { Demand::Satisfied });
        }
        let wants_more =
            |(member, demand): &(&Member, &Demand)| member.elastic.is_some() && **demand == Demand::Throttled;
        let sharing = self.members.iter().zip(&demands).filter(wants_more).count();
        for (member, demand) in self.members.iter_mut().zip(demands) {
            let Some(elastic) = &mut member.elastic else { continue };
            if let Some(share) = elastic.adjust(sample, demand, sharing, host_percent())
                && let Err(problem) = limit::set_cpu_max(&self.tree, &member.group.name, share)
            {
                member.note(&problem);
            }
        }
    }

    /// The host's directories.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Notes something that is of all groups.
    pub fn note(&mut self, problem: &GroupsError) {
        self.members.iter_mut().for_each(|member| member.note(problem));
    }

    /// Whether any group is elastic.
    #[must_use]
    pub fn has_elastic(&self) -> bool {
        self.members.iter().any(|member| member.elastic.is_some())
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

    fn send_home(&self, pid: u32) {
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

impl Member {
    fn note(&mut self, problem: &GroupsError) {
        self.notes.insert(problem.to_string());
    }

    fn hold_network(&mut self, tree: &Tree, pins: &Path) -> Result<(), GroupsError> {
        let pins = kernel::pins_of(pins, &self.group.name);
        if self.group.network == policy_group::Network::default() {
            return kernel::release(&pins);
        }
        let directory =
            tree.unified(&self.group.name).ok_or(GroupsError::NoController { controller: "v2", what: "network" })?;
        self.network = Some(Network::hold(&self.group.network, &directory, &pins)?);
        Ok(())
    }

    fn cpuset(&self) -> Cpuset {
        if self.group.cpus.is_some() { Cpuset::Wanted } else { Cpuset::Any }
    }

    fn all_notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self.notes.iter().cloned().collect();
        if !self.had_processes {
            let matchers: Vec<String> = self.group.matchers.iter().map(ToString::to_string).collect();
            notes.push(format!("no process has matched yet ({})", matchers.join(", ")));
        }
        notes
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

/// What a config asks for and this host cannot do, for `check`. Makes nothing.
#[must_use]
pub fn lacking(config: &Config) -> Vec<String> {
    if config.groups.is_empty() {
        return Vec::new();
    }
    let tree = match Tree::detect(Path::new("/proc"), &config.agent.cgroup) {
        Ok(tree) => tree,
        Err(error) => return vec![error.to_string()],
    };
    let mut lacking = Vec::new();
    for group in &config.groups {
        let mut tell = |problem: &GroupsError| lacking.push(format!("group {}: {problem}", group.name));
        limit::cannot(&tree, group).iter().for_each(&mut tell);
        limit::missing(&tree, Path::new("/sys"), group).iter().for_each(&mut tell);
    }
    let (_, wrong) = Matchers::new(&config.groups);
    lacking.extend(wrong.iter().map(|(nth, problem)| format!("group {}: {problem}", config.groups[*nth].name)));
    lacking
}
