//! Enforces groups on all existing processes, and on new ones as they start.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use common::group::Started;
use config::group::Moving;

use super::error::GroupsError;
use super::groups::{Groups, Queue, Stay};
use super::matcher::By;
use super::place::{Kind, Manager, Place};
use super::plan::{self, Decision, Facts, Others, Reason, Role, left_cgroups};
use super::process::{Membership, Process, is_untouchable};
use super::restrict::owner_above;
use super::tree::{Cpuset, write};
use super::units::{Scope, Service};
use super::{limit, properties, restrict};

/// For how long a moved process is kept: longer than the events of its forks take to arrive.
const RECENT: Duration = Duration::from_secs(5);
/// The timeout for a scope's cgroup, which systemd creates in a job.
const SCOPE_STARTS: Duration = Duration::from_millis(500);

/// The process's cgroup in the most specific hierarchy: the unified one, or another where all processes are at its
/// root.
pub fn primary(cgroups: &[Membership]) -> &str {
    let unified = cgroups.iter().find(|one| one.controllers.is_empty());
    let elsewhere = || cgroups.iter().find(|one| one.path != "/");
    unified
        .filter(|one| one.path != "/")
        .or_else(elsewhere)
        .map_or("/", |one| one.path.as_str())
}

impl Groups {
    /// Enforces its group on a process that has just started.
    pub fn started(&mut self, started: &Started) {
        let process = Process::new(&self.host.proc, started.process);
        if started.parent == 0 {
            if self.matchers.has_containers() {
                self.list_containers_for(primary(&process.cgroups()));
            }
            return self.place(&process);
        }
        // A child of a recently moved process may have been forked before the move.
        let Some((group, _)) = self.recent.get(&started.parent).copied() else {
            return;
        };
        let cgroups = process.cgroups();
        if self.group_of(&cgroups).is_none() {
            match self.matchers.find(&process, &cgroups, &self.known) {
                Some((own, _)) if own != group => {}
                _ if self.members[group].has_own => self.move_into(&process, group, cgroups),
                _ => self.queue(&process, group, &cgroups),
            }
        }
    }

    pub(super) fn place(&mut self, process: &Process) {
        if is_untouchable(process.pid) {
            return;
        }
        let cgroups = process.cgroups();
        let current = self.group_of(&cgroups);
        // A process that Weir has moved still matches by its original cgroup.
        let home = if current.is_some() {
            self.origins.of(&self.host.proc, process.pid)
        } else {
            None
        };
        let from = home.as_ref().unwrap_or(&cgroups);
        let found = self.matchers.find(process, from, &self.known);
        let Some((group, by)) = found else {
            if self.stays.remove(&process.pid).is_some() {
                self.is_changed = true;
            }
            // Children follow: a process in a group that does not match itself was forked there.
            if let Some(current) = current {
                self.saw(current);
            }
            return;
        };
        self.saw(group);
        match by {
            By::Cgroup(path) => {
                if current.is_some()
                    && home.is_some()
                    && let Err(problem) = self.send_home(process.pid)
                {
                    self.members[group].note(&problem);
                }
                self.limit_in_place(group, &path);
            }
            By::Itself if current == Some(group) && self.is_whole(&cgroups, group) => {}
            By::Itself => {
                let from = home.unwrap_or(cgroups);
                self.enforce_on(process, group, from);
            }
        }
    }

    /// Classifies a cgroup. Containers are below cgroups of root: a user's cgroup with the name of one belongs to the unit or
    /// session that contains it.
    pub(super) fn place_of(&self, path: &str) -> Place {
        let is_roots = |path: &str| owner_above(&self.tree, path).is_none();
        Place::with(path, self.host.manager, is_roots)
    }

    fn saw(&mut self, group: usize) {
        let member = &mut self.members[group];
        self.is_changed |= !member.had_processes;
        member.had_processes = true;
    }

    /// Enforces a group on a process that matches itself.
    fn enforce_on(&mut self, process: &Process, group: usize, from: Vec<Membership>) {
        let place = self.place_of(primary(&from));
        if self
            .targets
            .get(&place.cgroup)
            .is_some_and(|target| target.group == group)
        {
            return;
        }
        let decision = self.decision(process.pid, &place, group, &from);
        if let Decision::Stay(reason) = &decision {
            let is_starting = matches!(reason, Reason::Starting { .. });
            return self.leave_there(process, &from, group, reason.to_string(), is_starting);
        }
        self.is_changed |= self.stays.remove(&process.pid).is_some();
        match decision {
            Decision::InPlace => self.limit_in_place(group, &place.cgroup),
            Decision::Own => self.move_into(process, group, from),
            Decision::Scope { .. } => self.queue(process, group, &from),
            Decision::Stay(_) => {}
        }
    }

