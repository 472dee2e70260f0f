//! Bans that hosts share through a store: each host is a network of its own with its agent.

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use testbed::stalls::Stalls;
use testbed::tests;
use testbed::trials::Test;
use testbed::wait::wait;

use crate::redis::Redis;
use crate::support::{Agent, Network};
use crate::traffic::{PORT, burst, udp_from};

pub const TESTS: &[Test] = tests![
    a_ban_on_one_host_drops_on_another_within_a_second_and_any_host_lifts_it,
    a_host_that_joins_gets_all_bans_and_exempt_addresses_stay,
    bans_outlive_a_store_that_is_away_and_one_that_was_emptied,
    a_killed_agents_bans_stay_and_its_next_run_publishes_nothing_that_was_lifted,
    a_ban_by_a_limit_reaches_the_other_hosts,
    jails_of_two_hosts_lift_their_own_bans,
    rubbish_in_the_store_is_reported_and_nothing_is_lost,
    bans_of_other_hosts_follow_mode_and_config,
];

const LIMIT: &str = "[[limit]]\nname = \"packets\"\nrate = \"100000/s\"\n";

fn table(redis: &Redis, node: &str) -> String {
    format!(
        "[cluster]\nstore = \"unix://{}\"\nnode = {node:?}\nshare_bans = true\n{LIMIT}",
        redis.socket().display()
    )
}

/// The times after which something held.
#[derive(Default)]
struct Times {
    took: Vec<Duration>,
    /// Without the last command, which takes time itself, and the time in which the machine did other things.
    least: Vec<Duration>,
}

impl Times {
    /// Waits until this holds.
    #[track_caller]
    fn wait(&mut self, what: &str, holds: impl Fn() -> bool) {
        let (start, stalls) = (Instant::now(), Stalls::watch());
        let last = Cell::new(Duration::ZERO);
        self.took.push(wait(what, || {
            let asked = start.elapsed();
            let is_there = holds();
            if !is_there {
                last.set(asked);
            }
            is_there
        }));
        let late = 4 * stalls.so_far();
        self.least.push(last.get().saturating_sub(late));
    }

    /// Asserts that most of them are within the promised second: a busy machine may delay the others.
    #[track_caller]
    fn are_prompt(mut self, what: &str) {
        self.took.sort_unstable();
        self.least.sort_unstable();
        let middle = self.took.len() / 2;
        println!(
            "{what}: {:?} (median), {:?} (longest)",
            self.took[middle],
            self.took.last().unwrap()
        );
        assert!(
            self.least[middle] < Duration::from_secs(1),
            "{what}: {:?} of {:?}",
            self.least,
            self.took
        );
    }
}

fn shared(agent: &Agent<'_>) -> Value {
    agent.json(&["status"])["cluster"]["bans"].clone()
}

fn joined(agent: &Agent<'_>) {
    wait("the first comparison", || {
        !shared(agent)["compared_seconds_ago"].is_null()
    });
}

/// Waits until the agent has compared everything in the store once more.
fn compared_again(agent: &Agent<'_>) {
    let start = Instant::now();
    let is_since = || {
        shared(agent)["compared_seconds_ago"]
            .as_f64()
            .is_some_and(|ago| ago < start.elapsed().as_secs_f64())
    };
    wait("another comparison", is_since);
}

fn notes(agent: &Agent<'_>) -> String {
    agent.json(&["status"])["notes"].to_string()
}

