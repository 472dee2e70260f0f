//! The health of a host with limits on packets.

use std::fs;
use std::process::Output;

use serde_json::Value;
use testbed::port::Port;

use super::fleet::{BAKE, Fleet, rules, said};
use crate::capture::Capture;
use crate::support::{Agent, Network};
use crate::traffic::{PORT, burst, udp_from};

/// An agent on packets follows this fleet by itself.
fn alone<'n>(network: &'n Network, fleet: &Fleet, more: &str) -> Agent<'n> {
    let table = format!(
        "[fleet]\nrules = {:?}\npublic_keys = {:?}\nevery = \"1s\"\nnode = \"alone\"\n{more}",
        fleet.rules, fleet.public_key
    );
    network.start("", &table)
}

/// A limit on packets.
fn packets(rate: &str, burst: u32) -> String {
    format!("[[limit]]\nname = \"packets\"\nrate = {rate:?}\nburst = {burst}\n")
}

/// Publishes rules for a host that has reported.
fn publish(fleet: &Fleet, text: &str, arguments: &[&str]) -> String {
    fleet.until(|status| status["hosts"] == 1);
    let output = try_to_publish(fleet, text, arguments);
    assert!(output.status.success(), "{}", said(&output));
    said(&output)
}

fn try_to_publish(fleet: &Fleet, text: &str, arguments: &[&str]) -> Output {
    let (file, key) = (fleet.path("packets.toml"), fleet.path("key"));
    fs::write(&file, text).unwrap();
    let (file, key) = (file.to_str().unwrap(), key.to_str().unwrap());
    let fixed = ["fleet", "publish", file, "--to", &fleet.rules, "--key", key];
    fleet.weir(&[&fixed[..], arguments].concat())
}

/// Waits for a version's end or its trial.
fn until(agent: &Agent<'_>, state: &'static str, accepted: u64) -> Value {
    let is_so = move |status: &Value| {
        let rules = &status["rules"][0];
        rules["state"] == state && rules["accepted"] == accepted
    };
    agent.wait_for(state, is_so)["rules"][0].clone()
}

pub fn rules_that_refuse_the_manager_or_fail_the_application_are_rolled_back() {
    let network = Network::new();
    let state = |wanted: &'static str| move |status: &Value| status["rules"][0]["state"] == wanted;
    let refused = |agent: &Agent<'_>, part: &str| {
        let status = agent.wait_for("the rollback", state("failed"));
        let reason = status["rules"][0]["reason"].to_string();
        assert!(reason.contains(part), "{reason}");
        assert_eq!(status["rules"][0]["version"], 0);
        assert!(status["limits"].as_array().unwrap().is_empty(), "{status}");
    };
    let fleet = Fleet::new();
    let agent = alone(&network, &fleet, "management = [\"10.77.0.7\"]\n");
    let receiver = network.receiver(PORT);
    publish(&fleet, &packets("1/h", 10), &[]);
    agent.wait_for("the trial", state("trying"));
    // Too few for a share.
    burst(&network, &[udp_from(7)], 50);
    refused(&agent, "10.77.0.7");
    // Fewer than all, if the health is checked in the middle of them.
    assert!((10..50).contains(&receiver.counts()[7]));
    burst(&network, &[udp_from(7)], 50);
    assert_eq!(receiver.counts()[7], 50);
    drop(agent);
    let (network, fleet) = (Network::new(), Fleet::new());
    let unserved = Port::reserve();
    let health = format!("health = \"http://127.0.0.1:{}/\"\n", unserved.number());
    let agent = alone(&network, &fleet, &health);
    publish(&fleet, &packets("1/h", 10), &[]);
    refused(&agent, "health endpoint");
}