    /// Retries processes of services that were starting, and those that systemd was too busy for.
    pub(super) fn retry_starting(&mut self) {
        let pids: Vec<u32> = self
            .stays
            .iter()
            .filter(|(_, stay)| stay.is_starting)
            .map(|(pid, _)| *pid)
            .collect();
        for pid in pids {
            self.place(&Process::new(&self.host.proc, pid));
        }
        self.move_queued();
    }

    pub(super) fn decision(
        &mut self,
        pid: u32,
        place: &Place,
        group: usize,
        from: &[Membership],
    ) -> Decision {
        let moving = self.members[group].group.moving;
        let others = if place.kind == Kind::Plain {
            Others::Same
        } else {
            self.others(&place.cgroup, group)
        };
        let role = match &place.kind {
            Kind::Unit(unit) if others != Others::Same && moving != Moving::Never => {
                self.role(pid, unit)
            }
            _ => Role::Worker,
        };
        // Restrictions take many files to read, so only where a move is possible.
        let may_move =
            (place.kind == Kind::Plain || moving != Moving::Never) && moving != Moving::Force;
        let restrictions = if may_move {
            self.restrictions(place, group, from)
        } else {
            Vec::new()
        };
        plan::decide(&Facts {
            place,
            manager: self.host.manager,
            moving,
            others,
            role,
            restrictions: &restrictions,
        })
    }

    /// The restrictions that a process would lose by leaving its cgroups, in any hierarchy.
    fn restrictions(&self, place: &Place, group: usize, from: &[Membership]) -> Vec<String> {
        let to = match self.host.manager {
            Manager::None => self.tree.own(&self.members[group].group.name),
            Manager::Systemd => {
                format!(
                    "{}/{}",
                    place.slice_cgroup(),
                    self.scope_name(group, place, &Service::default())
                )
            }
        };
        let kept = restrict::KeptTasks {
            default: self.units.as_ref().and_then(|units| units.default_tasks()),
            own: self.members[group].held.pids,
        };
        let mut all = BTreeSet::new();
        for root in self.tree.roots(Cpuset::Wanted) {
            let here = from
                .iter()
                .filter(|one| self.tree.is_hierarchy(root, &one.controllers));
            for path in here.flat_map(|one| left_cgroups(&one.path, &to)) {
                let directory = root.join(path.trim_start_matches('/'));
                all.extend(restrict::restrictions(&directory, kept, &self.own_programs));
            }
        }
        all.into_iter().collect()
    }

    /// Creates a group's own cgroup if processes are moved into it.
    pub(super) fn make_own_if_needed(&mut self, group: usize) {
        if self.matchers.moves(group)
            && self.host.manager == Manager::None
            && !self.members[group].has_own
        {
            self.make_own(group);
        }
    }

    /// Creates a group's own cgroup, with its limits.
    fn make_own(&mut self, group: usize) {
        let path = self.tree.own(&self.members[group].group.name);
        let member = &mut self.members[group];
        let mut problems = self
            .tree
            .make(&member.group.name, &limit::controllers(&member.held));
        problems.extend(limit::apply(&self.tree, &self.host, &path, &member.held));
        problems.extend(limit::cannot(&self.tree, &member.held));
        problems.extend(member.attach_network(&self.tree, &path, "").err());
        problems.iter().for_each(|problem| member.note(problem));
        member.has_own = true;
        self.is_changed = true;
    }

