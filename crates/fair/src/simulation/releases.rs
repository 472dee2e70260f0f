//! Floods after a release without effect. An attacker may cause it: by a flood outside of the limit, or by drops that do not
//! depend on the level.

use super::reports::of;
use super::scenarios::{START, beside_polite, heavy};
use super::sources::{Block, Kind, STEP, Way};
use super::world::{Entry, Log, Scenario, Server, run};
use crate::{Failure, Tier};

/// The time from which the limit is flooded, after its release.
const FLOOD: f64 = 16.0;
const END: f64 = 40.0;

/// A load of 35 %, what causes the release, and a flood of so many times the capacity.
fn flooded(server: Server, before: Block, times: f64, start: f64) -> Scenario {
    let most = Block::always("most", 50, 0.3 * server.capacity() / 50.0);
    let flood = Block {
        start,
        ..heavy(server, times, END)
    };
    Scenario {
        widest: Tier::Sources,
        ..beside_polite(server, vec![most, before, flood], END)
    }
}

/// From [`START`] on, so many times the capacity.
fn outside(server: Server, times: f64, end: f64) -> Block {
    Block {
        way: Way::Outside,
        ..Block::between("outside", 5, times * server.capacity() / 5.0, START, end)
    }
}

/// Half of the capacity from many addresses, in one of five steps: no level limits these, and each time a short backlog drops
/// some of them.
fn pulses(server: Server, end: f64) -> Block {
    let each = 0.5 * server.capacity() / 20_000.0;
    Block {
        kind: Kind::MadeUp,
        shape: |t| f64::from(u8::from((t / STEP).round() as u64 % 5 == 1)) * 5.0,
        ..Block::between("pulses", 20_000, each, START, end)
    }
}

/// The first release.
fn released(log: &Log) -> f64 {
    let mut reports = log.reports.iter();
    let release =
        |(_, report): &&(f64, crate::Report)| report.failure == Some(Failure::WithoutEffect);
    reports.find(release).map_or(f64::INFINITY, |(now, _)| *now)
}

/// Of the flood: seconds in which nobody is limited, and from 4 s on the part of polite sources' units with a reply in time.
fn after(log: &Log) -> (f64, f64) {
    let part = |from: f64| log.entries[(from / STEP) as usize..(END / STEP) as usize].iter();
    let off = part(FLOOD)
        .filter(|entry| entry.level.is_infinite())
        .count() as f64
        * STEP;
    let sum = |of: fn(&Entry) -> f64| part(FLOOD + 4.0).map(of).sum::<f64>();
    (
        off,
        sum(|entry| entry.good[0]) / sum(|entry| entry.offered[0]),
    )
}

#[test]
fn a_flood_after_one_outside_of_the_limit_is_limited() {
    for (name, server, times, [counters, are_packets]) in [
        ("udp", Server::Udp, 10.0, [true, false]),
        ("udp", Server::Udp, 10.0, [false, false]),
        ("udp", Server::Udp, 1.5, [true, false]),
        ("tcp", Server::Tcp, 10.0, [true, false]),
        ("tcp", Server::Tcp, 10.0, [false, false]),
        ("tcp", Server::Tcp, 10.0, [true, true]),
        ("tcp", Server::Tcp, 1.5, [true, false]),
        ("a short backlog", Server::Small, 10.0, [true, false]),
    ] {
        // After the other flood, or from its onset on.
        for flood in [FLOOD, START] {
            let scenario = Scenario {
                counters,
                are_packets,
                ..flooded(server, outside(server, 3.0, FLOOD), times, flood)
            };
            let log = run(&scenario, 1);
            let at = released(&log);
            let (off, polite) = after(&log);
            println!(
                "{name}: {times} times from {flood:.0} s, counters: {counters}, packets: {are_packets}: released at {at:.1} s, then off for {off:.1} s, polite {polite:.2}"
            );
            assert!(at < FLOOD, "{name}: {at}");
            assert!(off < 3.0 && polite > 0.85, "{name}: {off} {polite}");
        }
    }
}

