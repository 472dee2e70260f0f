//! Zones whose hosts, configs and stores change while demand is above the limit: no more than the limit passes.

use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use testbed::fleet::zones::Zones;
use testbed::fleet::{Asker, Host, Spread, drive, drive_some, passed_during};
use testbed::redis::Redis;
use testbed::tests;
use testbed::trials::Test;
use testbed::wait::PATIENCE;

use crate::quotas::fill;
use crate::zones::{lead, within_the_limit};

pub const TESTS: &[Test] = tests![
    hosts_that_get_a_zone_one_after_the_other_pass_the_limit,
    hosts_whose_zone_has_another_name_pass_the_limit,
    a_lead_that_stands_still_adds_nothing,
    leads_that_end_again_and_again_add_nothing,
    a_zone_whose_store_is_full_adds_nothing,
    two_stores_that_are_emptied_at_once_add_nothing,
    one_server_may_be_the_store_of_all_and_of_a_zone,
    a_third_zone_joins_and_leaves,
    limits_by_key_beside_zones_use_the_store_of_all,
];

const FAR: Duration = Duration::from_millis(50);
const TIME: Duration = Duration::from_secs(6);

/// Two zones of two hosts, with equal shares.
fn two_zones() -> Zones {
    let zones = Zones::start(2, 2, FAR, "");
    zones.divided();
    zones
}

/// Measures demand of two and a half times the limit on hosts while something happens, and that no more than the limit
/// passes.
fn holds(event: &str, hosts: &[Host], events: impl FnOnce() + Send) {
    let outcome = thread::scope(|scope| {
        let events = scope.spawn(events);
        let outcome = drive(hosts, Spread::Even, 2.5, TIME);
        events.join().unwrap();
        outcome
    });
    within_the_limit(event, &outcome);
}

/// A rolling change of all hosts, with half a second for each.
fn reload(hosts: &[Host], cluster: impl Fn(usize) -> String) {
    for (nth, host) in hosts.iter().enumerate() {
        thread::sleep(Duration::from_millis(500));
        host.reload(&format!("host-{nth}"), &cluster(nth), &Zones::limit());
    }
}

fn hosts_that_get_a_zone_one_after_the_other_pass_the_limit() {
    let zones = two_zones();
    let hosts = &zones.hosts;
    holds(
        "hosts leave their zones, one after the other",
        hosts,
        || {
            reload(hosts, |_| zones.without_zones());
        },
    );
    holds("hosts get a zone, one after the other", hosts, || {
        reload(hosts, |nth| zones.cluster(nth / 2));
    });
    zones.joined();
}

fn hosts_whose_zone_has_another_name_pass_the_limit() {
    let zones = two_zones();
    let hosts = &zones.hosts;
    holds("a zone gets another name, host by host", hosts, || {
        reload(&hosts[..2], |_| {
            zones.cluster(0).replace("zone-0", "renamed")
        });
    });
}

fn a_lead_that_stands_still_adds_nothing() {
    let zones = two_zones();
    let hosts = &zones.hosts;
    let first = lead(&hosts[..2]).unwrap();
    let others: Vec<&Host> = hosts.iter().collect();
    let driven = [1 - first, 2, 3].map(|nth| others[nth]);
    // A client of a host that stands still would wait for it.
    hosts[first].signal(Signal::SIGSTOP);
    let outcome = drive_some(&driven, Spread::Even, 2.5, TIME);
    hosts[first].signal(Signal::SIGCONT);
    within_the_limit("the host that leads a zone stands still for 6 s", &outcome);
    holds("it goes on", hosts, || {});
}

fn leads_that_end_again_and_again_add_nothing() {
    let zones = two_zones();
    let hosts = &zones.hosts;
    holds(
        "a new limit on all hosts of a zone, four times",
        hosts,
        || {
            for burst in [90, 100, 90, 100] {
                let limit = Zones::limit().replace("burst = 100", &format!("burst = {burst}"));
                for (nth, host) in hosts[..2].iter().enumerate() {
                    host.reload(&format!("host-{nth}"), &zones.cluster(0), &limit);
                }
                thread::sleep(Duration::from_secs(1));
            }
        },
    );
}

