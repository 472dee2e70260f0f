//! Quotas that are used up: hosts join and restart, configs are reloaded, and the store has no memory left.

use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use testbed::fleet::{Asker, Host, KEYS, RATE, Spread, drive, passed_during};
use testbed::redis::Redis;
use testbed::tests;
use testbed::trials::Test;
use testbed::wait::{PATIENCE, until};

use crate::stores::two_nodes;

pub const TESTS: &[Test] = tests![
    a_used_up_quota_survives_joins_and_restarts,
    a_used_up_quota_survives_the_end_of_all_hosts,
    a_used_up_quota_survives_an_emptied_store,
    a_new_host_in_an_emptied_store_resets_no_quota,
    a_reload_of_the_cluster_resets_no_quota,
    a_full_store_multiplies_no_quota,
    a_full_store_grants_no_share_twice,
    hosts_with_other_syncs_are_not_removed,
    a_used_up_quota_survives_in_a_cluster_of_stores,
];

pub const N: u64 = 1_000;

/// The lines of a limit of `N` a day.
pub fn daily(algorithm: &str) -> String {
    format!("{KEYS}\nrate = \"{N}/day\"\nalgorithm = {algorithm:?}")
}

/// Waits until `hosts` exchange keys.
pub fn joined(fleet: &[Host], hosts: usize) {
    for host in fleet {
        host.until(PATIENCE, "one of all", |cluster| has_joined(cluster, hosts));
    }
}

/// Whether a host of so many exchanges keys, by its status.
pub fn has_joined(cluster: &Value, hosts: usize) -> bool {
    cluster["hosts"] == hosts && cluster["limits"][0]["share_from"] == "keys"
}

/// Waits until the store has the use of keys that were last used before, and every host has received it.
pub fn settle(stores: &[Redis], fleet: &[Host]) {
    // A host writes the use of a key when it has not been used for two syncs.
    thread::sleep(Duration::from_secs(1));
    exchanged(stores, "weir", fleet);
    exchanged(stores, "weir", fleet);
}

/// Waits until each host of a cluster has exchanged twice: the second exchange began after the call.
fn exchanged(stores: &[Redis], cluster: &str, fleet: &[Host]) {
    for host in fleet {
        let node = host.cluster()["node"].as_str().unwrap().to_owned();
        let sequence = || -> u64 {
            let of_store = |store| sequence(store, cluster, &node);
            stores.iter().map(of_store).sum()
        };
        let before = sequence();
        let what = format!("two exchanges of {node} after {before}");
        until(&what, || (sequence() >= before + 2).then_some(()));
    }
}

/// The sequence of a host's last exchange in a store, with those of its earlier runs.
fn sequence(store: &Redis, cluster: &str, node: &str) -> u64 {
    let key = format!("weir:{{{cluster}}}:use:1");
    let pattern = format!("h:{node}/*");
    let scanned = store.cli(&["hscan", &key, "0", "match", &pattern, "count", "100000"]);
    let mut lines = scanned.lines();
    let mut sum = 0;
    while let Some(line) = lines.next() {
        if line.starts_with("h:") {
            sum += lines.next().unwrap().parse::<u64>().unwrap();
        }
    }
    sum
}