#[test]
fn a_flood_after_drops_that_do_not_depend_on_the_level_is_limited() {
    for times in [10.0, 2.0] {
        for pulses_end in [FLOOD, END] {
            let server = Server::Small;
            let pulses = pulses(server, pulses_end);
            let log = run(&flooded(server, pulses, times, FLOOD), 1);
            let at = released(&log);
            let (off, polite) = after(&log);
            println!(
                "pulses until {pulses_end:.0} s, {times} times: released at {at:.1} s, then off for {off:.1} s, polite {polite:.2}"
            );
            assert!(at < FLOOD, "{at}");
            assert!(off < 2.0 && polite > 0.9, "{off} {polite}");
        }
    }
}

/// Without a flood.
#[test]
fn what_causes_a_release_limits_for_a_third_of_the_time() {
    let end = 90.0;
    for (name, server, before) in [
        ("pulses", Server::Small, pulses(Server::Small, end)),
        ("udp", Server::Udp, outside(Server::Udp, 1.2, end)),
        ("tcp", Server::Tcp, outside(Server::Tcp, 1.0, end)),
        (
            "a short backlog",
            Server::Small,
            outside(Server::Small, 1.2, end),
        ),
    ] {
        for are_packets in [false, true] {
            let scenario = Scenario {
                onset: end,
                end,
                are_packets: are_packets && server != Server::Udp,
                ..flooded(server, before.clone(), 0.0, FLOOD)
            };
            let limited = limited(&run(&scenario, 1));
            println!("{name}, packets: {are_packets}: limited for {limited:.1} of 90 s");
            assert!((8.0..36.0).contains(&limited), "{name}: {limited}");
        }
    }
}

fn limited(log: &Log) -> f64 {
    let levels = log.entries.iter().map(|entry| entry.level);
    levels.filter(|level| level.is_finite()).count() as f64 * STEP
}

/// One outside of the limit and one inside, 10 s each.
#[test]
fn floods_in_turns_are_limited_when_they_are_inside() {
    let end = 120.0;
    for (name, server) in [("udp", Server::Udp), ("a short backlog", Server::Small)] {
        let outside = Block {
            shape: |t| f64::from(u8::from(t.rem_euclid(21.0) < 11.0)),
            ..outside(server, 3.0, end)
        };
        let inside = Block {
            shape: |t| f64::from(u8::from(t.rem_euclid(21.0) >= 11.0)),
            start: START,
            ..heavy(server, 10.0, end)
        };
        let most = Block::always("most", 50, 0.3 * server.capacity() / 50.0);
        let scenario = Scenario {
            onset: end,
            widest: Tier::Sources,
            ..beside_polite(server, vec![most, outside, inside], end)
        };
        let log = run(&scenario, 1);
        let flooded = log.entries.iter().filter(|entry| entry.offered[3] > 0.0);
        let seconds = flooded.clone().count() as f64 * STEP;
        let off = flooded.filter(|entry| entry.level.is_infinite()).count() as f64 * STEP;
        let limited = limited(&log);
        println!(
            "{name}: floods in turns: limited for {limited:.0} of 120 s, off for {off:.1} of {seconds:.0} s of the one inside"
        );
        assert!(seconds > 40.0 && off < 2.0, "{name}: {off} of {seconds}");
    }
}

/// Its queue is full in the release, and of what it drops nothing is known.
#[test]
fn a_flood_of_a_service_that_reports_after_one_outside_is_limited() {
    for flood in [FLOOD, START] {
        let before = outside(Server::Inside, 3.0, 13.0);
        let scenario = Scenario {
            reports: Some(of(0.1, None)),
            ..flooded(Server::Inside, before, 10.0, flood)
        };
        let log = run(&scenario, 1);
        let (off, polite) = after(&log);
        println!(
            "a service that reports: released at {:.1}, off for {off:.1} s, polite {polite:.2}",
            released(&log)
        );
        assert!(off <= 5.0 && polite >= 0.95, "{off} {polite}");
    }
}
