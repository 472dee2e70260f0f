use std::collections::BTreeSet;

use api::fair::FairStatus;
use api::geo::GeoStatus;
use api::reload::{LastReload, TrialStatus};
use api::rules::RulesStatus;
use cgroup::GroupStatus;
use cluster::ClusterStatus;
use cluster::status::ClusterLimitStatus;
use datapath::AttachMode;

use super::{Documents, Exposition};
use crate::stats::{
    Count, InterfaceState, InterfaceStatus, LevelStatus, LimitDefinition, LimitStatus, Status,
    WaitingStatus,
};

fn limit(name: &str, direction: &str, packets: u64) -> LimitStatus {
    let definition = LimitDefinition {
        name: name.to_owned(),
        direction: direction.to_owned(),
        key: "source".to_owned(),
        unit: "packets".to_owned(),
        algorithm: "token-bucket".to_owned(),
        rate: "10/s".to_owned(),
        burst: Some(10),
        ..LimitDefinition::default()
    };
    let count = Count {
        packets,
        bytes: 100 * packets,
    };
    let waiting = (direction == "request").then_some(WaitingStatus {
        waiting: 1,
        passed: 2,
        refused: 3,
        left: 4,
        full: 5,
    });
    LimitStatus {
        definition,
        passed: count,
        throttled: count,
        would_throttle: count,
        over: count,
        contended: count,
        keys: 2,
        levels: Vec::new(),
        level: None,
        without_room: waiting.map(|_| 6),
        waiting,
    }
}

/// Documents of a host with two limits and a group.
pub fn documents(packets: u64) -> Documents {
    let mut status = Status {
        version: "1.2.3".to_owned(),
        mode: "enforce".to_owned(),
        ..Status::default()
    };
    status.totals.passed_packets = packets;
    status.fair.push(FairStatus {
        limit: "fair".to_owned(),
        level: Some(375.0),
        capacity: Some(2000.0),
        ..FairStatus::default()
    });
    status.interfaces.push(InterfaceStatus {
        name: "eth0".to_owned(),
        attach: Some(AttachMode::Native),
        enforced_by: Vec::new(),
        reason: None,
        state: InterfaceState::Attached,
    });
    status.rules.push(RulesStatus {
        stream: "web".to_owned(),
        version: 6,
        accepted: 7,
        state: "failed".to_owned(),
        refusals: 2,
        store_up: Some(true),
        ..RulesStatus::default()
    });
    status.rules.push(RulesStatus {
        stream: "search".to_owned(),
        version: 3,
        state: "held".to_owned(),
        ..RulesStatus::default()
    });
    let group = GroupStatus {
        name: "batch".to_owned(),
        ..GroupStatus::default()
    };
    Documents {
        status,
        limits: vec![
            limit("a \"quoted\" one\\", "ingress", packets),
            limit("credits", "request", packets),
        ],
        groups: vec![group],
    }
}

/// The sample with this name and these labels.
fn value(text: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let lines = text.lines().map(|line| Ok(line.to_owned()));
    let scrape = prometheus_parse::Scrape::parse(lines).unwrap();
    let sample = scrape.samples.into_iter().find(|sample| {
        sample.metric == name
            && labels
                .iter()
                .all(|(label, value)| sample.labels.get(label) == Some(value))
    })?;
    match sample.value {
        prometheus_parse::Value::Counter(value)
        | prometheus_parse::Value::Gauge(value)
        | prometheus_parse::Value::Untyped(value) => Some(value),
        other => panic!("{name} is {other:?}"),
    }
}

#[test]
fn rules_of_the_fleet_are_their_version_state_and_refusals() {
    let text = Exposition::new().unwrap().text(&documents(7)).unwrap();
    for (name, labels, expected) in [
        ("weir_rules_version", &[("stream", "web")][..], 6.0),
        ("weir_rules_version", &[("stream", "search")], 3.0),
        ("weir_rules_accepted_version", &[("stream", "web")], 7.0),
        (
            "weir_rules_state",
            &[("stream", "web"), ("state", "failed")],
            1.0,
        ),
        (
            "weir_rules_state",
            &[("stream", "web"), ("state", "held")],
            0.0,
        ),
        (
            "weir_rules_state",
            &[("stream", "search"), ("state", "held")],
            1.0,
        ),
        ("weir_rules_refused_total", &[("stream", "web")], 2.0),
        ("weir_rules_stopped_total", &[("stream", "web")], 0.0),
        ("weir_rules_store_up", &[("stream", "web")], 1.0),
    ] {
        assert_eq!(value(&text, name, labels), Some(expected), "{name}");
    }
    let search = value(&text, "weir_rules_store_up", &[("stream", "search")]);
    assert_eq!(search, None, "no request has ended");
}

