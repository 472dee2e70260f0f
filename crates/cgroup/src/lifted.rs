//! Limits that another program has lifted: found by comparing the files of cgroups with the group's values, set again
//! and reported.
//!
//! `systemctl daemon-reload`, `systemctl set-property`, `docker update` and a write into the file lift a limit without any
//! event. A lower value of another program is in effect as well, and stays.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use config::group::CpuShare;

use super::comparisons::{Lifted, MOST_REPORTS};
use super::error::GroupsError;
use super::groups::Groups;
use super::in_effect::is_in_effect;
use super::limit::{self, Setting};
use super::place::{last, unit_name};
use super::properties;
use super::round::cpu_time;
use super::scopes::set_scope_again;
use super::target::Kind;
use super::tree::write;
use super::units::reachable;
use super::watched::{CHECK, Limit, Refusal, Watched};
use super::written::{PERIOD, QUOTA};

/// The interval of comparisons is at least this multiple of a comparison's CPU time.
const CHECK_SHARE: u32 = 100;
/// The time in which systemd writes the file of a property.
const SETTLES: Duration = Duration::from_secs(1);

impl Groups {
    /// Compares all limits if the interval has passed, else those that were set again at the last tick.
    pub(super) fn check_limits_at_tick(&mut self) {
        let is_due =
            |(at, took): (Instant, Duration)| at.elapsed() >= CHECK.max(took * CHECK_SHARE);
        let start = Instant::now();
        if self.comparisons.last.is_none_or(is_due) {
            let (before, set_before) = (cpu_time(), self.comparisons.setting);
            self.check_limits(start);
            let setting = self.comparisons.setting - set_before;
            let took = (cpu_time() - before).saturating_sub(setting);
            self.comparisons.last = Some((start, took));
        } else {
            let pending = self
                .comparisons
                .watched
                .iter()
                .filter(|(_, one)| one.is_pending());
            let pending: Vec<String> = pending.map(|(path, _)| path.clone()).collect();
            let mut lifted = Vec::new();
            for path in pending {
                if let Some(inode) = self.inode(&path) {
                    lifted.extend(self.check(&path, inode, start));
                }
            }
            self.set_lifted(lifted, start);
        }
    }

    /// Compares the limits of all members with their files, and sets those again that another program has lifted.
    pub(super) fn check_limits(&mut self, now: Instant) {
        let all = (0..self.members.len()).flat_map(|group| {
            let paths = self.paths(group).into_iter();
            paths.map(move |path| (path, group))
        });
        let all: Vec<(String, usize)> = all.collect();
        let paths: BTreeSet<&str> = all.iter().map(|(path, _)| path.as_str()).collect();
        self.comparisons
            .watched
            .retain(|path, _| paths.contains(path.as_str()));
        let mut lifted = Vec::new();
        for (path, group) in &all {
            if let Some(inode) = self.inode(path) {
                self.watch(path, *group, inode);
                lifted.extend(self.check(path, inode, now));
            }
        }
        self.set_lifted(lifted, now);
    }

    /// Sets lifted limits again, those of cgroups between two saves of the record: one has the limits of all of them.
    fn set_lifted(&mut self, lifted: Vec<(String, Vec<usize>)>, now: Instant) {
        let before = cpu_time();
        let is_cgroup = |path: &String| {
            let target = self.targets.get(path);
            target.is_some_and(|target| !target.is_of_systemd())
        };
        let (cgroups, others): (Vec<_>, Vec<_>) =
            lifted.into_iter().partition(|(path, _)| is_cgroup(path));
        let mut failed = None;
        if !cgroups.is_empty() {
            self.in_place.collect();
            for (path, _) in &cgroups {
                if let Some(target) = self.targets.get(path) {
                    let held = &self.members[target.group].held;
                    self.in_place
                        .record_cgroup(&self.tree, &self.host, path, held);
                }
            }
            failed = self.in_place.save_collected();
            self.in_place.collect();
        }
        for (path, again) in &cgroups {
            self.set_found(path, again, now);
        }
        if !cgroups.is_empty() {
            failed = self.in_place.save_collected().or(failed);
        }
        for problem in failed.iter().map(ToString::to_string) {
            for (path, _) in &cgroups {
                let target = self.targets.get_mut(path);
                target
                    .into_iter()
                    .for_each(|target| target.problems.push(problem.clone()));
            }
        }
        for (path, again) in &others {
            self.set_found(path, again, now);
        }
        self.comparisons.setting += cpu_time() - before;
    }

