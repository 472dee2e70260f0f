//! Whether all processes of a unit or container belong to a group.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use super::error::GroupsError;
use super::groups::Groups;
use super::matcher::By;
use super::plan::Others;
use super::process::Process;
use super::round::cpu_time;
use super::units::Service;

/// The shortest time between two counts of a unit.
const AGAIN: Duration = Duration::from_millis(500);
/// It is also at least this many times the duration of a count.
const SHARE: u32 = 200;

impl Groups {
    /// The processes of the unit or container at `cgroup` that do not belong to this group. Descendants of a matching
    /// process do.
    pub(super) fn others(&mut self, cgroup: &str, group: usize) -> Others {
        if let Some(others) = self.domains.get(cgroup, group) {
            return others;
        }
        let start = cpu_time();
        let others = self.count_others(cgroup, group);
        let again = Instant::now() + AGAIN.max((cpu_time() - start) * SHARE);
        self.domains
            .others
            .insert((cgroup.to_owned(), group), (others, again));
        others
    }

    /// The state of a service, cached for a moment.
    pub(super) fn service(&mut self, unit: &str) -> Result<Service, GroupsError> {
        if let Some((service, _)) = self
            .domains
            .services
            .get(unit)
            .filter(|(_, until)| Instant::now() < *until)
        {
            return Ok(service.clone());
        }
        self.service_now(unit)
    }

    /// The current state of a service.
    pub(super) fn service_now(&mut self, unit: &str) -> Result<Service, GroupsError> {
        let reason = || "it cannot be reached".to_owned();
        let unreachable = || GroupsError::Systemd {
            what: format!("reading the state of {unit}"),
            reason: reason(),
        };
        let service = self.units.as_ref().ok_or_else(unreachable)?.service(unit)?;
        self.domains
            .services
            .insert(unit.to_owned(), (service.clone(), Instant::now() + AGAIN));
        Ok(service)
    }

    fn count_others(&self, cgroup: &str, group: usize) -> Others {
        let pids = self.tree.pids(cgroup);
        let mut parents = HashMap::new();
        let mut members = BTreeSet::new();
        for pid in &pids {
            let process = Process::new(&self.host.proc, *pid);
            let Some((parent, _)) = process.parent_and_start() else {
                continue;
            };
            parents.insert(*pid, parent);
            let found = self
                .matchers
                .find(&process, &process.cgroups(), &self.known);
            if matches!(found, Some((nth, By::Itself)) if nth == group) {
                members.insert(*pid);
            }
        }
        let descends = |mut pid: u32| {
            // At most as many steps as processes: a fake /proc may have cycles.
            for _ in 0..=parents.len() {
                if members.contains(&pid) {
                    return true;
                }
                match parents.get(&pid) {
                    Some(parent) => pid = *parent,
                    None => return false,
                }
            }
            false
        };
        match parents.keys().filter(|pid| !descends(**pid)).count() {
            0 => Others::Same,
            others => Others::Differ(others),
        }
    }
}
