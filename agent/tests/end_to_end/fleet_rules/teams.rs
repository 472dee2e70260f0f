//! Streams of teams beside that of the fleet, on one host.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::Value;

use super::fleet::{Fleet, Host, limit, rules, said};

/// The team's limit.
const API: &str = "search-api";
/// Its stream in the status of a host, behind that of the fleet.
const TEAM: usize = 1;

/// `[[fleet.team]]` with this prefix, and at most two limits.
fn table(team: &Fleet, prefix: &str) -> String {
    let table = team.table();
    format!("[[fleet.team]]\n{table}prefix = {prefix:?}\nlimits = 2\n")
}

/// The version of a stream has held.
fn is_held(version: u64) -> impl Fn(&Value) -> bool {
    move |rules| rules["state"] == "held" && rules["version"] == version
}

/// A host with rules of the fleet and of a team.
fn settled(fleet: &Fleet, team: &Fleet, more: &str) -> Host {
    let host = Host::start("web-0", fleet, &format!("{}{more}", table(team, "search-")));
    fleet.publish_to(1, fleet, &rules("1000/s"), &[]);
    team.publish_to(1, team, &limit(API, "500/s"), &[]);
    host.until("held", is_held(1));
    host.until_stream(TEAM, "held", is_held(1));
    host
}

/// The rates of the limits of the fleet and of the team in effect.
fn rates(host: &Host) -> [Option<String>; 2] {
    [host.rate(), host.rate_of(API)]
}

fn both(fleet: &str, team: &str) -> [Option<String>; 2] {
    [fleet, team].map(|rate| Some(rate.to_owned()))
}

pub fn a_team_has_its_limits_beside_those_of_the_fleet() {
    let (fleet, team) = (Fleet::new(), Fleet::of("search"));
    let mut host = settled(&fleet, &team, "");
    assert_eq!(rates(&host), both("1000/s", "500/s"));
    // One trial at a time: each began when the other one was over.
    let log = host.log();
    let lines = log.lines().filter_map(|line| {
        let version = line.find("version 1 of ")?;
        let is_trial = line.contains("in effect, on trial:") || line.contains("stays in effect");
        is_trial.then(|| line[version..].to_owned())
    });
    let lines: Vec<String> = lines.collect();
    assert_eq!(lines.len(), 4, "{log}");
    for trial in lines.chunks(2) {
        let stream = trial[0].split_whitespace().nth(3).unwrap();
        assert!(trial[0].contains("on trial"), "{lines:?}");
        let confirmed = format!("version 1 of {stream} stays in effect");
        assert_eq!(trial[1], confirmed, "{lines:?}");
    }
    // Events name their stream.
    let output = host.command(&["events", "--json"]);
    let events = said(&output);
    for stream in ["stream web", "stream search"] {
        let confirmed = |line: &&str| line.contains("rules-confirmed") && line.contains(stream);
        assert_eq!(events.lines().filter(confirmed).count(), 1, "{events}");
    }
    // Bad rules of the team concern the team alone.
    team.publish_to(1, &team, &limit(API, "1/h"), &["--bake", "1h"]);
    host.until_stream(TEAM, "on trial", |rules| {
        rules["state"] == "trying" && rules["version"] == 2
    });
    assert_eq!(host.request_of(API, 1_000), 100);
    let failed = host.until_stream(TEAM, "rolled back", |rules| rules["state"] == "failed");
    let reason = failed["reason"].as_str().unwrap();
    assert!(reason.contains("limit \"search-api\" refuses"), "{reason}");
    assert_eq!(failed["version"], 1, "{failed}");
    assert_eq!(rates(&host), both("1000/s", "500/s"));
    assert_eq!(host.rules()["state"], "held");
    // A start needs none of the stores.
    for stream in [&fleet, &team] {
        fs::rename(stream.path("store"), stream.path("gone")).unwrap();
    }
    host.restart(Signal::SIGKILL);
    assert_eq!(rates(&host), both("1000/s", "500/s"));
    for nth in [0, TEAM] {
        let down = host.until_stream(nth, "down", |rules| rules["store_up"] == false);
        assert_eq!(down["version"], 1, "{down}");
    }
}