    /// Moves a process and the children that it forked before the move; later ones start in the group.
    fn move_into(&mut self, process: &Process, to: usize, from: Vec<Membership>) {
        let mut left = vec![(process.clone(), from)];
        let mut moved = BTreeSet::new();
        while let Some((process, from)) = left.pop() {
            if is_untouchable(process.pid) {
                continue;
            }
            let path = self.tree.own(&self.members[to].group.name);
            self.origins.note(&process, &from, &path, &self.tree);
            let member = &mut self.members[to];
            for root in self.tree.roots(member.cpuset()) {
                let file = root.join(path.trim_start_matches('/')).join("cgroup.procs");
                match write(&file, &process.pid.to_string()) {
                    // It has ended in the meantime, or is ending.
                    Err(GroupsError::Write { source, .. })
                        if source.raw_os_error() == Some(libc::ESRCH) =>
                    {
                        break;
                    }
                    Err(problem) => member.note(&GroupsError::without_value(problem)),
                    Ok(()) => {}
                }
            }
            self.recent.insert(process.pid, (to, Instant::now()));
            moved.insert(process.pid);
            left.extend(self.followers(&process, to, &moved));
        }
    }

    /// The children of a process that follow it into a group.
    fn followers(
        &self,
        process: &Process,
        to: usize,
        moved: &BTreeSet<u32>,
    ) -> Vec<(Process, Vec<Membership>)> {
        let child = |pid: u32| {
            let child = Process::new(&self.host.proc, pid);
            let cgroups = child.cgroups();
            let found = self.matchers.find(&child, &cgroups, &self.known);
            let belongs_elsewhere = found.is_some_and(|(other, _)| other != to);
            let follows =
                !moved.contains(&pid) && self.group_of(&cgroups).is_none() && !belongs_elsewhere;
            follows.then_some((child, cgroups))
        };
        process.children().into_iter().filter_map(child).collect()
    }

    /// Queues a process and its children for a move into a scope.
    fn queue(&mut self, process: &Process, group: usize, from: &[Membership]) {
        let place = self.place_of(primary(from));
        let service = match &place.kind {
            Kind::Unit(unit) => self.service(unit).unwrap_or_default(),
            _ => Service::default(),
        };
        let key = (group, self.scope_name(group, &place, &service));
        let into = format!("{}/{}", place.slice_cgroup(), key.1);
        let unit = match place.kind {
            Kind::Unit(unit) => Some(unit),
            _ => None,
        };
        let queue = self.queued.entry(key.clone()).or_insert(Queue {
            slice: place.slice,
            unit,
            run: service.invocation,
            ends_with_unit: !service.keeps_workers,
            pids: Vec::new(),
        });
        let mut pids = std::mem::take(&mut queue.pids);
        let mut left = vec![(process.clone(), from.to_vec())];
        let mut seen = BTreeSet::new();
        while let Some((process, from)) = left.pop() {
            if is_untouchable(process.pid) || !seen.insert(process.pid) {
                continue;
            }
            self.origins.note(&process, &from, &into, &self.tree);
            self.recent.insert(process.pid, (group, Instant::now()));
            if !pids.contains(&process.pid) {
                pids.push(process.pid);
            }
            left.extend(self.followers(&process, group, &seen));
        }
        if let Some(queue) = self.queued.get_mut(&key) {
            queue.pids = pids;
        }
    }

    /// The process's role in its unit.
    fn role(&mut self, pid: u32, unit: &str) -> Role {
        match self.service(unit) {
            Ok(service) if service.is_starting => Role::Starting,
            Ok(service) if service.main == pid || service.control == pid => Role::Main,
            Ok(_) => Role::Worker,
            // Retried in the next round.
            Err(_) => Role::Starting,
        }
    }

    /// Moves queued processes into their scopes.
    pub(super) fn move_queued(&mut self) {
        for (
            (group, scope),
            Queue {
                slice,
                unit,
                run,
                ends_with_unit,
                mut pids,
            },
        ) in std::mem::take(&mut self.queued)
        {
            pids.retain(|pid| self.host.proc.join(pid.to_string()).exists());
            if let Some(unit) = &unit {
                pids = self.still_workers(group, unit, &run, pids);
            }
            let Some(units) = self.units.as_ref().filter(|_| !pids.is_empty()) else {
                continue;
            };
            let scope = Scope {
                name: &scope,
                slice: &slice,
                part_of: unit.as_deref().filter(|_| ends_with_unit),
            };
            let (properties, problems) =
                properties::properties(&self.host, &self.members[group].held);
            problems
                .iter()
                .for_each(|problem| self.members[group].note(problem));
            match units.scope(&scope, &pids, &properties) {
                Ok(()) => self.await_scope(group, &pids),
                Err(problem) => pids
                    .iter()
                    .for_each(|pid| self.postpone(group, *pid, problem.to_string())),
            }
            self.is_changed = true;
        }
    }

