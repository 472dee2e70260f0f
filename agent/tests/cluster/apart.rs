//! An error of one limit, or of the way to the store, does not touch the other limits.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use testbed::delay::delayed;
use testbed::fleet::KEYS;
use testbed::stalls::Stalls;
use testbed::tests;
use testbed::trials::Test;
use testbed::wait::{PATIENCE, until};

use crate::fleet::Host;
use crate::redis::Redis;
use crate::trouble::{LIMIT, pair, store};

pub const TESTS: &[Test] = tests![
    one_limits_damaged_ledger_concerns_no_other_limit,
    one_limits_forbidden_ledger_concerns_no_other_limit,
    a_cluster_that_loses_one_of_three_masters_loses_no_other_limits,
    twenty_limits_stay_leased_over_50_ms_to_the_store,
    the_documented_acl_user_may_do_all_that_weir_needs,
    the_documented_patterns_keep_clusters_apart,
    a_store_that_goes_and_comes_back_is_an_event,
];

/// A lease of ten seconds, so that it does not end while the machine is busy with other things.
const LONG: &str = "sync = \"1s\"";
/// Longer than such a lease: one that is not renewed ends meanwhile.
const BEYOND_LONG: Duration = Duration::from_secs(12);

/// More limits beside the first, by their names.
fn more(names: impl IntoIterator<Item = String>) -> String {
    let limit = |name| {
        format!(
            "\n[[limit]]\nname = {name:?}\nscope = \"request\"\nkey = [\"a\"]\nrate = \"9/s\"\ncluster = true"
        )
    };
    names.into_iter().map(limit).collect()
}

/// Whether the last failed request of a limit, or of a host, had no reply in time, as on a busy machine, or none failed.
fn has_only_been_late(status: &Value) -> bool {
    let late = ["no reply within", "timed out"];
    let error = status["last_error"].as_str();
    error.is_none_or(|error| late.iter().any(|text| error.contains(text)))
}

fn is_leased(limit: &Value) -> bool {
    limit["share_from"] == "lease"
}

/// Looks at a host for some time; whether limits were leased at all times.
fn leased_for<'a>(host: &Host, time: Duration, names: impl Iterator<Item = &'a str> + Clone) {
    are_so_for(host, time, names, is_leased);
}

/// Looks at a host for some time; whether its limits were so at all times.
fn are_so_for<'a>(
    host: &Host,
    time: Duration,
    mut names: impl Iterator<Item = &'a str> + Clone,
    is_so: impl Fn(&Value) -> bool,
) {
    let start = Instant::now();
    while start.elapsed() < time {
        let cluster = host.cluster();
        let limits = cluster["limits"].as_array().unwrap();
        let is_there = |name: &str| {
            limits
                .iter()
                .any(|limit| limit["name"] == name && is_so(limit))
        };
        assert!(names.clone().all(is_there), "{cluster:#}\n{}", host.said());
        thread::sleep(Duration::from_millis(20));
    }
    assert!(names.next().is_some());
}

/// Asserts that the store has refused no renewal of a limit's lease.
fn was_never_refused(host: &Host, name: &str) {
    let (limit, log) = (host.limit(name), host.said());
    let refused = format!("renewing the lease of limit {name:?} failed");
    assert!(
        has_only_been_late(&limit) && !log.contains(&refused),
        "{limit}\n{log}"
    );
}

fn one_limits_damaged_ledger_concerns_no_other_limit() {
    let redis = Redis::start(&[]);
    let names = ["foreign", "garbled"];
    let cluster = format!("{}\n{LONG}", store(&redis));
    let host = Host::start(
        "one",
        &cluster,
        &format!("{LIMIT}{}", more(names.map(str::to_owned))),
    );
    host.until(PATIENCE, "joined", |cluster| {
        cluster["limits"].as_array().unwrap().iter().all(is_leased)
    });
    assert_eq!(
        redis.cli(&["set", "weir:{weir/foreign}:ledger", "of another program"]),
        "OK"
    );
    redis.cli(&["hset", "weir:{weir/garbled}:ledger", "#held", "many"]);
    for name in names {
        host.until(PATIENCE, "refused, and logged", |_| {
            let limit = host.limit(name);
            limit["share_from"] == "share"
                && limit["failures"].as_u64().unwrap() > 0
                && limit["last_error"].is_string()
                && host
                    .said()
                    .contains(&format!("renewing the lease of limit {name:?} failed"))
        });
    }
    // Any renewal may have had no reply in time.
    host.until(PATIENCE, "refused for its reason", |_| {
        let limit = host.limit("foreign");
        let error = limit["last_error"].as_str();
        error.is_some_and(|error| error.contains("another program"))
    });
    host.until(PATIENCE, "noted", |_| {
        host.notes().contains("renewing the lease of limit")
    });
    leased_for(&host, Duration::from_secs(3), ["together"].into_iter());
    was_never_refused(&host, "together");
    assert!(
        ["up", "slow"].contains(&host.cluster()["health"].as_str().unwrap()),
        "{}",
        host.cluster()
    );
    // The store is up, and nobody is told otherwise.
    assert!(!host.said().contains("the store "), "{}", host.said());
    redis.cli(&[
        "del",
        "weir:{weir/foreign}:ledger",
        "weir:{weir/garbled}:ledger",
        "weir:{weir/garbled}:ends",
    ]);
    host.until(PATIENCE, "mended", |cluster| {
        cluster["limits"].as_array().unwrap().iter().all(is_leased)
    });
    assert!(
        host.said()
            .contains("the lease of limit \"foreign\" is renewed again")
            && host.notes() == "[\"the config has no limits on packets\"]"
    );
}