pub fn rules_that_refuse_polite_sources_are_rolled_back() {
    let (network, fleet) = (Network::new(), Fleet::new());
    let agent = alone(&network, &fleet, "");
    publish(&fleet, &packets("1/h", 200), &["--bake", BAKE]);
    until(&agent, "held", 1);
    // A source that no limit refuses, and a flood: a limit may refuse 98 % then, and 2 % more.
    burst(&network, &[udp_from(7)], 150);
    burst(&network, &[udp_from(8)], 20_000);
    let (passed, refused) = agent.counts("packets");
    assert_eq!((passed, refused), (350, 19_800));
    publish(&fleet, &packets("1/h", 10), &["--bake", "1h"]);
    until(&agent, "trying", 2);
    burst(&network, &[udp_from(8)], 20_000);
    burst(&network, &[udp_from(7)], 150);
    let rules = until(&agent, "failed", 2);
    let reason = rules["reason"].as_str().unwrap();
    assert!(
        reason.contains("limit \"packets\" refuses") && reason.contains("no limit refused before"),
        "{reason}"
    );
    assert_eq!(rules["version"], 1);
    // The flood alone is no fault.
    publish(&fleet, &packets("1/h", 100), &["--bake", BAKE]);
    until(&agent, "trying", 3);
    burst(&network, &[udp_from(8)], 20_000);
    until(&agent, "held", 3);
}

pub fn shares_of_a_record_are_expected() {
    let (network, fleet) = (Network::new(), Fleet::new());
    // Packets are captured where a limit is in effect.
    let own = "[[limit]]\nname = \"own\"\nrate = \"1000000/s\"\n";
    let agent = alone(&network, &fleet, own);
    let frames: Vec<_> = (10..30).map(udp_from).collect();
    let send = || burst(&network, &frames, 20 * 17);
    let capture = Capture::begin(&network, &["--of", "all"]);
    send();
    let file = capture.file.clone();
    capture.end();
    let record = ["--record", file.to_str().unwrap(), "--bake", BAKE];
    let text = packets("1/h", 10)
        + "[[limit]]\nname = \"silent\"\nprotocol = \"tcp\"\nports = [9]\nrate = \"1/s\"\n";
    let dry = publish(&fleet, &text, &[&record[..], &["--dry-run"]].concat());
    for part in [
        "340 packets",
        "41.18 %",
        "limit \"silent\" has no share to expect",
        "expected to refuse at most: packets 41.1765%",
        "would publish version 1",
    ] {
        assert!(dry.contains(part), "{part}: {dry}");
    }
    assert_eq!(fleet.status()["head"], 0);
    // A new limit is expected to refuse nothing.
    publish(&fleet, &text, &["--bake", "1h"]);
    until(&agent, "trying", 1);
    send();
    // 41.2 %, unless the health is checked in the middle of them.
    let failed = until(&agent, "failed", 1);
    let reason = failed["reason"].as_str().unwrap();
    assert!(reason.contains("limit \"packets\" refuses"), "{reason}");
    publish(&fleet, &text, &record);
    until(&agent, "trying", 2);
    send();
    until(&agent, "held", 2);
    assert_eq!(agent.counts("packets").1, 2 * 20 * 7);
    // Both versions, and what --expect has before the record.
    let expect = ["--expect", "packets=7%", "--dry-run"];
    let text = packets("1/h", 17);
    let dry = publish(&fleet, &text, &[&record[..], &expect].concat());
    let row = dry.lines().find(|line| line.starts_with("packets"));
    let row: Vec<&str> = row.unwrap().split_whitespace().collect();
    assert_eq!(
        row,
        ["packets", "340", "0", "0.00", "%", "41.18", "%"],
        "{dry}"
    );
    assert!(
        dry.contains("version 2") && dry.contains("packets 7%"),
        "{dry}"
    );
    // Files without what passed, and rules without packets.
    let capture = Capture::begin(&network, &[]);
    let refused = capture.file.clone();
    send();
    capture.end();
    let refused = ["--record", refused.to_str().unwrap()];
    let requests = rules("1/s");
    for (text, record, part) in [
        (&text, &refused[..], "only refused packets"),
        (&requests, &record[..2], "no [[limit]] on packets"),
    ] {
        let output = try_to_publish(&fleet, text, record);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains(part), "{}", said(&output));
    }
    assert_eq!(fleet.status()["head"], 2);
}