pub fn rules_that_a_team_may_not_set_change_nothing() {
    let (fleet, team, other) = (Fleet::new(), Fleet::of("search"), Fleet::of("pay"));
    let host = settled(&fleet, &team, &table(&other, "pay-"));
    let api = limit(API, "9/s");
    let two = limit("search-a", "9/s") + &limit("search-b", "9/s");
    let class = "[[class]]\nname = \"search-c\"\nsources = [\"192.0.2.1\"]\nmultiplier = 9\n";
    let refused = [
        (
            api.clone() + &limit("web", "9/s"),
            &team,
            "\"web\" does not begin with \"search-\"",
        ),
        (
            api.clone() + &limit("pay-a", "9/s"),
            &team,
            "\"pay-a\" does not begin with \"search-\"",
        ),
        (api.clone() + class, &team, "table \"class\" cannot be set"),
        (
            api.clone() + &two,
            &team,
            "is above the 2 limits of this team",
        ),
        (api.clone(), &fleet, "does not count for this stream"),
        (api.clone(), &other, "does not count for this stream"),
    ];
    for (count, (text, signer, reason)) in (1..).zip(&refused) {
        team.publish_to(1, signer, text, &[]);
        let rules = host.until_stream(TEAM, "refused", |rules| rules["refusals"] == count);
        let events = host.events("rules-refused");
        assert!(
            events.last().unwrap().contains(reason),
            "{events:?} {reason}"
        );
        assert_eq!(
            (&rules["version"], &rules["accepted"]),
            (&1.into(), &1.into())
        );
        assert_eq!(rates(&host), both("1000/s", "500/s"));
    }
    team.publish_to(1, &team, &api, &["--bake", "2h"]);
    let count = refused.len() as u64 + 1;
    let rules = host.until_stream(TEAM, "refused", |rules| rules["refusals"] == count);
    let refusal = rules["last_refusal"].as_str().unwrap();
    assert!(refusal.contains("bake of 2h is longer"), "{refusal}");
    assert_eq!(host.events("rules-tried").len(), 2);
    assert_eq!(host.rules()["refusals"], 0);
    // Rules within the team's rights are taken after that, and the fleet sets no limits of teams.
    team.publish_to(1, &team, &api, &[]);
    host.until_stream(TEAM, "held", is_held(2 + count));
    assert_eq!(rates(&host), both("1000/s", "9/s"));
    fleet.publish_to(1, &fleet, &limit("search-b", "9/s"), &[]);
    let rules = host.until("refused", |rules| rules["refusals"] == 1);
    let refusal = rules["last_refusal"].as_str().unwrap();
    assert!(
        refusal.contains("has the prefix \"search-\" of a team"),
        "{refusal}"
    );
    assert_eq!(rates(&host), both("1000/s", "9/s"));
}

pub fn a_reload_adds_and_removes_a_team() {
    let (fleet, team) = (Fleet::new(), Fleet::of("search"));
    let host = Host::start("web-0", &fleet, "");
    fleet.publish_to(1, &fleet, &rules("1000/s"), &[]);
    host.until("held", is_held(1));
    let own = host.folder.path().join("limits.toml");
    let alone = fs::read_to_string(&own).unwrap();
    let with_team = alone.clone() + &table(&team, "search-");
    let reload = |text: &str| {
        fs::write(&own, text).unwrap();
        let output = host.command(&["reload"]);
        assert!(output.status.success(), "{}", said(&output));
    };
    reload(&with_team);
    team.publish_to(1, &team, &limit(API, "500/s"), &[]);
    host.until_stream(TEAM, "held", is_held(1));
    assert_eq!(rates(&host), both("1000/s", "500/s"));
    // Its rules leave with it, also those on trial.
    team.publish_to(1, &team, &limit(API, "600/s"), &["--bake", "1h"]);
    host.until_stream(TEAM, "on trial", |rules| rules["version"] == 2);
    assert_eq!(rates(&host), both("1000/s", "600/s"));
    reload(&alone);
    assert_eq!(rates(&host), [Some("1000/s".to_owned()), None]);
    host.until_stream(TEAM, "gone", Value::is_null);
    assert!(host.status()["trial"].is_null());
    // It returns with the rules that it had confirmed.
    fs::rename(team.path("store"), team.path("gone")).unwrap();
    reload(&with_team);
    host.until_stream(TEAM, "back", |rules| rules["version"] == 1);
    assert_eq!(rates(&host), both("1000/s", "500/s"));
    // Limits that a team may not have any more prevent a reload.
    let other = with_team.replace("prefix = \"search-\"", "prefix = \"find-\"");
    fs::write(&own, other).unwrap();
    let output = host.command(&["reload"]);
    let said = said(&output);
    assert!(!output.status.success(), "{said}");
    assert!(
        said.contains("limit \"search-api\" does not begin with \"find-\""),
        "{said}"
    );
    assert_eq!(rates(&host), both("1000/s", "500/s"));
}