    /// Begins to compare the limits of a cgroup, unless it has begun.
    fn watch(&mut self, path: &str, group: usize, inode: u64) {
        let is_same = |one: &Watched| (one.group, one.inode) == (group, inode);
        if self.comparisons.watched.get(path).is_some_and(is_same) {
            return;
        }
        let limits = limit::wanted(&self.tree, &self.host, path, &self.members[group].held);
        let watched = Watched {
            group,
            inode,
            limits: limits
                .into_iter()
                // A part of the quota.
                .filter(|(_, setting)| setting.file != PERIOD)
                .map(Limit::new)
                .collect(),
        };
        self.comparisons.watched.insert(path.to_owned(), watched);
    }

    /// Compares the limits of one cgroup. Returns those that are to be set again, if there are any.
    fn check(&mut self, path: &str, inode: u64, now: Instant) -> Option<(String, Vec<usize>)> {
        let mut watched = self.comparisons.watched.remove(path)?;
        let mut again = Vec::new();
        // A target without an inode has no limits yet, which is tried again at each tick.
        let is_set = self
            .targets
            .get(path)
            .is_none_or(|target| target.inode == inode);
        if watched.inode == inode && is_set {
            let before: Vec<String> = watched.problems().collect();
            again = self.compare(path, &mut watched, now);
            self.is_changed |= !watched.problems().eq(before);
        }
        self.comparisons.watched.insert(path.to_owned(), watched);
        (!again.is_empty()).then(|| (path.to_owned(), again))
    }

    fn compare(&mut self, path: &str, watched: &mut Watched, now: Instant) -> Vec<usize> {
        let group = watched.group;
        let mut again = Vec::new();
        for (nth, limit) in watched.limits.iter_mut().enumerate() {
            limit.forget(now);
            let (Some(wanted), Some(content)) = (self.wanted(group, &limit.setting), limit.read())
            else {
                continue;
            };
            let report = if is_in_effect(&wanted, &content) {
                self.end_refusal(path, group, limit.refusal.take());
                limit.found_in_effect(now)
            } else {
                let (is_due, report) = limit.found_lifted(content, now);
                again.extend(is_due.then_some(nth));
                report
            };
            self.report(path, group, limit, report);
        }
        again
    }

    /// Sets limits of one cgroup again.
    fn set_found(&mut self, path: &str, again: &[usize], now: Instant) {
        let Some(mut watched) = self.comparisons.watched.remove(path) else {
            return;
        };
        let found: Vec<String> = watched.problems().collect();
        let group = watched.group;
        let settings: Vec<(PathBuf, Setting)> = again
            .iter()
            .map(|nth| &watched.limits[*nth])
            .map(|limit| (limit.file.clone(), limit.setting.clone()))
            .collect();
        let problems = self.set_again(path, group, &settings);
        for nth in again {
            let limit = &mut watched.limits[*nth];
            limit.is_pending = true;
            limit.refusal = self.refusal(path, group, limit.setting.file, &problems);
            // systemd writes it a moment later.
            let now_set = self.wanted(group, &limit.setting).zip(limit.read());
            if now_set.is_some_and(|(wanted, content)| is_in_effect(&wanted, &content)) {
                self.end_refusal(path, group, limit.refusal.take());
                let report = limit.found_in_effect(now);
                self.report(path, group, limit, report);
            }
        }
        self.is_changed |= !watched.problems().eq(found);
        self.comparisons.watched.insert(path.to_owned(), watched);
    }

