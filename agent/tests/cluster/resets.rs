//! Keys and limits that an operator resets on one host.

use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use testbed::fleet::{Host, LIMIT, passed_during};
use testbed::redis::Redis;
use testbed::tests;
use testbed::trials::Test;

use crate::quotas::{N, ask_all, daily, exhaust, fleet, joined, most, seconds, settle};

pub const TESTS: &[Test] = tests![
    a_reset_key_has_one_quota_on_all_hosts,
    a_host_that_was_away_resets_when_it_returns,
    a_reset_without_the_store_reaches_all_hosts_with_it,
    resets_under_traffic_pass_one_quota_each,
];

const KEY: [&str; 2] = ["--key", "service=one"];

fn reset(host: &Host, which: [&str; 2]) {
    let output = host.command(&["reset", which[0], which[1], "--json"]);
    assert!(output.status.success(), "{output:?}");
    let reset: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(reset["on_all_hosts"], json!([LIMIT]), "{reset}");
}

/// Settled by hosts that were all there before.
fn settled(redis: &Redis, hosts: &[Host]) {
    joined(hosts, hosts.len());
    settle(std::slice::from_ref(redis), hosts);
}

fn exhausted(hosts: &[Host]) -> u64 {
    hosts.iter().map(exhaust).sum()
}

/// Restarts, hosts that join, and a store that loses everything bring back neither the use before the reset nor the quota.
fn a_reset_key_has_one_quota_on_all_hosts() {
    for algorithm in ["fixed-window", "sliding-log", "token-bucket"] {
        let redis = Redis::start(&[]);
        let cluster = format!("store = {:?}", redis.url());
        let start = |node: &str| Host::start(node, &cluster, &daily(algorithm));
        let mut hosts = vec![start("a"), start("b")];
        settled(&redis, &hosts);
        assert!(exhausted(&hosts) >= N * 9 / 10, "{algorithm}");
        settled(&redis, &hosts);
        let begun = seconds(&redis);
        reset(&hosts[1], KEY);
        settled(&redis, &hosts);
        // The other one first.
        let mut passed = vec![exhaust(&hosts[0]), exhaust(&hosts[1])];
        assert!(passed[0] >= N * 9 / 10, "{algorithm}: {passed:?}");
        settled(&redis, &hosts);
        for signal in [Signal::SIGKILL, Signal::SIGTERM] {
            hosts[1].restart(signal);
            settled(&redis, &hosts);
            passed.push(exhaust(&hosts[1]));
        }
        hosts.push(start("c"));
        settled(&redis, &hosts);
        passed.push(exhaust(&hosts[2]));
        redis.cli(&["flushall"]);
        settled(&redis, &hosts);
        hosts.push(start("d"));
        settled(&redis, &hosts);
        passed.push(exhausted(&hosts));
        let event = format!(
            "{algorithm}: `weir reset --key` on one of two hosts, restarts, two more hosts, the store is emptied"
        );
        let total: u64 = passed.iter().sum();
        passed_during(&event, total, N);
        let most = most(&redis, begun);
        assert!(total as f64 <= most, "{algorithm}: {passed:?}");
    }
}

/// The others have removed it, and it has the use of before.
fn a_host_that_was_away_resets_when_it_returns() {
    const WHOLE: [&str; 2] = ["--limit", LIMIT];

    for (which, is_used) in [(KEY, false), (KEY, true), (WHOLE, false), (WHOLE, true)] {
        let redis = Redis::start(&[]);
        let cluster = format!("store = {:?}", redis.url());
        let mut hosts = fleet(2, &cluster, &daily("fixed-window"));
        settled(&redis, &hosts);
        assert!(exhausted(&hosts) >= N * 9 / 10);
        settled(&redis, &hosts);
        hosts[1].signal(Signal::SIGSTOP);
        joined(&hosts[..1], 1);
        let begun = seconds(&redis);
        reset(&hosts[0], which);
        let mut passed = if is_used { exhaust(&hosts[0]) } else { 0 };
        hosts[1].signal(Signal::SIGCONT);
        settled(&redis, &hosts);
        // The host that was away first.
        let of_other = exhaust(&hosts[1]);
        assert_eq!(of_other < N / 10, is_used, "{which:?}: {of_other}");
        passed += of_other + exhaust(&hosts[0]);
        settled(&redis, &hosts);
        hosts[1].restart(Signal::SIGKILL);
        hosts.push(Host::start("new", &cluster, &daily("fixed-window")));
        settled(&redis, &hosts);
        passed += exhausted(&hosts);
        let event =
            "a host is away during `weir reset`, returns and restarts, and another one joins";
        passed_during(event, passed, N);
        assert!(passed >= N * 9 / 10, "{which:?}: {passed}");
        let most = most(&redis, begun);
        assert!(passed as f64 <= most, "{which:?}: {passed}");
    }
}

fn a_reset_without_the_store_reaches_all_hosts_with_it() {
    let mut redis = Redis::start(&[]);
    let hosts = fleet(
        2,
        &format!("store = {:?}", redis.url()),
        &daily("fixed-window"),
    );
    settled(&redis, &hosts);
    assert!(exhausted(&hosts) >= N * 9 / 10);
    settled(&redis, &hosts);
    let begun = seconds(&redis);
    redis.kill();
    reset(&hosts[0], KEY);
    redis.restart();
    settled(&redis, &hosts);
    let of_other = exhaust(&hosts[1]);
    assert!(of_other >= N * 9 / 10, "{of_other}");
    let passed = of_other + exhaust(&hosts[0]);
    passed_during("`weir reset` while the store restarts empty", passed, N);
    assert!(passed >= N * 9 / 10, "{passed}");
    assert!(passed as f64 <= most(&redis, begun), "{passed}");
}

fn resets_under_traffic_pass_one_quota_each() {
    const RESETS: u64 = 4;

    for algorithm in ["fixed-window", "token-bucket"] {
        let redis = Redis::start(&[]);
        let cluster = format!("store = {:?}", redis.url());
        let hosts = fleet(3, &cluster, &daily(algorithm));
        settled(&redis, &hosts);
        let begun = seconds(&redis);
        let time = Duration::from_secs(2) * (RESETS as u32 + 1);
        let passed = thread::scope(|scope| {
            let asked = scope.spawn(|| ask_all(&hosts, time));
            for nth in 0..RESETS {
                thread::sleep(Duration::from_secs(2));
                reset(&hosts[nth as usize % hosts.len()], KEY);
            }
            asked.join().unwrap()
        });
        let event = format!(
            "{algorithm}: three busy hosts, {RESETS} times `weir reset --key` on one of them"
        );
        passed_during(&event, passed, (RESETS + 1) * N);
        let days = seconds(&redis) / 86_400 - begun / 86_400;
        let most = if algorithm == "token-bucket" {
            // Every host may pass a burst before its first exchange.
            hosts.len() as u64 * N * (RESETS + 1)
        } else {
            N * (RESETS + 1 + days) + N / 10
        };
        assert!(passed <= most, "{algorithm}: {passed}");
        assert!(passed >= N * (RESETS + 1) * 9 / 10, "{algorithm}: {passed}");
    }
}