pub fn rules_of_a_team_are_aborted_beside_the_trial_of_the_fleet() {
    let (fleet, team) = (Fleet::new(), Fleet::of("search"));
    let host = settled(&fleet, &team, "");
    fleet.publish_to(1, &fleet, &rules("2000/s"), &["--bake", "1h"]);
    host.until("on trial", |rules| rules["version"] == 2);
    team.publish_to(1, &team, &limit(API, "600/s"), &[]);
    host.until_stream(TEAM, "waiting", |rules| rules["accepted"] == 2);
    let notes = host.status()["notes"].to_string();
    assert!(notes.contains("version 2 of search waits"), "{notes}");
    assert_eq!(rates(&host), both("2000/s", "500/s"));
    // Rules that wait are not on trial: each stream's first ones were, and those of the fleet are.
    assert_eq!(host.events("rules-tried").len(), 3);
    // Aborted rules leave at once, and those on trial stay.
    team.abort("complaints");
    host.until_stream(TEAM, "aborted", |rules| rules["state"] == "stopped");
    assert_eq!(rates(&host), both("2000/s", "500/s"));
    let key = team.path("key");
    let arguments = [
        "fleet",
        "abort",
        "1",
        "--to",
        &team.rules,
        "--key",
        key.to_str().unwrap(),
    ];
    let output = team.weir(&[&arguments[..], &["--reason", "more"]].concat());
    assert!(output.status.success(), "{}", said(&output));
    host.until_stream(TEAM, "aborted", |rules| rules["version"] == 0);
    assert_eq!(rates(&host), [Some("2000/s".to_owned()), None]);
    let rules = host.rules();
    assert_eq!(
        (&rules["state"], &rules["version"]),
        (&"trying".into(), &2.into())
    );
    // The end of the trial does not bring them back.
    let output = host.command(&["revert"]);
    assert!(output.status.success(), "{}", said(&output));
    host.until("rolled back", |rules| rules["state"] == "failed");
    assert_eq!(rates(&host), [Some("1000/s".to_owned()), None]);
}

/// A team that publishes again and again does not keep the others waiting.
pub fn the_stream_that_has_waited_longest_is_tried_next() {
    let (fleet, team) = (Fleet::new(), Fleet::of("search"));
    let host = settled(&fleet, &team, "");
    let is_tried = |version: u64| {
        move |rules: &Value| rules["state"] == "trying" && rules["version"] == version
    };
    team.publish_to(1, &team, &limit(API, "600/s"), &["--bake", "1h"]);
    host.until_stream(TEAM, "on trial", is_tried(2));
    fleet.publish_to(1, &fleet, &rules("2000/s"), &[]);
    host.until("accepted", |rules| rules["accepted"] == 2);
    team.publish_to(1, &team, &limit(API, "700/s"), &["--bake", "1h"]);
    host.until("held", is_held(2));
    host.until_stream(TEAM, "on trial", is_tried(3));
    assert_eq!(rates(&host), both("2000/s", "700/s"));
}
