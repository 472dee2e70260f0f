//! Reports on sources and limits: who was refused by which limit, and how often.

use std::net::UdpSocket;
use std::process::Command;
use std::time::{Duration, Instant};

use common::packet::build::Frame;
use nix::sys::socket::{setsockopt, sockopt};
use serde_json::Value;
use testbed::tests;
use testbed::trials::Test;

use crate::support::{Agent, CLIENT_MAC, Network, SERVER, SERVER_MAC};
use crate::traffic::burst;

pub const TESTS: &[Test] = tests![
    each_of_several_limits_is_shown_with_what_it_passed_and_refused,
    egress_in_large_buffers_is_shown_for_sources_as_for_limits,
    packets_that_observe_would_refuse_are_shown_per_source,
    limits_are_lines_and_the_exempt_are_explained,
    tables_fit_80_columns_and_empty_ones_say_so,
    events_and_sources_are_selected,
    counts_of_sources_go_on_over_reloads_that_move_their_states,
    completions_have_what_the_running_agent_has,
];

/// As long as a completion waits for the agent.
const COMPLETION_PATIENCE: Duration = Duration::from_millis(300);
const SYN: u8 = 2;
const ACK: u8 = 16;

fn limit(name: &str, more: &str) -> String {
    format!("[[limit]]\nname = \"{name}\"\nrate = \"5/h\"\nburst = 5\n{more}\n")
}

fn three() -> String {
    limit("dns", "protocol = \"udp\"\nports = [53]")
        + &limit(
            "ssh",
            "protocol = \"tcp\"\nports = [22]\nunit = \"connections\"",
        )
        + &limit("http", "protocol = \"tcp\"\nports = [80]")
}

fn from(last: u8) -> Frame {
    Frame::between(CLIENT_MAC, SERVER_MAC).ipv4([10, 77, 0, last], SERVER)
}

fn dns(last: u8) -> Vec<u8> {
    from(last).udp(4000, 53, &[0; 20]).build()
}

fn ssh(last: u8) -> Vec<u8> {
    from(last).tcp(4000, 22, SYN, b"").build()
}

fn http(last: u8) -> Vec<u8> {
    from(last).tcp(4000, 80, ACK, b"x").build()
}

/// A field of a source's row of one limit.
fn field<'v>(shown: &'v Value, limit: &str, name: &str) -> &'v Value {
    let rows = shown["limits"].as_array().unwrap();
    &rows
        .iter()
        .find(|row| row["name"] == limit)
        .unwrap_or_else(|| panic!("{limit}: {shown}"))[name]
}

fn rows(agent: &Agent<'_>, source: &str, name: &str) -> Vec<(String, u64)> {
    let top = agent.json(&["top", "--once"]);
    let rows = top
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["source"] == source);
    let mut rows: Vec<_> = rows
        .map(|row| {
            (
                row["limit"].as_str().unwrap().to_owned(),
                row[name].as_u64().unwrap(),
            )
        })
        .collect();
    rows.sort();
    rows
}

