//! Attacks, and their success: rows of docs/explanation/fair-limits.md. Those about queues that nobody
//! serves, and about connections, are in `signals::guard` and `signals::tests`; costly requests in `overloads`.

use super::scenarios::{START, beside_polite, heavy, made_up, pulses};
use super::sources::{Block, Kind, STEP};
use super::world::{Scenario, Server, run};
use super::{SEEDS, judge, means, means_of};
use crate::{Failure, Tier};

const SERVERS: [(&str, Server); 2] = [("udp", Server::Udp), ("tcp", Server::Tcp)];

fn of_two_seconds(t: f64) -> f64 {
    f64::from(u8::from(t.rem_euclid(2.0) < 0.3))
}

fn of_six_seconds(t: f64) -> f64 {
    f64::from(u8::from(t.rem_euclid(6.0) < 0.3))
}

#[test]
fn pulses_leave_polite_sources_their_packets() {
    for (name, server) in SERVERS {
        let figures = means(
            &format!("{name}: pulses of 2 s"),
            &pulses(server, of_two_seconds, 23.0),
            "polite",
        );
        assert!(
            figures.polite >= 99.0 && figures.used >= 80.0,
            "{figures:?}"
        );
        let figures = means(
            &format!("{name}: pulses of 6 s"),
            &pulses(server, of_six_seconds, 43.0),
            "polite",
        );
        assert!(
            figures.polite >= 98.0 && figures.used >= 80.0,
            "{figures:?}"
        );
    }
}

#[test]
fn pulses_lengthen_the_hold() {
    let log = run(&pulses(Server::Udp, of_six_seconds, 43.0), 1);
    let off = |from: f64, to: f64| {
        let mut part = log.entries[(from / STEP) as usize..(to / STEP) as usize].iter();
        part.any(|entry| entry.level.is_infinite())
    };
    assert!(off(3.5, 9.0), "two seconds after the first pulse");
    assert!(
        !off(10.0, 43.0),
        "pulses come more often than every eight seconds"
    );
    assert!(off(43.0, 49.0));
}

#[test]
fn a_slow_rise_is_not_too_slow() {
    for (name, server) in SERVERS {
        let block = Block {
            shape: |t| t / 10.0,
            ..heavy(server, 4.0, 13.0)
        };
        let figures = means(
            &format!("{name}: slow rise to 4 times"),
            &beside_polite(server, vec![block], 13.0),
            "polite",
        );
        assert!(figures.polite >= 98.9, "{figures:?}");
        assert!(
            figures.peace <= 0.0 && figures.after <= 0.0 && figures.off <= 5.0,
            "{figures:?}"
        );
    }
}

#[test]
fn playing_dead_costs_polite_sources_one_onset() {
    let block = Block {
        shape: |t| f64::from(u8::from(!(3.0..11.0).contains(&t))),
        ..heavy(Server::Udp, 10.0, 16.0)
    };
    let scenario = beside_polite(Server::Udp, vec![block], 16.0);
    let log = run(&scenario, 1);
    let at = |seconds: f64| (seconds / STEP) as usize;
    let lost = |from: f64, to: f64| -> f64 {
        let part = &log.entries[at(from)..at(to)];
        part.iter()
            .map(|entry| entry.offered[0] - entry.good[0])
            .sum()
    };
    // Off in between, and an onset of 0.2 s.
    assert!(log.entries[at(12.0)].level.is_infinite());
    assert!(lost(14.0, 14.3) > 0.0);
    assert!(
        lost(14.3, 16.0) < 0.01 * 500.0 * 1.7,
        "{}",
        lost(14.3, 16.0)
    );
}