    /// The processes that are workers of this run of their unit by systemd's current state. The cached state may be of
    /// an earlier run, whose scope is about to end, or have another main process. The others are queued again.
    fn still_workers(&mut self, group: usize, unit: &str, run: &str, pids: Vec<u32>) -> Vec<u32> {
        let service = self.service_now(unit).unwrap_or_else(|_| Service {
            is_starting: true,
            ..Service::default()
        });
        let is_this_run = !service.is_starting && service.invocation == run;
        let (workers, others): (Vec<u32>, Vec<u32>) = pids
            .into_iter()
            .partition(|pid| is_this_run && ![service.main, service.control].contains(pid));
        for pid in others {
            self.postpone(
                group,
                pid,
                Reason::Starting {
                    unit: unit.to_owned(),
                }
                .to_string(),
            );
        }
        workers
    }

    /// Leaves a process where it is until the next round.
    fn postpone(&mut self, group: usize, pid: u32, reason: String) {
        let process = Process::new(&self.host.proc, pid);
        let from = process.cgroups();
        self.leave_there(&process, &from, group, reason, true);
        self.recent.remove(&pid);
    }

    /// Records a process that is not enforced, and the reason. `is_starting`: it is retried soon.
    fn leave_there(
        &mut self,
        process: &Process,
        from: &[Membership],
        group: usize,
        reason: String,
        is_starting: bool,
    ) {
        let name = process
            .exe()
            .map(|exe| exe.display().to_string())
            .unwrap_or_default();
        let stay = Stay {
            group,
            is_starting,
            name,
            cgroup: primary(from).to_owned(),
            reason: reason.clone(),
        };
        let before = self.stays.insert(process.pid, stay);
        self.is_changed |= before.is_none_or(|before| before.reason != reason);
    }

    /// Waits for a scope's cgroup, and sets the limits that systemd cannot set.
    fn await_scope(&mut self, group: usize, pids: &[u32]) {
        let deadline = Instant::now() + SCOPE_STARTS;
        loop {
            let cgroups = pids
                .iter()
                .map(|pid| Process::new(&self.host.proc, *pid).cgroups());
            let moved = cgroups
                .map(|cgroups| primary(&cgroups).to_owned())
                .find(|path| self.scope_group(path) == Some(group));
            if let Some(path) = moved {
                let scope = Place::of(&path, Manager::Systemd).cgroup;
                return self.adopt_scope(group, &scope);
            }
            // The next walk finds it.
            if Instant::now() > deadline {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The group that a process was moved into, in any hierarchy.
    fn group_of(&self, cgroups: &[Membership]) -> Option<usize> {
        if let Some(name) = cgroups.iter().find_map(|one| self.tree.group_of(&one.path)) {
            return self
                .members
                .iter()
                .position(|member| member.group.name == name);
        }
        // systemd's scopes are in the unified hierarchy.
        let unified = cgroups.iter().find(|one| one.controllers.is_empty())?;
        self.scope_group(&unified.path)
    }

    /// Whether a process is in the group in all hierarchies that the group uses: an agent may have been killed during a
    /// move.
    fn is_whole(&self, cgroups: &[Membership], group: usize) -> bool {
        let member = &self.members[group];
        if !member.has_own {
            return true;
        }
        let is_in =
            |one: &&Membership| self.tree.group_of(&one.path) == Some(member.group.name.as_str());
        cgroups.iter().filter(is_in).count() >= self.tree.roots(member.cpuset()).len()
    }

    /// Ends a round over all processes: removes ended ones, and saves the origins of the others.
    pub(super) fn end_round(&mut self) {
        self.recent.retain(|_, (_, moved)| moved.elapsed() < RECENT);
        self.domains.forget_old();
        let before = self.stays.len();
        self.stays
            .retain(|pid, _| self.host.proc.join(pid.to_string()).exists());
        self.is_changed |= before != self.stays.len();
        if let Err(error) = self.origins.save(&self.host.proc, &self.tree) {
            let note = format!(
                "saving where processes came from in {} failed: {error}",
                self.host.origins.display()
            );
            self.members.iter_mut().for_each(|member| {
                member.notes.insert(note.clone());
            });
        }
    }
}
