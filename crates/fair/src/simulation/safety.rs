//! Fail-safe: a law without signals, without goodput or without effect refuses nobody.

use super::scenarios::{beside_polite, heavy};
use super::sources::STEP;
use super::world::{Log, Scenario, Server, run};
use crate::{Failure, State, Tier};

fn at(log: &Log, seconds: f64) -> f64 {
    log.entries[(seconds / STEP).round() as usize].level
}

/// The time of the first report with this failure.
fn first(log: &Log, failure: Failure) -> Option<f64> {
    let mut reports = log.reports.iter();
    reports
        .find(|(_, report)| report.failure == Some(failure))
        .map(|(now, _)| *now)
}

#[test]
fn unreadable_signals_release_after_half_a_second() {
    let scenario = Scenario {
        readable: |now| now < 6.0,
        ..beside_polite(Server::Udp, vec![heavy(Server::Udp, 10.0, 12.0)], 12.0)
    };
    let log = run(&scenario, 1);
    let failed = first(&log, Failure::Unreadable).unwrap();
    assert!((6.4..6.65).contains(&failed), "{failed}");
    assert!(at(&log, 6.3) < 3000.0, "the level is kept until then");
    let after = &log.entries[((failed + 2.0 * STEP) / STEP) as usize..];
    assert!(after.iter().all(|entry| entry.level.is_infinite()));
}

/// As after a dump of many sockets, which took 20 ms.
#[test]
fn signals_at_every_fifth_reading_are_enough() {
    let server = Server::Udp;
    let scenario = Scenario {
        readable: |now| (now + 0.005).rem_euclid(0.5) < 0.1,
        ..beside_polite(server, vec![heavy(server, 10.0, 12.0)], 12.0)
    };
    let log = run(&scenario, 1);
    assert_eq!(first(&log, Failure::Unreadable), None);
    let figures = super::judge::judge(&scenario, "polite", &log);
    println!("udp: signals every 0.5 s: {figures:?}");
    assert!(
        figures.polite >= 95.0 && figures.peace <= 0.0,
        "{figures:?}"
    );
}

#[test]
fn signals_that_return_end_a_release() {
    let scenario = Scenario {
        readable: |now| !(6.0..6.8).contains(&now),
        ..beside_polite(Server::Udp, vec![heavy(Server::Udp, 10.0, 12.0)], 12.0)
    };
    let log = run(&scenario, 1);
    assert_eq!(log.reports.last().unwrap().1.failure, None);
    let level = at(&log, 8.5);
    assert!((1500.0..2300.0).contains(&level), "{level}");
}

#[test]
fn a_server_that_serves_nothing_for_a_second_has_no_limit() {
    for server in [Server::Udp, Server::Tcp] {
        let scenario = Scenario {
            capacity: |now| if (6.0..9.0).contains(&now) { 1e-9 } else { 1.0 },
            ..beside_polite(server, vec![heavy(server, 10.0, 14.0)], 14.0)
        };
        let log = run(&scenario, 1);
        let failed = first(&log, Failure::Stalled).unwrap();
        assert!((6.9..7.4).contains(&failed), "{failed}");
        let off = &log.entries[((failed + 2.0 * STEP) / STEP) as usize..(9.0 / STEP) as usize];
        assert!(off.iter().all(|entry| entry.level.is_infinite()));
        assert_eq!(log.reports.last().unwrap().1.failure, None);
        let after = at(&log, 11.0) / server.capacity();
        assert!(
            (0.1..0.3).contains(&after),
            "limited again when it serves: {after}"
        );
    }
}

#[test]
fn an_overload_that_outlasts_a_stall_is_a_new_onset() {
    for server in [Server::Udp, Server::Tcp] {
        let scenario = Scenario {
            capacity: |now| if (6.0..9.0).contains(&now) { 1e-9 } else { 1.0 },
            ..beside_polite(server, vec![heavy(server, 10.0, 16.0)], 16.0)
        };
        let log = run(&scenario, 1);
        let mut reports = log.reports.iter().skip_while(|(now, _)| *now < 9.0);
        let mut time = |state| {
            let (now, _) = reports.find(|(_, report)| report.state == state).unwrap();
            *now
        };
        let (armed, limiting) = (time(State::Armed), time(State::Limiting));
        assert!(armed < 9.2 && limiting < 9.5, "{armed} {limiting}");
        let part = &log.entries[(11.0 / STEP) as usize..(16.0 / STEP) as usize];
        let sum = |of: fn(&super::world::Entry) -> f64| part.iter().map(of).sum::<f64>();
        let polite = sum(|entry| entry.good[0]) / sum(|entry| entry.offered[0]);
        let used = sum(|entry| entry.served) / sum(|entry| entry.can);
        assert!(polite > 0.98 && used > 0.95, "{polite} {used}");
    }
}