fn a_zone_whose_store_is_full_adds_nothing() {
    let zones = two_zones();
    holds("a zone's store is full for 3 s", &zones.hosts, || {
        fill(&zones.stores[0]);
        thread::sleep(Duration::from_secs(3));
        zones.stores[0].cli(&["config", "set", "maxmemory", "0"]);
    });
    fill(&zones.stores[0]);
    let is_noted = |host: &Host| host.notes().contains("zone");
    let begun = Instant::now();
    while !zones.hosts[..2].iter().any(is_noted) {
        assert!(begun.elapsed() < PATIENCE, "{}", zones.hosts[0].notes());
        thread::sleep(Duration::from_millis(50));
    }
}

fn two_stores_that_are_emptied_at_once_add_nothing() {
    let zones = two_zones();
    let event = "a zone's store and that of all zones are emptied at once, twice";
    holds(event, &zones.hosts, || {
        for _ in 0..2 {
            thread::sleep(Duration::from_secs(1));
            zones.all.cli(&["flushall"]);
            zones.stores[0].cli(&["flushall"]);
        }
    });
}

fn one_server_may_be_the_store_of_all_and_of_a_zone() {
    let redis = Redis::start(&[]);
    let url = redis.url();
    let start = |nth: usize| {
        let zone = nth / 2;
        let cluster =
            format!("store = {url:?}\n[cluster.zone]\nname = \"zone-{zone}\"\nstore = {url:?}\n");
        Host::start(&format!("host-{nth}"), &cluster, &Zones::limit())
    };
    let hosts: Vec<Host> = (0..4).map(start).collect();
    for host in &hosts {
        host.until(PATIENCE, "of two zones", |cluster| {
            let limit = &cluster["limits"][0];
            limit["zones"] == 2 && limit["hosts"] == 2 && limit["zone_share"] != 1.0
        });
    }
    holds("one server for all zones", &hosts, || {});
}

fn a_third_zone_joins_and_leaves() {
    let mut zones = Zones::start(3, 1, FAR, "");
    zones.divided();
    zones.hosts[2].stop(Signal::SIGTERM);
    let two: Vec<&Host> = zones.hosts[..2].iter().collect();
    let outcome = drive_some(&two, Spread::Even, 2.5, TIME);
    within_the_limit("one of three zones leaves", &outcome);
    let third = zones.host(2);
    zones.hosts[2] = third;
    holds("one of three zones joins", &zones.hosts, || {});
    zones.joined();
}

fn limits_by_key_beside_zones_use_the_store_of_all() {
    let zones = Zones::start(2, 1, FAR, "");
    let keys = "[[limit]]\nname = \"quota\"\nscope = \"request\"\nkey = [\"service\"]\ncluster = \"keys\"\n\
                rate = \"100/day\"\nalgorithm = \"fixed-window\"\n";
    for (nth, host) in zones.hosts.iter().enumerate() {
        let limits = format!("{}\n{keys}", Zones::limit());
        host.reload(&format!("host-{nth}"), &zones.cluster(nth), &limits);
        host.until(PATIENCE, "exchanging keys", |cluster| {
            let limits = cluster["limits"].as_array();
            limits.is_some_and(|limits| {
                limits
                    .iter()
                    .any(|limit| limit["name"] == "quota" && limit["share_from"] == "keys")
            })
        });
    }
    for host in &zones.hosts {
        host.until(PATIENCE, "with the other zone's host", |_| {
            host.limit("quota")["hosts"] == 2
        });
    }
    let mut passed = 0;
    for _ in 0..40 {
        for host in &zones.hosts {
            let questions = (0..10).map(|_| Asker::question_to("quota", "one"));
            let allowed = host.connect().ask_all(questions);
            passed += allowed.into_iter().filter(|allowed| *allowed).count();
        }
        thread::sleep(Duration::from_millis(50));
    }
    passed_during("`cluster = \"keys\"` in two zones", passed, 100);
    // A day may end.
    assert!((90..=200).contains(&passed), "{passed}");
}
