//! Stores that hang, go, come back empty; hosts that die, join, leave, and have wrong clocks.

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use testbed::tests;
use testbed::trials::Test;
use testbed::wait::{PATIENCE, until};

use crate::fleet::{BURST, Host};
use crate::redis::Redis;

pub const TESTS: &[Test] = tests![
    a_store_that_never_replies_delays_no_decision,
    a_store_that_hangs_is_reported_and_used_again,
    without_a_store_when_store_is_down_applies,
    an_emptied_store_lets_no_share_grow,
    a_host_that_dies_is_missed_when_its_lease_ends,
    a_host_that_leaves_gives_back_at_once,
    a_host_whose_clock_is_wrong_is_like_any_other,
];

pub const LIMIT: &str = "rate = \"1000/s\"\nburst = 100";

pub fn store(redis: &Redis) -> String {
    format!("store = {:?}", redis.url())
}

fn is_from(from: &'static str) -> impl Fn(&Value) -> bool {
    move |cluster| cluster["limits"][0]["share_from"] == from
}

/// Both have a lease, and know of each other.
pub fn pair(cluster: &str) -> [Host; 2] {
    let hosts = ["one", "two"].map(|node| Host::start(node, cluster, LIMIT));
    for host in &hosts {
        host.until(PATIENCE, "of two hosts", |cluster| {
            let share = cluster["limits"][0]["share"].as_f64().unwrap();
            cluster["hosts"] == 2 && is_from("lease")(cluster) && (share - 0.5).abs() < 0.05
        });
    }
    hosts
}

/// How long an answer of the store is waited for.
const TIMEOUT: Duration = Duration::from_millis(333);

/// Decisions go on, one after the other. If they waited for an answer of the store, each would take as long as the agent
/// waits for one; a machine that has other things to do delays some of them.
fn decisions_go_on(host: &Host, time: Duration) {
    let mut asker = host.connect();
    let start = Instant::now();
    let mut took = Vec::new();
    while start.elapsed() < time || took.len() < 100 {
        let asked = Instant::now();
        asker.ask(1);
        took.push(asked.elapsed());
        thread::sleep(Duration::from_millis(2));
    }
    took.sort_unstable();
    assert!(took[took.len() / 2] < TIMEOUT, "{took:?}");
}

fn a_store_that_never_replies_delays_no_decision() {
    // It takes connections and what is sent, and says nothing.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let cluster = format!("store = \"redis://{}\"", listener.local_addr().unwrap());
    let host = Host::start("one", &cluster, LIMIT);
    decisions_go_on(&host, Duration::from_secs(2));
    host.until(PATIENCE, "down", |cluster| {
        cluster["health"] == "down" && cluster["failures"].as_u64().unwrap() >= 2
    });
    decisions_go_on(&host, Duration::from_secs(1));
    let cluster = host.cluster();
    assert!(
        is_from("joining")(&cluster) && cluster["answered_in_seconds"].is_null(),
        "{cluster}"
    );
    assert!(!cluster["last_error"].as_str().unwrap().is_empty());
    // No other host was ever seen: all of the limit is held here.
    assert_eq!(cluster["limits"][0]["share"], 1.0);
}

fn a_store_that_hangs_is_reported_and_used_again() {
    let redis = Redis::start(&[]);
    let [one, two] = pair(&store(&redis));
    redis.hang();
    decisions_go_on(&one, Duration::from_secs(2));
    for host in [&one, &two] {
        host.until(PATIENCE, "alone", |cluster| {
            is_from("share")(cluster)
                && cluster["health"] == "down"
                && cluster["limits"][0]["share"] == 0.5
        });
        let error = host.cluster()["last_error"].as_str().unwrap().to_owned();
        assert!(
            error.contains("no reply") || error.contains("timed out"),
            "{error}"
        );
        assert!(
            host.said().contains("the store is unavailable"),
            "{}",
            host.said()
        );
        let table = String::from_utf8(host.command(&["status"]).stdout).unwrap();
        assert!(
            table.contains("down at redis://127.0.0.1") && table.contains("50.0 %"),
            "{table}"
        );
    }
    redis.go_on();
    for host in [&one, &two] {
        host.until(PATIENCE, "back", |cluster| {
            is_from("lease")(cluster) && cluster["health"] != "down"
        });
        assert!(
            host.said().contains("the store is available again"),
            "{}",
            host.said()
        );
    }
}