/// The queue is full whatever the limit refuses: its units are not those that fill it.
#[test]
fn a_level_without_effect_is_released_after_ten_seconds_and_tried_again() {
    use crate::{Law, Queue, Reading, Settings, Source, Unit};
    let mut law = Law::new(Settings {
        unit: Unit::Packets,
        at_least: 100.0,
        at_most: Some(20_000.0),
        widest: Tier::Sources,
    });
    let sources = [Source {
        weight: 1.0,
        rate: 1000.0,
        since_onset: 100.0,
        samples: 100.0,
        ..Source::default()
    }];
    let (mut onset, mut failed, mut off, mut again) = (None, None, None, None);
    let mut now: f64 = 0.0;
    while now < 60.0 && again.is_none() {
        let elapsed = if law.is_off() { 0.05 } else { 0.1 };
        now += elapsed;
        let level = law.step(&Reading {
            now,
            elapsed,
            passed: law.level().map_or(1000.0, |level| level.rate) * elapsed,
            refused: 900.0 * elapsed,
            queue: Some(Queue {
                waiting: 256.0,
                growth: 0.0,
                dropped: 50.0 * elapsed,
                buffer: Some(256.0),
                ..Queue::default()
            }),
            sources: &sources,
        });
        let at_least = level.is_some_and(|level| level.rate <= 100.0);
        onset = onset.or(at_least.then_some(now));
        let failure = law.report().failure == Some(Failure::WithoutEffect);
        failed = failed.or(failure.then_some(now));
        off = off.or((failed.is_some() && law.is_off()).then_some(now));
        again = again.or((off.is_some() && law.report().state == State::Limiting).then_some(now));
    }
    let (onset, failed, off, again) = (
        onset.unwrap(),
        failed.unwrap(),
        off.unwrap(),
        again.unwrap(),
    );
    assert!((9.9..10.3).contains(&(failed - onset)), "{onset} {failed}");
    assert!(off <= failed, "{failed} {off}");
    assert!((29.9..30.5).contains(&(again - failed)), "{failed} {again}");
}

/// A law alone, which gets all drops as counted: 250 a second whatever passes, and no queue. A server takes 6,000 a second,
/// and from 15 s on one source sends `flood`. Returns when nobody was limited any more, and the times of ticks with a level.
fn with_drops_of_any_level(flood: f64) -> (f64, Vec<f64>) {
    use crate::{Law, Queue, Reading, Settings, Source, Unit};
    let mut law = Law::new(Settings {
        unit: Unit::Packets,
        at_least: 1.0,
        at_most: None,
        widest: Tier::Sources,
    });
    let source = |rate: f64| Source {
        weight: 1.0,
        rate,
        since_onset: rate * 0.1,
        samples: 100.0,
        ..Source::default()
    };
    let (mut now, mut failed, mut limited) = (0.0, f64::INFINITY, Vec::new());
    while now < 30.0 {
        let elapsed = if law.is_off() { 0.05 } else { 0.1 };
        now += elapsed;
        // One of 3,000 a second, 20 of 100, and the flood.
        let flood = if now < 15.0 { 0.0 } else { flood };
        let rates = [vec![3000.0, flood], vec![100.0; 20]].concat();
        let level = law.level().map_or(f64::INFINITY, |level| level.rate);
        let passed: f64 = rates.iter().map(|rate| rate.min(level)).sum();
        let dropped = 250.0 + (passed - 6000.0).max(0.0);
        law.step(&Reading {
            now,
            elapsed,
            passed: passed * elapsed,
            refused: (rates.iter().sum::<f64>() - passed) * elapsed,
            queue: Some(Queue {
                dropped: dropped * elapsed,
                buffer: Some(256.0),
                ..Queue::default()
            }),
            sources: &rates.iter().copied().map(source).collect::<Vec<_>>(),
        });
        if law.level().is_some() {
            limited.push(now);
        }
        if law.report().failure == Some(Failure::WithoutEffect) {
            failed = now.min(failed);
        }
    }
    (failed, limited)
}

#[test]
fn drops_that_do_not_depend_on_the_level_release_it() {
    let (failed, limited) = with_drops_of_any_level(0.0);
    let lasted = failed - limited[0];
    assert!((2.0..9.0).contains(&lasted), "{lasted}");
    let limited = limited.len() as f64 * 0.1;
    assert!(limited < 12.0, "{limited} of 30 s");
}

#[test]
fn a_flood_after_drops_that_do_not_depend_on_the_level_ends_the_pause() {
    for flood in [5_000.0, 20_000.0, 200_000.0] {
        let (failed, limited) = with_drops_of_any_level(flood);
        let again = limited.iter().find(|now| **now > failed).unwrap();
        println!(
            "drops of any level, then {flood}/s: limited after {:.2} s",
            again - 15.0
        );
        assert!(
            failed < 15.0 && (15.0..16.5).contains(again),
            "{failed} {again}"
        );
        let limited = limited.iter().filter(|now| **now > 15.0).count() as f64 * 0.1;
        assert!(limited > 12.0, "{limited} of 15 s");
    }
}