fn each_of_several_limits_is_shown_with_what_it_passed_and_refused() {
    let network = Network::new();
    let agent = network.start("", &three());
    // Here dns is not exceeded, ssh and http are.
    burst(&network, &[dns(7)], 3);
    burst(&network, &[ssh(7)], 5 + 23);
    burst(&network, &[http(7)], 5 + 140);
    let shown = agent.json(&["show", "10.77.0.7"]);
    let refused = ["dns", "ssh", "http"]
        .map(|limit| field(&shown, limit, "throttled_packets").as_u64().unwrap());
    assert_eq!(refused, [0, 23, 140], "{shown}");
    let last = ["dns", "ssh", "http"]
        .map(|limit| field(&shown, limit, "last_throttled_seconds_ago").as_f64());
    assert!(
        last[0].is_none() && last[1].is_some_and(|ago| last[2].is_some_and(|later| later <= ago)),
        "{shown}"
    );
    assert_eq!(shown["last_refused"]["limit"], "http");
    let of_source = rows(&agent, "10.77.0.7", "throttled_packets");
    assert_eq!(
        of_source,
        [("http".to_owned(), 140), ("ssh".to_owned(), 23)]
    );
    // Each has its own event; the agent reads the kernel's ten times a second.
    let deadline = Instant::now() + Duration::from_secs(300);
    let told = loop {
        let told: Vec<Value> = agent.lines(&["events", "--json"]);
        let is_told = |limit| {
            told.iter()
                .any(|event| event["limit"] == limit && event["source"] == "10.77.0.7")
        };
        if ["ssh", "http"].into_iter().all(is_told) {
            break told;
        }
        assert!(Instant::now() < deadline, "{told:?}");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(told.iter().all(|event| event["limit"] != "dns"), "{told:?}");
    // One passed packet in 64 is sampled; before the first sample, all passed packets are the bound.
    for limit in ["dns", "ssh", "http"] {
        assert_eq!(
            field(&shown, limit, "passed_precision"),
            "at-most",
            "{shown}"
        );
        assert_eq!(field(&shown, limit, "passed_packets"), 13, "{shown}");
    }
    let text = String::from_utf8(network.command(&["show", "10.77.0.7"]).stdout).unwrap();
    assert!(text.contains("<=13"), "{text}");
    // Another one that stays within its limits is shown with no refusal.
    burst(&network, &[dns(8), ssh(8), http(8)], 15);
    let shown = agent.json(&["show", "10.77.0.8"]);
    assert!(
        ["dns", "ssh", "http"]
            .iter()
            .all(|limit| field(&shown, limit, "throttled_packets") == 0),
        "{shown}"
    );
    assert!(rows(&agent, "10.77.0.8", "throttled_packets").is_empty());
}

fn egress_in_large_buffers_is_shown_for_sources_as_for_limits() {
    let network = Network::new();
    let limits = "[[limit]]\nname = \"out\"\ndirection = \"egress\"\nprotocol = \"udp\"\nrate = \"200/h\"\nburst = 200\n";
    let agent = network.start("", limits);
    let socket = network.in_server(|| UdpSocket::bind("10.77.0.1:4000").unwrap());
    setsockopt(&socket, sockopt::UdpGsoSegment, &1_000).unwrap();
    for _ in 0..30 {
        // Forty packets each.
        let _ = socket.send_to(&[0; 40_000], "10.77.0.2:4000");
    }
    let (passed, refused) = agent.counts("out");
    assert_eq!((passed, passed + refused), (200, 1_200));
    let shown = agent.json(&["show", "10.77.0.2"]);
    assert_eq!(
        field(&shown, "out", "passed_packets").as_u64(),
        Some(passed),
        "{shown}"
    );
    assert_eq!(
        field(&shown, "out", "throttled_packets").as_u64(),
        Some(refused),
        "{shown}"
    );
    assert_eq!(
        rows(&agent, "10.77.0.2", "throttled_packets"),
        [("out".to_owned(), refused)]
    );
}

fn packets_that_observe_would_refuse_are_shown_per_source() {
    let network = Network::new();
    let agent = network.start("mode = \"observe\"", &three());
    burst(&network, &[dns(7)], 5 + 30);
    burst(&network, &[http(7)], 5 + 100);
    let shown = agent.json(&["show", "10.77.0.7"]);
    let would = ["dns", "ssh", "http"].map(|limit| {
        field(&shown, limit, "would_throttle_packets")
            .as_u64()
            .unwrap()
    });
    assert_eq!(would, [30, 0, 100], "{shown}");
    assert!(
        ["dns", "ssh", "http"]
            .iter()
            .all(|limit| field(&shown, limit, "throttled_packets") == 0),
        "{shown}"
    );
    let of_source = rows(&agent, "10.77.0.7", "would_throttle_packets");
    assert_eq!(
        of_source,
        [("dns".to_owned(), 30), ("http".to_owned(), 100)]
    );
    for verb in [&["top", "--once"][..], &["show", "10.77.0.7"]] {
        let text = String::from_utf8(network.command(verb).stdout).unwrap();
        assert!(text.contains("WOULD") && text.contains("100"), "{text}");
    }
}

fn counts_of_sources_go_on_over_reloads_that_move_their_states() {
    let network = Network::new();
    let agent = network.start("", &three());
    burst(&network, &[ssh(7)], 5 + 70);
    burst(&network, &[http(7)], 5 + 20);
    // Each state is at another word of the slot, and one has gone.
    let reversed = limit("other", "ports = [1234]")
        + &limit("http", "protocol = \"tcp\"\nports = [80]")
        + &limit(
            "ssh",
            "protocol = \"tcp\"\nports = [22]\nunit = \"connections\"",
        );
    network.config("", &reversed);
    network.told(&["reload"]);
    let refused = |agent: &Agent<'_>| {
        let shown = agent.json(&["show", "10.77.0.7"]);
        ["ssh", "http", "other"]
            .map(|limit| field(&shown, limit, "throttled_packets").as_u64().unwrap())
    };
    assert_eq!(refused(&agent), [70, 20, 0]);
    burst(&network, &[ssh(7), http(7)], 20);
    assert_eq!(refused(&agent), [80, 30, 0]);
    // An agent that takes the place of a killed one reads the same table.
    agent.stop(nix::sys::signal::Signal::SIGKILL);
    burst(&network, &[ssh(7)], 5);
    let agent = network.start_file(&network.folder.path().join("limits.toml"), &[]);
    assert_eq!(refused(&agent), [85, 30, 0]);
}

