//! Limits and hosts that join while a quota is used up.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use testbed::delay::delayed;
use testbed::fleet::{Asker, Host, KEYS, passed_during};
use testbed::redis::Redis;
use testbed::tests;
use testbed::trials::Test;

use crate::quotas::{N, daily, exhaust, has_joined, joined, most, seconds, settle};

pub const TESTS: &[Test] = tests![
    a_limit_that_hosts_get_in_turn_passes_one_quota,
    hosts_that_join_wait_for_the_use_of_others,
    hosts_that_join_wait_for_their_shares,
    a_bucket_that_was_used_up_without_the_store_refills_with_it,
];

/// The time of a request to the store, one way: a host that does not wait decides before the first reply.
const FAR: Duration = Duration::from_millis(40);

/// A second limit with the same quota.
fn with_new(algorithm: &str) -> String {
    let first = format!("{KEYS}\nrate = \"9/s\"");
    let new = daily(algorithm);
    format!("{first}\n[[limit]]\nname = \"new\"\nscope = \"request\"\nkey = [\"service\"]\n{new}")
}

/// Requests a quota of the new limit, and half of it again.
fn ask_new(host: &Host) -> u64 {
    let mut asker = host.connect();
    let mut ask = |count: u64| {
        let questions = (0..count).map(|_| Asker::question_to("new", "one"));
        let allowed = asker.ask_all(questions);
        allowed.into_iter().filter(|allowed| *allowed).count() as u64
    };
    let mut passed = 0;
    for _ in 0..N * 3 / 2 / 50 {
        passed += ask(50);
        thread::sleep(Duration::from_millis(20));
    }
    passed
}

/// A rollout: the first host's clients use up the quota before the next host has the limit.
fn a_limit_that_hosts_get_in_turn_passes_one_quota() {
    for algorithm in ["fixed-window", "token-bucket"] {
        let redis = Redis::start(&[]);
        let cluster = format!("store = {:?}", redis.url());
        let before = format!("{KEYS}\nrate = \"9/s\"");
        let begun = seconds(&redis);
        let start = |node: &str| Host::start(node, &cluster, &before);
        let fleet = [start("a"), start("b"), start("c")];
        joined(&fleet, 3);
        let mut passed = Vec::new();
        for (host, node) in fleet.iter().zip(["a", "b", "c"]) {
            host.reload(node, &cluster, &with_new(algorithm));
            settle(std::slice::from_ref(&redis), &fleet);
            passed.push(ask_new(host));
            settle(std::slice::from_ref(&redis), &fleet);
        }
        // It is removed for a while.
        for limits in [before.clone(), with_new(algorithm)] {
            fleet[0].reload("a", &cluster, &limits);
            settle(std::slice::from_ref(&redis), &fleet);
        }
        passed.push(ask_new(&fleet[0]));
        let total: u64 = passed.iter().sum();
        let event =
            format!("{algorithm}: three hosts get a limit in turn, one without it for a while");
        passed_during(&event, total, N);
        assert!(total >= N * 9 / 10, "{algorithm}: {passed:?}");
        assert!(
            total as f64 <= most(&redis, begun),
            "{algorithm}: {passed:?}"
        );
    }
}

fn far_away(redis: &Redis) -> String {
    let store = delayed(([127, 0, 0, 1], redis.port()).into(), FAR);
    format!("store = \"redis://{store}\"")
}

/// Whether a host had the store's reply within the second for which its start waits: else it enforces the whole limit.
fn had_a_reply(host: &Host) -> bool {
    ["keys", "lease"]
        .map(Value::from)
        .contains(&host.cluster()["limits"][0]["share_from"])
}

/// Requests from the first instant on.
fn hosts_that_join_wait_for_the_use_of_others() {
    let redis = Redis::start(&[]);
    let begun = seconds(&redis);
    let cluster = format!("store = {:?}", redis.url());
    let first = [Host::start("a", &cluster, &daily("fixed-window"))];
    joined(&first, 1);
    let mut passed = vec![exhaust(&first[0])];
    settle(std::slice::from_ref(&redis), &first);
    let (mut others, mut late) = (Vec::new(), 0);
    for node in ["b", "c", "d"] {
        let host = Host::start(node, &far_away(&redis), &daily("fixed-window"));
        late += u64::from(!had_a_reply(&host));
        passed.push(host.connect().ask(N));
        others.push(host);
    }
    let total: u64 = passed.iter().sum();
    let event = "three hosts join a used-up quota, 40 ms to the store, and ask at once";
    passed_during(event, total, N * (1 + late));
    assert!(passed[0] >= N, "{passed:?}");
    let most = most(&redis, begun) + (N * late) as f64;
    assert!(total as f64 <= most, "{passed:?}, {late} without a reply");
}

fn hosts_that_join_wait_for_their_shares() {
    const BURST: u64 = 600;

    let redis = Redis::start(&[]);
    // One unit a second refills while the hosts start.
    let limit = format!("rate = \"1/s\"\nburst = {BURST}");
    let (mut passed, mut fleet, mut late) = (Vec::new(), Vec::new(), 0);
    for node in ["a", "b", "c", "d"] {
        let host = Host::start(node, &far_away(&redis), &limit);
        late += u64::from(!had_a_reply(&host));
        passed.push(host.connect().ask(BURST));
        fleet.push(host);
    }
    let total: u64 = passed.iter().sum();
    let event = "four hosts start one after the other, 40 ms to the store, `cluster = \"shares\"`";
    passed_during(event, total, BURST * (1 + late));
    let most = BURST * (11 + 10 * late) / 10;
    assert!(total <= most, "{passed:?}, {late} without a reply");
    assert!(total >= BURST / 2, "{passed:?}");
}

/// Each of the hosts knows of no other, and passes the burst. What all have passed would refill in a minute and a half.
fn a_bucket_that_was_used_up_without_the_store_refills_with_it() {
    const BURST: u64 = 300;

    let mut redis = Redis::start(&[]);
    redis.kill();
    let cluster = format!("store = {:?}", redis.url());
    let limit = format!("{KEYS}\nrate = \"10/s\"\nburst = {BURST}");
    let fleet = ["a", "b", "c"].map(|node| Host::start(node, &cluster, &limit));
    let mut askers = fleet.each_ref().map(Host::connect);
    let without: Vec<u64> = askers.iter_mut().map(|asker| asker.ask(BURST)).collect();
    assert_eq!(without, [BURST; 3]);
    redis.restart();
    let began = Instant::now();
    let (mut at_first, mut later, mut have_joined) = (0, 0, None);
    while later < 20 {
        let passed: u64 = askers.iter_mut().map(|asker| asker.ask(5)).sum();
        // Hosts that take over the secret begin anew.
        match have_joined {
            Some(since) if began.elapsed() >= since + Duration::from_secs(5) => later += passed,
            _ => at_first += passed,
        }
        if have_joined.is_none() && fleet.iter().all(|host| has_joined(&host.cluster(), 3)) {
            have_joined = Some(began.elapsed());
        }
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{have_joined:?}: {at_first}, then {later}"
        );
        thread::sleep(Duration::from_millis(20));
    }
}
