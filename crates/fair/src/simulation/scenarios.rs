//! The scenarios of the tests.

use super::sources::{Block, Kind};
use super::world::{Scenario, Server};
use crate::Tier;

/// The onset, inside a tick.
pub const START: f64 = 3.03;

/// 50 polite sources, which send 5 % of the capacity, beside these, until `end`.
pub fn beside_polite(server: Server, mut blocks: Vec<Block>, end: f64) -> Scenario {
    blocks.insert(
        0,
        Block::always("polite", 50, server.capacity() * 0.05 / 50.0),
    );
    Scenario {
        server,
        blocks,
        onset: 3.0,
        end,
        capacity: |_| 1.0,
        follows: false,
        least: 0.002,
        readable: |_| true,
        false_drops: 0.0,
        overflows: 0.0,
        backends: 1.0,
        charge: 1.0,
        merged: 1.0,
        counters: true,
        are_packets: false,
        widest: Tier::All,
        reports: None,
    }
}

/// Five sources that send so many capacities together.
pub fn heavy(server: Server, times: f64, end: f64) -> Block {
    Block::between("heavy", 5, server.capacity() * times / 5.0, START, end)
}

/// This load in capacities: a NAT 60 %, a crawler 10 %, pages 10 %, polite sources 5 %, others the rest.
pub fn peace(server: Server, load: f64) -> Scenario {
    let capacity = server.capacity();
    let page = if server == Server::Udp { 30.0 } else { 6.0 };
    let pages = Block {
        kind: Kind::Page(page),
        ..Block::always("pages", 50, capacity * 0.10 / 50.0)
    };
    let blocks = vec![
        Block::always("crawler", 1, capacity * 0.10),
        Block::always("nat", 1, capacity * 0.60),
        pages,
        Block::always("others", 50, capacity * (load - 0.85) / 50.0),
    ];
    Scenario {
        onset: 15.0,
        ..beside_polite(server, blocks, 15.0)
    }
}

/// So many sources named "many" that send `times` the capacity.
pub fn many(server: Server, number: usize, times: f64, kind: Kind, end: f64) -> Scenario {
    let each = server.capacity() * times / number as f64;
    let block = Block {
        kind,
        ..Block::between("many", number, each, START, end)
    };
    Scenario {
        least: 0.001,
        ..beside_polite(server, vec![block], end)
    }
}

/// 100,000 made-up sources that send ten times the capacity.
pub fn made_up(server: Server, network: Option<fn(usize) -> usize>) -> Scenario {
    let each = 10.0 * server.capacity() / 100_000.0;
    let block = Block {
        kind: Kind::MadeUp,
        network,
        ..Block::between("made up", 100_000, each, START, 9.0)
    };
    beside_polite(server, vec![block], 9.0)
}

/// Ten times the capacity for 0.3 s of `period` seconds.
pub fn pulses(server: Server, shape: fn(f64) -> f64, end: f64) -> Scenario {
    let block = Block {
        shape,
        ..heavy(server, 10.0, end)
    };
    beside_polite(server, vec![block], end)
}