/// Requests units on a host until it has refused all for a second, a request after it included; returns the passed ones.
pub fn exhaust(host: &Host) -> u64 {
    let mut asker = host.connect();
    let (mut passed, mut refused): (u64, Option<Instant>) = (0, None);
    loop {
        let asked = Instant::now();
        let more = asker.ask(50);
        passed += more;
        match refused {
            _ if more > 0 => refused = None,
            None => refused = Some(Instant::now()),
            Some(since) if asked >= since + Duration::from_secs(1) => return passed,
            Some(_) => {}
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// The most that may pass of a day's quota since `begun`: the sliding window drops a part as time passes, and a day may
/// end.
pub fn most(redis: &Redis, begun: u64) -> f64 {
    let days = |at: u64| at / 86_400;
    let now = seconds(redis);
    let windows = 1 + days(now + 1) - days(begun.saturating_sub(1));
    1.1 * N as f64 * (windows as f64 + (now - begun) as f64 / 86_400.0)
}

/// The store's clock.
pub fn seconds(redis: &Redis) -> u64 {
    redis
        .cli(&["time"])
        .lines()
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

fn a_used_up_quota_survives_joins_and_restarts() {
    for algorithm in ["fixed-window", "sliding-window", "sliding-log"] {
        let redis = Redis::start(&[]);
        let cluster = format!("store = {:?}", redis.url());
        let start = |node: &str| Host::start(node, &cluster, &daily(algorithm));
        let begun = seconds(&redis);
        let mut fleet = vec![start("a")];
        joined(&fleet, 1);
        let mut passed = vec![exhaust(&fleet[0])];
        assert!(passed[0] >= N, "{algorithm}: {passed:?}");
        // The key has not been used for longer than it is published.
        settle(std::slice::from_ref(&redis), &fleet);
        fleet.push(start("b"));
        joined(&fleet, 2);
        settle(std::slice::from_ref(&redis), &fleet);
        passed.push(exhaust(&fleet[1]));
        for (host, signal) in [
            (1, Signal::SIGKILL),
            (1, Signal::SIGTERM),
            (0, Signal::SIGKILL),
            (0, Signal::SIGTERM),
        ] {
            fleet[host].restart(signal);
            joined(&fleet, 2);
            settle(std::slice::from_ref(&redis), &fleet);
            passed.push(exhaust(&fleet[host]));
        }
        let total: u64 = passed.iter().sum();
        eprintln!("{algorithm}: {passed:?}");
        let event = format!("{algorithm}: a second host joins; kills and restarts of both");
        passed_during(&event, total, N);
        assert!(
            total as f64 <= most(&redis, begun),
            "{algorithm}: {passed:?}"
        );
    }
}

/// The use is in the store, for hosts that come when all that knew it have ended.
fn a_used_up_quota_survives_the_end_of_all_hosts() {
    let redis = Redis::start(&[]);
    let cluster = format!("store = {:?}", redis.url());
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        let cluster = format!("{cluster}\nname = \"{signal}\"");
        let begun = seconds(&redis);
        let mut first = Host::start("a", &cluster, &daily("fixed-window"));
        joined(std::slice::from_ref(&first), 1);
        let mut passed = exhaust(&first);
        // Used units are written within two seconds.
        thread::sleep(Duration::from_secs(3));
        exchanged(
            std::slice::from_ref(&redis),
            signal.as_str(),
            std::slice::from_ref(&first),
        );
        first.stop(signal);
        let second = Host::start("b", &cluster, &daily("fixed-window"));
        second.until(PATIENCE, "joined", |cluster| {
            cluster["limits"][0]["share_from"] == "keys"
        });
        exchanged(
            std::slice::from_ref(&redis),
            signal.as_str(),
            std::slice::from_ref(&second),
        );
        passed += exhaust(&second);
        let event = format!("all hosts end by {signal}, and another one joins");
        passed_during(&event, passed, N);
        assert!(passed as f64 <= most(&redis, begun), "{signal}: {passed}");
    }
}

/// Hosts write their use again into a store that has lost it, for hosts that join later.
fn a_used_up_quota_survives_an_emptied_store() {
    let mut redis = Redis::start(&[]);
    let cluster = format!("store = {:?}", redis.url());
    let begun = seconds(&redis);
    let mut fleet = vec![Host::start("a", &cluster, &daily("fixed-window"))];
    joined(&fleet, 1);
    let mut passed = vec![exhaust(&fleet[0])];
    settle(std::slice::from_ref(&redis), &fleet);
    redis.kill();
    redis.restart();
    joined(&fleet, 1);
    settle(std::slice::from_ref(&redis), &fleet);
    fleet.push(Host::start("b", &cluster, &daily("fixed-window")));
    joined(&fleet, 2);
    settle(std::slice::from_ref(&redis), &fleet);
    passed.push(exhaust(&fleet[1]));
    // The host that has the use restarts while the store is empty again.
    redis.cli(&["flushall"]);
    fleet[0].restart(Signal::SIGTERM);
    joined(&fleet, 2);
    settle(std::slice::from_ref(&redis), &fleet);
    passed.extend(fleet.iter().map(exhaust));
    let total: u64 = passed.iter().sum();
    passed_during("the store is emptied twice, and a host restarts", total, N);
    assert!(total as f64 <= most(&redis, begun), "{passed:?}");
}

/// A host without a state file finds the empty store first: its secret must not make the others forget their keys.
fn a_new_host_in_an_emptied_store_resets_no_quota() {
    let redis = Redis::start(&[]);
    // A store is new for a lease of half a minute.
    let cluster = format!("store = {:?}\nsync = \"3s\"", redis.url());
    let begun = seconds(&redis);
    let mut fleet = vec![Host::start("a", &cluster, &daily("fixed-window"))];
    joined(&fleet, 1);
    let mut passed = vec![exhaust(&fleet[0])];
    fleet[0].signal(Signal::SIGSTOP);
    redis.cli(&["flushall"]);
    let start = Instant::now();
    fleet.push(Host::start("b", &cluster, &daily("fixed-window")));
    let secret = || redis.cli(&["hget", "weir:{weir}:keys", "#secret"]);
    while secret().trim().is_empty() {
        assert!(start.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(10));
    }
    let new = secret();
    fleet[0].signal(Signal::SIGCONT);
    joined(&fleet, 2);
    passed.extend(fleet.iter().map(exhaust));
    eprintln!("a new host in an emptied store: {passed:?}");
    let total: u64 = passed.iter().sum();
    passed_during(
        "a host without a state file joins an emptied store first",
        total,
        N,
    );
    assert_ne!(secret(), new, "the fleet's secret was not restored");
    assert!(total as f64 <= most(&redis, begun), "{passed:?}");
}

fn a_reload_of_the_cluster_resets_no_quota() {
    let redis = Redis::start(&[]);
    let cluster = format!("store = {:?}", redis.url());
    let begun = seconds(&redis);
    let fleet = [Host::start("a", &cluster, &daily("fixed-window"))];
    joined(&fleet, 1);
    let mut passed = vec![exhaust(&fleet[0])];
    for line in [
        "when_store_is_down = \"closed\"",
        "max_hot_keys = 500",
        "sync = \"200ms\"",
        "share_bans = true",
        "",
    ] {
        fleet[0].reload("a", &format!("{cluster}\n{line}"), &daily("fixed-window"));
        joined(&fleet, 1);
        passed.push(exhaust(&fleet[0]));
    }
    let total: u64 = passed.iter().sum();
    let event = "reloads of `when_store_is_down`, `max_hot_keys`, `sync`, `share_bans`";
    passed_during(event, total, N);
    assert!(total as f64 <= most(&redis, begun), "{passed:?}");
}

/// Redis' default at `maxmemory`: writes that need memory are errors.
pub fn fill(redis: &Redis) {
    assert_eq!(
        redis.cli(&["config", "set", "maxmemory-policy", "noeviction"]),
        "OK"
    );
    assert_eq!(redis.cli(&["config", "set", "maxmemory", "1"]), "OK");
}

pub fn fleet(count: usize, cluster: &str, limit: &str) -> Vec<Host> {
    (0..count)
        .map(|nth| Host::start(&format!("host-{nth}"), cluster, limit))
        .collect()
}

/// Requests units on all hosts at once for some time; returns the passed ones.
pub fn ask_all(fleet: &[Host], time: Duration) -> u64 {
    let start = Instant::now();
    thread::scope(|scope| {
        let ask = |host: &Host| {
            let mut asker: Asker = host.connect();
            scope.spawn(move || {
                let mut passed = 0;
                while start.elapsed() < time {
                    passed += asker.ask(20);
                    thread::sleep(Duration::from_millis(10));
                }
                passed
            })
        };
        let asked: Vec<_> = fleet.iter().map(ask).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).sum()
    })
}

fn a_full_store_multiplies_no_quota() {
    let redis = Redis::start(&[]);
    let begun = seconds(&redis);
    let fleet = fleet(
        4,
        &format!("store = {:?}", redis.url()),
        &daily("fixed-window"),
    );
    joined(&fleet, 4);
    fill(&redis);
    let passed = ask_all(&fleet, Duration::from_secs(5));
    for host in &fleet {
        // A request may have had no reply in time.
        host.until(PATIENCE, "down for its reason", |cluster| {
            let error = cluster["last_error"].as_str();
            cluster["health"] == "down" && error.is_some_and(|error| error.contains("maxmemory"))
        });
    }
    eprintln!("a full store: {passed} of {N}");
    assert!(passed as f64 <= most(&redis, begun), "{passed}");
    assert!(passed > 0);
    // With memory again, the hosts exchange what each has passed.
    assert_eq!(redis.cli(&["config", "set", "maxmemory", "0"]), "OK");
    joined(&fleet, 4);
    let passed = passed + ask_all(&fleet, Duration::from_secs(3));
    let event = "the store has no memory left (`maxmemory`, `noeviction`) for 5 s, four hosts";
    passed_during(event, passed, N);
    assert!(passed as f64 <= most(&redis, begun), "{passed}");
}

fn a_full_store_grants_no_share_twice() {
    let redis = Redis::start(&[]);
    let fleet = fleet(
        4,
        &format!("store = {:?}", redis.url()),
        &format!("rate = \"{RATE}/s\"\nburst = 100"),
    );
    for host in &fleet {
        host.until(PATIENCE, "one of all", |cluster| cluster["hosts"] == 4);
    }
    fill(&redis);
    let outcome = drive(&fleet, Spread::Even, 10.0, Duration::from_secs(6));
    let event = "the store has no memory left for 6 s, four hosts, `cluster = \"shares\"`";
    passed_during(event, outcome.passed, outcome.limit.round());
    assert!(outcome.error() <= 0.1, "{outcome:?}");
    assert!(outcome.passed > 0);
}

/// A rolling change of `sync`: the lease of the second host is ten times as long as the first host's.
fn hosts_with_other_syncs_are_not_removed() {
    let redis = Redis::start(&[]);
    let begun = seconds(&redis);
    let host = |nth: usize, sync: &str| {
        let cluster = format!("store = {:?}\nsync = {sync:?}", redis.url());
        Host::start(&format!("host-{nth}"), &cluster, &daily("fixed-window"))
    };
    let fleet = [host(0, "100ms"), host(1, "3s"), host(2, "100ms")];
    joined(&fleet, 3);
    // Some syncs of the slow host, and several leases of the others.
    let (start, mut least) = (Instant::now(), u64::MAX);
    while start.elapsed() < Duration::from_secs(7) {
        let hosts = redis.cli(&["zrange", "weir:{weir}:hosts", "0", "-1"]);
        assert!(hosts.contains("host-1/"), "the slow host: {hosts}");
        least = least.min(fleet[0].cluster()["hosts"].as_u64().unwrap());
        thread::sleep(Duration::from_millis(50));
    }
    joined(&fleet, 3);
    // On a busy machine, the other host may exchange nothing for its lease of a second, and is removed rightly.
    let gone = fleet[2].times_gone();
    assert!(least == 3 || least == 2 && gone > 0, "{least}, {gone}");
    let passed = ask_all(&fleet, Duration::from_secs(10));
    passed_during("syncs of 100 ms and 3 s in one cluster", passed, N);
    // A host that counts as gone may pass its earlier part besides.
    let gone = fleet.iter().map(Host::times_gone).sum::<usize>() as f64;
    let most = most(&redis, begun) + gone * N as f64 / 3.0;
    assert!(passed as f64 <= most, "{passed} of {most}");
}

/// All keys of a fleet are on one node.
fn a_used_up_quota_survives_in_a_cluster_of_stores() {
    let nodes = two_nodes();
    let begun = seconds(&nodes[0]);
    let cluster = format!("store = {:?}", nodes.each_ref().map(Redis::url));
    let start = |node: &str| Host::start(node, &cluster, &daily("fixed-window"));
    let mut fleet = vec![start("a")];
    joined(&fleet, 1);
    let mut passed = vec![exhaust(&fleet[0])];
    // A key in use is written every two seconds.
    settle(&nodes, &fleet);
    fleet.push(start("b"));
    joined(&fleet, 2);
    settle(&nodes, &fleet);
    passed.push(exhaust(&fleet[1]));
    fleet[0].restart(Signal::SIGKILL);
    joined(&fleet, 2);
    settle(&nodes, &fleet);
    passed.push(exhaust(&fleet[0]));
    let total: u64 = passed.iter().sum();
    let event = "Redis Cluster of two masters: a second host joins, the first one is killed";
    passed_during(event, total, N);
    assert!(total as f64 <= most(&nodes[0], begun), "{passed:?}");
}
