use std::path::Path;

use crate::policy::{LimitSources, ListSource};
use crate::{Loaded, parse};

const AGENT: &str = "[agent]\ninterfaces = [\"eth0\"]\nallow_empty = true\n";
const GEO: &str = "[geo]\nasn = \"/a.mmdb\"\ncountry = \"/c.mmdb\"\n";

fn read(text: &str) -> Result<Loaded, String> {
    parse(Path::new("limits.toml"), &format!("{AGENT}{text}")).map_err(|report| {
        let of = |error: &crate::report::Placed| format!("{}; {}", error.message, error.help);
        report.errors.iter().map(of).collect::<Vec<_>>().join("\n")
    })
}

#[test]
fn classes_and_lists_take_networks_and_countries() {
    let text = format!(
        "{GEO}[[class]]\nname = \"a\"\nsources = [\"192.0.2.0/24\"]\nasn = [64500, 4294967295]\ncountry = [\"xx\"]\n\
         [[class]]\nname = \"b\"\nasn = [1]\nunlimited = true\n\
         [[ban_list]]\nname = \"c\"\nasn = [64500]\ncountry = [\"YY\"]\nallow_shrink = true\n"
    );
    let loaded = read(&text).unwrap();
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let config = loaded.config;
    assert_eq!(
        crate::schema::summary(&config.classes[0]),
        "sources = [192.0.2.0/24], asn = [64500, 4294967295], country = [XX]"
    );
    assert_eq!(
        crate::schema::summary(&config.ban_lists[0]),
        "asn = [64500], country = [YY], allow_shrink = true"
    );
    assert!(matches!(&config.ban_lists[0].source(), ListSource::Geo(keys) if keys.len() == 2));
    assert_eq!(config.geo.country.as_deref(), Some(Path::new("/c.mmdb")));
}

#[test]
fn a_limit_is_for_networks_and_countries_and_a_written_prefix_decides_within() {
    let text = format!(
        "{GEO}[[limit]]\nname = \"a\"\nrate = \"5/s\"\nasn = [64500]\ncountry = [\"XX\"]\nsources = [\"!192.0.2.0/24\", \"10.0.0.1\"]\n"
    );
    let loaded = read(&text).unwrap();
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let sources = loaded.config.limits[0].sources.clone().unwrap();
    assert_eq!(
        sources.texts(),
        ["!192.0.2.0/24", "10.0.0.1", "AS64500", "country XX"]
    );
    let summary = loaded.config.limits[0].summary();
    assert!(
        summary.ends_with("from 10.0.0.1, AS64500, country XX except from 192.0.2.0/24"),
        "{summary}"
    );
    let contains =
        |sources: &LimitSources, address: &str| sources.contains(address.parse().unwrap());
    // Without a database it is for no others.
    assert!(contains(&sources, "10.0.0.1") && !contains(&sources, "10.0.0.2"));
    let prefixes = ["192.0.2.7", "192.0.0.0/16", "10.0.0.0/24", "10.0.0.0/24"];
    let with = sources.with_prefixes(
        prefixes
            .map(|text| crate::prefix::parse(text).unwrap())
            .into_iter(),
    );
    assert_eq!((with.of_geo.len(), with.texts()), (2, sources.texts()));
    assert!(contains(&with, "10.0.0.2") && contains(&with, "192.0.1.1"));
    assert!(!contains(&with, "192.0.2.7") && !contains(&with, "11.0.0.1"));
}

