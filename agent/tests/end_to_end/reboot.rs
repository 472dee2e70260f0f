//! State that survives a reboot: bans, counters, and consumption of slow limits.
//!
//! A reboot is another boot id, and a kernel in which nothing is pinned.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use testbed::tests;
use testbed::trials::Test;
use testbed::wait::wait;

use crate::support::Network;
use crate::traffic::{PORT, burst, udp_from};

pub const TESTS: &[Test] = tests![
    bans_counters_and_slow_limits_survive_a_reboot,
    limits_on_requests_go_on_over_restarts_and_reboots,
    state_older_than_half_a_minute_survives_a_power_cut,
    a_damaged_state_file_is_set_aside_and_reported,
];

const SMALL: &str = "max_sources = 2000\n";

/// Five limits on five ports, one of each algorithm, and one that no reboot has to remember.
fn limits() -> String {
    let limit = |name: &str, nth: u16, algorithm: &str, rate: &str| {
        let port = PORT + nth;
        format!(
            "[[limit]]\nname = {name:?}\nports = [{port}]\nalgorithm = {algorithm:?}\nrate = {rate:?}\n"
        )
    };
    [
        limit("bucket", 0, "token-bucket", "100/month"),
        limit("leaky", 1, "leaky-bucket", "100/week"),
        limit("fixed", 2, "fixed-window", "100/month"),
        limit("sliding", 3, "sliding-window", "100/month"),
        limit("log", 4, "sliding-log", "100/day"),
    ]
    .concat()
}

const NAMES: [&str; 5] = ["bucket", "leaky", "fixed", "sliding", "log"];

fn to_port(source: u8, nth: u16) -> Vec<u8> {
    common::packet::build::Frame::between(crate::support::CLIENT_MAC, crate::support::SERVER_MAC)
        .ipv4([10, 77, 0, source], crate::support::SERVER)
        .udp(5000, PORT + nth, &[0; 22])
        .build()
}

/// The power is gone: what is in /run and in the kernel with it.
fn shut_down(network: &Network, config: &std::path::Path) {
    network.told(&["detach", "--config", config.to_str().unwrap()]);
    let _ = std::fs::remove_file(network.control());
    assert!(!network.has_pins());
}

fn state_file(network: &Network) -> PathBuf {
    network.state().join("state")
}

fn bans_counters_and_slow_limits_survive_a_reboot() {
    let network = Network::new();
    let config = network.config(SMALL, &limits());
    let agent = network.start_in_boot("a", &config);
    for nth in 0..5 {
        burst(&network, &[to_port(7, nth)], 60);
        burst(&network, &[to_port(8, nth)], 110);
    }
    let first_began = Instant::now();
    network.told(&["ban", "10.77.0.9", "--for", "1h"]);
    network.told(&["ban", "10.77.3.0/24"]);
    network.told(&["ban", "10.77.0.11", "--for", "2s"]);
    let ban_began = Instant::now();
    burst(&network, &[udp_from(9)], 30);
    let before: Vec<_> = NAMES.iter().map(|name| agent.counts(name)).collect();
    assert_eq!(before, [(160, 10); 5]);
    let totals = agent.json(&["status"])["totals"].clone();
    agent.stop(Signal::SIGTERM);
    shut_down(&network, &config);
    // The host is off for a while.
    thread::sleep(Duration::from_millis(2_500).saturating_sub(ban_began.elapsed()));
    let agent = network.start_in_boot("b", &config);
    assert_eq!(agent.json(&["status"])["notes"], serde_json::json!([]));
    for (nth, name) in (0..).zip(NAMES) {
        assert_eq!(agent.counts(name), (160, 10), "{name}");
        let left = agent.remaining("10.77.0.7", name);
        // A sliding window's share of the window before may be rounded to one more that is used.
        assert!((39..=40).contains(&left), "{name}: {left} of 40 are left");
        burst(&network, &[to_port(7, nth)], 60);
        burst(&network, &[to_port(8, nth)], 10);
        assert_eq!(
            agent.counts(name),
            (160 + left, 10 + 60 - left + 10),
            "{name}"
        );
    }
    let after = agent.json(&["status"])["totals"].clone();
    assert_eq!(
        after["passed_packets"].as_u64(),
        totals["passed_packets"].as_u64().map(|passed| passed + 200)
    );
    let most = 3_600.0 - ban_began.elapsed().as_secs_f64() + 1.0;
    let bans = agent.json(&["bans"]);
    let least = 3_600.0 - first_began.elapsed().as_secs_f64() - 1.0;
    let named: Vec<&str> = bans
        .as_array()
        .unwrap()
        .iter()
        .map(|ban| ban["cidr"].as_str().unwrap())
        .collect();
    assert_eq!(named, ["10.77.0.9", "10.77.3.0/24"], "{bans}");
    let left = bans[0]["expires_in_seconds"].as_f64().unwrap();
    assert!(
        (least..most).contains(&left),
        "{left} s of {least} to {most}"
    );
    assert_eq!(
        (
            bans[0]["throttled_packets"].as_u64(),
            &bans[1]["expires_in_seconds"]
        ),
        (Some(30), &serde_json::Value::Null)
    );
    // Killed in the new boot, nothing is taken up twice.
    let counts: Vec<_> = NAMES.iter().map(|name| agent.counts(name)).collect();
    agent.stop(Signal::SIGKILL);
    let agent = network.start_in_boot("b", &config);
    assert_eq!(
        NAMES
            .iter()
            .map(|name| agent.counts(name))
            .collect::<Vec<_>>(),
        counts
    );
    assert_eq!(agent.remaining("10.77.0.7", "bucket"), 0);
    // After another reboot with another config, what is the same in it goes on.
    agent.stop(Signal::SIGTERM);
    shut_down(&network, &config);
    let other = "[[limit]]\nname = \"new\"\nports = [1]\nrate = \"5/s\"\n";
    let config = network.config(
        "max_sources = 3000\n",
        &format!("{other}{}", limits().replace("/week", "/month")),
    );
    let agent = network.start_in_boot("c", &config);
    assert_eq!(agent.counts("bucket"), counts[0]);
    for name in NAMES {
        assert_eq!(agent.remaining("10.77.0.8", name), 0, "{name}");
    }
}

