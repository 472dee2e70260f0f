//! Pauses of servers that keep up: what is served in a pause is not what they can serve.

use super::SEEDS;
use super::junk::junk;
use super::scenarios::beside_polite;
use super::sources::{Block, Way};
use super::world::{Scenario, Server, run};

/// A capacity with a pause from 6 s on.
fn pause(now: f64, seconds: f64) -> f64 {
    f64::from(u8::from(!(6.0..6.0 + seconds).contains(&now))).max(1e-9)
}

/// Its length in seconds, and the capacity by time.
type Pause = (f64, fn(f64) -> f64);

const PAUSES: [Pause; 4] = [
    (0.15, |now| pause(now, 0.15)),
    (0.2, |now| pause(now, 0.2)),
    (0.3, |now| pause(now, 0.3)),
    // Not at a reading.
    (0.3, |now| pause(now - 0.03, 0.3)),
];

/// The most units that a run refuses, without those that reach no queue.
fn most_refused(name: &str, scenario: &Scenario) -> f64 {
    let of_blocks = |units: &[f64]| -> f64 {
        let blocks = scenario.blocks.iter().zip(units);
        let blocks = blocks.filter(|(block, _)| block.way == Way::Both);
        blocks.map(|(_, units)| units).sum()
    };
    let refused = (1..=SEEDS).map(|seed| -> f64 {
        let log = run(scenario, seed);
        let entries = log.entries.iter();
        entries
            .map(|entry| of_blocks(&entry.offered) - of_blocks(&entry.passed))
            .sum()
    });
    let most = refused.fold(0.0, f64::max);
    println!("{name}: at most {most:.0} refused");
    most
}

/// Units that chance may cost, of some thousand.
const MOST: f64 = 5.0;

/// 50 sources that send this part of the capacity together, and a server that pauses once.
fn paused(server: Server, load: f64, capacity: fn(f64) -> f64) -> Scenario {
    let most = Block::always("most", 50, (load - 0.05) * server.capacity() / 50.0);
    Scenario {
        onset: 12.0,
        capacity,
        least: 1.0 / server.capacity(),
        ..beside_polite(server, vec![most], 12.0)
    }
}

#[test]
fn a_pause_of_an_idle_server_is_no_measure_of_its_capacity() {
    for (seconds, capacity) in PAUSES {
        for (name, server, load, units) in [
            ("udp, 1,000/s", Server::Udp, 0.1, 100.0),
            ("udp, 1,000/s", Server::Udp, 0.1, 2000.0),
            ("udp, 5,000/s", Server::Udp, 0.5, 500.0),
            ("tcp, 60/s", Server::Tcp, 0.1, 6.0),
            ("tcp, 300/s", Server::Tcp, 0.5, 300.0),
        ] {
            let mut scenario = paused(server, load, capacity);
            scenario.blocks.push(junk(units, 0.0, 12.0));
            let name = format!("{name} and {units} junk/s, a pause of {seconds} s");
            assert!(most_refused(&name, &scenario) <= MOST, "{name}");
        }
        let scenario = Scenario {
            charge: 768.0 / 832.0,
            ..paused(Server::Udp, 0.1, capacity)
        };
        let name = format!("udp, 1,000/s of 768 bytes, a pause of {seconds} s");
        assert!(most_refused(&name, &scenario) <= MOST, "{name}");
    }
}
