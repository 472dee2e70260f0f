//! Limits that are divided between zones at a distance, and by each zone among its hosts.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use testbed::fleet::zones::Zones;
use testbed::fleet::{BURST, Host, Outcome, Spread, drive, passed_during};
use testbed::tests;
use testbed::trials::Test;
use testbed::wait::PATIENCE;

pub const TESTS: &[Test] = tests![
    zones_hold_one_limit_and_wait_for_no_other_zone,
    a_zone_that_is_cut_off_divides_its_part_among_its_hosts,
    another_host_leads_a_zone_whose_lead_is_killed,
    a_zone_whose_store_is_emptied_keeps_its_share,
    a_zone_that_loses_its_store_has_its_part_on_each_host,
];

/// One way between the zones.
const FAR: Duration = Duration::from_millis(150);

fn limit(cluster: &Value) -> &Value {
    &cluster["limits"][0]
}

/// That no more than the limit has passed during an event.
pub fn within_the_limit(event: &str, outcome: &Outcome) {
    passed_during(event, outcome.passed, outcome.limit as u64);
    assert!(
        outcome.passed as f64 <= outcome.limit * 1.1,
        "{event}: {outcome:?}"
    );
    assert!(outcome.wanted > outcome.passed, "{outcome:?}");
}

fn zones_hold_one_limit_and_wait_for_no_other_zone() {
    let zones = Zones::start(2, 2, FAR, "");
    zones.divided();
    for spread in [Spread::Even, Spread::Skewed] {
        let outcome = drive(&zones.hosts, spread, 2.5, Duration::from_secs(4));
        let event =
            format!("two zones of two hosts, 150 ms to the store of all and back; {spread}");
        within_the_limit(&event, &outcome);
    }
    let mut asker = zones.hosts[0].connect();
    let mut times: Vec<Duration> = (0..101)
        .map(|_| {
            let begun = Instant::now();
            asker.ask(1);
            begun.elapsed()
        })
        .collect();
    times.sort_unstable();
    assert!(
        times[50] < FAR,
        "a decision waits for another zone: {times:?}"
    );
}

fn a_zone_that_is_cut_off_divides_its_part_among_its_hosts() {
    let zones = Zones::start(2, 2, FAR, "");
    zones.divided();
    zones.all.hang();
    // By the limit: the leases of both zones end, and a lease later each has a half.
    let half = |host: &Host, cluster: &Value| {
        // A host without a lease knows no share of its zone.
        let of_zone = limit(cluster)["zone_share"].as_f64();
        of_zone.is_some_and(|of_zone| {
            assert!(of_zone <= 1.0, "{}", host.said());
            (of_zone - 0.5).abs() < 1e-6
        })
    };
    // All demand on one host of each zone: it has nearly all of the zone's part.
    for (nth, host) in zones.hosts.iter().enumerate().step_by(2) {
        let mut asker = host.connect();
        host.until(
            PATIENCE,
            "alone with half the limit, most of it on one host",
            |cluster| {
                asker.ask(50);
                half(host, cluster) && limit(cluster)["share"].as_f64().unwrap() > 0.4
            },
        );
        assert_eq!(limit(&host.cluster())["share_from"], "lease", "{nth}");
    }
    let outcome = drive(&zones.hosts, Spread::Even, 2.5, Duration::from_secs(3));
    within_the_limit("two zones without the store of all", &outcome);
    zones.all.go_on();
    // A zone without demand gives its part to the other.
    let mut asker = zones.hosts[0].connect();
    zones.hosts[0].until(PATIENCE, "most of the limit in one zone", |cluster| {
        asker.ask(50);
        let of_zone = limit(cluster)["zone_share"].as_f64();
        of_zone.is_some_and(|of_zone| of_zone > 0.8)
    });
}

/// The host of a zone that leads it.
pub fn lead(hosts: &[Host]) -> Option<usize> {
    let leads = |host: &Host| {
        host.cluster()["zone"]["leads"]
            .as_array()
            .is_some_and(|leads| !leads.is_empty())
    };
    hosts.iter().position(leads)
}

fn another_host_leads_a_zone_whose_lead_is_killed() {
    let mut zones = Zones::start(2, 2, FAR, "");
    zones.divided();
    let begun = Instant::now();
    let first = lead(&zones.hosts[..2]).unwrap();
    zones.hosts[first].stop(Signal::SIGKILL);
    let other = &zones.hosts[1 - first];
    other.until(PATIENCE, "the lead", |cluster| {
        cluster["zone"]["leads"] == serde_json::json!(["together"])
            && limit(cluster)["share_from"] == "lease"
            && limit(cluster)["hosts"] == 1
    });
    println!("another host leads after {:?}", begun.elapsed());
    let restarted = zones.host(first);
    zones.hosts[first] = restarted;
    zones.divided();
    let outcome = drive(&zones.hosts, Spread::Even, 2.5, Duration::from_secs(4));
    within_the_limit(
        "a host that leads its zone is killed, and starts again",
        &outcome,
    );
    // It ends its lead as it stops, so that another has it without a wait.
    let first = lead(&zones.hosts[..2]).unwrap();
    zones.hosts[first].stop(Signal::SIGTERM);
    zones.hosts[1 - first].until(PATIENCE, "the lead", |cluster| {
        cluster["zone"]["leads"] == serde_json::json!(["together"])
    });
}

fn a_zone_whose_store_is_emptied_keeps_its_share() {
    let zones = Zones::start(2, 2, FAR, "");
    zones.divided();
    let passed = std::thread::scope(|scope| {
        let events = scope.spawn(|| {
            for _ in 0..4 {
                std::thread::sleep(Duration::from_millis(900));
                zones.stores[0].cli(&["FLUSHALL"]);
            }
        });
        let outcome = drive(&zones.hosts, Spread::Skewed, 2.5, Duration::from_secs(5));
        events.join().unwrap();
        within_the_limit("a zone's store is emptied four times", &outcome);
        outcome.passed
    });
    assert!(passed > BURST);
    zones.joined();
}

fn a_zone_that_loses_its_store_has_its_part_on_each_host() {
    let zones = Zones::start(2, 2, FAR, "");
    zones.divided();
    zones.stores[0].hang();
    // Two zones, and two hosts in this one.
    for host in &zones.hosts[..2] {
        host.until(PATIENCE, "alone with a quarter", |cluster| {
            limit(cluster)["share_from"] == "share"
                && (limit(cluster)["share"].as_f64().unwrap() - 0.25).abs() < 1e-6
        });
    }
    // The other zone has the whole limit once the lease of this one has ended.
    let mut asker = zones.hosts[2].connect();
    zones.hosts[2].until(PATIENCE, "all of the limit in the other zone", |cluster| {
        asker.ask(50);
        limit(cluster)["zone_share"] == 1.0
    });
    zones.stores[0].go_on();
    zones.joined();
}
