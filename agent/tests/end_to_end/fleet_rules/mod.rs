//! The rules of a fleet: agents, a store, and a publisher's command line.

mod fleet;
mod packets;
mod s3;
mod stores;
mod teams;

use std::fs;

use nix::sys::signal::Signal;
use testbed::tests;
use testbed::trials::Test;

use fleet::{Fleet, HOSTS, canary_of, rules, said, spread, until_held};
use packets::{
    rules_that_refuse_polite_sources_are_rolled_back,
    rules_that_refuse_the_manager_or_fail_the_application_are_rolled_back,
    shares_of_a_record_are_expected,
};
use stores::rules_spread_through_a_bucket_by_signed_requests;
use teams::{
    a_reload_adds_and_removes_a_team, a_team_has_its_limits_beside_those_of_the_fleet,
    rules_of_a_team_are_aborted_beside_the_trial_of_the_fleet,
    rules_that_a_team_may_not_set_change_nothing, the_stream_that_has_waited_longest_is_tried_next,
};

pub use stores::{WITH_NGINX, WITH_REDIS, WITH_VALKEY, has_nginx};

pub const TESTS: &[Test] = tests![
    good_rules_reach_all_hosts_after_the_canary,
    bad_rules_reach_the_canary_only_and_are_rolled_back,
    documents_that_do_not_count_change_nothing,
    an_abort_returns_all_hosts_to_the_rules_before,
    an_operator_ends_the_trial_of_rules,
    a_killed_agent_starts_with_the_confirmed_rules,
    agents_that_end_in_order_begin_again_as_often_as_that,
    rules_begin_and_are_confirmed_only_when_they_can_be_saved,
    publishing_goes_on_whatever_others_leave_in_the_store,
    keys_of_a_confirmed_config_count,
    a_file_that_does_not_go_with_the_rules_is_in_effect_alone_until_it_does,
    rules_that_refuse_the_manager_or_fail_the_application_are_rolled_back,
    a_team_has_its_limits_beside_those_of_the_fleet,
    rules_that_a_team_may_not_set_change_nothing,
    a_reload_adds_and_removes_a_team,
    rules_of_a_team_are_aborted_beside_the_trial_of_the_fleet,
    the_stream_that_has_waited_longest_is_tried_next,
    rules_that_refuse_polite_sources_are_rolled_back,
    shares_of_a_record_are_expected,
    rules_spread_through_a_bucket_by_signed_requests,
];

fn good_rules_reach_all_hosts_after_the_canary() {
    let fleet = Fleet::new();
    let mut hosts = spread(&fleet);
    // The publisher sees them once they have reported.
    fleet.until_reported();
    let status = fleet.status();
    assert_eq!((&status["head"], &status["behind"]), (&1.into(), &0.into()));
    // A start has them without the store.
    fs::rename(fleet.path("store"), fleet.path("gone")).unwrap();
    hosts[0].until("without the store", |rules| rules["store_up"] == false);
    assert_eq!(hosts[0].events("rules-store-down").len(), 1);
    hosts[0].restart(Signal::SIGKILL);
    assert_eq!(hosts[0].rate().as_deref(), Some("1000/s"));
    assert_eq!(hosts[0].version(), 1);
    fs::rename(fleet.path("gone"), fleet.path("store")).unwrap();
    hosts[0].until("with the store", |rules| rules["store_up"] == true);
    let rules = hosts[0].rules();
    assert_eq!(
        (&rules["state"], &rules["refusals"]),
        (&"held".into(), &0.into()),
        "{rules}"
    );
}

fn bad_rules_reach_the_canary_only_and_are_rolled_back() {
    let fleet = Fleet::new();
    let hosts = spread(&fleet);
    // One request an hour, where a hundred a second were allowed.
    let published = fleet.publish(&rules("1/h"), &["--bake", "1h"]);
    let (canary, others) = canary_of(&published, &hosts);
    canary.until("on trial", |rules| rules["state"] == "trying");
    assert_eq!(canary.request(1_000), 100);
    let failed = canary.until("rolled back", |rules| rules["state"] == "failed");
    assert_eq!(failed["version"], 1, "{failed}");
    let reason = failed["reason"].as_str().unwrap();
    assert!(
        reason.contains("limit \"web\" refuses") && reason.contains("predicted"),
        "{reason}"
    );
    assert_eq!(canary.rate().as_deref(), Some("1000/s"));
    assert_eq!(canary.events("rules-stopped").len(), 1);
    for other in others {
        let rules = other.until("stopped", |rules| rules["state"] == "stopped");
        assert_eq!(
            (&rules["version"], &rules["accepted"]),
            (&1.into(), &2.into())
        );
        assert_eq!(other.events("rules-tried").len(), 1, "only of version 1");
        assert_eq!(other.rate().as_deref(), Some("1000/s"));
    }
    let status = fleet.status();
    assert_eq!(status["effective"]["1"], HOSTS, "{status}");
    // Expected refusals are healthy.
    let published = fleet.publish(&rules("1/h"), &["--expect", "web=95%"]);
    let (canary, _) = canary_of(&published, &hosts);
    canary.until("on trial", |rules| {
        rules["state"] == "trying" && rules["version"] == 3
    });
    canary.request(1_000);
    until_held(&hosts, 3);
}

