//! All groups of a config, enforced.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use config::group::Group;
use config::policy::{Config, Mode};
use host::backoff::Backoff;
use host::load::Sample;

use super::account::{self, MemberStatus, NotEnforced};
use super::comparisons::Comparisons;
use super::containers::Known;
use super::domain::Domains;
use super::elastic::Demand;
use super::error::GroupsError;
use super::host_paths::Host;
use super::in_place::InPlace;
use super::limit::host_percent;
use super::lock::Lock;
use super::matcher::Matchers;
use super::member::Member;
use super::origins::Origins;
use super::place::Manager;
use super::resolution::Resolution;
use super::round::Round;
use super::systemd::Systemd;
use super::target::Target;
use super::tree::Tree;
use super::units::Units;
use super::view::{GroupView, View};

/// How long a start waits for the service manager: at boot the agent starts before the system bus.
pub const CONNECT: Duration = Duration::from_secs(2);
/// The pauses before another connection to a service manager that did not reply: a request to it takes 5 s.
const RECONNECT: Backoff = Backoff::new(Duration::from_secs(1), LONGEST_PAUSE);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How long a start waits for the symbolic links of programs.
pub const LINKS: Duration = Duration::from_millis(500);

/// A matching process that is not enforced.
pub struct Stay {
    pub group: usize,
    /// Whether it is retried at the next tick.
    pub is_starting: bool,
    pub name: String,
    pub cgroup: String,
    pub reason: String,
}

/// Processes to be moved into a scope.
pub struct Queue {
    pub slice: String,
    /// The unit that they leave.
    pub unit: Option<String>,
    /// The unit's run that they belong to.
    pub run: String,
    /// Whether the scope ends with the unit.
    pub ends_with_unit: bool,
    pub pids: Vec<u32>,
}

/// A pending list of containers, and the instant of the request.
type Listing = (Instant, Receiver<(Known, Vec<String>)>);

/// All groups of a config, enforced.
pub struct Groups {
    pub host: Host,
    pub tree: Tree,
    pub members: Vec<Member>,
    pub matchers: Matchers,
    pub resolution: Resolution,
    pub origins: Origins,
    pub in_place: InPlace,
    /// The records of an earlier agent that could not be read.
    pub lost: Vec<GroupsError>,
    /// The service manager, if there is one and it replies.
    pub units: Option<Box<dyn Units>>,
    /// The failures of the connection in a row, and when another one is opened.
    pub broken: (u32, Instant),
    pub connecting: Option<Receiver<Result<Systemd, GroupsError>>>,
    /// The cgroups limited in place, and scopes, by path.
    pub targets: BTreeMap<String, Target>,
    /// Units that are limited before they have a cgroup: their group and errors.
    pub idle_units: BTreeMap<String, (usize, Vec<String>)>,
    /// Units and cgroups that could not be restored.
    pub unset_later: BTreeSet<String>,
    pub known: Known,
    pub listed: Option<(Instant, Duration)>,
    pub listing: Option<Listing>,
    /// When a container that no runtime lists is requested again, and how often it was.
    pub asked: HashMap<String, (Instant, u32)>,
    pub walked: Option<(Instant, Duration)>,
    pub domains: Domains,
    pub stays: HashMap<u32, Stay>,
    pub comparisons: Comparisons,
    /// Processes to be moved into a scope, by its group and name.
    pub queued: BTreeMap<(usize, String), Queue>,
    pub round: Round,
    pub own_programs: BTreeSet<u32>,
    /// Recently moved processes and their groups: children that they forked just before follow them.
    pub recent: HashMap<u32, (usize, Instant)>,
    pub is_changed: bool,
    /// Whether all processes that existed at the start have been checked.
    pub has_begun: bool,
    pub lock: Option<Lock>,
}

impl Groups {
    /// Enforces a config's groups, replacing those `before`.
    ///
    /// # Errors
    ///
    /// When the host has no cgroups, or another agent uses the parent of these groups. Other errors become notes of the
    /// groups.
    pub fn start(config: &Config, host: Host, before: Option<Self>) -> Result<Self, GroupsError> {
        let tree = Tree::detect(&host.proc, &config.agent.cgroup)?;
        let (lock, units, resolution) = match before {
            Some(before) => (before.lock, before.units, Some(before.resolution)),
            None => (None, None, None),
        };
        let mut groups = Self::new(&config.groups, config.agent.mode, host, tree);
        groups.lock = Some(lock.map_or_else(|| Lock::take(&groups.tree, &groups.host), Ok)?);
        groups.units = units;
        groups.resolution =
            resolution.map_or_else(Resolution::default, Resolution::for_another_config);
        groups.begin();
        Ok(groups)
    }