fn without_a_store_when_store_is_down_applies() {
    let mut redis = Redis::start(&[]);
    let modes = ["share", "local", "open", "closed"];
    let fleets = modes.map(|mode| {
        pair(&format!(
            "{}\nname = {mode:?}\nwhen_store_is_down = {mode:?}",
            store(&redis)
        ))
    });
    redis.kill();
    for (mode, [one, two]) in modes.iter().zip(&fleets) {
        let share = match *mode {
            "share" => 0.5,
            "closed" => 0.0,
            _ => 1.0,
        };
        for host in [one, two] {
            host.until(PATIENCE, mode, |cluster| {
                is_from(mode)(cluster)
                    && cluster["limits"][0]["share"] == share
                    && cluster["health"] == "down"
            });
        }
        // Ten times the burst, as fast as it goes: what passes is the share, by the time that it took.
        let start = Instant::now();
        let passed = one.connect().ask(10 * BURST);
        let refilled = 1_000.0 * start.elapsed().as_secs_f64();
        match *mode {
            "open" => assert_eq!(passed, 10 * BURST),
            "closed" => assert_eq!(passed, 0),
            _ => {
                let most = share * (BURST as f64 + refilled) + 1.0;
                assert!(
                    passed as f64 >= share * BURST as f64 && passed as f64 <= most,
                    "{mode}: {passed} of {most}"
                );
            }
        }
    }
    redis.restart();
    for [one, two] in &fleets {
        for host in [one, two] {
            host.until(PATIENCE, "back", |cluster| {
                is_from("lease")(cluster) && cluster["hosts"] == 2
            });
        }
        let sum = || one.share() + two.share();
        let start = Instant::now();
        while sum() < 0.95 {
            assert!(start.elapsed() < PATIENCE, "{} of the limit is held", sum());
        }
    }
}

fn an_emptied_store_lets_no_share_grow() {
    let redis = Redis::start(&[]);
    let [one, two] = pair(&store(&redis));
    // All demand is at one: it has nearly all.
    let stop = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut asker = one.connect();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                asker.ask(20);
                thread::sleep(Duration::from_millis(10));
            }
        });
        let checked = std::panic::catch_unwind(|| {
            one.until(PATIENCE, "busy", |cluster| {
                cluster["limits"][0]["share"].as_f64().unwrap() > 0.9
            });
            two.until(PATIENCE, "idle", |cluster| {
                cluster["limits"][0]["share"].as_f64().unwrap() < 0.1
            });
            assert_eq!(redis.cli(&["flushall"]), "OK");
            // For a lease nobody grows: two is idle still, and its share is what it was.
            let (start, nearly) = (Instant::now(), Duration::from_millis(900));
            one.until(PATIENCE, "settling", |cluster| {
                cluster["limits"][0]["is_settling"] == true || start.elapsed() > nearly
            });
            let share = two.share();
            assert!(share < 0.11 || start.elapsed() > nearly, "{share}");
            one.until(PATIENCE, "settled", |cluster| {
                cluster["limits"][0]["is_settling"] == false && cluster["hosts"] == 2
            });
            one.until(PATIENCE, "busy", |cluster| {
                cluster["limits"][0]["share"].as_f64().unwrap() > 0.9
            });
        });
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        checked.unwrap();
    });
}

/// The store's clock.
fn milliseconds(redis: &Redis) -> u64 {
    let time = redis.cli(&["time"]);
    let numbers: Vec<u64> = time.lines().map(|line| line.parse().unwrap()).collect();
    1_000 * numbers[0] + numbers[1] / 1_000
}