fn documents_that_do_not_count_change_nothing() {
    let fleet = Fleet::new();
    let hosts = spread(&fleet);
    let first = fs::read_to_string(fleet.object("releases/1")).unwrap();
    fleet.publish(&rules("2000/s"), &[]);
    until_held(&hosts, 2);
    let second = fs::read_to_string(fleet.object("releases/2")).unwrap();
    let index = fs::read_to_string(fleet.object("index")).unwrap();
    // The index has another digest from now on, so that hosts read the release.
    let digest = index
        .lines()
        .find(|line| line.starts_with("digest"))
        .unwrap();
    let other = index.replace(digest, "digest = \"other\"");
    let unsigned: String = second.split_inclusive('\n').skip(4).collect();
    let cases = [
        (unsigned, "not signed"),
        (second[..second.len() - 20].to_owned(), "truncated"),
        (second.replace("2000/s", "9000/s"), "was changed"),
        (first, "is older than version 2"),
    ];
    for (count, (object, reason)) in (1..).zip(cases) {
        fleet.replace("releases/2", &object);
        fleet.replace("index", &other);
        for host in &hosts {
            host.until("refused", |rules| rules["refusals"] == count);
            let events = host.events("rules-refused");
            assert!(events.last().unwrap().contains(reason), "{events:?}");
            assert_eq!(
                (host.version(), host.rate().as_deref()),
                (2, Some("2000/s"))
            );
        }
        // The document that counts is no refusal any more.
        fleet.replace("releases/2", &second);
        fleet.replace("index", &index);
        for host in &hosts {
            host.until("taken", |rules| rules["refused"].is_null());
        }
    }
}

fn an_abort_returns_all_hosts_to_the_rules_before() {
    let fleet = Fleet::new();
    let hosts = spread(&fleet);
    fleet.publish(&rules("2000/s"), &["--canary", "100%"]);
    until_held(&hosts, 2);
    // An abort by another key is refused, and does not stand in the way of one that counts.
    let other = Fleet::new();
    let key = other.path("key");
    let arguments = [
        "--to",
        &fleet.rules,
        "--key",
        key.to_str().unwrap(),
        "--reason",
        "r",
    ];
    let output = fleet.weir(&[&["fleet", "abort"], &arguments[..]].concat());
    assert!(
        said(&output).contains("warning: version 2 was signed by key"),
        "{}",
        said(&output)
    );
    for host in &hosts {
        host.until("refused", |rules| rules["refusals"] == 1);
        assert_eq!(host.version(), 2);
    }
    fleet.abort("complaints");
    for host in &hosts {
        let rules = host.until("aborted", |rules| rules["state"] == "stopped");
        assert_eq!(rules["version"], 1, "{rules}");
        assert!(rules["reason"].as_str().unwrap().contains("complaints"));
        assert_eq!(host.rate().as_deref(), Some("1000/s"));
    }
    // The next one is that of the version before, also beside a release of a publisher that ended early.
    fs::write(fleet.object("releases/3"), "cut").unwrap();
    fleet.abort("more complaints");
    for host in &hosts {
        host.until("alone", |rules| rules["version"] == 0);
        assert_eq!(host.rate(), None);
    }
}

