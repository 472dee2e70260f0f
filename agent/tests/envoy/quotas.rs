//! Envoy's filter of quotas: Envoy decides alone, with units that the agent has assigned.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testbed::application::Agent;
use testbed::port::Port;

use crate::proxy::{Envoy, wait_for};

const LIMITS: &str = r#"
[[limit]]
name = "rates"
scope = "request"
domain = "shop"
key = ["tier=busy", "user"]
rate = "50/s"
burst = 500

[[limit]]
name = "quotas"
scope = "request"
domain = "shop"
key = ["tier=slow", "user"]
rate = "20/h"
algorithm = "fixed-window"
"#;
const GRPC: &str = "http = \"127.0.0.1:0\"\ngrpc = \"127.0.0.1:0\"";
/// The interval of Envoy's reports: Envoy 1.40 ignores `reporting_interval`.
const INTERVAL: Duration = Duration::from_secs(5);

/// A filter whose buckets have the headers `tier` and `user`; without an assignment, it denies.
fn filter() -> Value {
    let header = |name: &str| {
        let kind = "type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput";
        json!({"name": name, "typed_config": {"@type": kind, "header_name": name}})
    };
    let settings = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaBucketSettings",
        "bucket_id_builder": {"bucket_id_builder": {
            "tier": {"custom_value": header("tier")},
            "user": {"custom_value": header("user")},
        }},
        "reporting_interval": format!("{}s", INTERVAL.as_secs()),
        "no_assignment_behavior": {"fallback_rate_limit": {"blanket_rule": "DENY_ALL"}},
    });
    json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaFilterConfig",
        "rlqs_server": {"envoy_grpc": {"cluster_name": "ratelimit"}},
        "domain": "shop",
        "bucket_matchers": {"matcher_list": {"matchers": [{
            "predicate": {"single_predicate": {
                "input": header("user"),
                "value_match": {"safe_regex": {"google_re2": {}, "regex": ".+"}},
            }},
            "on_match": {"action": {"name": "rate_limit_quota", "typed_config": settings}},
        }]}},
    })
}

fn envoy(agent: &Agent) -> Envoy {
    let name = "envoy.filters.http.rate_limit_quota";
    Envoy::start_with_filter(&agent.grpc, (name, filter()))
}

/// Sends requests over all Envoys in turn for a time; the number that each passed, and the time.
fn send(envoys: &[Envoy], tier: &str, user: &str, time: Duration) -> (Vec<u64>, Duration) {
    let mut clients: Vec<_> = envoys.iter().map(Envoy::client).collect();
    let mut passed = vec![0; envoys.len()];
    let start = Instant::now();
    loop {
        for (client, passed) in clients.iter_mut().zip(&mut passed) {
            let reply = client.get("/", &[("tier", tier), ("user", user)]);
            assert!(reply.is_passed() || reply.status == 429, "{reply:?}");
            *passed += u64::from(reply.is_passed());
        }
        if start.elapsed() >= time {
            return (passed, start.elapsed());
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn remaining(agent: &Agent, limit: &str, tier: &str, user: &str) -> i64 {
    let question = json!({"limit": limit, "key": {"tier": tier, "user": user}, "peek": true});
    let (status, answer) = agent.ask(&question);
    assert_eq!(status, 200, "{answer}");
    answer["remaining"].as_i64().unwrap()
}

pub fn two_envoys_pass_a_rate_together() {
    let agent = Agent::start_with(GRPC, LIMITS);
    let envoys = [envoy(&agent), envoy(&agent)];
    let (passed, time) = send(&envoys, "busy", "alice", 4 * INTERVAL);
    let (all, most) = (
        passed.iter().sum::<u64>(),
        500.0 + 50.0 * time.as_secs_f64(),
    );
    println!("passed {passed:?} of {most:.0} in {time:.1?}");
    assert!(all as f64 <= most, "{passed:?} of {most}");
    // The rate, without the last interval, whose units may be left.
    assert!(
        all as f64 >= most - 500.0 - 50.0 * INTERVAL.as_secs_f64(),
        "{passed:?} of {most}"
    );
    assert!(passed.iter().all(|one| *one >= all / 4), "{passed:?}");
    let limits = agent.json(&["limits"]);
    let mut limits = limits.as_array().unwrap().iter();
    let limit = limits.find(|limit| limit["name"] == "rates").unwrap();
    assert!(
        (1..=all).contains(&limit["passed"]["packets"].as_u64().unwrap()),
        "{limit}"
    );
    assert!(
        limit["throttled"]["packets"].as_u64().unwrap() > 0,
        "{limit}"
    );
}

pub fn two_envoys_pass_a_quota_and_return_unused_units() {
    let agent = Agent::start_with(GRPC, LIMITS);
    let envoys = [envoy(&agent), envoy(&agent)];
    let (bob, _) = send(&envoys[..1], "slow", "bob", Duration::from_secs(1));
    let (alice, _) = send(&envoys, "slow", "alice", 12 * INTERVAL);
    println!("passed {alice:?} and {bob:?}");
    assert_eq!(alice.iter().sum::<u64>(), 20, "{alice:?}");
    // A bucket without requests is drained and abandoned after a minute.
    wait_for("unused units to return", || {
        let used = 20 - remaining(&agent, "quotas", "slow", "bob");
        (used == bob[0] as i64).then_some(())
    });
}

pub fn without_an_agent_envoy_has_its_units_and_later_new_ones() {
    let port = Port::reserve();
    let grpc = format!("grpc = \"127.0.0.1:{}\"", port.number());
    let mut agent = Agent::start_with(&grpc, LIMITS);
    let envoys = [envoy(&agent)];
    // The first request has no assignment.
    send(&envoys, "slow", "alice", Duration::ZERO);
    wait_for("the agent's counters", || {
        let limits = agent.json(&["limits"]);
        (limits[1]["throttled"]["packets"] == 1).then_some(())
    });
    agent.child.kill().unwrap();
    agent.child.wait().unwrap();
    let (away, _) = send(&envoys, "slow", "alice", INTERVAL);
    println!("passed {away:?} without the agent");
    // One grant: half of a twentieth, rounded up.
    assert_eq!(away, [1]);
    drop(agent);
    let _agent = Agent::start_with(&grpc, LIMITS);
    wait_for("Envoy to have new units", || {
        let (again, _) = send(&envoys, "slow", "alice", INTERVAL);
        (again[0] > 0).then_some(())
    });
}