/// The end of a host's lease by that clock.
fn lease_end(redis: &Redis, node: &str) -> Option<u64> {
    let ends = redis.cli(&[
        "zrange",
        "weir:{weir/together}:ends",
        "0",
        "-1",
        "withscores",
    ]);
    let mut lines = ends.lines();
    lines.find(|line| line.starts_with(&format!("{node}/")))?;
    lines.next()?.parse().ok()
}

fn a_host_that_dies_is_missed_when_its_lease_ends() {
    let redis = Redis::start(&[]);
    let [one, mut two] = pair(&store(&redis));
    // Most of its lease of a second is left.
    let end = until("a new lease", || {
        let now = milliseconds(&redis);
        lease_end(&redis, "two").filter(|end| *end >= now + 600)
    });
    two.stop(Signal::SIGKILL);
    let alone = |cluster: &Value| cluster["hosts"] == 1 && cluster["limits"][0]["share"] == 1.0;
    one.until(PATIENCE, "alone", alone);
    let now = milliseconds(&redis);
    assert!(
        now >= end,
        "{} ms before the dead host's lease ended",
        end - now
    );
    // Whoever joins gets its part of what the other gives up.
    let three = Host::start("three", &store(&redis), LIMIT);
    for host in [&one, &three] {
        host.until(PATIENCE, "a pair", |cluster| {
            cluster["hosts"] == 2
                && (cluster["limits"][0]["share"].as_f64().unwrap() - 0.5).abs() < 0.05
        });
    }
    one.until(PATIENCE, "told of the other", |cluster| {
        let shares = cluster["limits"][0]["shares"].as_array().unwrap();
        shares.len() == 2
            && shares
                .iter()
                .any(|host| host["host"].as_str().unwrap().starts_with("three/"))
    });
}

fn a_host_that_leaves_gives_back_at_once() {
    let redis = Redis::start(&[]);
    // A lease of ten seconds.
    let [one, mut two] = pair(&format!("{}\nsync = \"1s\"", store(&redis)));
    two.stop(Signal::SIGTERM);
    // Its part is there for the other before its lease ends, unless the store did not reply in time, which it logs.
    let ledger = redis.cli(&["--raw", "hkeys", "weir:{weir/together}:ledger"]);
    let is_there = ledger.contains("n:one/") && !ledger.contains("n:two/");
    let was_late = two.said().contains("returning leases to the store failed");
    assert!(is_there || was_late, "{ledger}\n{}", two.said());
    one.until(PATIENCE, "alone", |cluster| {
        cluster["hosts"] == 1 && cluster["limits"][0]["share"] == 1.0
    });
}

fn a_host_whose_clock_is_wrong_is_like_any_other() {
    let redis = Redis::start(&[]);
    // A host that seems to have been up for a year longer: every clock that leases are measured by is off.
    let by = [
        "unshare",
        "--time",
        "--boottime",
        "31536000",
        "--monotonic",
        "31536000",
        "--fork",
        "--kill-child",
    ];
    let is_possible = std::process::Command::new(by[0])
        .args(&by[1..])
        .arg("true")
        .output()
        .is_ok_and(|output| output.status.success());
    if !is_possible {
        eprintln!(
            "skipped: this user or this kernel can give no host a clock of its own (time namespaces)"
        );
        return;
    }
    let one = Host::start("one", &store(&redis), LIMIT);
    let off = Host::start_by(&by, "off", &store(&redis), LIMIT);
    for host in [&one, &off] {
        host.until(PATIENCE, "a pair", |cluster| {
            let share = cluster["limits"][0]["share"].as_f64().unwrap();
            cluster["hosts"] == 2 && is_from("lease")(cluster) && (share - 0.5).abs() < 0.05
        });
    }
    // It goes on so for longer than a lease.
    thread::sleep(Duration::from_millis(1_500));
    off.until(PATIENCE, "a pair still", |cluster| {
        cluster["hosts"] == 2 && is_from("lease")(cluster)
    });
    redis.hang();
    off.until(PATIENCE, "alone", |cluster| {
        is_from("share")(cluster) && cluster["limits"][0]["share"] == 0.5
    });
    redis.go_on();
    off.until(PATIENCE, "back", is_from("lease"));
}
