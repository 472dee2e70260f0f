//! Datagrams that the kernel charges more memory for, and those that a program receives several at once (`UDP_GRO`).

use super::means;
use super::scenarios::{beside_polite, heavy, peace};
use super::world::{Scenario, Server};

fn overload(times: f64) -> Scenario {
    beside_polite(Server::Udp, vec![heavy(Server::Udp, times, 12.0)], 12.0)
}

/// Drivers that receive into pages have the kernel charge up to five times as much for a datagram.
#[test]
fn datagrams_that_are_charged_more_are_told_from_others() {
    for (times, counters) in [(10.0, true), (10.0, false), (2.0, true), (2.0, false)] {
        let scenario = Scenario {
            charge: 5.0,
            counters,
            ..overload(times)
        };
        let name = format!("udp: {times} times, charged 5 times, counters: {counters}");
        let figures = means(&name, &scenario, "polite");
        assert!(
            figures.polite >= 95.0 && figures.used >= 95.0,
            "{figures:?}"
        );
    }
}

#[test]
fn a_program_that_receives_several_datagrams_at_once_is_not_overloaded_by_that() {
    for load in [0.85, 0.92] {
        for merged in [4.0, 16.0] {
            let scenario = Scenario {
                merged,
                ..peace(Server::Udp, load)
            };
            let name = format!("udp: {load} load, {merged} datagrams at once");
            let figures = means(&name, &scenario, "polite");
            assert!(figures.peace <= 0.0, "{figures:?}");
        }
    }
    for (times, merged) in [(10.0, 4.0), (2.0, 4.0), (10.0, 16.0)] {
        let scenario = Scenario {
            merged,
            ..overload(times)
        };
        let name = format!("udp: {times} times, {merged} datagrams at once");
        let figures = means(&name, &scenario, "polite");
        assert!(
            figures.polite >= 95.0 && figures.used >= 90.0,
            "{figures:?}"
        );
    }
}
