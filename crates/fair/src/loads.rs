//! Loads that services report of themselves: of requests on kept connections, and inside of a server that accepts at once.
//! No socket tells of these.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::parameters::{ROOM_OF_LOAD, TARGET};
use crate::reading::Reported;

/// The time after a report in which it counts.
pub const LASTS: Duration = Duration::from_secs(2);
/// The least time between two reports that show whether waits grow.
const SPAN: Duration = Duration::from_millis(50);
/// The longest wait, in seconds, and the largest load.
pub const MOST: f64 = 3600.0;

/// The load of a service, from 0 to [`MOST`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// 1: it is full.
    Share(f64),
    /// Seconds that a request waits inside of it.
    Wait(f64),
}

impl Load {
    /// Seconds that a request waits: the target at a load of 1, none from 0.67 downwards.
    fn wait(self) -> f64 {
        match self {
            Self::Share(load) => (TARGET * (1.0 + (load - 1.0) / ROOM_OF_LOAD)).max(0.0),
            Self::Wait(seconds) => seconds,
        }
    }
}

/// A report that is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No limit has the load of this service as a signal.
    Unknown,
    /// This user may not report it.
    User,
}

/// The services whose loads are signals of limits in effect. Shared by those that receive reports and the laws' thread.
#[derive(Debug, Default)]
pub struct Loads(Mutex<BTreeMap<String, Service>>);

#[derive(Debug, Default)]
struct Service {
    /// The user that may report, beside root.
    user: Option<u32>,
    last: Option<Report>,
}

#[derive(Clone, Copy, Debug)]
struct Report {
    load: Load,
    at: Instant,
    /// The report with which the next one is compared.
    base: (Load, Instant),
    /// Growth of the wait, in seconds a second.
    growth: f64,
    number: u64,
}

impl Loads {
    /// Replaces the services, and the user of each that may report beside root. Reports of those that stay are kept.
    pub fn replace(&self, services: impl IntoIterator<Item = (String, Option<u32>)>) {
        let mut known = self.lock();
        let mut before = std::mem::take(&mut *known);
        known.extend(services.into_iter().map(|(name, user)| {
            let old = before.remove(&name);
            let last = old.filter(|old| old.user == user).and_then(|old| old.last);
            (name, Service { user, last })
        }));
    }

    /// Takes a user's report.
    ///
    /// # Errors
    ///
    /// When no limit has this signal, or the user may not report it.
    pub fn report(
        &self,
        service: &str,
        user: u32,
        load: Load,
        now: Instant,
    ) -> Result<(), Refused> {
        let mut known = self.lock();
        let known = known.get_mut(service).ok_or(Refused::Unknown)?;
        if user != 0 && known.user != Some(user) {
            return Err(Refused::User);
        }
        let number = known.last.map_or(0, |last| last.number + 1);
        let before = known.last.filter(|last| is_recent(last.at, now));
        known.last = Some(Report {
            number,
            ..Report::after(before, load, now)
        });
        Ok(())
    }