/// From the order on one host to the ban in the other's kernel, which refuses the next packet.
fn a_ban_on_one_host_drops_on_another_within_a_second_and_any_host_lifts_it() {
    let redis = Redis::start(&[]);
    let networks = [Network::new(), Network::new()];
    let [a, b] = [
        networks[0].start("", &table(&redis, "a")),
        networks[1].start("", &table(&redis, "b")),
    ];
    [&a, &b].into_iter().for_each(joined);
    let receiver = networks[1].receiver(PORT);
    let mut times = Times::default();
    for nth in 20..30u8 {
        let source = format!("10.77.0.{nth}");
        networks[0].told(&["ban", &source, "--for", "1h", "--reason", "scans ports"]);
        // The agent has a ban in its list when the kernel has it.
        times.wait("the ban", || b.is_banned(&source));
        burst(&networks[1], &[udp_from(nth), udp_from(9)], 10);
        let counts = receiver.counts();
        assert_eq!((counts[usize::from(nth)], counts[9]), (0, 5));
    }
    times.are_prompt("from a ban on one host to the drop on another");
    let ban = b.ban_of("10.77.0.20");
    assert_eq!(
        (&ban["origin"], &ban["origin_on_host"]),
        (&"host:a".into(), &"operator".into()),
        "{ban}"
    );
    assert_eq!(ban["reason"], "scans ports");
    let left = ban["expires_in_seconds"].as_f64().unwrap();
    assert!(
        left > 3_000.0 && left <= 3_601.0 && ban["since"].as_u64().unwrap() > 1_000_000_000,
        "{ban}"
    );
    // On its own host it is an operator's, and no other's.
    let own = a.ban_of("10.77.0.20");
    assert_eq!(
        (&own["origin"], &own["also"]),
        (&"operator".into(), &Value::Null),
        "{own}"
    );
    let events = b.lines(&["events", "--json"]);
    let event = events
        .iter()
        .find(|event| event["source"] == "10.77.0.20")
        .unwrap();
    assert_eq!(
        (&event["verdict"], &event["reason"]),
        (
            &"banned".into(),
            &"banned by an operator on host a: scans ports".into()
        )
    );
    let text = String::from_utf8(networks[1].command(&["bans"]).stdout).unwrap();
    assert!(
        text.contains("ORIGIN") && text.contains("host:a") && text.contains("scans ports"),
        "{text}"
    );
    wait("the counts", || {
        shared(&a)["published"] == 10 && shared(&b)["others"] == 10
    });
    assert_eq!(
        (&shared(&a)["others"], &shared(&b)["published"]),
        (&0.into(), &0.into()),
        "no echo"
    );

    // The other host lifts bans on both.
    let mut times = Times::default();
    for source in ["10.77.0.20", "10.77.0.27", "10.77.0.28"] {
        networks[1].told(&["unban", source]);
        times.wait("the removal", || !a.is_banned(source));
        assert!(!b.is_banned(source) && a.is_banned("10.77.0.21"));
    }
    times.are_prompt("from a removal on one host to its effect on another");
    burst(&networks[1], &[udp_from(20)], 10);
    assert!(receiver.counts()[20] >= 10);
    // A later ban wins over the removal, of the other host too.
    networks[1].told(&["ban", "10.77.0.20"]);
    wait("the ban again", || {
        a.ban_of("10.77.0.20")["origin"] == "host:b"
    });
    // Its own host lifts a ban, too; and all of them at once, on all hosts.
    networks[0].told(&["unban", "10.77.0.21"]);
    wait("the other removal", || !b.is_banned("10.77.0.21"));
    networks[0].told(&["unban", "--all"]);
    for agent in [&a, &b] {
        wait("the end of all bans", || {
            agent.json(&["bans"]).as_array().unwrap().is_empty()
        });
    }
}