fn text(network: &Network, arguments: &[&str]) -> String {
    let output = network.command_with("COLUMNS", "80", arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn limits_are_lines_and_the_exempt_are_explained() {
    const LINE: &str =
        "ssh   ingress tcp/22  5 connections/h per address (IPv6 /64), burst 5, reject";
    let network = Network::new();
    let rest = three().replace(
        "unit = \"connections\"",
        "unit = \"connections\"\naction = \"reject\"",
    );
    let classes = "[[class]]\nname = \"office\"\nsources = [\"10.77.0.64/26\"]\nmultiplier = 2\n\
        [[class]]\nname = \"own\"\nsources = [\"10.77.0.128/26\"]\nunlimited = true\n";
    let agent = network.start(
        "never_limit = [\"10.77.0.32/28\"]",
        &format!("{rest}{classes}"),
    );
    let file = network.folder.path().join("limits.toml");
    for verb in [
        &["status"][..],
        &["limits"],
        &["check", file.to_str().unwrap()],
    ] {
        assert!(
            text(&network, verb).lines().any(|line| line == LINE),
            "{}",
            text(&network, verb)
        );
    }
    let checked = agent.json(&["check", file.to_str().unwrap()])["limits"].clone();
    for limits in [
        agent.json(&["limits"]),
        agent.json(&["status"])["limits"].clone(),
        checked,
    ] {
        let ssh = limits
            .as_array()
            .unwrap()
            .iter()
            .find(|limit| limit["name"] == "ssh")
            .unwrap();
        assert_eq!(
            (&ssh["protocol"], &ssh["ports"][0], &ssh["action"]),
            (&"tcp".into(), &"22".into(), &"reject".into())
        );
        assert_eq!(
            (&ssh["ipv6_prefix"], &ssh["throttle"]),
            (&64.into(), &"hard".into())
        );
        let classes: Vec<_> = ssh["classes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|class| class["multiplier"].as_f64())
            .collect();
        assert_eq!(classes, [Some(2.0), None], "{ssh}");
    }
    assert_eq!(agent.json(&["status"])["never_limit"][0], "10.77.0.32/28");
    assert!(text(&network, &["status"]).contains("exempt by never_limit: 10.77.0.32/28"));
    for (source, why) in [
        ("10.77.0.33", "never_limit has 10.77.0.32/28"),
        ("10.77.0.130", "class own is unlimited"),
    ] {
        assert_eq!(agent.json(&["show", source])["exempt"], why);
        assert!(text(&network, &["show", source]).contains(why));
    }
    assert!(agent.json(&["show", "10.77.0.7"])["exempt"].is_null());
}

fn tables_fit_80_columns_and_empty_ones_say_so() {
    let network = Network::new();
    let name = "a-limit-on-what-comes-in-by-udp-for-the-name-server-of-an-office";
    let agent = network.start("", &three().replace("\"dns\"", &format!("\"{name}\"")));
    for (verb, sentence) in [
        (&["bans"][..], "No bans."),
        (&["events"], "No events."),
        (&["top", "--once"], "No sources."),
        (&["groups"], "No groups."),
    ] {
        assert_eq!(text(&network, verb).trim_end(), sentence, "{verb:?}");
    }
    burst(&network, &[dns(7), ssh(7), http(7)], 60);
    assert_eq!(agent.counts("ssh").1, 15);
    for verb in [&["limits"][..], &["top", "--once"], &["show", "10.77.0.7"]] {
        let text = text(&network, verb);
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{verb:?}\n{text}"
        );
        // The middle of a name is what is left out.
        assert!(
            text.contains("a-limit") && text.contains("…") && text.contains("office"),
            "{verb:?}\n{text}"
        );
    }
    let whole = String::from_utf8(network.command(&["top", "--once"]).stdout).unwrap();
    assert!(whole.contains(name), "a pipe gets all of it: {whole}");
}

fn events_and_sources_are_selected() {
    let network = Network::new();
    let agent = network.start("", &three());
    burst(&network, &[ssh(7)], 5 + 3);
    burst(&network, &[http(8)], 5 + 90);
    let lines = |more: &[&str]| {
        let arguments = [&["events", "--json"], more].concat();
        agent
            .lines(&arguments)
            .iter()
            .map(|event| event["limit"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let is_there =
        || !lines(&["--limit", "ssh"]).is_empty() && !lines(&["--limit", "http"]).is_empty();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !is_there() {
        assert!(
            std::time::Instant::now() < deadline,
            "no events: {:?}",
            lines(&[])
        );
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(
        lines(&["--source", "10.77.0.7"])
            .iter()
            .all(|limit| limit == "ssh")
    );
    assert!(
        lines(&["--source", "10.77.0.8/31"])
            .iter()
            .all(|limit| limit == "http")
    );
    assert!(lines(&["--source", "10.78.0.0/16"]).is_empty());
    assert_eq!(
        lines(&["-n", "1", "--limit", "ssh", "--since", "1h"]),
        ["ssh"]
    );
    std::thread::sleep(std::time::Duration::from_millis(1_100));
    assert!(lines(&["--since", "1", "--limit", "ssh"]).is_empty());
    let first = |arguments: &[&str]| {
        let top = agent.json(arguments);
        (
            top.as_array().unwrap().len(),
            top[0]["source"].as_str().unwrap().to_owned(),
        )
    };
    assert_eq!(
        first(&["top", "--once", "-n", "1", "--sort", "throttled"]),
        (1, "10.77.0.8".to_owned())
    );
    assert_eq!(
        network
            .command(&["top", "--once", "--sort", "passed-rate"])
            .status
            .code(),
        Some(2)
    );
}

fn completions_have_what_the_running_agent_has() {
    let network = Network::new();
    let partner = "[[class]]\nname = \"partner\"\nsources = [\"10.77.0.8/32\"]\nmultiplier = 2\n";
    let by_class = limit("all", "key = \"class\"\nprotocol = \"udp\"\nports = [54]");
    let agent = network.start("", &(three() + &by_class + partner));
    burst(&network, &[dns(7)], 9);
    let of_partner = from(8).udp(4000, 54, &[0; 20]).build();
    burst(&network, &[of_partner], 30);
    agent.wait_for("both events", |_| {
        agent.lines(&["events", "--json"]).len() >= 2
    });
    network.told(&["ban", "203.0.113.7", "2001:db8::7", "--owner", "desk"]);
    network.told(&["allow", "198.51.100.1", "--for", "1h"]);
    let offered = |words: &[&str]| {
        let output = Command::new(testbed::agent())
            .args(["--", "agent"])
            .args(words)
            .env("WEIR_COMPLETE", "fish")
            .env("WEIR_CONTROL", network.control())
            .output()
            .unwrap();
        assert!(output.status.success() && output.stderr.is_empty());
        let mut names: Vec<String> = String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .filter(|line| !line.starts_with('-'))
            .map(str::to_owned)
            .collect();
        names.sort();
        names
    };
    for (words, names) in [
        (
            &["reset", "--limit", ""][..],
            &["all", "dns", "http", "ssh"][..],
        ),
        (&["unban", ""], &["2001:db8::7", "203.0.113.7"]),
        (&["unban", "203.0.113.7", "--owner", ""], &["desk"]),
        (&["disallow", ""], &["198.51.100.1"]),
        // Addresses of events: refused, banned, exempt.
        (&["show", ""], &["10.77.0.7", "198.51.100.1", "203.0.113.7"]),
        (&["import", "--interface", "w"], &["weir0"]),
        // Classes are subjects of events.
        (&["events", "--source", "class"], &["class partner"]),
        (&["events", "--source", "weir"], &["weir0"]),
    ] {
        let began = Instant::now();
        let found = offered(words);
        // Nobody waits longer for a name.
        let is_late = began.elapsed() >= COMPLETION_PATIENCE;
        assert!(
            found == names || found.is_empty() && is_late,
            "{words:?}: {found:?}"
        );
    }
    drop(agent);
    assert!(offered(&["unban", ""]).is_empty());
}
