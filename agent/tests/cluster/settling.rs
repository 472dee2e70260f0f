//! Forced charges and reservations of keys that hosts exchange.

use nix::sys::signal::Signal;
use serde_json::Value;
use testbed::fleet::Host;
use testbed::redis::Redis;
use testbed::tests;
use testbed::trials::Test;

use crate::quotas::{N, daily, exhaust, joined, most, seconds, settle};

pub const TESTS: &[Test] = tests![
    forced_use_is_refused_on_every_host,
    returned_units_pass_at_most_once,
];

fn ask(host: &Host, question: &str) -> Value {
    let mut answers = host.connect().answers(std::iter::once(question.to_owned()));
    answers.pop().unwrap()
}

/// A question with more fields about the key that `exhaust` uses.
fn question(more: &str) -> String {
    let plain = testbed::fleet::Asker::question("one");
    plain.replacen('{', &format!("{{{more},"), 1)
}

fn forced_use_is_refused_on_every_host() {
    for algorithm in [
        "token-bucket",
        "fixed-window",
        "sliding-window",
        "sliding-log",
    ] {
        let redis = Redis::start(&[]);
        let cluster = format!("store = {:?}", redis.url());
        let start = |node: &str| Host::start(node, &cluster, &daily(algorithm));
        let begun = seconds(&redis);
        let mut fleet = vec![start("a"), start("b")];
        joined(&fleet, 2);
        let answer = ask(&fleet[0], &question("\"cost\":3000,\"charge\":\"force\""));
        assert_eq!(answer["allowed"], true, "{algorithm}: {answer}");
        settle(std::slice::from_ref(&redis), &fleet);
        fleet.push(start("c"));
        joined(&fleet, 3);
        settle(std::slice::from_ref(&redis), &fleet);
        fleet[0].restart(Signal::SIGTERM);
        joined(&fleet, 3);
        settle(std::slice::from_ref(&redis), &fleet);
        let passed: Vec<u64> = fleet.iter().map(exhaust).collect();
        eprintln!("{algorithm}: {passed:?}");
        // A new day may begin, and a bucket refill.
        let most = (most(&redis, begun) - 1.1 * N as f64).max(0.0);
        let total = passed.iter().sum::<u64>();
        assert!(total as f64 <= most, "{algorithm}: {passed:?}");
    }
}

/// The other hosts keep what they have received: too little may pass, and never more than the limit.
fn returned_units_pass_at_most_once() {
    for algorithm in ["token-bucket", "fixed-window"] {
        let redis = Redis::start(&[]);
        let cluster = format!("store = {:?}", redis.url());
        let start = |node: &str| Host::start(node, &cluster, &daily(algorithm));
        let begun = seconds(&redis);
        let fleet = [start("a"), start("b")];
        joined(&fleet, 2);
        // As many hosts, so many parts of the window.
        let answer = ask(&fleet[0], &question("\"cost\":400,\"reserve\":\"1h\""));
        let reservation = answer["reservation"].as_str().unwrap().to_owned();
        settle(std::slice::from_ref(&redis), &fleet);
        let answer = ask(&fleet[0], &format!("{{\"release\":{reservation:?}}}"));
        assert_eq!(answer["allowed"], true, "{answer}");
        settle(std::slice::from_ref(&redis), &fleet);
        let passed: Vec<u64> = fleet.iter().map(exhaust).collect();
        eprintln!("{algorithm}: {passed:?}");
        let total: u64 = passed.iter().sum();
        assert!(
            total as f64 <= most(&redis, begun),
            "{algorithm}: {passed:?}"
        );
        assert!(total >= N - 400, "{algorithm}: {passed:?}");
    }
}
