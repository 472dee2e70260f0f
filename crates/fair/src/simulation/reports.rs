//! Services that report their load: requests on kept connections wait inside of them, and no socket shows it.

use std::time::{Duration, Instant};

use super::means;
use super::scenarios::{START, beside_polite, heavy, peace};
use super::sources::{Block, STEP};
use super::world::{Scenario, Server, run};
use crate::{Cause, Failure, Load, Loads, Reported, Tier};

/// The reports of a service, and their interval.
#[derive(Clone, Copy)]
pub struct Reports {
    pub every: f64,
    /// Seconds that a request takes, for a load: requests in service and waiting, of what may be in service. None: how long
    /// a request waits.
    pub takes: Option<f64>,
    /// When it ends to report.
    pub until: f64,
    /// The wait that it reports by time, whatever it is.
    pub claims: Option<fn(f64) -> f64>,
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
        let load = match (reports.claims, reports.takes) {
            (Some(wait), _) => Load::Wait(wait(now)),
            (None, Some(takes)) => {
                let in_service = (self.served / self.can.max(1e-9)).min(1.0);
                Load::Share(in_service + queue / (speed * takes))
            }
            (None, None) => Load::Wait(queue / speed),
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

/// Kinds of reports, the least share of polite requests served in time and the least share of the capacity used, in percent.
/// A load of shorter requests is too noisy: stalls of 15 ms look like an overload.
const ALL: [(&str, Reports, [f64; 2]); 4] = [
    ("wait, each 0.1 s", of(0.1, None), [99.0, 95.0]),
    ("wait, each 0.25 s", of(0.25, None), [85.0, 95.0]),
    ("load, requests of 100 ms", of(0.1, Some(0.1)), [97.0, 75.0]),
    ("load, requests of 500 ms", of(0.1, Some(0.5)), [65.0, 88.0]),
];

pub const fn of(every: f64, takes: Option<f64>) -> Reports {
    Reports {
        every,
        takes,
        until: ALWAYS,
        claims: None,
    }
}

fn reported(reports: Reports, scenario: Scenario) -> Scenario {
    Scenario {
        reports: Some(reports),
        widest: Tier::Sources,
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
    let level = |seconds: f64| log.entries[(seconds / STEP) as usize].level;
    assert!(level(5.9).is_finite());
    // The last report counts for 2 s, and signals may be unreadable for 0.5 s.
    assert!(level(8.7).is_infinite() && level(19.0).is_infinite());
}

/// As a service reports by how much its replies take longer than usual, since something behind it is slow; and one that
/// reports no wait now and then.
#[test]
fn a_wait_on_which_no_level_has_an_effect_is_released() {
    let claims: [fn(f64) -> f64; 3] = [
        |now| if now < 3.5 { 0.2 } else { 0.08 },
        |now| if now.rem_euclid(5.0) < 0.15 { 0.0 } else { 5.0 },
        |_| 5.0,
    ];
    for claims in claims {
        let server = Server::Inside;
        let heavy = Block::between("heavy", 5, 0.3 * server.capacity() / 5.0, START, 60.0);
        let reports = Reports {
            claims: Some(claims),
            ..of(0.1, None)
        };
        let scenario = beside_polite(server, vec![heavy], 60.0);
        let log = run(&reported(reports, scenario), 1);
        let mut reports = log.reports.iter();
        let is_released =
            |(_, report): &&(f64, crate::Report)| report.failure == Some(Failure::WithoutEffect);
        let (released, _) = reports.find(is_released).unwrap();
        let limited = log.entries.iter().filter(|entry| entry.level.is_finite());
        let limited = limited.count() as f64 * STEP;
        println!(
            "a wait without effect: released at {released:.1}, limited for {limited:.1} of 60 s"
        );
        assert!(limited < 35.0, "{limited}");
    }
}

/// What passed is compared with the growth of a wait once; between reports, the law has only the wait.
#[test]
fn a_slow_reporter_has_a_slower_law() {
    let server = Server::Inside;
    for (every, [polite, used]) in [(0.5, [80.0, 95.0]), (1.0, [40.0, 95.0])] {
        let scenario = beside_polite(server, vec![heavy(server, 10.0, 15.0)], 15.0);
        let figures = means(
            &format!("wait, each {every} s: 5 sources, 10 times"),
            &reported(of(every, None), scenario),
            "polite",
        );
        assert!(
            figures.polite >= polite && figures.used >= used,
            "{figures:?}"
        );
    }
}