/// A host that joins has all bans but those of exempt addresses; an exception applies on its host alone.
fn a_host_that_joins_gets_all_bans_and_exempt_addresses_stay() {
    let redis = Redis::start(&[]);
    let networks = [Network::new(), Network::new()];
    let a = networks[0].start("", &table(&redis, "a"));
    let mut list = String::new();
    for nth in 0..1_500 {
        list.push_str(&format!("10.9.{}.{}\n", nth / 250, nth % 250));
    }
    let file = networks[0].folder.path().join("list");
    std::fs::write(&file, list).unwrap();
    networks[0].told(&["ban", "--file", file.to_str().unwrap(), "--for", "1h"]);
    for source in ["10.77.0.7", "10.77.0.9", "10.78.0.0/16"] {
        networks[0].told(&["ban", source]);
    }
    // Wider prefixes stay on their host.
    networks[0].told(&["ban", "64.0.0.0/4", "--force"]);
    wait("the publication", || {
        shared(&a)["published"] == 1_503 && shared(&a)["waiting"] == 0
    });
    let b = networks[1].start("never_limit = [\"10.77.0.9\"]", &table(&redis, "b"));
    let time = wait("the bans", || shared(&b)["others"] == 1_503);
    println!("a host that joined had 1,503 bans after {time:?}");
    assert_eq!(
        b.json(&["bans"]).as_array().unwrap().len(),
        1_502,
        "one is exempt"
    );
    let receiver = networks[1].receiver(PORT);
    burst(&networks[1], &[udp_from(7), udp_from(8), udp_from(9)], 30);
    let counts = receiver.counts();
    assert_eq!((counts[7], counts[8], counts[9]), (0, 10, 10));
    // Inside another host's wider ban, an exception on this host.
    let unbanned = b.json(&["unban", "10.78.3.4"]);
    assert_eq!(
        (
            &unbanned["was_banned"],
            &unbanned["exceptions_from_hosts"][0]
        ),
        (&true.into(), &"10.78.3.4".into())
    );
    assert!(!b.is_banned("10.78.3.4") && b.is_banned("10.78.3.5") && a.is_banned("10.78.3.4"));
    // A ban of exactly this address does not end it, nor does the next run.
    networks[0].told(&["ban", "10.78.3.4"]);
    wait("the ban", || shared(&b)["others"] == 1_504);
    assert!(!b.is_banned("10.78.3.4"));
    let (log, ended) = b.stop(Signal::SIGTERM);
    assert!(ended.success(), "{log}");
    let b = networks[1].start("never_limit = [\"10.77.0.9\"]", &table(&redis, "b"));
    wait("the bans again", || shared(&b)["others"] == 1_504);
    assert!(!b.is_banned("10.78.3.4") && b.is_banned("10.78.3.5"));
    networks[1].told(&["ban", "10.78.3.4", "--for", "1h"]);
    assert!(b.is_banned("10.78.3.4"));
}

fn bans_outlive_a_store_that_is_away_and_one_that_was_emptied() {
    let mut redis = Redis::start(&[]);
    let networks = [Network::new(), Network::new()];
    let [a, b] = [
        networks[0].start("", &table(&redis, "a")),
        networks[1].start("", &table(&redis, "b")),
    ];
    networks[0].told(&["ban", "10.77.0.7", "--for", "1h"]);
    wait("the ban", || b.is_banned("10.77.0.7"));
    redis.kill();
    wait("the note", || {
        notes(&b).contains("sharing bans with other hosts fails")
    });
    let verdict = || {
        b.lines(&["events", "--json"])
            .iter()
            .any(|event| event["verdict"] == "store-down")
    };
    wait("the event", verdict);
    assert!(a.is_banned("10.77.0.7") && b.is_banned("10.77.0.7"));
    // Each host's own orders are in effect at once.
    networks[0].told(&["ban", "10.77.0.8"]);
    networks[1].told(&["ban", "10.77.0.9", "--for", "1h"]);
    assert!(a.is_banned("10.77.0.8") && b.is_banned("10.77.0.9") && !b.is_banned("10.77.0.8"));
    wait("the order without a store", || shared(&a)["waiting"] == 1);
    // It comes back empty: all publish theirs again.
    redis.restart();
    for agent in [&a, &b] {
        wait("all bans", || {
            ["10.77.0.7", "10.77.0.8", "10.77.0.9"]
                .iter()
                .all(|source| agent.is_banned(source))
        });
        wait("the end of the note", || {
            !notes(agent).contains("sharing bans")
        });
    }
    assert_eq!(b.ban_of("10.77.0.7")["origin"], "host:a");
    wait("the publication", || {
        shared(&a)["published"] == 2 && shared(&b)["published"] == 1
    });
    // Emptied while it is there.
    assert_eq!(redis.cli(&["flushall"]), "OK");
    let count = || redis.cli(&["zcard", "weir:{weir}:bans:1:versions"]);
    wait("the publication again", || count() == "3");
    assert!(b.is_banned("10.77.0.7") && a.is_banned("10.77.0.9"));
    // A removal that waits is published, too, and what has ended leaves the store.
    redis.hang();
    networks[1].told(&["unban", "10.77.0.7"]);
    networks[0].told(&["ban", "10.77.0.10", "--for", "3s"]);
    redis.go_on();
    wait("the removal", || !a.is_banned("10.77.0.7"));
    wait("the end of the short ban", || {
        !a.is_banned("10.77.0.10") && !b.is_banned("10.77.0.10")
    });
    wait("its removal from the store", || {
        redis.cli(&["hexists", "weir:{weir}:bans:1", "10.77.0.10"]) == "0"
    });
}

