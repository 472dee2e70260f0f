//! Drops and queues of what a limit does not count: exempt sources, other interfaces, connections to a backend, repeated
//! acknowledgments. There may be more of them than of what passed.

use super::scenarios::{START, beside_polite, heavy};
use super::sources::{Block, STEP, Way};
use super::world::{Scenario, Server, run};
use super::{means, means_of};
use crate::{Failure, State, Tier};

/// As rules of the kernel, with or without counters of the network namespace.
fn ten_times(times: f64, counters: bool) -> Scenario {
    Scenario {
        counters,
        widest: Tier::Sources,
        ..beside_polite(Server::Tcp, vec![heavy(Server::Tcp, times, 14.0)], 14.0)
    }
}

/// Three connections to the backend for each of the limit: of 7,200 a second it takes 600.
#[test]
fn a_backend_may_drop_more_than_comes_to_its_front() {
    for counters in [true, false] {
        let scenario = Scenario {
            backends: 3.0,
            ..ten_times(4.0, counters)
        };
        let name = format!("tcp: a backend, counters: {counters}");
        let figures = means(&name, &scenario, "polite");
        assert!(figures.polite >= 95.0 && figures.off <= 5.0, "{figures:?}");
    }
}

#[test]
fn repeated_acknowledgments_hide_no_goodput() {
    // The second: as many as are served, so that drops and growth are about what passes.
    for (times, drops, counters) in [
        (10.0, 5000.0, true),
        (100.0, 2000.0, true),
        (10.0, 5000.0, false),
    ] {
        let scenario = Scenario {
            false_drops: drops,
            overflows: drops,
            ..ten_times(times, counters)
        };
        let name = format!("tcp {times} times: {drops} ACK/s dropped, counters: {counters}");
        let figures = means_of(8, &name, &scenario, "polite");
        assert!(figures.polite >= 95.0 && figures.off <= 5.0, "{figures:?}");
    }
}

/// Three times the capacity from outside of the limit: its own sources pay until the least level has had no effect for
/// 10 s, and then nothing for 30 s.
#[test]
fn a_flood_outside_of_a_limit_costs_its_sources_little() {
    for (server, load, counters, widest) in [
        (Server::Udp, 0.3, true, Tier::Sources),
        (Server::Udp, 0.3, false, Tier::Sources),
        (Server::Tcp, 0.3, true, Tier::Sources),
        (Server::Tcp, 0.0, true, Tier::Sources),
        (Server::Udp, 0.3, true, Tier::All),
        (Server::Tcp, 0.3, true, Tier::All),
        (Server::Tcp, 0.0, true, Tier::Networks),
    ] {
        let flood = Block {
            way: Way::Outside,
            ..Block::between("flood", 5, 3.0 * server.capacity() / 5.0, START, 84.0)
        };
        let most = Block::always("most", 50, load * server.capacity() / 50.0);
        let scenario = Scenario {
            counters,
            widest,
            ..beside_polite(server, vec![most, flood], 84.0)
        };
        let log = run(&scenario, 1);
        let levels = log.entries.iter().map(|entry| entry.level);
        let limited = levels.clone().filter(|level| level.is_finite()).count() as f64 * STEP;
        let sum = |of: fn(&super::world::Entry) -> f64| log.entries.iter().map(of).sum::<f64>();
        let refused = 1.0
            - sum(|entry| entry.passed[0] + entry.passed[1])
                / sum(|entry| entry.offered[0] + entry.offered[1]);
        println!(
            "a flood outside of the limit, up to {widest:?}: limited for {limited:.1} of 90 s, refused {refused:.2}"
        );
        let least = levels.fold(f64::INFINITY, f64::min);
        assert!(
            least >= scenario.least * server.capacity() - 1e-9,
            "{least}"
        );
        let mut reports = log.reports.iter();
        assert!(reports.all(|(_, report)| report.failure != Some(Failure::Stalled)));
        if load <= 0.0 {
            // All of them send less than the least level.
            assert!(refused <= 0.0, "{refused}");
            continue;
        }
        // Wider keys pay for some seconds, too.
        let most = if widest > Tier::Sources { 0.3 } else { 0.2 };
        assert!(
            (8.0..36.0).contains(&limited) && refused < most,
            "{limited} {refused}"
        );
        let mut reports = log.reports.iter();
        assert!(reports.any(|(_, report)| report.state == State::Limiting));
        assert!(reports.any(|(_, report)| report.failure == Some(Failure::WithoutEffect)));
    }
}
