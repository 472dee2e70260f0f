//! The overloads of the issue, with its aims.

use super::judge::Figures;
use super::scenarios::{START, beside_polite, heavy, many, peace};
use super::sources::{Block, Kind};
use super::world::{Scenario, Server};
use super::{means, means_of};

const SERVERS: [(&str, Server); 2] = [("udp", Server::Udp), ("tcp", Server::Tcp)];

/// Nothing is refused before the overload, nor from five seconds after it, and the limit is off by then.
fn ends(figures: &Figures) {
    assert!(figures.peace <= 0.0, "{figures:?}");
    assert!(figures.after <= 0.0, "{figures:?}");
    assert!(figures.off <= 5.0, "{figures:?}");
}

fn protects(figures: &Figures) {
    ends(figures);
    assert!(figures.polite >= 99.0, "{figures:?}");
    assert!(figures.used >= 95.0, "{figures:?}");
    assert!(figures.swing <= 10.0, "{figures:?}");
}

#[test]
fn a_host_that_keeps_up_refuses_nothing() {
    for (name, server) in SERVERS {
        for load in [0.85, 0.92] {
            let figures = means(
                &format!("{name}: {load} load"),
                &peace(server, load),
                "polite",
            );
            assert!(figures.peace <= 0.0, "{name} {load}: {figures:?}");
        }
    }
}

#[test]
fn five_heavy_sources_take_nothing_from_polite_ones() {
    for (name, server) in SERVERS {
        for times in [10.0, 2.0] {
            let scenario = beside_polite(server, vec![heavy(server, times, 9.0)], 9.0);
            protects(&means(
                &format!("{name}: 5 sources, {times} times"),
                &scenario,
                "polite",
            ));
        }
    }
}

#[test]
fn a_nat_with_its_weight_lacks_nothing() {
    for (name, server) in SERVERS {
        let nat = Block {
            weight: 200.0,
            ..Block::always("nat", 1, server.capacity() * 0.3)
        };
        let scenario = beside_polite(server, vec![nat, heavy(server, 10.0, 9.0)], 9.0);
        protects(&means(
            &format!("{name}: a NAT of 200 users"),
            &scenario,
            "nat",
        ));
    }
}

#[test]
fn many_equal_sources_have_equal_shares() {
    for (name, server) in SERVERS {
        let scenario = many(server, 500, 2.0, Kind::Steady, 9.0);
        let figures = means(
            &format!("{name}: 500 sources, twice their share"),
            &scenario,
            "polite",
        );
        assert!(figures.jain >= 0.95 && figures.used >= 95.0, "{figures:?}");
        assert!(figures.swing <= 10.0 && figures.peace <= 0.0, "{figures:?}");
        // The backlog of 511 connections is full for five seconds: at about one a second sources differ only by then.
        let (off, after) = if server == Server::Tcp {
            (6.0, 25.0)
        } else {
            (5.0, 0.0)
        };
        assert!(figures.off <= off && figures.after <= after, "{figures:?}");
    }
}

#[test]
fn sources_that_back_off_or_retry_have_equal_shares() {
    // Retries keep the backlog from draining until eight seconds: the level is steady from then on.
    for (name, server, number, kind, end) in [
        (
            "udp: 200 that back off",
            Server::Udp,
            200,
            Kind::BacksOff,
            9.0,
        ),
        ("tcp: 100 that retry", Server::Tcp, 100, Kind::Retries, 15.0),
    ] {
        let figures = means(name, &many(server, number, 2.0, kind, end), "polite");
        ends(&figures);
        assert!(figures.jain >= 0.95 && figures.used >= 95.0, "{figures:?}");
        assert!(figures.swing <= 10.0, "{figures:?}");
    }
}

#[test]
fn the_level_follows_a_capacity_that_halves_and_returns() {
    for (name, server) in SERVERS {
        let scenario = Scenario {
            follows: true,
            capacity: |now| if (5.0..8.0).contains(&now) { 0.5 } else { 1.0 },
            ..beside_polite(server, vec![heavy(server, 2.0, 11.0)], 11.0)
        };
        // One stall of the server within three seconds is as if the level did not follow: the median of many runs.
        let figures = means_of(
            40,
            &format!("{name}: capacity halves and returns"),
            &scenario,
            "polite",
        );
        ends(&figures);
        assert!(figures.down <= 2.0 && figures.up <= 2.0, "{figures:?}");
    }
}

/// Fair in units, not in cost: what the law does about it is little, and is said in its documents.
#[test]
fn costly_requests_leave_no_limit_behind() {
    for (name, server) in SERVERS {
        let block = Block {
            cost: 50.0,
            ..Block::between("costly", 5, server.capacity() * 0.02, START, 9.0)
        };
        let figures = means(
            &format!("{name}: units that cost 50 times"),
            &beside_polite(server, vec![block], 9.0),
            "polite",
        );
        ends(&figures);
        // The attack keeps this much of its effect.
        assert!((15.0..95.0).contains(&figures.polite), "{figures:?}");
    }
}
