//! Services that report their load: requests on kept connections wait inside of them, and no socket shows it.

use std::time::{Duration, Instant};

use super::means;
use super::scenarios::{beside_polite, heavy, peace};
use super::world::{Scenario, Server, run};
use crate::{Cause, Load, Loads, Reported};

/// What a service reports, and how often.
#[derive(Clone, Copy)]
pub struct Reports {
    pub every: f64,
    /// Seconds that a request takes, for a load: requests in service and waiting, of what may be in service. None: how long
    /// a request waits.
    pub takes: Option<f64>,
    /// When it ends to report.
    pub until: f64,
}

/// The service of a run, and what was received of it.
pub struct Reporter {
    reports: Option<Reports>,
    loads: Loads,
    began: Instant,
    next: f64,
    read: Option<u64>,
    served: f64,
    can: f64,
}

const SERVICE: &str = "app";

impl Reporter {
    pub fn new(reports: Option<Reports>) -> Self {
        let loads = Loads::default();
        loads.replace([(SERVICE.to_owned(), None)]);
        Self {
            reports,
            loads,
            began: Instant::now(),
            next: 0.0,
            read: None,
            served: 0.0,
            can: 0.0,
        }
    }

    /// After a step, in which the service served this of what it could, `queue` requests wait. Its speed is in requests a
    /// second.
    pub fn step(&mut self, now: f64, (served, can): (f64, f64), queue: f64, speed: f64) {
        self.served += served;
        self.can += can;
        let Some(reports) = self.reports.filter(|reports| now < reports.until) else {
            return;
        };
        if now < self.next {
            return;
        }
        self.next = now + reports.every - 1e-9;
        let load = match reports.takes {
            Some(takes) => {
                let in_service = (self.served / self.can.max(1e-9)).min(1.0);
                Load::Share(in_service + queue / (speed * takes))
            }
            None => Load::Wait(queue / speed),
        };
        (self.served, self.can) = (0.0, 0.0);
        let received = self.loads.report(SERVICE, 0, load, self.at(now));
        assert_eq!(received, Ok(()));
    }

    pub const fn reports(&self) -> bool {
        self.reports.is_some()
    }

    pub fn read(&mut self, now: f64) -> Option<Reported> {
        let reported = self.loads.read(SERVICE, self.at(now));
        self.read = reported.map(|reported| reported.number);
        reported
    }

    /// Whether there is none since the last one that was read.
    pub fn lacks_report(&self, now: f64) -> bool {
        let reported = self.loads.read(SERVICE, self.at(now));
        reported.is_some_and(|reported| Some(reported.number) == self.read)
    }

    fn at(&self, now: f64) -> Instant {
        self.began + Duration::from_secs_f64(now)
    }
}

const ALWAYS: f64 = f64::INFINITY;

/// What services report, and what part of polite requests is served in time and of the capacity used, at least, in percent.
/// A load of shorter requests is too noisy: stalls of 15 ms look like an overload.
const ALL: [(&str, Reports, [f64; 2]); 4] = [
    ("wait, each 0.1 s", of(0.1, None), [99.0, 95.0]),
    ("wait, each 0.25 s", of(0.25, None), [90.0, 95.0]),
    ("load, requests of 100 ms", of(0.1, Some(0.1)), [97.0, 80.0]),
    ("load, requests of 500 ms", of(0.1, Some(0.5)), [94.0, 88.0]),
];

const fn of(every: f64, takes: Option<f64>) -> Reports {
    Reports {
        every,
        takes,
        until: ALWAYS,
    }
}

fn reported(reports: Reports, scenario: Scenario) -> Scenario {
    Scenario {
        reports: Some(reports),
        tiers: false,
        ..scenario
    }
}

#[test]
fn a_service_that_keeps_up_refuses_nothing() {
    for (name, reports, _) in ALL {
        for load in [0.85, 0.92] {
            let scenario = reported(reports, peace(Server::Inside, load));
            let figures = means(&format!("{name}: {load} load"), &scenario, "polite");
            assert!(figures.peace <= 0.0, "{name} {load}: {figures:?}");
        }
    }
}

#[test]
fn five_heavy_sources_of_a_service_that_reports_take_nothing_from_polite_ones() {
    for (name, reports, [polite, used]) in ALL {
        for times in [10.0, 2.0] {
            let server = Server::Inside;
            let scenario = beside_polite(server, vec![heavy(server, times, 9.0)], 9.0);
            let name = format!("{name}: 5 sources, {times} times");
            let figures = means(&name, &reported(reports, scenario), "polite");
            assert!(figures.after <= 0.0 && figures.off <= 5.0, "{figures:?}");
            assert!(figures.polite >= polite, "{figures:?}");
            assert!(figures.used >= used, "{figures:?}");
        }
    }
}

#[test]
fn a_level_is_held_by_the_load_that_a_service_reports() {
    let server = Server::Inside;
    let scenario = beside_polite(server, vec![heavy(server, 10.0, 9.0)], 9.0);
    let log = run(&reported(of(0.1, None), scenario), 1);
    let mut causes = log.reports.iter().map(|(_, report)| report.cause);
    assert!(causes.any(|cause| cause == Some(Cause::Load)));
}

/// Its queue is full, and nobody says so any more.
#[test]
fn a_service_that_reports_no_more_is_not_limited() {
    let server = Server::Inside;
    let scenario = beside_polite(server, vec![heavy(server, 10.0, 20.0)], 20.0);
    let reports = Reports {
        until: 6.0,
        ..of(0.1, None)
    };
    let log = run(&reported(reports, scenario), 1);
    let level = |seconds: f64| log.entries[(seconds / super::sources::STEP) as usize].level;
    assert!(level(5.9).is_finite());
    // The last report counts for 2 s, and signals may be unreadable for 0.5 s.
    assert!(level(8.7).is_infinite() && level(19.0).is_infinite());
}
