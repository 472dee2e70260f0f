//! Process groups: makes their cgroups, puts processes in, holds them to their limits, and tells what they used.
//!
//! Nothing here ends the agent: what cannot be had is a note, and the group's other limits, other groups and limits on
//! packets stand.

pub mod account;
mod disk;
mod elastic;
mod emergency;
mod error;
mod fill;
mod kernel;
mod leave;
mod limit;
mod matcher;
mod origins;
mod process;
#[cfg(test)]
mod tests;
mod tree;
mod watch;

pub use account::GroupStatus;
pub use emergency::Emergency;
pub use error::GroupsError;
pub use leave::detach;
pub use limit::host_percent;
pub(crate) use tree::mount;
pub use tree::{Controller, Tree, Version};
pub use watch::Keeper;

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::Instant;

use self::elastic::{Demand, Elastic};
use self::kernel::Network;
use self::matcher::Matchers;
use self::origins::Origins;
use self::tree::Cpuset;
use crate::config::policy::{AgentConfig, Config, Mode};
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

/// One group at work.
struct Member {
    /// As the config has it.
    group: Group,
    /// As it is held: without limits while the agent only observes.
    held: Group,
    mode: Mode,
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
            mode: config.agent.mode,
            held: held(group, config.agent.mode),
            elastic: group
                .cpu
                .max
                .filter(|_| group.cpu.elastic && config.agent.mode == Mode::Enforce)
                .map(Elastic::new),
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
                Ok(()) => limit::apply(&tree, &host.sys, &member.held).iter().for_each(|problem| member.note(problem)),
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

    /// What each group has used and been refused.
    #[must_use]
    pub fn statuses(&self) -> Vec<GroupStatus> {
        self.members.iter().map(|member| self.status(member)).collect()
    }

    /// How many processes of each group were killed for want of memory.
    #[must_use]
    pub fn oom_kills(&self) -> Vec<(String, u64)> {
        let kills = |member: &Member| account::read_oom_kills(&self.tree, &member.group.name);
        self.members.iter().map(|member| (member.group.name.clone(), kills(member))).collect()
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
}

impl Member {
    fn note(&mut self, problem: &GroupsError) {
        self.notes.insert(problem.to_string());
    }

    fn hold_network(&mut self, tree: &Tree, pins: &Path) -> Result<(), GroupsError> {
        let pins = kernel::pins_of(pins, &self.group.name);
        if self.held.network == policy_group::Network::default() {
            return kernel::release(&pins);
        }
        let directory =
            tree.unified(&self.group.name).ok_or(GroupsError::NoController { controller: "v2", what: "network" })?;
        self.network = Some(Network::hold(&self.held.network, &directory, &pins)?);
        Ok(())
    }

    fn cpuset(&self) -> Cpuset {
        if self.held.cpus.is_some() { Cpuset::Wanted } else { Cpuset::Any }
    }

    fn all_notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self.notes.iter().cloned().collect();
        if self.mode == Mode::Observe {
            notes.push("mode is observe: it is counted, and held to nothing".to_owned());
        }
        if !self.had_processes {
            let matchers: Vec<String> = self.group.matchers.iter().map(ToString::to_string).collect();
            notes.push(format!("no process has matched yet ({})", matchers.join(", ")));
        }
        notes
    }
}

/// What a group is held to in a mode.
fn held(group: &Group, mode: Mode) -> Group {
    let (name, matchers) = (group.name.clone(), group.matchers.clone());
    match mode {
        Mode::Enforce => group.clone(),
        Mode::Observe => Group {
            name,
            matchers,
            cpu: policy_group::Cpu::default(),
            memory: policy_group::Memory::default(),
            io: Vec::new(),
            pids: None,
            cpus: None,
            network: policy_group::Network::default(),
        },
    }
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