    pub(super) fn new(wanted: &[Group], mode: Mode, mut host: Host, tree: Tree) -> Self {
        if !tree.is_unified() {
            // A scope of systemd moves a process in all relevant hierarchies or none.
            host.manager = Manager::None;
        }
        let (matchers, wrong) = Matchers::new(wanted);
        let matchers = matchers.on(&tree);
        let mut members: Vec<Member> = wanted
            .iter()
            .map(|group| Member::new(group, mode))
            .collect();
        for (nth, problem) in wrong {
            members[nth].note(&problem);
        }
        let (origins, lost_origins) = Origins::open(&host.origins);
        let (in_place, lost_limits) = InPlace::open(&host.in_place());
        let lost: Vec<GroupsError> = lost_origins.into_iter().chain(lost_limits).collect();
        for problem in &lost {
            members.iter_mut().for_each(|member| member.note(problem));
        }
        Self {
            host,
            tree,
            members,
            matchers,
            resolution: Resolution::default(),
            origins,
            in_place,
            lost,
            units: None,
            broken: (0, Instant::now()),
            connecting: None,
            targets: BTreeMap::new(),
            idle_units: BTreeMap::new(),
            unset_later: BTreeSet::new(),
            known: Known::new(),
            listed: None,
            listing: None,
            asked: HashMap::new(),
            walked: None,
            domains: Domains::default(),
            stays: HashMap::new(),
            comparisons: Comparisons::default(),
            queued: BTreeMap::new(),
            round: Round::default(),
            own_programs: BTreeSet::new(),
            recent: HashMap::new(),
            is_changed: true,
            has_begun: false,
            lock: None,
        }
    }

    pub(super) fn begin(&mut self) {
        self.connect(CONNECT);
        if !self.host.shows_programs() {
            self.note(&GroupsError::ProgramsHidden);
        }
        for nth in 0..self.members.len() {
            let member = &mut self.members[nth];
            match member.load_network(&self.host.pins) {
                Ok(programs) => self.own_programs.extend(programs),
                Err(problem) => member.note(&problem),
            }
            self.make_own_if_needed(nth);
        }
        self.follow_links(LINKS);
        self.list_containers(CONNECT);
        self.limit_named_units();
        self.walk();
        self.scan();
        self.retire_others();
        self.unset_others();
        self.keep_links();
        self.is_changed = true;
        self.has_begun = true;
    }

    /// Connects to the service manager unless connected, waiting at most `patience`.
    pub(super) fn connect(&mut self, patience: Duration) {
        if self.host.manager == Manager::None || self.units.is_some() {
            return;
        }
        let connected = self
            .connecting
            .get_or_insert_with(Systemd::connect)
            .recv_timeout(patience);
        let is_pending = matches!(connected, Err(RecvTimeoutError::Timeout));
        let connected = connected.unwrap_or_else(|error| {
            let reason = match error {
                RecvTimeoutError::Timeout => "the system bus does not reply yet",
                RecvTimeoutError::Disconnected => "the attempt ended without a result",
            };
            Err(GroupsError::Systemd {
                what: "connecting".to_owned(),
                reason: reason.to_owned(),
            })
        });
        match connected {
            Ok(systemd) => {
                self.connecting = None;
                self.units = Some(Box::new(systemd));
                self.members.iter_mut().for_each(|member| {
                    member
                        .notes
                        .retain(|note| !note.starts_with("connecting through systemd"));
                });
                self.is_changed = true;
            }
            Err(problem) => {
                // A pending attempt continues.
                self.connecting = self.connecting.take().filter(|_| is_pending);
                self.note(&problem);
            }
        }
    }

    /// Connects again after a failure; while the manager does not reply, after longer and longer pauses.
    fn connect_again(&mut self) {
        if self.units.as_ref().is_some_and(|units| units.is_broken()) {
            self.units = None;
            let (failures, due) = &mut self.broken;
            let lasted = due.elapsed() >= LONGEST_PAUSE;
            *failures = if lasted {
                1
            } else {
                failures.saturating_add(1)
            };
            *due = Instant::now() + RECONNECT.pause(*failures);
        }
        if Instant::now() >= self.broken.1 {
            self.connect(Duration::ZERO);
        }
    }

    /// Does the work of every second: checks some processes within the budget of CPU time, and the state of targets.
    pub fn tick(&mut self, budget: Duration) {
        self.connect_again();
        self.resolve_again();
        self.limit_named_units();
        self.unset_again();
        self.list_containers_at_tick();
        self.check_targets();
        self.check_limits_at_tick();
        self.end_old_scopes();
        self.retry_starting();
        self.walk_again();
        self.scan_some(budget);
    }

