//! State that survives a reload, a restart and a kill of the agent, with and without the store.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use testbed::tests;
use testbed::trials::Test;
use testbed::wait::PATIENCE;

use crate::fleet::{BURST, Host};
use crate::redis::Redis;
use crate::trouble::{LIMIT, pair, store};

pub const TESTS: &[Test] = tests![
    a_reload_without_a_store_keeps_every_host_to_its_share,
    a_start_without_a_store_uses_the_hosts_last_seen,
    a_lease_stays_valid_over_reloads,
    an_agent_that_was_killed_takes_its_own_lease_over,
];

const MORE: &str = "\n[[limit]]\nname = \"more\"\nscope = \"request\"\nkey = [\"a\"]\nrate = \"9/s\"\ncluster = true";

/// The highest that the shares of one limit add up to, for some time.
fn most_held(hosts: [&Host; 2], limit: &str, time: Duration) -> f64 {
    let start = Instant::now();
    let mut most = 0.0f64;
    while start.elapsed() < time {
        most = most.max(
            hosts
                .iter()
                .map(|host| host.limit(limit)["share"].as_f64().unwrap())
                .sum(),
        );
    }
    most
}

fn a_reload_without_a_store_keeps_every_host_to_its_share() {
    let mut redis = Redis::start(&[]);
    let [one, two] = pair(&store(&redis));
    redis.kill();
    // Another rate, another limit beside it, another time between two requests: nothing of that makes a share valid for
    // longer, or larger.
    for (nth, limit) in [
        format!("{LIMIT}{MORE}"),
        LIMIT.replace("1000", "3000"),
        LIMIT.to_owned(),
    ]
    .iter()
    .enumerate()
    {
        let cluster = format!("{}\nsync = \"{}ms\"", store(&redis), 100 + nth);
        for (node, host) in [("one", &one), ("two", &two)] {
            host.reload(node, &cluster, limit);
        }
        let most = most_held([&one, &two], "together", Duration::from_millis(1_500));
        assert!(most <= 1.0, "after reload {nth}: {most}");
        if limit.contains("more") {
            // It was never granted to anybody; the hosts are known all the same.
            assert_eq!(
                most_held([&one, &two], "more", Duration::from_millis(100)),
                1.0
            );
        }
    }
    for host in [&one, &two] {
        assert_eq!(host.limit("together")["share"], 0.5);
    }
    redis.restart();
    for host in [&one, &two] {
        host.until(PATIENCE, "back", |cluster| {
            cluster["limits"][0]["share_from"] == "lease" && cluster["hosts"] == 2
        });
    }
}

fn a_start_without_a_store_uses_the_hosts_last_seen() {
    for (mode, share) in [("share", 0.5), ("closed", 0.0)] {
        let mut redis = Redis::start(&[]);
        let cluster = format!("{}\nwhen_store_is_down = {mode:?}", store(&redis));
        let [mut one, mut two] = pair(&cluster);
        for host in [&one, &two] {
            host.until(PATIENCE, "saved", |_| {
                host.state("cluster").contains("\"hosts\":2")
            });
        }
        redis.kill();
        one.restart(Signal::SIGKILL);
        two.restart(Signal::SIGTERM);
        for host in [&one, &two] {
            let start = Instant::now();
            let passed = host.connect().ask(10 * BURST);
            let most = share * (BURST as f64 + 1_000.0 * start.elapsed().as_secs_f64()) + 1.0;
            assert!(passed as f64 <= most, "{mode}: {passed} of {most}");
        }
        let most = most_held([&one, &two], "together", Duration::from_secs(2));
        assert_eq!(most, 2.0 * share, "{mode}");
    }
}

fn a_lease_stays_valid_over_reloads() {
    let redis = Redis::start(&[]);
    // A lease of ten seconds: one that was lost would be missed.
    let cluster = format!("{}\nsync = \"1s\"", store(&redis));
    let [one, two] = pair(&cluster);
    let hosts = || redis.cli(&["--raw", "hkeys", "weir:{weir/together}:ledger"]);
    let before = hosts();
    for nth in 0..5 {
        one.reload(
            "one",
            &cluster,
            if nth % 2 == 0 {
                "rate = \"2000/s\"\nburst = 300"
            } else {
                LIMIT
            },
        );
        let limit = one.limit("together");
        let share = limit["share"].as_f64().unwrap();
        assert!(
            limit["share_from"] == "lease" && (share - 0.5).abs() < 0.05,
            "{limit}"
        );
    }
    assert_eq!(hosts(), before, "the hosts go by the names that they had");
    two.until(PATIENCE, "a pair", |cluster| cluster["hosts"] == 2);
    // A limit that is not kept any more is given back.
    let extended = format!("{LIMIT}{MORE}");
    one.reload("one", &cluster, &extended);
    one.until(PATIENCE, "leased", |cluster| {
        let limits = cluster["limits"].as_array().unwrap();
        limits.len() == 2 && limits.iter().all(|limit| limit["share_from"] == "lease")
    });
    one.reload("one", &cluster, LIMIT);
    let deadline = Instant::now() + Duration::from_secs(300);
    while redis
        .cli(&["--raw", "hkeys", "weir:{weir/more}:ledger"])
        .contains("n:one/")
    {
        assert!(
            Instant::now() < deadline,
            "a limit that is gone was not given back"
        );
    }
}

fn an_agent_that_was_killed_takes_its_own_lease_over() {
    let redis = Redis::start(&[]);
    // A lease of ten minutes, which is longer than anything here is waited for.
    let cluster = format!("{}\nsync = \"60s\"", store(&redis));
    let both =
        |cluster: &Value| cluster["hosts"] == 2 && cluster["limits"][0]["share_from"] == "lease";
    let mut one = Host::start("one", &store(&redis), LIMIT);
    one.until(PATIENCE, "alone", |cluster| {
        cluster["limits"][0]["share"] == 1.0
    });
    let two = Host::start("two", &store(&redis), LIMIT);
    for (node, host) in [("one", &one), ("two", &two)] {
        host.until(PATIENCE, "of two", |cluster| {
            both(cluster) && (cluster["limits"][0]["share"].as_f64().unwrap() - 0.5).abs() < 0.05
        });
        host.reload(node, &cluster, LIMIT);
    }
    // Both have asked once under the longer lease.
    let granted = |host: &Host| {
        let entry = redis.cli(&["--raw", "hgetall", "weir:{weir/together}:ledger"]);
        let name = host.cluster()["node"].as_str().unwrap().to_owned();
        entry
            .lines()
            .find(|line| line.starts_with(&format!("n:{name}/")))
            .map(str::to_owned)
    };
    assert!(granted(&one).is_some() && granted(&two).is_some());
    let before = granted(&one);
    one.restart(Signal::SIGKILL);
    one.until(PATIENCE, "back", |cluster| {
        both(cluster) && (cluster["limits"][0]["share"].as_f64().unwrap() - 0.5).abs() < 0.05
    });
    let ledger = redis.cli(&["--raw", "hkeys", "weir:{weir/together}:ledger"]);
    assert_eq!(
        ledger.lines().filter(|line| line.starts_with("n:")).count(),
        2,
        "{ledger}"
    );
    assert_ne!(granted(&one), before);
}