fn a_killed_agents_bans_stay_and_its_next_run_publishes_nothing_that_was_lifted() {
    let redis = Redis::start(&[]);
    let networks = [Network::new(), Network::new()];
    let [a, b] = [
        networks[0].start("", &table(&redis, "a")),
        networks[1].start("", &table(&redis, "b")),
    ];
    networks[0].told(&["ban", "10.77.0.7", "10.77.0.8", "--for", "1h"]);
    networks[1].told(&["ban", "10.77.0.9"]);
    for agent in [&a, &b] {
        wait("all bans", || {
            agent.json(&["bans"]).as_array().unwrap().len() == 3
        });
    }
    a.stop(Signal::SIGKILL);
    // Without an agent the kernel enforces the shared bans.
    let receiver = networks[0].receiver(PORT);
    burst(&networks[0], &[udp_from(7), udp_from(9), udp_from(6)], 30);
    let counts = receiver.counts();
    assert_eq!((counts[7], counts[9], counts[6]), (0, 0, 10));
    assert!(b.is_banned("10.77.0.7"));
    // The removal is later than the second in which the ban was made.
    thread::sleep(Duration::from_millis(1_100));
    networks[1].told(&["unban", "10.77.0.7", "10.77.0.9"]);
    wait("the removal", || shared(&b)["waiting"] == 0);
    let a = networks[0].start("", &table(&redis, "a"));
    joined(&a);
    wait("the removal of the lifted bans", || {
        !a.is_banned("10.77.0.7") && !a.is_banned("10.77.0.9")
    });
    assert!(a.is_banned("10.77.0.8") && b.is_banned("10.77.0.8"));
    burst(&networks[0], &[udp_from(7), udp_from(8), udp_from(9)], 30);
    let counts = receiver.counts();
    assert_eq!((counts[7], counts[8], counts[9]), (10, 0, 10));
    assert!(!b.is_banned("10.77.0.7"), "published again");
    // A host that lost its memory has its bans from the store.
    a.stop(Signal::SIGKILL);
    networks[0].told(&[
        "detach",
        "--config",
        networks[0]
            .folder
            .path()
            .join("limits.toml")
            .to_str()
            .unwrap(),
    ]);
    std::fs::remove_dir_all(networks[0].state()).unwrap();
    let a = networks[0].start("", &table(&redis, "a"));
    wait("its ban", || a.ban_of("10.77.0.8")["origin"] == "host:a");
    networks[0].told(&["unban", "10.77.0.8"]);
    wait("the last removal", || !b.is_banned("10.77.0.8"));
}

