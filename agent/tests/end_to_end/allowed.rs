//! `weir allow`, `disallow`: exemptions for a while.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use testbed::tests;
use testbed::trials::Test;
use testbed::wait::wait;

use crate::support::{Agent, Network};
use crate::traffic::{PORT, burst, udp_from, udp6_from, v6};

pub const TESTS: &[Test] = tests![
    an_allowed_address_passes_limits_and_bans_until_it_is_disallowed,
    an_exemption_ends_by_itself,
    exemptions_survive_a_kill_and_end_while_no_agent_runs,
    an_allowed_address_passes_lists_and_limits_on_requests,
    raised_limits_are_a_multiple_of_each_limit_until_they_end,
    raised_limits_that_cannot_be_enforced_keep_no_config_from_taking_effect,
];

/// No refill during a test.
const LIMIT: &str = "[[limit]]\nname = \"packets\"\nrate = \"5/day\"\nipv6_prefix = 128\n";

/// The prefixes of `weir allow --list`.
pub fn allowed(agent: &Agent<'_>) -> Vec<String> {
    let listed = agent.json(&["allow", "--list"]);
    let rows = listed.as_array().unwrap().iter();
    rows.map(|row| row["cidr"].as_str().unwrap().to_owned())
        .collect()
}

fn an_allowed_address_passes_limits_and_bans_until_it_is_disallowed() {
    let network = Network::new();
    let agent = network.start("", LIMIT);
    let receiver = network.receiver(PORT);
    network.told(&["ban", "10.77.0.0/24", "--reason", "scan"]);
    network.told(&["ban", "10.77.0.9", "fd77:0:0:3::/64"]);
    let words = [
        "allow",
        "10.77.0.7",
        "10.77.0.9",
        "10.77.0.9/32",
        "fd77:0:0:3::1",
        "--for",
        "1h",
        "--reason",
        "ticket 4711",
        "--owner",
        "desk",
    ];
    assert_eq!(agent.json(&words)["allowed"], 3);
    burst(&network, &[udp_from(7), udp_from(8), udp_from(9)], 60);
    burst(&network, &[udp6_from(v6(3, 1)), udp6_from(v6(3, 2))], 40);
    let counts = receiver.counts();
    assert_eq!((counts[7], counts[8], counts[9]), (20, 0, 20));
    // Exactly the IPv6 address, not its /64.
    let bypass = &agent.json(&["status"])["bypass"];
    assert_eq!(
        (&bypass["never_limit"], &bypass["banned"]),
        (&60.into(), &40.into())
    );
    let show = agent.json(&["show", "10.77.0.7"]);
    assert_eq!(show["never_limit"], true);
    let exempt = show["exempt"].as_str().unwrap();
    assert!(
        exempt.starts_with("until 2") && exempt.ends_with("by desk: ticket 4711"),
        "{exempt}"
    );
    assert_eq!(show["allowed"]["cidr"], "10.77.0.7");
    let status = agent.json(&["status"]);
    assert_eq!(status["allowed"][1]["cidr"], "10.77.0.9");
    assert_eq!(status["last_reload"], Value::Null);
    let events = agent.lines(&["events", "--json"]);
    let reason = |event: &Value| event["reason"].as_str().unwrap_or_default().to_owned();
    let is_exempt = |event: &Value| {
        event["verdict"] == "protected" && reason(event).starts_with("exempt: 10.77.0.7 (until ")
    };
    assert!(events.iter().any(is_exempt), "{events:?}");
    // A ban has no effect, and says so.
    let output = network.command(&["ban", "10.77.0.7"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("agent allow"), "{error}");
    // A reload keeps them; a further order replaces the earlier one.
    network.told(&["reload"]);
    let again = agent.json(&["allow", "10.77.0.7", "--for", "2h"]);
    assert_eq!(again["replaced"][0]["owner"], "desk");
    assert_eq!(allowed(&agent).len(), 3);
    burst(&network, &[udp_from(7)], 10);
    assert_eq!(receiver.counts()[7], 10);
    // The bans of before are in effect again.
    network.told(&["disallow", "10.77.0.7", "10.77.0.9"]);
    burst(&network, &[udp_from(7), udp_from(9)], 20);
    let counts = receiver.counts();
    assert_eq!((counts[7], counts[9]), (0, 0));
    assert_eq!(allowed(&agent), ["fd77:0:0:3::1"]);
    assert_eq!(agent.json(&["show", "10.77.0.7"])["exempt"], Value::Null);
    let output = network.command(&["disallow", "10.77.0.7"]);
    assert_eq!(output.status.code(), Some(1));
}

fn an_exemption_ends_by_itself() {
    let network = Network::new();
    let agent = network.start("", LIMIT);
    let receiver = network.receiver(PORT);
    let began = Instant::now();
    network.told(&["allow", "10.77.0.7", "--for", "1s"]);
    let deadline = Instant::now() + Duration::from_secs(300);
    while !allowed(&agent).is_empty() {
        assert!(Instant::now() < deadline, "it is listed after minutes");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(began.elapsed() >= Duration::from_secs(1));
    burst(&network, &[udp_from(7)], 20);
    assert_eq!(receiver.counts()[7], 5);
    let has_ended = |event: &Value| {
        let reason = event["reason"].as_str().unwrap_or_default();
        event["source"] == "10.77.0.7" && reason.starts_with("no longer exempt")
    };
    wait("the event of its end", || {
        agent.lines(&["events", "--json"]).iter().any(has_ended)
    });
}

fn exemptions_survive_a_kill_and_end_while_no_agent_runs() {
    let network = Network::new();
    let config = network.config("", LIMIT);
    let agent = network.start_file(&config, &[]);
    let receiver = network.receiver(PORT);
    network.told(&["allow", "10.77.0.7", "--for", "1h"]);
    network.told(&["allow", "10.77.0.8", "--for", "1s"]);
    agent.stop(Signal::SIGKILL);
    // By the host's clock, in whole seconds.
    std::thread::sleep(Duration::from_secs(2));
    let agent = network.start_file(&config, &[]);
    assert_eq!(allowed(&agent), ["10.77.0.7"]);
    burst(&network, &[udp_from(7), udp_from(8)], 40);
    let counts = receiver.counts();
    assert_eq!((counts[7], counts[8]), (20, 5));
}

fn an_allowed_address_passes_lists_and_limits_on_requests() {
    let network = Network::new();
    let list = network.folder.path().join("list");
    std::fs::write(&list, "10.77.0.0/24\n").unwrap();
    let config = format!(
        "{LIMIT}[[ban_list]]\nname = \"bad\"\nfile = {list:?}\n\
         [[limit]]\nname = \"logins\"\nscope = \"request\"\nkey = [\"source\"]\nrate = \"1/day\"\n"
    );
    let agent = network.start("", &config);
    let receiver = network.receiver(PORT);
    let deadline = Instant::now() + Duration::from_secs(300);
    while agent.json(&["status"])["ban_lists"]["lists"][0]["prefixes"] != 1 {
        assert!(Instant::now() < deadline, "the list is not read in time");
        std::thread::sleep(Duration::from_millis(50));
    }
    network.told(&["allow", "10.77.0.7", "--for", "1h"]);
    burst(&network, &[udp_from(7), udp_from(8)], 40);
    let counts = receiver.counts();
    assert_eq!((counts[7], counts[8]), (20, 0));
    let decide = |source: &str| {
        agent.json(&["decide", "--limit", "logins", "--source", source])["allowed"] == true
    };
    assert_eq!(
        ["10.77.0.7", "10.77.0.8"].map(|source| [decide(source), decide(source)]),
        [[true, true], [true, false]]
    );
}

fn raised_limits_are_a_multiple_of_each_limit_until_they_end() {
    for algorithm in [
        "token-bucket",
        "fixed-window",
        "sliding-window",
        "sliding-log",
    ] {
        raise_and_lower(algorithm);
    }
}

fn printed(network: &Network, words: &[&str]) -> String {
    String::from_utf8(network.command(words).stdout).unwrap()
}

fn raise_and_lower(algorithm: &str) {
    let network = Network::new();
    // Where logs of larger multipliers take no sources from the table.
    let config = network.config(
        "max_sources = 4096\n",
        &format!(
            "[[class]]\nname = \"partner\"\nsources = [\"10.77.0.9\"]\nmultiplier = 2\n\
             [[limit]]\nname = \"packets\"\nrate = \"5/30day\"\nalgorithm = \"{algorithm}\"\n\
             [[limit]]\nname = \"logins\"\nscope = \"request\"\nkey = [\"source\"]\nrate = \"1/day\"\n"
        ),
    );
    let agent = network.start_file(&config, &[]);
    let receiver = network.receiver(PORT);
    let send = |from: [u8; 3], what: &str, passed: [u64; 3]| {
        burst(&network, &from.map(udp_from), 120);
        let counts = receiver.counts();
        let counts = from.map(|from| counts[usize::from(from)]);
        assert_eq!(counts, passed, "{algorithm}, {what}");
    };
    let more = [
        "allow",
        "10.77.0.6",
        "10.77.0.7",
        "10.77.0.9",
        "--for",
        "1h",
    ];
    let more = [&more[..], &["--times"]].concat();
    send([7, 8, 9], "the limits", [5, 5, 10]);
    assert_eq!(agent.json(&[&more[..], &["3"]].concat())["allowed"], 3);
    // A bucket that was empty fills three times as fast; a count is compared with three times as much.
    let is_bucket = algorithm == "token-bucket";
    let at_once = |passed: [u64; 3]| if is_bucket { [0; 3] } else { passed };
    send([7, 8, 9], "raised after use", at_once([10, 0, 20]));
    send([6, 5, 8], "raised before use", [15, 5, 0]);
    let show = agent.json(&["show", "10.77.0.7"]);
    assert_eq!(
        (
            &show["allowed"]["times"],
            &show["never_limit"],
            &show["class"]
        ),
        (&3.0.into(), &false.into(), &"default".into())
    );
    assert_eq!(agent.json(&["show", "10.77.0.9"])["class"], "partner");
    let shown = printed(&network, &["show", "10.77.0.7"]);
    assert!(
        shown.contains("\n3 times the limits: 10.77.0.7 (until 2"),
        "{shown}"
    );
    let events = agent.lines(&["events", "--json"]);
    let is_raised = |event: &Value| {
        let reason = event["reason"].as_str().unwrap_or_default();
        event["verdict"] == "protected"
            && reason.starts_with("3 times the limits: 10.77.0.6 (until")
    };
    assert!(events.iter().any(is_raised), "{events:?}");
    let decide = |source: &str| {
        let words = ["decide", "--limit", "logins", "--source", source];
        (0..4)
            .filter(|_| agent.json(&words)["allowed"] == true)
            .count()
    };
    assert_eq!(["10.77.0.7", "10.77.0.8"].map(decide), [3, 1]);
    // Bans still apply.
    network.told(&["ban", "10.77.0.9"]);
    network.told(&["unban", "10.77.0.9"]);
    // A restart and a reload keep them, and what was used.
    agent.stop(Signal::SIGKILL);
    let agent = network.start_file(&config, &[]);
    network.told(&["reload"]);
    send([6, 7, 9], "restarted", [0, 0, 0]);
    let again = agent.json(&[&more[..], &["4"]].concat());
    assert_eq!(again["replaced"][0]["times"], 3.0);
    send([6, 7, 9], "raised again", at_once([5, 5, 10]));
    // Used units stay used after the end, too.
    let told = printed(
        &network,
        &["disallow", "10.77.0.6", "10.77.0.7", "10.77.0.9"],
    );
    assert!(told.contains("3 allowed no more"), "{told}");
    send([6, 7, 9], "ended", [0, 0, 0]);
    assert!(allowed(&agent).is_empty());
}

fn raised_limits_that_cannot_be_enforced_keep_no_config_from_taking_effect() {
    let network = Network::new();
    let file = network.config("", LIMIT);
    let agent = network.start_file(&file, &[]);
    let raise = ["allow", "10.77.0.7", "--for", "1h", "--times", "1000000"];
    network.told(&raise);
    network.told(&["allow", "10.77.0.8", "--for", "1h"]);
    // A million times this is more than a window of it can count.
    let text = std::fs::read_to_string(&file).unwrap();
    let short = "rate = \"5_000/ms\"\nalgorithm = \"sliding-window\"";
    std::fs::write(&file, text.replace("rate = \"5/day\"", short)).unwrap();
    let reload = agent.json(&["reload"]);
    assert_eq!(reload["ok"], true, "{reload}");
    let notes = reload["notes"].to_string();
    assert!(
        notes.contains("agent allow --times raises no limits"),
        "{notes}"
    );
    assert_eq!(allowed(&agent), ["10.77.0.8"]);
    let refused = |network: &Network| {
        let output = network.command(&raise);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("a smaller --times"), "{error}");
    };
    refused(&network);
    agent.stop(Signal::SIGKILL);
    let agent = network.start_file(&file, &[]);
    assert_eq!(allowed(&agent), ["10.77.0.8"]);
    refused(&network);
    assert_eq!(allowed(&agent), ["10.77.0.8"]);
}