fn one_limits_forbidden_ledger_concerns_no_other_limit() {
    let redis = Redis::start(&[]);
    let user = [
        "acl",
        "setuser",
        "weir",
        "on",
        ">secret",
        "~weir:{weir/together}:*",
        "+@all",
    ];
    assert_eq!(redis.cli(&user), "OK");
    let cluster = format!(
        "store = \"redis://weir:secret@127.0.0.1:{}\"\n{LONG}",
        redis.port()
    );
    let host = Host::start(
        "one",
        &cluster,
        &format!("{LIMIT}{}", more(["secret".to_owned()])),
    );
    host.until(PATIENCE, "leased", |_| is_leased(&host.limit("together")));
    // A renewal before may have had no reply in time.
    host.until(PATIENCE, "refused for its reason", |_| {
        let limit = host.limit("secret");
        let error = limit["last_error"].as_str().map(str::to_lowercase);
        error.is_some_and(|error| {
            error.contains("no permissions") && error.contains("docs/cluster.md")
        })
    });
    leased_for(&host, BEYOND_LONG, ["together"].into_iter());
    was_never_refused(&host, "together");
}

fn a_cluster_that_loses_one_of_three_masters_loses_no_other_limits() {
    let enabled = [
        "--cluster-enabled",
        "yes",
        "--cluster-require-full-coverage",
        "no",
    ];
    let mut nodes = [
        Redis::start(&enabled),
        Redis::start(&enabled),
        Redis::start(&enabled),
    ];
    for (node, slots) in nodes
        .iter()
        .zip([["0", "5460"], ["5461", "10922"], ["10923", "16383"]])
    {
        assert_eq!(
            node.cli(&["cluster", "addslotsrange", slots[0], slots[1]]),
            "OK"
        );
    }
    for other in &nodes[1..] {
        assert_eq!(
            nodes[0].cli(&["cluster", "meet", "127.0.0.1", &other.port().to_string()]),
            "OK"
        );
    }
    let deadline = Instant::now() + Duration::from_secs(300);
    for node in &nodes {
        while !node.cli(&["cluster", "info"]).contains("cluster_state:ok")
            || !node
                .cli(&["cluster", "info"])
                .contains("cluster_known_nodes:3")
        {
            assert!(
                Instant::now() < deadline,
                "{}",
                node.cli(&["cluster", "info"])
            );
            thread::sleep(Duration::from_millis(50));
        }
    }
    let names: Vec<String> = (0..12).map(|nth| format!("limit-{nth}")).collect();
    let limits = format!("{LIMIT}{}", more(names.clone()));
    let cluster = format!("store = {:?}\n{LONG}", nodes[0].url());
    let hosts = ["one", "two"].map(|node| Host::start(node, &cluster, &limits));
    for host in &hosts {
        host.until(PATIENCE, "joined", |cluster| {
            cluster["limits"]
                .as_array()
                .unwrap()
                .iter()
                .all(|limit| is_leased(limit) && limit["hosts"] == 2)
        });
    }
    let ledgers = |node: &Redis| -> Vec<String> {
        let keys = node.cli(&["--raw", "keys", "weir:*:ledger"]);
        let name = |key: &str| key.split(['/', '}']).nth(1).map(str::to_owned);
        keys.lines()
            .filter_map(name)
            .filter(|name| names.contains(name))
            .collect()
    };
    let (kept, lost) = (
        [ledgers(&nodes[0]), ledgers(&nodes[1])].concat(),
        ledgers(&nodes[2]),
    );
    assert!(
        !kept.is_empty() && !lost.is_empty() && kept.len() + lost.len() == names.len(),
        "{kept:?} {lost:?}"
    );
    nodes[2].kill();
    thread::scope(|scope| {
        for host in &hosts {
            scope.spawn(|| {
                leased_for(host, BEYOND_LONG, kept.iter().map(String::as_str));
            });
        }
    });
    for host in &hosts {
        for name in &lost {
            // To hold more waits another lease.
            host.until(PATIENCE, "each for itself", |_| {
                let limit = host.limit(name);
                limit["share_from"] == "share" && limit["share"] == 0.5
            });
        }
        for name in &kept {
            let limit = host.limit(name);
            eprintln!(
                "{name} on a master that is left: {} renewals failed",
                limit["failures"]
            );
        }
    }
    // It is back, empty, and is found again.
    nodes[2].restart();
    for host in &hosts {
        host.until(PATIENCE, "whole again", |cluster| {
            cluster["limits"]
                .as_array()
                .unwrap()
                .iter()
                .all(|limit| is_leased(limit) && limit["hosts"] == 2)
        });
    }
}

