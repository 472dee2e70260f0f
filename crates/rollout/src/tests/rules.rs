//! Tables and names that a fleet may set.

use std::collections::BTreeMap;
use std::path::Path;

use crate::rules::{Rights, check};
use crate::testing::limit;

fn texts(objects: &[(&str, &str)]) -> BTreeMap<String, String> {
    let objects = objects.iter();
    objects
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
        .collect()
}

fn fault(objects: &[(&str, &str)]) -> String {
    fault_of(objects, &Rights::all())
}

fn fault_of(objects: &[(&str, &str)], rights: &Rights) -> String {
    let report = check(Path::new(""), &texts(objects), rights).unwrap_err();
    let error = &report.errors[0];
    let file = error.file.display();
    let (line, column) = (error.line, error.column);
    format!("{file}:{line}:{column}: {}", error.message)
}

#[test]
fn tables_of_the_host_are_refused_with_their_position() {
    for (text, position) in [
        ("[agent]\ninterfaces = [\"eth0\"]\n", "1:2"),
        ("[agent]\ncontrol = \"/tmp/s\"\n", "1:2"),
        ("agent.protect = false\n", "1:1"),
        ("\n\n[fleet]\nrules = \"https://a\"\n", "3:2"),
        ("[cluster]\nstore = \"redis://a\"\n", "1:2"),
        ("[crowdsec]\nurl = \"http://a\"\n", "1:2"),
        ("[decide]\nhttp = \"0.0.0.0:1\"\n", "1:2"),
        ("[geo]\nasn = \"/etc/shadow\"\n", "1:2"),
        (
            "[[notify]]\non = [\"ban\"]\ncommand = [\"/bin/sh\"]\n",
            "1:3",
        ),
        ("anything = 1\n", "1:1"),
    ] {
        let text = format!("{}{text}", "");
        let found = fault(&[("rules.toml", &text)]);
        let start = format!("rules.toml:{position}: table ");
        assert!(found.starts_with(&start), "{found} {text}");
    }
}

#[test]
fn the_fleets_tables_are_accepted() {
    let all = "[[class]]\nname = \"a\"\n[[limit]]\nname = \"b\"\n[[request]]\nname = \"c\"\n\
               [[ban_list]]\nname = \"d\"\n[[group]]\nname = \"e\"\n";
    let one = limit("f", "1/s");
    let objects = [("rules.toml", all), ("limits/f.toml", one.as_str())];
    let folder = Path::new("");
    assert_eq!(check(folder, &texts(&objects), &Rights::all()), Ok(()));
}

#[test]
fn syntax_and_kinds_of_values_are_checked_with_their_position() {
    let found = fault(&[("rules.toml", "[[limit]]\nname = \"a\"\nrate = \n")]);
    assert!(found.starts_with("rules.toml:3:"), "{found}");
    let found = fault(&[("rules.toml", "\nlimit = 3\n")]);
    assert_eq!(found, "rules.toml:2:1: \"limit\" is no list of tables");
    let found = fault(&[("rules.toml", "[[limit]]\nrate = \"1/s\"\n")]);
    assert!(found.ends_with("a [[limit]] has no name"), "{found}");
}

#[test]
fn names_are_unique_over_all_objects() {
    let one = limit("a", "1/s");
    let two = format!("{one}{}", limit("a", "2/s"));
    let found = fault(&[("rules.toml", &two)]);
    assert_eq!(
        found,
        "rules.toml:5:8: duplicate [[limit]] \"a\" in this release"
    );
    let found = fault(&[("limits/a.toml", &one), ("rules.toml", &one)]);
    assert!(found.starts_with("rules.toml:2:8: duplicate"), "{found}");
}

#[test]
fn an_object_of_a_limit_has_that_limit_alone() {
    let two = format!("{}{}", limit("a", "1/s"), limit("b", "1/s"));
    let class = format!("{}[[class]]\nname = \"c\"\n", limit("a", "1/s"));
    for text in [limit("b", "1/s"), two, class, String::new()] {
        let found = fault(&[("limits/a.toml", &text)]);
        assert!(found.contains("other contents than limit \"a\""), "{found}");
    }
}

#[test]
fn a_team_sets_its_own_limits_only() {
    let rights = Rights::Team {
        prefix: "search-".into(),
        limits: 2,
    };
    let [one, two, three] = ["search-a", "search-b", "search-c"].map(|name| limit(name, "1/s"));
    let objects = [("limits/search-a.toml", one.as_str()), ("rules.toml", &two)];
    let folder = Path::new("");
    assert_eq!(check(folder, &texts(&objects), &rights), Ok(()));
    let foreign = limit("web", "1/s");
    let many = format!("{two}{three}");
    let replaces = |name: &str| format!("{two}replaces = {name:?}\n");
    let (others, own) = (replaces("web"), replaces("search-a"));
    let clustered = |by: &str| format!("{two}cluster = {by:?}\n");
    let (keys, shares) = (clustered("keys"), clustered("shares"));
    let class = "[[class]]\nname = \"search-c\"\nunlimited = true\n";
    for (text, expected) in [
        (
            foreign.as_str(),
            "rules.toml:2:8: limit \"web\" does not begin with \"search-\"",
        ),
        (
            &many,
            "rules.toml:5:8: limit \"search-c\" is above the 2 limits of this team",
        ),
        (
            &others,
            "rules.toml:4:12: limit \"search-b\" replaces \"web\", which does not begin with \"search-\"",
        ),
        (
            &keys,
            "rules.toml:4:11: limit \"search-b\" of a team has cluster = \"keys\"",
        ),
        (
            class,
            "rules.toml:1:3: table \"class\" cannot be set by this release",
        ),
    ] {
        let objects = [("limits/search-a.toml", one.as_str()), ("rules.toml", text)];
        assert_eq!(fault_of(&objects, &rights), expected);
    }
    let objects = [("rules.toml", shares.as_str())];
    assert_eq!(check(folder, &texts(&objects), &rights), Ok(()));
    let objects = [("rules.toml", own.as_str())];
    assert_eq!(check(folder, &texts(&objects), &rights), Ok(()));
}

#[test]
fn the_fleet_sets_no_limits_of_teams() {
    let rights = Rights::Fleet {
        teams: vec!["pay-".into(), "search-".into()],
    };
    let own = format!("{}{}", limit("search", "1/s"), limit("search-a", "1/s"));
    assert_eq!(
        fault_of(&[("rules.toml", &own)], &rights),
        "rules.toml:5:8: limit \"search-a\" has the prefix \"search-\" of a team"
    );
    let replaces = format!("{}replaces = \"pay-a\"\n", limit("search", "1/s"));
    assert_eq!(
        fault_of(&[("rules.toml", &replaces)], &rights),
        "rules.toml:4:12: limit \"search\" replaces \"pay-a\" of a team"
    );
    // Other tables have names of their own.
    let request = "[[request]]\nname = \"search-a\"\n";
    let objects = texts(&[("rules.toml", request)]);
    assert_eq!(check(Path::new(""), &objects, &rights), Ok(()));
}