    /// Removes an error of a limit that is in effect now.
    fn end_refusal(&mut self, path: &str, group: usize, refusal: Option<Refusal>) {
        let Some(Refusal { text, .. }) = refusal else {
            return;
        };
        if let Some(target) = self.targets.get_mut(path) {
            target.problems.retain(|problem| *problem != text);
        } else {
            self.members[group].notes.remove(&text);
        }
        self.is_changed = true;
    }

    /// The value that a limit has now; `None` while an elastic share is being set.
    fn wanted<'s>(&self, group: usize, setting: &'s Setting) -> Option<Cow<'s, Setting>> {
        let member = &self.members[group];
        let share = member.elastic.map(|elastic| elastic.current());
        match share.and_then(|share| limit::with_share(setting, share)) {
            Some(_) if member.adjusted.is_some_and(|at| at.elapsed() < SETTLES) => None,
            Some(elastic) => Some(Cow::Owned(elastic)),
            None => Some(Cow::Borrowed(setting)),
        }
    }

    /// Sets these limits of a cgroup again. Returns the failures.
    fn set_again(
        &mut self,
        path: &str,
        group: usize,
        limits: &[(PathBuf, Setting)],
    ) -> Vec<GroupsError> {
        let files = limits.iter().map(|(_, setting)| setting.file);
        let lifted: BTreeSet<&str> = files.flat_map(properties::of_file).copied().collect();
        let held = &self.members[group].held;
        let problems: Vec<GroupsError> =
            match (self.targets.get(path), reachable(self.units.as_deref())) {
                (None, _) => {
                    let failed = |(file, setting): &(PathBuf, Setting)| {
                        if setting.file == QUOTA {
                            let period = CpuShare::PERIOD_MICROSECONDS.to_string();
                            // A failure leaves another period, with which the next comparison finds the quota.
                            let _ = write(&file.with_file_name(PERIOD), &period);
                        }
                        write(file, &setting.value).err()
                    };
                    limits.iter().filter_map(failed).collect()
                }
                (Some(target), Some(units)) if target.kind == Kind::Scope => {
                    let scope = unit_name(last(path));
                    set_scope_again(units, &self.host, scope, held, &lifted)
                }
                (Some(target), Some(units)) if target.is_of_systemd() => {
                    let key = target.key.as_str();
                    self.in_place
                        .set_unit(units, &self.host, key, held, &lifted)
                }
                (Some(target), None) if target.is_of_systemd() => vec![GroupsError::Systemd {
                    what: format!("setting limits of {} again", target.name),
                    reason: "it cannot be reached".to_owned(),
                }],
                (Some(_), _) => self.in_place.set_cgroup(&self.tree, &self.host, path, held),
            };
        let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
        if let Some(target) = self.targets.get_mut(path) {
            self.is_changed |= target.problems != texts;
            target.problems = texts;
        }
        // The configured share was set.
        let member = &self.members[group];
        let current = member.elastic.map(|elastic| elastic.current());
        if let Some(share) = current.filter(|current| Some(*current) != member.group.cpu.max) {
            self.set_cpu_max_at(group, path, share);
        }
        problems
    }

    /// The error that keeps a limit from being set, if there is one.
    fn refusal(
        &self,
        path: &str,
        group: usize,
        file: &str,
        problems: &[GroupsError],
    ) -> Option<Refusal> {
        let text = problems
            .iter()
            .find(|problem| problem.keeps(file))?
            .to_string();
        let is_known = self.targets.contains_key(path) || self.members[group].notes.contains(&text);
        Some(Refusal { text, is_known })
    }

    fn report(&mut self, path: &str, group: usize, limit: &Limit, reason: Option<String>) {
        let Some(reason) = reason.filter(|_| self.comparisons.reports.len() < MOST_REPORTS) else {
            return;
        };
        let status = self.targets.get(path).map(|target| target.status(path));
        let member = status.map_or_else(
            || format!("cgroup {path}"),
            |member| format!("{} {}", member.kind, member.name),
        );
        self.comparisons.reports.push(Lifted {
            group: self.members[group].group.name.clone(),
            member,
            file: limit.setting.file.to_owned(),
            count: limit.lifts.len().max(1) as u64,
            reason,
        });
    }
}