/// Limits on requests, one of each algorithm; those of the gold class are thrice as large.
fn limits_on_requests() -> String {
    let limit = |name: &str, algorithm: &str, rate: &str| {
        format!(
            "[[limit]]\nname = {name:?}\nscope = \"request\"\nkey = [\"user\"]\nalgorithm = {algorithm:?}\nrate = {rate:?}\n"
        )
    };
    [
        "[[class]]\nname = \"gold\"\nsources = [\"192.0.2.0/24\"]\nmultiplier = 3\n".to_owned(),
        limit("bucket", "token-bucket", "100/month"),
        limit("leaky", "leaky-bucket", "100/week"),
        limit("fixed", "fixed-window", "100/month"),
        limit("sliding", "sliding-window", "100/month"),
        limit("log", "sliding-log", "100/day"),
    ]
    .concat()
}

fn limits_on_requests_go_on_over_restarts_and_reboots() {
    let network = Network::new();
    let config = network.config(SMALL, &limits_on_requests());
    let ask = |name: &str, source: &str, cost: u64| {
        let cost = cost.to_string();
        let asked = [
            "decide",
            "--limit",
            name,
            "--key",
            "user=alice",
            "--source",
            source,
            "--cost",
            &cost,
            "--json",
        ];
        let output = network.command(&asked);
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (
            answer["allowed"] == true,
            answer["remaining"].as_u64().unwrap(),
        )
    };
    let (plain, gold) = ("203.0.113.9", "192.0.2.9");
    let agent = network.start_in_boot("a", &config);
    for name in NAMES {
        assert_eq!(ask(name, plain, 60), (true, 40), "{name}");
        assert_eq!(ask(name, gold, 60), (true, 240), "{name}");
        assert_eq!(ask(name, plain, 70), (false, 40), "{name}");
    }
    agent.stop(Signal::SIGTERM);
    // A restart, which forgets nothing of what lasts; a reboot; and another one.
    for boot in ["a", "b", "c"] {
        let agent = network.start_in_boot(boot, &config);
        assert_eq!(agent.json(&["status"])["notes"], serde_json::json!([]));
        for name in NAMES {
            let (_, left) = ask(name, plain, 41);
            assert!(
                (39..=40).contains(&left),
                "{boot}, {name}: {left} of 40 are left"
            );
            let (_, left) = ask(name, gold, 241);
            assert!(
                (239..=240).contains(&left),
                "{boot}, {name}: {left} of 240 are left"
            );
            let (_, refused) = agent.counts(name);
            assert!(
                refused >= 3,
                "{boot}, {name}: {refused} refusals are counted"
            );
        }
        agent.stop(Signal::SIGTERM);
        shut_down(&network, &config);
    }
}

fn state_older_than_half_a_minute_survives_a_power_cut() {
    let network = Network::new();
    let config = network.config(SMALL, &limits());
    let agent = network.start_in_boot("a", &config);
    // The save of the start has none of what follows.
    wait("the first save", || state_file(&network).exists());
    burst(&network, &[to_port(7, 0)], 60);
    network.told(&["ban", "10.77.0.9"]);
    let done = std::time::SystemTime::now();
    let began = Instant::now();
    while std::fs::metadata(state_file(&network))
        .and_then(|file| file.modified())
        .map_or(true, |at| at < done)
    {
        assert!(
            began.elapsed() < Duration::from_secs(300),
            "nothing was saved in time"
        );
        thread::sleep(Duration::from_millis(100));
    }
    eprintln!("saved after {:?}", began.elapsed());
    agent.stop(Signal::SIGKILL);
    shut_down(&network, &config);
    let agent = network.start_in_boot("b", &config);
    assert_eq!(
        (
            agent.remaining("10.77.0.7", "bucket"),
            agent.counts("bucket")
        ),
        (40, (60, 0))
    );
    assert_eq!(agent.json(&["bans"])[0]["cidr"], "10.77.0.9");
}

fn a_damaged_state_file_is_set_aside_and_reported() {
    let network = Network::new();
    let config = network.config(SMALL, &limits());
    let agent = network.start_in_boot("a", &config);
    burst(&network, &[to_port(7, 0)], 60);
    agent.stop(Signal::SIGTERM);
    shut_down(&network, &config);
    let mut bytes = std::fs::read(state_file(&network)).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(state_file(&network), bytes).unwrap();
    let agent = network.start_in_boot("b", &config);
    assert_eq!(agent.remaining("10.77.0.7", "bucket"), 100);
    let notes = agent.json(&["status"])["notes"].to_string();
    assert!(
        notes.contains("checksum") && notes.contains("state.damaged"),
        "{notes}"
    );
    assert!(network.state().join("state.damaged").exists());
    agent.stop(Signal::SIGTERM);
    // State that was saved since is loaded as before.
    shut_down(&network, &config);
    let agent = network.start_in_boot("c", &config);
    assert_eq!(agent.json(&["status"])["notes"], serde_json::json!([]));
}