    /// The last report; `None` if there is none of the last [`LASTS`].
    #[must_use]
    pub fn read(&self, service: &str, now: Instant) -> Option<Reported> {
        let last = self.lock().get(service)?.last?;
        is_recent(last.at, now).then(|| Reported {
            wait: last.load.wait(),
            growth: last.growth,
            load: match last.load {
                Load::Share(load) => Some(load),
                Load::Wait(_) => None,
            },
            number: last.number,
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Service>> {
        // Each change is whole by itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A report may come between a reading's time and the reading.
fn is_recent(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) <= LASTS
}

impl Report {
    fn after(before: Option<Self>, load: Load, at: Instant) -> Self {
        let first = Self {
            load,
            at,
            base: (load, at),
            growth: 0.0,
            number: 0,
        };
        let Some(before) = before else { return first };
        let (base, since) = before.base;
        if std::mem::discriminant(&load) != std::mem::discriminant(&base) {
            return first;
        }
        let span = at.saturating_duration_since(since);
        if span < SPAN {
            return Self {
                base: before.base,
                growth: before.growth,
                ..first
            };
        }
        Self {
            growth: (load.wait() - base.wait()) / span.as_secs_f64(),
            ..first
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const APP: u32 = 1000;

    fn of(services: &[(&str, Option<u32>)]) -> Loads {
        let loads = Loads::default();
        let services = services.iter();
        loads.replace(services.map(|(name, user)| ((*name).to_owned(), *user)));
        loads
    }

    fn after(began: Instant, seconds: f64) -> Instant {
        began + Duration::from_secs_f64(seconds)
    }

    #[test]
    fn root_and_the_services_user_report() {
        let loads = of(&[("app", Some(APP)), ("other", None)]);
        let now = Instant::now();
        let report = |service, user| loads.report(service, user, Load::Share(1.0), now);
        assert_eq!(report("app", APP), Ok(()));
        assert_eq!(report("app", 0), Ok(()));
        assert_eq!(report("app", APP + 1), Err(Refused::User));
        assert_eq!(report("other", 0), Ok(()));
        assert_eq!(report("other", APP), Err(Refused::User));
        assert_eq!(report("none", 0), Err(Refused::Unknown));
    }

    #[test]
    fn a_refused_report_changes_nothing() {
        let loads = of(&[("app", None)]);
        let now = Instant::now();
        loads.report("app", 0, Load::Wait(0.1), now).unwrap();
        assert_eq!(
            loads.report("app", APP, Load::Wait(9.0), now),
            Err(Refused::User)
        );
        assert_eq!(loads.read("app", now).unwrap().wait, 0.1);
    }

    #[test]
    fn a_report_counts_for_two_seconds() {
        let loads = of(&[("app", None)]);
        let began = Instant::now();
        assert_eq!(loads.read("app", began), None);
        loads.report("app", 0, Load::Share(1.0), began).unwrap();
        assert!(loads.read("app", began + LASTS).is_some());
        assert!(loads.read("app", after(began, 2.001)).is_none());
    }

    #[test]
    fn a_full_service_is_at_the_target_and_half_more_is_an_overload() {
        let wait = |load| Load::Share(load).wait();
        assert_eq!(wait(1.0), TARGET);
        assert!(wait(1.49) < 0.125 && wait(1.51) > 0.125);
        assert_eq!(wait(0.66), 0.0);
        assert_eq!(wait(0.0), 0.0);
    }

    #[test]
    fn waits_and_loads_grow_by_what_they_did_between_reports() {
        let loads = of(&[("app", None)]);
        let began = Instant::now();
        let growth = |seconds, load| {
            let now = after(began, seconds);
            loads.report("app", 0, load, now).unwrap();
            loads.read("app", now).unwrap().growth
        };
        assert_eq!(growth(0.0, Load::Wait(0.1)), 0.0);
        // Too soon to say.
        assert_eq!(growth(0.02, Load::Wait(0.5)), 0.0);
        assert!((growth(0.1, Load::Wait(0.3)) - 2.0).abs() < 1e-6);
        assert!((growth(0.12, Load::Wait(0.9)) - 2.0).abs() < 1e-6);
        assert!((growth(0.2, Load::Wait(0.2)) + 1.0).abs() < 1e-6);
        assert_eq!(growth(0.3, Load::Share(2.0)), 0.0);
        assert!((growth(0.4, Load::Share(1.0)) + 1.5).abs() < 1e-6);
        assert_eq!(growth(0.5, Load::Wait(0.3)), 0.0);
        // The last one does not count any more.
        assert_eq!(growth(3.0, Load::Wait(0.9)), 0.0);
    }

    #[test]
    fn reports_stay_over_a_change_of_other_services() {
        let loads = of(&[("app", None), ("other", None)]);
        let now = Instant::now();
        for service in ["app", "other"] {
            loads.report(service, 0, Load::Wait(0.2), now).unwrap();
        }
        loads.replace([("app".to_owned(), None), ("other".to_owned(), Some(APP))]);
        assert_eq!(loads.read("app", now).unwrap().wait, 0.2);
        // Of a user that may no longer report it.
        assert_eq!(loads.read("other", now), None);
        loads.replace([]);
        assert_eq!(loads.read("app", now), None);
    }
}
