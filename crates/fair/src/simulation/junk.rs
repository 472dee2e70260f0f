//! Units that a limit counts and no queue gets: handshakes of a scan, datagrams with invalid checksums, packets to closed
//! ports, packets of long connections. An attacker could hide an overload behind them.

use super::judge::Figures;
use super::scenarios::{START, beside_polite, heavy};
use super::sources::{Block, Way};
use super::world::{Scenario, Server};
use super::{SEEDS, judge, means};

/// Five sources that send so many units a second, which reach no queue, from this time on.
pub fn junk(units: f64, start: f64, end: f64) -> Block {
    Block {
        way: Way::Junk,
        ..Block::between("junk", 5, units / 5.0, start, end)
    }
}

/// So many times the capacity, and units that reach no queue.
fn behind(server: Server, times: f64, units: f64, start: f64) -> Scenario {
    let blocks = vec![heavy(server, times, 12.0), junk(units, start, 12.0)];
    beside_polite(server, blocks, 12.0)
}

/// Without the counters of the network namespace.
fn blind(name: &str, scenario: &Scenario) -> Figures {
    let scenario = Scenario {
        counters: false,
        ..scenario.clone()
    };
    let runs: Vec<Figures> = (1..=SEEDS)
        .map(|seed| judge::judge(&scenario, "polite", &super::world::run(&scenario, seed)))
        .collect();
    let figures = Figures::mean(&runs);
    println!("{name}: without counters, polite {:.1}", figures.polite);
    figures
}

#[test]
fn junk_does_not_hide_an_overload() {
    for (name, server, times, units) in [
        (
            "tcp: 1.2 times, 25,000 SYN/s",
            Server::Tcp,
            7.0 / 6.0,
            25_000.0,
        ),
        ("udp: 1.2 times, 1,000,000 junk/s", Server::Udp, 1.2, 1e6),
        ("udp: 1.2 times, 20,000 junk/s", Server::Udp, 1.2, 20_000.0),
        ("tcp: 10 times, 25,000 SYN/s", Server::Tcp, 10.0, 25_000.0),
    ] {
        for start in [0.0, START] {
            let scenario = behind(server, times, units, start);
            let figures = means(&format!("{name}, from {start} s"), &scenario, "polite");
            blind(name, &scenario);
            assert!(figures.polite >= 95.0, "{name}: {figures:?}");
            assert!(figures.peace <= 0.0 && figures.off <= 5.0, "{figures:?}");
        }
    }
}

/// A limit on packets before a server that accepts 390 connections a second, with a backlog of 128.
#[test]
fn packets_of_long_connections_do_not_hide_an_overload() {
    let server = Server::Short;
    for (times, units) in [(2.0, 50_000.0), (2.0, 0.0), (10.0, 50_000.0)] {
        let scenario = Scenario {
            are_packets: true,
            ..behind(server, times, units, 0.0)
        };
        let name = format!("tcp: {times} times, {units} ACK/s");
        let figures = means(&name, &scenario, "polite");
        blind(&name, &scenario);
        assert!(figures.polite >= 90.0 && figures.off <= 5.0, "{figures:?}");
        assert!(figures.peace <= 0.0, "{figures:?}");
    }
}
