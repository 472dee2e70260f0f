//! The host's file and the fleet's rules.

use std::collections::BTreeMap;
use std::path::Path;

use crate::merge::{Merged, Part, Replaced, merge};
use crate::rules::Rights;
use crate::testing::limit;

const OWN: &str = "# Of this host.\n[agent]\ninterfaces = [\"eth0\"]\nnever_limit = [\"192.0.2.10\"]\n\n\
    [[limit]]\nname = \"web\"\nrate = \"5/s\"\n";

fn objects(texts: &[(&str, String)]) -> BTreeMap<String, String> {
    let texts = texts.iter();
    texts
        .map(|(name, text)| ((*name).to_owned(), text.clone()))
        .collect()
}

fn merged(own: &str, fleet: &[(&str, String)]) -> Merged {
    let texts = objects(fleet);
    merge(Path::new("limits.toml"), own, [part("web", &texts)]).unwrap()
}

/// Rules of the fleet's own stream.
fn part<'t>(stream: &'t str, texts: &'t BTreeMap<String, String>) -> Part<'t> {
    const RIGHTS: &Rights = &Rights::all();
    Part {
        stream,
        rights: RIGHTS,
        texts,
    }
}

/// A limit of a stream that is not in effect.
fn replaced(stream: &str, name: &str) -> Replaced {
    Replaced {
        stream: stream.into(),
        table: "limit",
        name: name.into(),
    }
}

fn names(config: &config::policy::Config) -> Vec<(&str, u64)> {
    let limits = config.limits.iter();
    limits
        .map(|limit| (limit.name.as_str(), limit.rates.rate.count))
        .collect()
}

#[test]
fn the_hosts_file_takes_precedence() {
    let fleet = [
        ("limits/web.toml", limit("web", "1/s")),
        ("rules.toml", limit("dns", "9/s")),
    ];
    let merged = merged(OWN, &fleet);
    assert_eq!(merged.replaced, [replaced("web", "web")]);
    let loaded = config::parse(Path::new("limits.toml"), &merged.text).unwrap();
    assert_eq!(names(&loaded.config), [("web", 5), ("dns", 9)]);
    let own = config::parse(Path::new("limits.toml"), OWN).unwrap().config;
    assert_eq!(loaded.config.agent, own.agent);
}

#[test]
fn no_rules_leave_the_file_as_it_means() {
    let config = |text: &str| {
        config::parse(Path::new("limits.toml"), text)
            .unwrap()
            .config
    };
    assert_eq!(config(&merged(OWN, &[]).text), config(OWN));
}

#[test]
fn rules_are_added_to_lists_of_any_notation() {
    let inline = "limit = [{ name = \"a\", rate = \"1/s\" }]\n[agent]\ninterfaces = [\"eth0\"]\n";
    let merged = merged(inline, &[("rules.toml", limit("b", "2/s"))]);
    let loaded = config::parse(Path::new("limits.toml"), &merged.text).unwrap();
    assert_eq!(names(&loaded.config), [("a", 1), ("b", 2)]);
}

#[test]
fn no_table_but_those_of_a_fleet_is_added() {
    let sneaky = "[agent]\ninterfaces = []\n[[notify]]\non = [\"ban\"]\ncommand = [\"/bin/sh\"]\n";
    let texts = objects(&[("rules.toml", sneaky.to_owned())]);
    let report = merge(Path::new("limits.toml"), OWN, [part("web", &texts)]).unwrap_err();
    let found = report.errors[0].to_string();
    assert!(found.starts_with("web/rules.toml:1:2: table"), "{found}");
}

#[test]
fn rules_of_teams_follow_those_of_the_fleet() {
    let fleet = objects(&[("rules.toml", limit("dns", "2/s"))]);
    let team = |name: &str| objects(&[("rules.toml", limit(name, "3/s"))]);
    let (search, pay) = (team("search-a"), team("pay-a"));
    let rights = |prefix: &str| Rights::Team {
        prefix: prefix.into(),
        limits: 1,
    };
    let (of_search, of_pay) = (rights("search-"), rights("pay-"));
    let of_fleet = Rights::Fleet {
        teams: vec!["search-".into(), "pay-".into()],
    };
    let parts = |last: &str| {
        let (rights, texts) = match last {
            "pay" => (&of_pay, &pay),
            // The host's file gives the stream another prefix than it had.
            _ => (&of_pay, &search),
        };
        let part = |stream, rights, texts| Part {
            stream,
            rights,
            texts,
        };
        [
            part("web", &of_fleet, &fleet),
            part("search", &of_search, &search),
            part("pay", rights, texts),
        ]
    };
    let own = format!("{OWN}{}", limit("search-a", "9/s"));
    let merged = merge(Path::new("limits.toml"), &own, parts("pay")).unwrap();
    assert_eq!(merged.replaced, [replaced("search", "search-a")]);
    let loaded = config::parse(Path::new("limits.toml"), &merged.text).unwrap();
    let expected = [("web", 5), ("search-a", 9), ("dns", 2), ("pay-a", 3)];
    assert_eq!(names(&loaded.config), expected);
    let report = merge(Path::new("limits.toml"), &own, parts("other")).unwrap_err();
    let found = report.errors[0].to_string();
    assert!(
        found.starts_with("pay/rules.toml:2:8: limit \"search-a\" does not begin"),
        "{found}"
    );
}

#[test]
fn faults_are_reported_with_their_file() {
    let fleet = objects(&[("rules.toml", limit("b", "2/s"))]);
    let broken = objects(&[("rules.toml", "[[limit".to_owned())]);
    for (own, fleet, place) in [
        ("[agent\n", &fleet, "limits.toml:1:"),
        (OWN, &broken, "web/rules.toml:1:"),
        ("\nlimit = 3\n", &fleet, "limits.toml:2:1"),
    ] {
        let report = merge(Path::new("limits.toml"), own, [part("web", fleet)]).unwrap_err();
        let found = report.errors[0].to_string();
        assert!(found.starts_with(place), "{found}");
    }
}