/// Of a limit without levels of networks.
#[test]
fn a_level_that_made_up_sources_are_below_is_released() {
    let block = Block {
        kind: Kind::MadeUp,
        ..Block::between("made up", 100_000, 1.0, START, 25.0)
    };
    let scenario = Scenario {
        widest: Tier::Sources,
        ..beside_polite(Server::Udp, vec![block], 25.0)
    };
    let log = run(&scenario, 1);
    let mut reports = log.reports.iter();
    let (failed, _) = reports
        .find(|(_, report)| report.failure == Some(Failure::WithoutEffect))
        .unwrap();
    println!(
        "udp: made up everywhere, released after {:.1} s",
        failed - START
    );
    let at = |seconds: f64| (seconds / STEP) as usize;
    let after = &log.entries[at(failed + 2.0 * STEP)..at(25.0)];
    assert!(after.iter().all(|entry| entry.level.is_infinite()));
    assert!((10.0..15.0).contains(&(failed - START)), "{failed}");
    // The capacity's share of what is sent.
    let sum = |of: fn(&super::world::Entry) -> f64| after.iter().map(of).sum::<f64>();
    let polite = sum(|entry| entry.good[0]) / sum(|entry| entry.offered[0]);
    assert!((0.05..0.2).contains(&polite), "{polite}");
}

#[test]
fn made_up_sources_that_share_a_key_are_limited_as_one() {
    let figures = means_of(
        3,
        "udp: 100,000 made up, strangers as one",
        &made_up(Server::Udp, Some(|_| 0)),
        "polite",
    );
    assert!(
        figures.polite >= 95.0 && figures.used >= 95.0,
        "{figures:?}"
    );
    assert!(figures.after <= 0.0 && figures.off <= 5.0, "{figures:?}");
}

/// Many addresses of one /64 are one key: as one source that sends all of it.
#[test]
fn many_addresses_of_one_network_have_one_share() {
    let one = Block {
        number: 1,
        each: 100_000.0,
        ..heavy(Server::Udp, 10.0, 9.0)
    };
    let scenario = beside_polite(Server::Udp, vec![one, Block::always("fair", 1, 500.0)], 9.0);
    let figures = judge::judge(&scenario, "fair", &run(&scenario, 1));
    assert!(figures.polite >= 99.0, "{figures:?}");
}

/// This many units and false drops a second, and overflows of other queues, before a server that keeps up.
fn false_drops(server: Server, load: f64, drops: f64, overflows: f64) -> Scenario {
    let most = Block::always("nat", 1, (load - 0.05) * server.capacity());
    Scenario {
        onset: 30.0,
        false_drops: drops,
        overflows,
        ..beside_polite(server, vec![most], 30.0)
    }
}

/// 250 a second of 5,000 datagrams, 10 a second of 100 connections.
#[test]
fn drops_that_are_no_overload_limit_nobody() {
    for (name, server, load, drops) in [
        ("udp", Server::Udp, 0.5, 250.0),
        ("tcp", Server::Tcp, 1.0 / 6.0, 10.0),
    ] {
        for (beside, overflows) in [("", 0.0), (", another port full", 10_000.0)] {
            let figures = means(
                &format!("{name}: false drops{beside}"),
                &false_drops(server, load, drops, overflows),
                "polite",
            );
            assert!(figures.peace <= 0.0, "{name}{beside}: {figures:?}");
        }
    }
}

/// A stall of 200 ms is not an attack: what follows it is as before.
#[test]
fn a_stall_of_200_ms_is_survived() {
    for (name, server) in SERVERS {
        let scenario = Scenario {
            capacity: |now| f64::from(u8::from(!(6.0..6.2).contains(&now))).max(1e-3),
            ..beside_polite(server, vec![heavy(server, 10.0, 12.0)], 12.0)
        };
        let (mut good, mut offered, mut served, mut can) = (0.0, 0.0, 0.0, 0.0);
        for seed in 1..=SEEDS {
            let log = run(&scenario, seed);
            for entry in &log.entries[(7.3 / STEP) as usize..(12.0 / STEP) as usize] {
                good += entry.good[0];
                offered += entry.offered[0];
                served += entry.served;
                can += entry.can;
            }
        }
        let (polite, used) = (good / offered, served / can);
        println!("{name}: from 1.1 s after a stall of 200 ms: polite {polite:.3}, used {used:.3}");
        assert!(polite > 0.99 && used > 0.95, "{name}: {polite} {used}");
    }
}