fn jails_of_two_hosts_lift_their_own_bans() {
    let redis = Redis::start(&[]);
    let networks = [Network::new(), Network::new()];
    let agents = [
        networks[0].start("", &table(&redis, "a")),
        networks[1].start("", &table(&redis, "b")),
    ];
    agents.iter().for_each(joined);
    let owners = |nth: usize| {
        let bans = agents[nth].json(&["bans"]);
        let bans = bans.as_array().unwrap().iter();
        bans.map(|ban| ban["owner"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let jail = |nth: usize, arguments: &[&str]| {
        let owned = [arguments, &["--owner", "sshd"]].concat();
        networks[nth].told(&owned);
    };
    for shorter in [0, 1] {
        let longer = 1 - shorter;
        jail(shorter, &["ban", "10.77.0.7", "--for", "10m"]);
        jail(longer, &["ban", "10.77.0.7", "--for", "7d"]);
        let of = |host: usize| format!("host:{}", ["a", "b"][host]);
        wait("the longer ban", || {
            owners(shorter) == [of(longer), "sshd".to_owned()]
        });
        assert_eq!(agents[shorter].ban_of("10.77.0.7")["owner_on_host"], "sshd");
        // The first jail's unban leaves the other host's ban, on both hosts.
        jail(shorter, &["unban", "10.77.0.7"]);
        assert_eq!(owners(shorter), [of(longer)]);
        wait("the store", || shared(&agents[shorter])["waiting"] == 0);
        // And so does that of the longer ban, which is in the store.
        jail(shorter, &["ban", "10.77.0.7", "--for", "10m"]);
        wait("the shorter ban", || {
            shared(&agents[shorter])["waiting"] == 0
        });
        jail(longer, &["unban", "10.77.0.7"]);
        wait("the shorter ban on the other host", || {
            owners(shorter) == ["sshd"] && owners(longer) == [of(shorter)]
        });
        jail(shorter, &["unban", "10.77.0.7"]);
        wait("the end of all bans", || {
            owners(0).is_empty() && owners(1).is_empty()
        });
    }
}

fn a_ban_by_a_limit_reaches_the_other_hosts() {
    let redis = Redis::start(&[]);
    let networks = [Network::new(), Network::new()];
    let limits = |node: &str| {
        let escalate = "escalate = { after = 20, within = \"1h\", ban = \"5m\" }";
        let of_packets = LIMIT
            .replace("\"packets\"", "\"hits\"")
            .replace("100000/s", "10/h");
        format!(
            "{}{of_packets}protocol = \"udp\"\n{escalate}\n[[limit]]\nname = \"logins\"\nscope = \"request\"\n\
             key = [\"user\"]\nrate = \"5/h\"\n{escalate}\n",
            table(&redis, node)
        )
    };
    let [a, b] = [
        networks[0].start("", &limits("a")),
        networks[1].start("", &limits("b")),
    ];
    [&a, &b].into_iter().for_each(joined);
    // By a limit on packets, and by one on requests.
    burst(&networks[0], &[udp_from(7)], 60);
    for _ in 0..30 {
        a.json(&[
            "decide",
            "--limit",
            "logins",
            "--key",
            "user=alice",
            "--source",
            "10.77.0.8",
        ]);
    }
    for (source, limit) in [("10.77.0.7", "limit:hits"), ("10.77.0.8", "limit:logins")] {
        wait("the ban", || b.is_banned(source));
        let (own, ban) = (a.ban_of(source), b.ban_of(source));
        assert_eq!(
            (&own["origin"], &ban["origin"]),
            (&limit.into(), &"host:a".into())
        );
        assert_eq!(
            (&ban["origin_on_host"], &ban["reason"]),
            (&limit.into(), &own["reason"])
        );
    }
    let receiver = networks[1].receiver(PORT);
    burst(&networks[1], &[udp_from(7), udp_from(8), udp_from(9)], 15);
    let counts = receiver.counts();
    assert_eq!((counts[7], counts[8], counts[9]), (0, 0, 5));
    // The other host lifts it, and the source starts over.
    networks[1].told(&["unban", "10.77.0.7", "--all"]);
    wait("the removal", || !a.is_banned("10.77.0.7"));
    let page = String::from_utf8(networks[1].command(&["status"]).stdout).unwrap();
    assert!(page.contains("shared bans"), "{page}");
}

fn rubbish_in_the_store_is_reported_and_nothing_is_lost() {
    let redis = Redis::start(&[]);
    let networks = [Network::new(), Network::new()];
    let [a, b] = [
        networks[0].start("", &table(&redis, "a")),
        networks[1].start("", &table(&redis, "b")),
    ];
    networks[0].told(&["ban", "10.77.0.7"]);
    wait("the ban", || b.is_banned("10.77.0.7"));
    let key = "weir:{weir}:bans:1";
    for (nth, (prefix, value)) in [
        ("10.77.0.8", "rubbish"),
        ("0.0.0.0/0", "B 0 1 x {}"),
        ("nobody", "B 0 1 x {}"),
        ("10.77.0.9", "B 99999999999999999999 1 x {}"),
    ]
    .into_iter()
    .enumerate()
    {
        redis.cli(&["hset", key, prefix, value]);
        redis.cli(&[
            "zadd",
            &format!("{key}:versions"),
            &(1_000 + nth).to_string(),
            prefix,
        ]);
    }
    wait("the note", || {
        notes(&b).contains("4 entries of the store are no shared bans")
    });
    assert!(!b.is_banned("10.77.0.8") && !b.is_banned("10.77.0.9") && b.is_banned("10.77.0.7"));
    // Other bans are not disturbed, and an order replaces rubbish.
    networks[0].told(&["ban", "10.77.0.8", "10.77.0.10"]);
    wait("the next bans", || {
        b.is_banned("10.77.0.8") && b.is_banned("10.77.0.10")
    });
    // A key of another type.
    redis.cli(&["del", key]);
    redis.cli(&["set", key, "x"]);
    wait("the other note", || notes(&a).contains("WRONGTYPE"));
    networks[0].told(&["ban", "10.77.0.11"]);
    assert!(a.is_banned("10.77.0.11") && b.is_banned("10.77.0.7"));
    redis.cli(&["del", key]);
    for source in ["10.77.0.7", "10.77.0.8", "10.77.0.10", "10.77.0.11"] {
        wait("the bans again", || {
            b.is_banned(source) && redis.cli(&["hexists", key, source]) == "1"
        });
    }
    // The next comparison publishes entries again that another program removed.
    redis.cli(&["hdel", key, "10.77.0.7"]);
    redis.cli(&["zrem", &format!("{key}:versions"), "10.77.0.7"]);
    compared_again(&a);
    wait("the repair", || {
        redis.cli(&["hexists", key, "10.77.0.7"]) == "1"
    });
    wait("the ban after the repair", || b.is_banned("10.77.0.7"));
}

fn bans_of_other_hosts_follow_mode_and_config() {
    let redis = Redis::start(&[]);
    let networks = [Network::new(), Network::new()];
    let a = networks[0].start("", &table(&redis, "a"));
    let b = networks[1].start("mode = \"observe\"", &table(&redis, "b"));
    [&a, &b].into_iter().for_each(joined);
    networks[0].told(&["ban", "10.77.0.7", "--for", "1h"]);
    wait("the ban", || shared(&b)["others"] == 1);
    let would_ban = || {
        b.lines(&["events", "--json"])
            .iter()
            .any(|event| event["verdict"] == "would-ban")
    };
    wait("the event", would_ban);
    assert!(!b.is_banned("10.77.0.7"));
    let reload = |agent: &str, rest: &str| {
        networks[1].config(agent, rest);
        assert_eq!(b.json(&["reload"])["ok"], true);
    };
    reload("", &table(&redis, "b"));
    wait("enforcement", || b.is_banned("10.77.0.7"));
    reload("never_limit = [\"10.77.0.0/24\"]", &table(&redis, "b"));
    wait("the exemption", || {
        b.json(&["bans"]).as_array().unwrap().is_empty()
    });
    reload("", &table(&redis, "b"));
    wait("the ban again", || b.is_banned("10.77.0.7"));
    // A host without share_bans has no bans of others; its own stay with the others.
    networks[1].told(&["ban", "10.77.0.8"]);
    wait("the other ban", || a.is_banned("10.77.0.8"));
    reload("", LIMIT);
    wait("the end", || !b.is_banned("10.77.0.7"));
    assert!(
        b.json(&["status"])["cluster"].is_null()
            && b.is_banned("10.77.0.8")
            && a.is_banned("10.77.0.8")
    );
    reload("", &table(&redis, "b"));
    wait("the ban once more", || b.is_banned("10.77.0.7"));
    // The kernel keeps them for an agent that shares none, which lifts them.
    b.stop(Signal::SIGKILL);
    let b = networks[1].start("", LIMIT);
    assert!(!b.is_banned("10.77.0.7") && b.is_banned("10.77.0.8"));
}