#[test]
fn every_error_says_what_to_write() {
    let class = |lines: &str| format!("{GEO}[[class]]\nname = \"a\"\n{lines}\n");
    let list = |lines: &str| format!("{GEO}[[ban_list]]\nname = \"a\"\n{lines}\n");
    for (text, message, help) in [
        (
            "[[geo]]\nasn = \"/a\"".to_owned(),
            "geo is an array",
            "[geo]",
        ),
        (
            "[geo]\nasn = \"asn.mmdb\"".to_owned(),
            "\"asn.mmdb\" is not an absolute path",
            "begin it with /",
        ),
        (
            "[geo]\ncity = \"/a\"".to_owned(),
            "unknown key \"city\" in [geo]",
            "asn, country",
        ),
        (class("asn = 64500"), "asn is an integer", "asn = [64500]"),
        (
            class("asn = [\"AS64500\"]"),
            "asn is a string",
            "asn = [64500]",
        ),
        (
            class("asn = [0]"),
            "asn is out of range",
            "from 1 to 4294967295",
        ),
        (
            class("asn = [4294967296]"),
            "asn is out of range",
            "from 1 to 4294967295",
        ),
        (
            class("country = [\"XXX\"]"),
            "invalid country \"XXX\"",
            "ISO 3166-1",
        ),
        (class("country = [\"é\"]"), "invalid country", "two letters"),
        (
            class("multiplier = 2"),
            "missing key \"sources\" in [[class]]",
            "or asn or country",
        ),
        (
            class("asn = [1, 1]"),
            "duplicate source AS1: it is in class \"a\" already",
            "one class",
        ),
        (
            class("country = [\"XX\"]\n[[class]]\nname = \"b\"\ncountry = [\"xx\"]"),
            "duplicate source country XX: it is in class \"a\" already",
            "one class",
        ),
        (
            "[geo]\nasn = \"/a\"\n[[class]]\nname = \"a\"\nasn = [1]\ncountry = [\"XX\"]"
                .to_owned(),
            "country XX requires a database: [geo] country is not set",
            "set [geo] country = ",
        ),
        (
            "[[ban_list]]\nname = \"a\"\nasn = [1]".to_owned(),
            "AS1 requires a database",
            "set [geo] asn = ",
        ),
        (
            list("asn = [1]\nfile = \"/f\""),
            "file conflicts with asn and country",
            "leave out one",
        ),
        (
            list("asn = [1]\nurl = \"https://lists.example/\""),
            "url conflicts with asn and country",
            "leave out one",
        ),
        (
            list("asn = [1]\nevery = \"1h\""),
            "every conflicts with asn and country",
            "leave out every",
        ),
        (
            list("country = [\"XX\"]\nformat = \"netset\""),
            "format conflicts with asn and country",
            "leave out format",
        ),
        (
            list("asn = []"),
            "asn and country are empty",
            "asn = [64500]",
        ),
        (
            list("asn = [1, 1]"),
            "duplicate source AS1",
            "write it once",
        ),
        (list(""), "missing source of a ban list", "asn or country"),
        (
            "[[limit]]\nname = \"a\"\nrate = \"1/s\"\nkey = \"asn\"".to_owned(),
            "key = \"asn\" requires a database: [geo] asn is not set",
            "set [geo] asn = ",
        ),
        (
            format!(
                "{GEO}[[limit]]\nname = \"a\"\nrate = \"1/s\"\nkey = \"asn\"\n\
                 escalate = {{ after = 9, within = \"9s\", ban = \"9m\" }}"
            ),
            "escalate requires a key with a source: key = \"asn\" has none to ban",
            "set key = \"source\"",
        ),
        (
            list("file = \"/f\"\naction = \"drop\""),
            "unknown action \"drop\"",
            "action = \"class:NAME\"",
        ),
        (
            list("file = \"/f\"\naction = \"class:b\""),
            "unknown class \"b\"",
            "add a [[class]] with name = \"b\"",
        ),
        (
            format!(
                "{}[[class]]\nname = \"partner\"\nasn = [1]\n",
                list("file = \"/f\"\naction = \"class:patrner\"")
            ),
            "unknown class \"patrner\"",
            "did you mean \"partner\"?",
        ),
        (
            format!(
                "{}[[class]]\nname = \"b\"\nasn = [1]\n",
                list("asn = [1]\naction = \"class:b\"")
            ),
            "action \"class:b\" conflicts with asn and country",
            "write asn and country in the [[class]]",
        ),
    ] {
        let errors = read(&text).map(|_| ()).unwrap_err();
        let found = errors
            .lines()
            .find(|line| line.contains(message) && line.contains(help));
        assert!(found.is_some(), "{text}\n{errors}");
    }
}

#[test]
fn a_database_without_use_is_warned_of_and_so_is_a_class_without_sources() {
    let warnings = |text: &str| -> Vec<String> {
        read(text)
            .unwrap()
            .warnings
            .iter()
            .map(|warning| warning.message.clone())
            .collect()
    };
    assert_eq!(
        warnings(&format!("{GEO}[[class]]\nname = \"a\"\nasn = [1]\n")),
        ["[geo] country has no effect: no class, ban list or limit has country"]
    );
    let none = "[geo]\nasn = \"/a.mmdb\"\n[[class]]\nname = \"a\"\nasn = []\n";
    assert_eq!(
        warnings(none),
        [
            "class \"a\" has no effect: sources is empty",
            "[geo] asn has no effect: no class, ban list or limit has asn"
        ]
    );
}

#[test]
fn a_class_of_a_list_requires_no_sources() {
    let text = "[[class]]\nname = \"a\"\nmultiplier = 2\n\
                [[ban_list]]\nname = \"b\"\nfile = \"/f\"\naction = \"class:a\"\n";
    let loaded = read(text).unwrap();
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    assert_eq!(loaded.config.ban_lists[0].class(), Some("a"));
    assert_eq!(
        crate::schema::summary(&loaded.config.ban_lists[0]),
        "file = /f, action = class:a"
    );
}

#[test]
fn a_limit_by_network_uses_the_database_and_has_wider_prefixes_outside_of_all() {
    let geo = "[geo]\nasn = \"/a.mmdb\"\n[[limit]]\nname = \"a\"\nrate = \"10/s\"\nkey = \"asn\"\n";
    let loaded = read(geo).unwrap();
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let limit = &loaded.config.limits[0];
    assert_eq!((limit.ipv4_prefix, limit.ipv6_prefix), (24, 48));
    assert_eq!(
        limit.summary(),
        "ingress any  10 packets/s per network (AS; outside of all IPv4 /24, IPv6 /48), burst 10, drop"
    );
    let limit = read(&format!("{geo}ipv4_prefix = 20\n"))
        .unwrap()
        .config
        .limits[0]
        .clone();
    assert_eq!((limit.ipv4_prefix, limit.ipv6_prefix), (20, 48));
}