    /// The current state for readers; `None` if it has not changed since the last call.
    pub(super) fn changed_view(&mut self) -> Option<View> {
        std::mem::take(&mut self.is_changed).then(|| self.view())
    }

    /// The current state.
    pub(super) fn view(&self) -> View {
        let groups = self
            .members
            .iter()
            .enumerate()
            .map(|(nth, member)| self.view_of(nth, member))
            .collect();
        View {
            groups,
            place: Some((self.tree.clone(), self.host.clone())),
        }
    }

    pub(super) fn view_of(&self, nth: usize, member: &Member) -> GroupView {
        let own = self.tree.own(&member.group.name);
        let mut members: Vec<MemberStatus> = Vec::new();
        if member.has_own {
            let (kind, how) = (
                "own".to_owned(),
                "its processes are moved into a cgroup of Weir's own".to_owned(),
            );
            members.push(MemberStatus {
                kind,
                name: own.clone(),
                cgroup: own.clone(),
                how,
                problems: self.comparisons.problems(&own).collect(),
                ..Default::default()
            });
        }
        let targets = self
            .targets
            .iter()
            .filter(|(_, target)| target.group == nth);
        members.extend(targets.map(|(path, target)| {
            let mut status = target.status(path);
            status.problems.extend(self.comparisons.problems(path));
            status
        }));
        let mut not_enforced: Vec<NotEnforced> = Vec::new();
        for (unit, (_, problems)) in self
            .idle_units
            .iter()
            .filter(|(_, (group, _))| *group == nth)
        {
            if members.iter().any(|member| member.name == *unit) {
                continue;
            }
            let (name, cgroup) = (unit.clone(), String::new());
            if problems.is_empty() {
                let how = "its properties are set through systemd; it is not running".to_owned();
                members.push(MemberStatus {
                    kind: "unit".to_owned(),
                    name,
                    how,
                    ..Default::default()
                });
            } else {
                not_enforced.push(NotEnforced {
                    name,
                    cgroup,
                    reason: problems.join("; "),
                    pids: Vec::new(),
                });
            }
        }
        let mut stays: BTreeMap<(&str, &str, &str), Vec<u32>> = BTreeMap::new();
        for (pid, stay) in self.stays.iter().filter(|(_, stay)| stay.group == nth) {
            stays
                .entry((&stay.name, &stay.cgroup, &stay.reason))
                .or_default()
                .push(*pid);
        }
        not_enforced.extend(stays.into_iter().map(|((name, cgroup, reason), mut pids)| {
            pids.sort_unstable();
            NotEnforced {
                name: name.to_owned(),
                cgroup: cgroup.to_owned(),
                reason: reason.to_owned(),
                pids,
            }
        }));
        let in_members: usize = members.iter().map(|member| member.problems.len()).sum();
        let mut notes = member.all_notes();
        for target in &members {
            notes.extend(
                target
                    .problems
                    .iter()
                    .map(|problem| format!("{}: {problem}", target.name)),
            );
        }
        GroupView {
            name: member.group.name.clone(),
            own,
            limits: member.group.limit_texts(),
            has_pids: member.group.pids.is_some(),
            network: member.network.clone(),
            notes,
            problems: in_members + member.notes.len(),
            members,
            not_enforced,
        }
    }

    /// Adjusts the CPU shares of elastic groups.
    pub fn adjust(&mut self, sample: &Sample) {
        let mut demands = Vec::new();
        for nth in 0..self.members.len() {
            let throttled = self
                .paths(nth)
                .iter()
                .map(|path| account::read_throttled(&self.tree, path))
                .sum();
            let member = &mut self.members[nth];
            let more = throttled > member.throttled_seconds;
            member.throttled_seconds = throttled;
            demands.push(if more {
                Demand::Throttled
            } else {
                Demand::Satisfied
            });
        }
        let wants_more = |(member, demand): &(&Member, &Demand)| {
            member.elastic.is_some() && **demand == Demand::Throttled
        };
        let sharing = self.members.iter().zip(&demands).filter(wants_more).count();
        for (nth, demand) in demands.into_iter().enumerate() {
            let Some(elastic) = &mut self.members[nth].elastic else {
                continue;
            };
            if let Some(share) = elastic.adjust(sample, demand, sharing, host_percent()) {
                self.members[nth].adjusted = Some(Instant::now());
                self.set_cpu_max(nth, share);
            }
        }
    }

    /// Adds a note about all groups.
    pub fn note(&mut self, problem: &GroupsError) {
        self.members
            .iter_mut()
            .for_each(|member| member.note(problem));
        self.is_changed = true;
    }

    /// Whether a group is elastic.
    #[must_use]
    pub fn has_elastic(&self) -> bool {
        self.members.iter().any(|member| member.elastic.is_some())
    }
}