fn twenty_limits_stay_leased_over_50_ms_to_the_store() {
    let redis = Redis::start(&[]);
    let way = delayed(
        ([127, 0, 0, 1], redis.port()).into(),
        Duration::from_millis(25),
    );
    let names: Vec<String> = (1..20).map(|nth| format!("limit-{nth}")).collect();
    let limits = format!("{LIMIT}{}", more(names.clone()));
    let hosts = ["one", "two"].map(|node| {
        Host::start(
            node,
            &format!("store = \"redis://{way}\"\nsync = \"300ms\""),
            &limits,
        )
    });
    for host in &hosts {
        host.until(PATIENCE, "joined", |cluster| {
            cluster["limits"]
                .as_array()
                .unwrap()
                .iter()
                .all(|limit| is_leased(limit) && limit["hosts"] == 2)
        });
    }
    let calls = |of: &str| {
        let stats = redis.cli(&["info", "commandstats"]);
        let calls = stats
            .lines()
            .find_map(|line| line.strip_prefix(&format!("cmdstat_{of}:calls=")));
        calls
            .and_then(|line| line.split(',').next()?.parse::<u64>().ok())
            .unwrap_or(0)
    };
    let (start, stalls) = (Instant::now(), Stalls::watch());
    let (renewed, looked) = (calls("evalsha"), calls("hgetall"));
    thread::scope(|scope| {
        for host in &hosts {
            let all = ["together"]
                .into_iter()
                .chain(names.iter().map(String::as_str));
            // A lease of three seconds may end while the machine is busy with other things.
            let is_so = |limit: &Value| is_leased(limit) || has_only_been_late(limit);
            scope.spawn(move || are_so_for(host, Duration::from_secs(4), all, is_so));
        }
    });
    let seconds = start.elapsed().as_secs_f64();
    let (renewed, looked) = (calls("evalsha") - renewed, calls("hgetall") - looked);
    let each = renewed as f64 / seconds / 40.0;
    eprintln!(
        "50 ms to the store, 2 hosts, 20 limits: {each:.1} renewals a second each, {looked} looks in {seconds:.1} s"
    );
    // Three a second are asked for. One after the other, twenty take a second at least, beside as many looks at shares.
    let least = 1.0 - 4.0 * stalls.so_far().as_secs_f64() / seconds;
    assert!(each > least, "{each} of {least}");
    assert!(looked >= 40, "every host's shares are read: {looked}");
    for host in &hosts {
        let cluster = host.cluster();
        assert!(has_only_been_late(&cluster), "{cluster:#}");
        assert!(
            cluster["answered_in_seconds"].as_f64().unwrap() >= 0.05,
            "{cluster:#}"
        );
        assert!(
            cluster["limits"]
                .as_array()
                .unwrap()
                .iter()
                .all(|limit| limit["shares"].as_array().unwrap().len() == 2)
        );
    }
}

/// Asserts that the store has refused a host nothing.
fn is_permitted(host: &Host) {
    let (cluster, log) = (host.cluster(), host.said());
    let is_refused = |text: &str| {
        ["noperm", "permission"]
            .iter()
            .any(|part| text.contains(part))
    };
    assert!(
        has_only_been_late(&cluster) && !is_refused(&log.to_lowercase()),
        "{cluster:#}\n{log}"
    );
}

