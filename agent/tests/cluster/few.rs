//! Keys with as few units as there are hosts, and keys for which publications have no room.

use std::thread;
use std::time::Duration;

use testbed::fleet::{Host, KEYS, passed_during};
use testbed::redis::Redis;
use testbed::tests;
use testbed::trials::Test;

use crate::quotas::{joined, seconds};

pub const TESTS: &[Test] = tests![
    as_many_units_as_hosts_are_no_more,
    a_key_without_room_keeps_its_limit,
];

/// The days of which requests since `begun` may be.
fn days(redis: &Redis, begun: u64) -> u64 {
    let day = |at: u64| at / 86_400;
    1 + day(seconds(redis) + 1) - day(begun.saturating_sub(1))
}

fn fleet(redis: &Redis, hosts: usize, cluster: &str, limit: &str) -> Vec<Host> {
    let cluster = format!("store = {:?}\n{cluster}", redis.url());
    let limit = format!("{KEYS}\n{limit}");
    let start = |nth: usize| Host::start(&format!("host-{nth}"), &cluster, &limit);
    let fleet: Vec<Host> = (0..hosts).map(start).collect();
    joined(&fleet, hosts);
    fleet
}

/// Log-ins: some tries on one host after the other, and then on all at once.
fn as_many_units_as_hosts_are_no_more() {
    const UNITS: u64 = 5;
    for algorithm in ["fixed-window", "sliding-window", "sliding-log"] {
        let redis = Redis::start(&[]);
        let begun = seconds(&redis);
        let limit = format!("rate = \"{UNITS}/day\"\nalgorithm = {algorithm:?}");
        let fleet = fleet(&redis, UNITS as usize, "", &limit);
        let mut passed = 0;
        for host in &fleet[..3] {
            passed += host.connect().ask(1);
            thread::sleep(Duration::from_secs(1));
        }
        passed += thread::scope(|scope| {
            let tries = |host: &Host| {
                let mut asker = host.connect();
                (0..UNITS).map(|_| asker.ask(1)).sum::<u64>()
            };
            let hosts: Vec<_> = fleet
                .iter()
                .map(|host| scope.spawn(move || tries(host)))
                .collect();
            hosts
                .into_iter()
                .map(|host| host.join().unwrap())
                .sum::<u64>()
        });
        let event = format!(
            "{algorithm}: {UNITS} units of five hosts; three tries, one a second, then some on all at once"
        );
        passed_during(&event, passed, UNITS);
        assert!(passed <= UNITS * days(&redis, begun), "{event}: {passed}");
    }
}

/// Many keys are busier, so that the key is never published: each host passes its part, rounded up.
fn a_key_without_room_keeps_its_limit() {
    const HOSTS: u64 = 3;
    const UNITS: u64 = 8;
    let redis = Redis::start(&[]);
    let begun = seconds(&redis);
    let limit = format!("rate = \"{UNITS}/day\"\nalgorithm = \"fixed-window\"");
    let fleet = fleet(&redis, HOSTS as usize, "max_hot_keys = 2", &limit);
    let mut askers: Vec<_> = fleet.iter().map(Host::connect).collect();
    let mut passed = 0;
    for _ in 0..15 {
        for asker in &mut askers {
            for junk in 0..10 {
                asker.ask_for(&format!("junk-{junk}"), 40);
            }
            passed += asker.ask(2);
        }
        thread::sleep(Duration::from_millis(100));
    }
    let event =
        format!("a key of {UNITS} on three hosts, beside more busy keys than `max_hot_keys`");
    passed_during(&event, passed, UNITS);
    let most = HOSTS * UNITS.div_ceil(HOSTS);
    assert!(passed <= most * days(&redis, begun), "{event}: {passed}");
}