fn an_operator_ends_the_trial_of_rules() {
    let fleet = Fleet::new();
    let hosts = spread(&fleet);
    let published = fleet.publish(&rules("2000/s"), &["--bake", "1h"]);
    let (canary, _) = canary_of(&published, &hosts);
    canary.until("on trial", |rules| rules["state"] == "trying");
    // Only health confirms them. The host's own file may change meanwhile, and wins.
    assert!(!canary.command(&["confirm"]).status.success());
    let own = canary.folder.path().join("limits.toml");
    let text = fs::read_to_string(&own).unwrap();
    fs::write(&own, text.clone() + &rules("5/s")).unwrap();
    let output = canary.command(&["reload"]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(canary.rate().as_deref(), Some("5/s"));
    canary.until("replaced", |rules| rules["replaced"][0] == "limit web");
    fs::write(&own, text).unwrap();
    assert!(canary.command(&["reload"]).status.success());
    assert_eq!(canary.rate().as_deref(), Some("2000/s"));
    let output = canary.command(&["revert"]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(canary.rate().as_deref(), Some("1000/s"));
    let rules = canary.until("stopped", |rules| rules["state"] == "failed");
    assert!(rules["reason"].as_str().unwrap().contains("an operator"));
    for host in &hosts {
        host.until("stopped", |rules| {
            rules["accepted"] == 2 && rules["version"] == 1
        });
    }
}

fn publishing_goes_on_whatever_others_leave_in_the_store() {
    let fleet = Fleet::new();
    let hosts = spread(&fleet);
    // None of their own reports is being written.
    fleet.until_reported();
    // A publisher that was killed before the index named its release, a report that is being written, and a forged one.
    fs::write(fleet.object("releases/2"), "cut").unwrap();
    let report = fs::read_to_string(fleet.object("reports/web-0")).unwrap();
    fs::write(fleet.object("reports/web-0.next"), &report).unwrap();
    let forged = report.replace("\"web-0\"", "\"forged\"");
    let lines = forged.lines().map(|line| match line.split_once(" = ") {
        Some(("version", _)) => format!("version = {}\n", i64::MAX),
        _ => format!("{line}\n"),
    });
    fs::write(fleet.object("reports/forged"), lines.collect::<String>()).unwrap();
    let published = fleet.publish(&rules("2000/s"), &["--canary", "100%"]);
    for part in [
        "version 3 of web",
        "the report of forged is ignored",
        "1 objects among the reports are skipped",
    ] {
        assert!(published.contains(part), "{published}");
    }
    until_held(&hosts, 3);
    // A head that the store has lost a part of.
    fs::write(fleet.object("releases/3"), "cut").unwrap();
    assert_eq!(fleet.status()["head"], 3);
    let history = fleet.weir(&["fleet", "history", "--to", &fleet.rules]);
    let history = said(&history);
    assert!(history.contains("version 3 is left out"), "{history}");
    fleet.abort("complaints");
    for host in &hosts {
        host.until("aborted", |rules| rules["version"] == 1);
    }
    let published = fleet.publish(&rules("3000/s"), &["--canary", "100%"]);
    assert!(published.contains("version 4 of web"), "{published}");
    until_held(&hosts, 4);
    // Rules that no host could put in effect.
    let (file, key) = (fleet.path("rules.toml"), fleet.path("key"));
    fs::write(&file, rules("many")).unwrap();
    let (file, key) = (file.to_str().unwrap(), key.to_str().unwrap());
    let arguments = ["fleet", "publish", file, "--to", &fleet.rules, "--key", key];
    let output = fleet.weir(&arguments);
    assert!(!output.status.success() && said(&output).contains("many"));
    assert_eq!(fleet.status()["head"], 4);
}

fn keys_of_a_confirmed_config_count() {
    let fleet = Fleet::new();
    let hosts = spread(&fleet);
    let new = fleet.path("new");
    let output = fleet.weir(&["fleet", "keygen", new.to_str().unwrap()]);
    let line = said(&output);
    let added = line.split('"').nth(1).unwrap();
    let own = hosts[0].folder.path().join("limits.toml");
    let text = fs::read_to_string(&own).unwrap();
    let old = format!("{:?}", fleet.public_key);
    fs::write(&own, text.replace(&old, &format!("{old}, {added:?}"))).unwrap();
    for arguments in [
        &["try", own.to_str().unwrap(), "--for", "60s"][..],
        &["confirm"],
    ] {
        let output = hosts[0].command(arguments);
        assert!(output.status.success(), "{}", said(&output));
    }
    fs::rename(new, fleet.path("key")).unwrap();
    fleet.publish(&rules("2000/s"), &["--canary", "100%"]);
    until_held(&hosts[..1], 2);
    // Hosts that have the old key alone.
    for host in &hosts[1..] {
        let rules = host.until("refused", |rules| rules["refusals"] == 1);
        let refusal = rules["last_refusal"].as_str().unwrap();
        assert!(refusal.contains("does not count"), "{refusal}");
        assert_eq!(host.version(), 1);
    }
}

fn a_file_that_does_not_go_with_the_rules_is_in_effect_alone_until_it_does() {
    let fleet = Fleet::new();
    let mut hosts = spread(&fleet);
    let class = |name: &str| {
        format!("[[class]]\nname = {name:?}\nsources = [\"192.0.2.1\"]\nmultiplier = 2\n")
    };
    let text = rules("2000/s") + &class("fleet");
    fleet.publish(&text, &["--canary", "100%"]);
    until_held(&hosts, 2);
    let host = &mut hosts[0];
    let own = host.folder.path().join("limits.toml");
    let text = fs::read_to_string(&own).unwrap();
    // An address has one class.
    fs::write(&own, text.clone() + &class("own")).unwrap();
    let output = host.command(&["reload"]);
    assert!(!output.status.success());
    assert!(said(&output).contains("192.0.2.1"), "{}", said(&output));
    assert_eq!(
        (host.version(), host.rate().as_deref()),
        (2, Some("2000/s"))
    );
    host.restart(Signal::SIGTERM);
    let status = host.until("alone", |rules| rules["version"] == 0);
    assert_eq!(host.rate(), None, "{status}");
    let output = host.command(&["status"]);
    assert!(said(&output).contains("version 2 of web does not go with"));
    fs::write(&own, text).unwrap();
    let output = host.command(&["reload"]);
    assert!(output.status.success(), "{}", said(&output));
    host.until("with the rules", |rules| rules["version"] == 2);
    assert_eq!(host.rate().as_deref(), Some("2000/s"));
    assert_eq!(host.rules()["state"], "held");
}

fn a_killed_agent_starts_with_the_confirmed_rules() {
    let fleet = Fleet::new();
    let mut hosts = spread(&fleet);
    let published = fleet.publish(&rules("2000/s"), &["--bake", "1h"]);
    let nth = (0..HOSTS).find(|nth| published.contains(&format!("web-{nth}")));
    let canary = &mut hosts[nth.unwrap()];
    canary.until("on trial", |rules| rules["state"] == "trying");
    assert_eq!(canary.rate().as_deref(), Some("2000/s"));
    // Without the store, nothing begins after the start.
    fs::rename(fleet.path("store"), fleet.path("gone")).unwrap();
    canary.restart(Signal::SIGKILL);
    assert_eq!(
        (canary.version(), canary.rate().as_deref()),
        (1, Some("1000/s"))
    );
    fs::rename(fleet.path("gone"), fleet.path("store")).unwrap();
    canary.until("on trial again", |rules| rules["state"] == "trying");
    assert_eq!(canary.rate().as_deref(), Some("2000/s"));
    // Rules under which an agent ends twice are not begun again.
    canary.restart(Signal::SIGKILL);
    let rules = canary.until("failed", |rules| rules["state"] == "failed");
    assert!(rules["reason"].as_str().unwrap().contains("ended twice"));
    assert_eq!(
        (canary.version(), canary.rate().as_deref()),
        (1, Some("1000/s"))
    );
    for host in &hosts {
        host.until("stopped", |rules| {
            rules["accepted"] == 2 && rules["version"] == 1 && rules["state"] != "waiting"
        });
    }
}

fn agents_that_end_in_order_begin_again_as_often_as_that() {
    let fleet = Fleet::new();
    let mut hosts = spread(&fleet);
    fleet.publish(&rules("2000/s"), &["--bake", "1h", "--canary", "100%"]);
    for _ in 0..3 {
        hosts[0].until("on trial", |rules| {
            rules["state"] == "trying" && rules["version"] == 2
        });
        hosts[0].restart(Signal::SIGTERM);
    }
    hosts[0].until("on trial", |rules| rules["state"] == "trying");
}

fn rules_begin_and_are_confirmed_only_when_they_can_be_saved() {
    let fleet = Fleet::new();
    let hosts = spread(&fleet);
    let host = &hosts[0];
    let [state, gone] = ["state", "gone"].map(|name| host.folder.path().join(name));
    let breaks = || {
        fs::rename(&state, &gone).unwrap();
        fs::write(&state, "").unwrap();
    };
    let repairs = || {
        fs::remove_file(&state).unwrap();
        fs::rename(&gone, &state).unwrap();
    };
    breaks();
    fleet.publish(&rules("2000/s"), &["--canary", "100%"]);
    until_held(&hosts[1..], 2);
    let rules_of = host.rules();
    assert_eq!(
        (&rules_of["state"], &rules_of["version"]),
        (&"trying".into(), &1.into()),
        "{rules_of}"
    );
    assert!(rules_of["error"].is_string(), "{rules_of}");
    repairs();
    until_held(&hosts, 2);
    assert!(host.rules()["error"].is_null());
    // During the bake.
    fleet.publish(&rules("3000/s"), &["--canary", "100%"]);
    host.until("on trial", |rules| {
        rules["state"] == "trying" && rules["version"] == 3
    });
    breaks();
    until_held(&hosts[1..], 3);
    host.until("not saved", |rules| rules["error"].is_string());
    assert_eq!(host.rules()["state"], "trying");
    repairs();
    until_held(&hosts, 3);
}