fn the_documented_acl_user_may_do_all_that_weir_needs() {
    let docs = include_str!("../../../docs/CLUSTER.md");
    let block = docs
        .split("```")
        .find(|block| block.starts_with("acl\n"))
        .expect("docs/CLUSTER.md has an ACL");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users.acl");
    std::fs::write(&file, block.strip_prefix("acl\n").unwrap()).unwrap();
    let redis = Redis::start(&["--aclfile", file.to_str().unwrap()]);
    let cluster = format!(
        "store = \"redis://weir:CHANGE-THIS@127.0.0.1:{}\"",
        redis.port()
    );
    let [one, two] = pair(&cluster);
    for host in [&one, &two] {
        host.until(PATIENCE, "of both", |cluster| {
            cluster["limits"][0]["shares"].as_array().unwrap().len() == 2
        });
        is_permitted(host);
    }
    let keys = ["a", "b"].map(|node| {
        Host::start(
            node,
            &cluster,
            &format!("{}\nrate = \"10/min\"", crate::fleet::KEYS),
        )
    });
    for host in &keys {
        host.until(PATIENCE, "of both, by keys", |cluster| {
            cluster["hosts"] == 2 && cluster["health"] == "up"
        });
        is_permitted(host);
    }
    let try_it = |command: &[&str]| {
        redis.cli(&[&["--user", "weir", "--pass", "CHANGE-THIS"], command].concat())
    };
    let reset = keys[0].command(&["reset", "--limit", "together"]);
    assert!(reset.status.success(), "{reset:?}");
    until("the reset in the store", || {
        let version = try_it(&["hget", "weir:{weir}:resets:1", "#version"]);
        (!version.is_empty()).then_some(())
    });
    is_permitted(&keys[0]);
    // And nothing else: neither others' keys nor what harms a server; nobody else may do anything.
    for command in [
        &["get", "secret"][..],
        &["set", "weir:x", "1"],
        &["hgetall", "secret"],
        &["flushall"],
        &["config", "get", "dir"],
        &["acl", "list"],
        &["keys", "*"],
        &["eval", "return redis.call('GET', KEYS[1])", "1", "secret"],
    ] {
        assert!(
            try_it(command).contains("NOPERM"),
            "{command:?}: {}",
            try_it(command)
        );
    }
    assert!(
        redis.cli(&["get", "weir:x"]).contains("NOAUTH"),
        "{}",
        redis.cli(&["get", "weir:x"])
    );
}

fn the_documented_patterns_keep_clusters_apart() {
    let docs = include_str!("../../../docs/CLUSTER.md");
    let patterns = ["~weir:{NAME}*", "~weir:{NAME/*"];
    assert!(patterns.iter().all(|pattern| docs.contains(pattern)));
    let redis = Redis::start(&[]);
    let [all, limits] = patterns.map(|pattern| pattern.replace("NAME", "shop"));
    let user = [
        "acl", "setuser", "shop", "on", ">secret", &all, &limits, "+hget",
    ];
    assert_eq!(redis.cli(&user), "OK");
    for (key, is_own) in [
        ("weir:{shop}:keys", true),
        ("weir:{shop}:use:1:ends", true),
        ("weir:{shop/orders}:ledger", true),
        ("weir:{shop2}:keys", false),
        ("weir:{shop2/orders}:ledger", false),
    ] {
        let reply = redis.cli(&["--user", "shop", "--pass", "secret", "hget", key, "a"]);
        assert_eq!(!reply.contains("NOPERM"), is_own, "{key}: {reply}");
    }
}

fn a_store_that_goes_and_comes_back_is_an_event() {
    let mut redis = Redis::start(&[]);
    let port = redis.port();
    // Leases and the exchange of keys use the store, and each event comes once.
    let host = Host::start(
        "one",
        &format!("store = \"redis://me:hidden@127.0.0.1:{port}\"\nsync = \"1s\""),
        &format!(
            "{LIMIT}\n[[limit]]\nname = \"of keys\"\nscope = \"request\"\nkey = [\"user\"]\n{KEYS}\n{LIMIT}"
        ),
    );
    // Its password is wrong: it was never there.
    host.until(PATIENCE, "down", |cluster| cluster["health"] == "down");
    redis.cli(&["acl", "setuser", "me", "on", ">hidden", "~*", "+@all"]);
    host.until(PATIENCE, "up", |cluster| {
        cluster["health"] == "up" || cluster["health"] == "slow"
    });
    redis.kill();
    host.until(PATIENCE, "down", |cluster| cluster["health"] == "down");
    let output = host.command(&["events", "--json"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let events: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let verdicts: Vec<&str> = events
        .iter()
        .map(|event| event["verdict"].as_str().unwrap())
        .collect();
    // A busy machine may keep the store away once more in between.
    let alternates = verdicts
        .iter()
        .zip(["store-down", "store-up"].iter().cycle())
        .all(|(verdict, expected)| verdict == expected);
    let is_down_at_last = verdicts.len() % 2 == 1;
    assert!(
        alternates && is_down_at_last && verdicts.len() >= 3,
        "{text}"
    );
    assert!(
        events
            .iter()
            .all(|event| event["source"] == format!("store redis://*********@127.0.0.1:{port}")),
        "{text}"
    );
    assert!(!text.contains("hidden"), "{text}");
}