#[test]
fn the_text_is_what_a_parser_of_the_format_reads() {
    let text = Exposition::new().unwrap().text(&documents(7)).unwrap();
    let lines = text.lines().map(|line| Ok(line.to_owned()));
    let scrape = prometheus_parse::Scrape::parse(lines).unwrap();
    assert_eq!(
        scrape.samples.len(),
        text.lines().filter(|line| !line.starts_with('#')).count(),
        "{text}"
    );
    for sample in &scrape.samples {
        let is_counter = matches!(sample.value, prometheus_parse::Value::Counter(_));
        assert_eq!(
            is_counter,
            sample.metric.ends_with("_total"),
            "{} is {:?}",
            sample.metric,
            sample.value
        );
        assert!(
            scrape.docs.contains_key(&sample.metric),
            "{} is not explained",
            sample.metric
        );
        let ours = sample.metric.starts_with("weir_");
        assert!(
            ours || sample.metric.starts_with("process_"),
            "{}",
            sample.metric
        );
    }
    assert_eq!(
        value(&text, "weir_packets_total", &[("verdict", "passed")]),
        Some(7.0)
    );
    assert_eq!(
        value(&text, "weir_limit_bytes_total", &[("verdict", "throttled")]),
        Some(700.0)
    );
    assert_eq!(
        value(
            &text,
            "weir_decisions_total",
            &[("limit", "credits"), ("verdict", "refused")]
        ),
        Some(7.0)
    );
    // Limits on requests count no packets.
    assert_eq!(
        value(&text, "weir_limit_packets_total", &[("limit", "credits")]),
        None
    );
    assert!(text.contains(r#"limit="a \"quoted\" one\\""#), "{text}");
}

#[test]
fn levels_have_series_of_their_own_and_a_limit_without_levels_has_none() {
    let name = "weir_limit_level_packets_total";
    let mut documents = documents(7);
    assert!(
        !Exposition::new()
            .unwrap()
            .text(&documents)
            .unwrap()
            .contains("weir_limit_level")
    );
    let count = Count {
        packets: 3,
        bytes: 300,
    };
    let level = LevelStatus {
        level: "24/48".to_owned(),
        factor: Some(20.0),
        throttled: count,
        keys: 9,
        ..LevelStatus::default()
    };
    documents.limits[0].levels.push(level);
    let text = Exposition::new().unwrap().text(&documents).unwrap();
    assert_eq!(
        value(&text, name, &[("level", "24/48"), ("verdict", "throttled")]),
        Some(3.0)
    );
    assert_eq!(
        value(&text, name, &[("level", "24/48"), ("verdict", "over")]),
        Some(0.0)
    );
    assert_eq!(
        value(&text, "weir_limit_level_keys", &[("level", "24/48")]),
        Some(9.0)
    );
    // The series of the limit stay as they were.
    assert_eq!(
        value(
            &text,
            "weir_limit_packets_total",
            &[("verdict", "throttled")]
        ),
        Some(7.0)
    );
}

#[test]
fn a_level_has_its_cause_and_the_number_of_sources_above_it() {
    let mut documents = documents(7);
    let fair = &mut documents.status.fair[0];
    (fair.held_by, fair.sources_above) = (Some("wait".to_owned()), 5);
    let text = Exposition::new().unwrap().text(&documents).unwrap();
    let held = |cause| {
        value(
            &text,
            "weir_fair_held_by",
            &[("limit", "fair"), ("cause", cause)],
        )
    };
    let causes = ["drops", "wait", "load", "demand", "recent"];
    assert_eq!(causes.map(held), [0.0, 1.0, 0.0, 0.0, 0.0].map(Some));
    let above = value(&text, "weir_fair_sources_above", &[("limit", "fair")]);
    assert_eq!(above, Some(5.0));
}

#[test]
fn a_fair_limit_that_is_not_in_effect_is_released_and_has_no_rates() {
    let mut documents = documents(7);
    documents.status.fair.push(FairStatus {
        limit: "off".to_owned(),
        failure: Some(FairStatus::NO_MAPS.to_owned()),
        ..FairStatus::default()
    });
    let text = Exposition::new().unwrap().text(&documents).unwrap();
    let of = |limit: &str| {
        let names = [
            "released",
            "offered",
            "passed",
            "wait_seconds",
            "loss_ratio",
            "overloads_total",
            "sources_above",
            "held_by",
        ];
        names.map(|name| value(&text, &format!("weir_fair_{name}"), &[("limit", limit)]))
    };
    assert_eq!(of("off")[0], Some(1.0));
    assert_eq!(of("off")[1..], [None; 7]);
    assert_eq!(of("fair"), [Some(0.0); 8]);
}

/// Names in backticks; `…_x` stands for `weir_group_x`.
fn documented() -> BTreeSet<String> {
    let page = include_str!("../../../../../docs/reference/metrics.md");
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let names = rows.flat_map(|row| row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2));
    names
        .filter(|name| !name.starts_with("process_"))
        .map(|name| name.replace('…', "weir_group"))
        .collect()
}

#[test]
fn each_metric_is_in_docs_and_each_of_the_docs_is_a_metric() {
    // A family without rows is not in a page; its name is in the code all the same.
    let files = [
        include_str!("agent.rs"),
        include_str!("bans.rs"),
        include_str!("cluster.rs"),
        include_str!("fair.rs"),
        include_str!("groups.rs"),
        include_str!("limits.rs"),
        include_str!("notifications.rs"),
        include_str!("packets.rs"),
        include_str!("rules.rs"),
    ];
    let code = files
        .into_iter()
        .flat_map(|file| file.split('"').skip(1).step_by(2));
    let is_name = |name: &&str| name.starts_with("weir_") && !name.ends_with('_');
    let exposed: BTreeSet<String> = code.filter(is_name).map(str::to_owned).collect();
    let scraped = Exposition::new().unwrap().text(&documents(7)).unwrap();
    for line in scraped
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE weir_"))
    {
        let name = format!("weir_{}", line.split(' ').next().unwrap());
        assert!(
            exposed.contains(&name),
            "{name} is scraped, and this test does not find it in the code"
        );
    }
    let documented = documented();
    let only = |these: &BTreeSet<String>, those: &BTreeSet<String>| these - those;
    assert_eq!(
        only(&exposed, &documented),
        BTreeSet::new(),
        "missing in docs/reference/metrics.md"
    );
    assert_eq!(
        only(&documented, &exposed),
        BTreeSet::new(),
        "in docs/reference/metrics.md, and not exposed"
    );
}

#[test]
fn a_database_that_cannot_be_used_is_seen() {
    let mut documents = documents(7);
    let geo = |database: &str, prefixes, built, problem: Option<&str>| GeoStatus {
        database: database.to_owned(),
        prefixes,
        built,
        problem: problem.map(str::to_owned),
        ..GeoStatus::default()
    };
    documents.status.geo = vec![
        geo("asn", 7, Some(1_700_000_000), None),
        geo("country", 0, None, Some("missing")),
    ];
    let text = Exposition::new().unwrap().text(&documents).unwrap();
    let of = |name: &str, database| {
        value(
            &text,
            &format!("weir_geo_{name}"),
            &[("database", database)],
        )
    };
    assert_eq!(
        (of("prefixes", "asn"), of("failing", "asn")),
        (Some(7.0), Some(0.0))
    );
    assert_eq!(
        (of("prefixes", "country"), of("failing", "country")),
        (Some(0.0), Some(1.0))
    );
    assert_eq!(of("built_timestamp_seconds", "asn"), Some(1_700_000_000.0));
    assert_eq!(of("built_timestamp_seconds", "country"), None);
}

#[test]
fn a_config_that_was_not_put_in_effect_is_seen() {
    let mut documents = documents(7);
    let text = Exposition::new().unwrap().text(&documents).unwrap();
    assert_eq!(
        value(&text, "weir_config_last_reload_successful", &[]),
        Some(1.0)
    );
    assert_eq!(
        value(&text, "weir_config_last_reload_timestamp_seconds", &[]),
        None
    );
    assert_eq!(value(&text, "weir_config_on_trial", &[]), Some(0.0));
    assert_eq!(value(&text, "weir_trial_rollback_failing", &[]), Some(0.0));
    documents.status.last_reload = Some(LastReload {
        at: 1_790_000_000.5,
        ok: false,
        cause: "signal".to_owned(),
        file: Some("limits.toml".to_owned()),
        seconds: 0.1,
        errors: vec!["wrong".to_owned()],
        notes: Vec::new(),
    });
    documents.status.trial = Some(TrialStatus {
        stream: None,
        file: "next.toml".to_owned(),
        ends_in_seconds: 0.0,
        rollback_failing: true,
        rollback: None,
    });
    let text = Exposition::new().unwrap().text(&documents).unwrap();
    assert_eq!(
        value(&text, "weir_config_last_reload_successful", &[]),
        Some(0.0)
    );
    assert_eq!(
        value(&text, "weir_config_last_reload_timestamp_seconds", &[]),
        Some(1_790_000_000.5)
    );
    assert_eq!(value(&text, "weir_config_on_trial", &[]), Some(1.0));
    assert_eq!(value(&text, "weir_trial_rollback_failing", &[]), Some(1.0));
}

#[test]
fn a_cluster_is_exported_limit_by_limit() {
    let mut documents = documents(7);
    assert!(
        !Exposition::new()
            .unwrap()
            .text(&documents)
            .unwrap()
            .contains("weir_cluster")
    );
    let limit = |name: &str, from: &str| ClusterLimitStatus {
        name: name.to_owned(),
        share: 0.25,
        zone_share: Some(0.5),
        share_from: from.to_owned(),
        hosts: 4,
        failures: 3,
        keys_exchanged: 70,
        keys_local: 5,
        ..ClusterLimitStatus::default()
    };
    let limits = vec![limit("a", "lease"), limit("b", "closed")];
    let cluster = ClusterStatus {
        health: "slow".to_owned(),
        limits,
        ..ClusterStatus::default()
    };
    documents.status.cluster = Some(cluster.clone());
    let text = Exposition::new().unwrap().text(&documents).unwrap();
    assert_eq!(value(&text, "weir_cluster_store_up", &[]), Some(1.0));
    assert_eq!(
        value(&text, "weir_cluster_last_answer_age_seconds", &[]),
        None
    );
    for (name, leased) in [("a", 1.0), ("b", 0.0)] {
        let of = |metric| value(&text, metric, &[("limit", name)]);
        assert_eq!(of("weir_cluster_share_ratio"), Some(0.25));
        assert_eq!(of("weir_cluster_zone_share_ratio"), Some(0.5));
        assert_eq!(of("weir_cluster_share_leased"), Some(leased));
        assert_eq!(of("weir_cluster_hosts"), Some(4.0));
        assert_eq!(of("weir_cluster_renewals_failed_total"), Some(3.0));
        assert_eq!(of("weir_cluster_keys_exchanged_total"), Some(70.0));
        assert_eq!(of("weir_cluster_keys_local"), Some(5.0));
    }
    let ago = Some(7.5);
    documents.status.cluster = Some(ClusterStatus {
        health: "down".to_owned(),
        last_answer_seconds_ago: ago,
        ..cluster
    });
    let text = Exposition::new().unwrap().text(&documents).unwrap();
    assert_eq!(value(&text, "weir_cluster_store_up", &[]), Some(0.0));
    assert_eq!(
        value(&text, "weir_cluster_last_answer_age_seconds", &[]),
        ago
    );
}

#[test]
fn counters_go_on_when_what_they_are_read_from_begins_anew() {
    let mut exposition = Exposition::new().unwrap();
    let mut told = |packets| {
        let text = exposition.text(&documents(packets)).unwrap();
        value(&text, "weir_limit_packets_total", &[("verdict", "passed")]).unwrap()
    };
    assert_eq!([told(7), told(9), told(2), told(3)], [7.0, 9.0, 11.0, 12.0]);
}
