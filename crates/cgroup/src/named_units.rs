//! Units that the config names in full: they have their limits before they start.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use host::backoff::Backoff;

use super::groups::Groups;
use super::units::reachable;

/// The interval at which the limits of units without a cgroup are compared.
const COMPARE: Duration = Duration::from_secs(30);
/// The pauses before a unit without a cgroup that could not be limited is tried again.
const FAILED: Backoff = Backoff::new(Duration::from_secs(1), COMPARE);

impl Groups {
    /// Sets limits on units that the config names in full, before they start.
    pub(super) fn limit_named_units(&mut self) {
        let is_due = self.comparisons.units.elapsed() >= COMPARE;
        for (group, unit) in self.matchers.units() {
            // Failed ones are retried: a unit may be installed later.
            let is_set = self
                .idle_units
                .get(unit)
                .is_some_and(|(_, problems)| problems.is_empty());
            let has_cgroup = || self.targets.values().any(|target| target.key == unit);
            let failed = self.comparisons.failed.get(unit).copied();
            if is_set && (!is_due || has_cgroup())
                || failed.is_some_and(|(due, _)| Instant::now() < due)
            {
                continue;
            }
            let Some(units) = reachable(self.units.as_deref()) else {
                return;
            };
            let held = &self.members[group].held;
            let problems = self
                .in_place
                .set_unit(units, &self.host, unit, held, &BTreeSet::new());
            if problems.is_empty() {
                self.comparisons.failed.remove(unit);
            } else {
                let failures = failed.map_or(1, |(_, failures)| failures.saturating_add(1));
                let due = Instant::now() + FAILED.pause(failures);
                self.comparisons
                    .failed
                    .insert(unit.to_owned(), (due, failures));
            }
            let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
            let before = self
                .idle_units
                .insert(unit.to_owned(), (group, problems.clone()));
            self.is_changed |= before.is_none_or(|(_, before)| before != problems);
        }
        if is_due {
            self.forget_gone_units();
            self.comparisons.units = Instant::now();
        }
    }

    /// Removes the records of units that no longer exist, as scopes of containers and sessions. One that has only stopped
    /// has its limits when it starts again.
    fn forget_gone_units(&mut self) {
        const TRIES: u32 = 3;
        let Some(units) = reachable(self.units.as_deref()) else {
            return;
        };
        let named: BTreeSet<&str> = self.matchers.units().map(|(_, unit)| unit).collect();
        let kept: BTreeSet<&str> = self
            .targets
            .values()
            .map(|target| target.key.as_str())
            .chain(named)
            .collect();
        let mut gone = Vec::new();
        for (unit, tries) in std::mem::take(&mut self.comparisons.gone) {
            if kept.contains(unit.as_str()) {
                continue;
            }
            if !units.is_broken() && units.is_gone(&unit).is_ok_and(|is_gone| is_gone) {
                gone.push(unit);
            } else if tries < TRIES {
                self.comparisons.gone.insert(unit, tries + 1);
            }
        }
        if !gone.is_empty() {
            self.in_place.forget_units(units, &gone);
        }
    }
}
