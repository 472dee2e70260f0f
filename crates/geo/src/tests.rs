use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use config::policy::{Class, Country, GeoKey, GeoKind, Multiplier, Prefix};
use proptest::prelude::*;
use testbed::mmdb::{Mmdb, Value, asn, country, map, text};

use super::*;

const NETWORKS: [&str; 4] = [
    "192.0.2.0/24",
    "198.51.100.0/25",
    "198.51.100.128/25",
    "203.0.113.7/32",
];

fn key(kind: GeoKind, name: &str) -> GeoKey {
    match kind {
        GeoKind::Asn => GeoKey::Asn(name.parse().unwrap()),
        GeoKind::Country => GeoKey::Country(Country::new(name).unwrap()),
    }
}

fn read(file: &[u8], kind: GeoKind, names: &[&str]) -> Result<Database, GeoError> {
    let wanted: BTreeSet<GeoKey> = names.iter().map(|name| key(kind, name)).collect();
    Database::read(file, kind, &wanted, false)
}

/// The prefixes of one key.
fn prefixes(file: &[u8], kind: GeoKind, name: &str) -> Vec<String> {
    let database = read(file, kind, &[name]).unwrap_or_else(|error| panic!("{error}"));
    database.prefixes[&key(kind, name)]
        .iter()
        .map(ToString::to_string)
        .collect()
}

/// Networks of AS 64500, with one of AS 64501 between them.
fn of_networks(ip_version: u16, record_size: u16) -> Mmdb {
    let mut file = Mmdb::new(ip_version, record_size).with("192.0.3.0/24", asn(64501));
    for network in NETWORKS {
        file = file.with(network, asn(64500));
    }
    if ip_version == 6 {
        file.with("2001:db8::/32", asn(64500))
            .with("2a00::/17", asn(64501))
    } else {
        file
    }
}

#[test]
fn prefixes_of_each_version_and_size_of_records_are_found_once_and_merged() {
    for ip_version in [4, 6] {
        for record_size in [24, 28, 32] {
            let file = of_networks(ip_version, record_size).bytes();
            let mut expected = vec!["192.0.2.0/24", "198.51.100.0/24", "203.0.113.7/32"];
            if ip_version == 6 {
                expected.push("2001:db8::/32");
            }
            assert_eq!(
                prefixes(&file, GeoKind::Asn, "64500"),
                expected,
                "{ip_version} {record_size}"
            );
            assert_eq!(prefixes(&file, GeoKind::Asn, "64502"), [""; 0]);
        }
    }
    let database = read(&of_networks(4, 24).bytes(), GeoKind::Asn, &["64500"]).unwrap();
    assert_eq!(
        (database.database_type.as_str(), database.built),
        ("Test", 1_700_000_000)
    );
}

#[test]
fn the_fields_of_each_publisher_are_read() {
    let asns = [
        asn(64500),
        map([("asn", text("AS64500")), ("name", text("Example"))]),
        map([
            ("asn", Value::Uint32(64500)),
            ("domain", Value::Array(vec![])),
        ]),
        map([("autonomous_system_number", text("64500"))]),
    ];
    for record in asns {
        let file = Mmdb::new(6, 28)
            .with("192.0.2.0/24", record.clone())
            .with("10.0.0.0/8", map([]))
            .bytes();
        assert_eq!(
            prefixes(&file, GeoKind::Asn, "64500"),
            ["192.0.2.0/24"],
            "{record:?}"
        );
    }
    let countries = [
        country("XX"),
        map([("country_code", text("XX"))]),
        map([
            ("country", text("XX")),
            ("asn", map([("asn", text("AS64500"))])),
        ]),
        map([("country", text("Example")), ("country_code", text("xx"))]),
    ];
    for record in countries {
        let none = map([("country_code", text("None"))]);
        let file = Mmdb::new(4, 24)
            .with("192.0.2.0/24", record.clone())
            .with("10.0.0.0/8", none)
            .bytes();
        assert_eq!(
            prefixes(&file, GeoKind::Country, "XX"),
            ["192.0.2.0/24"],
            "{record:?}"
        );
    }
}

#[test]
fn a_file_that_is_cut_short_is_an_error_at_every_length() {
    for (ip_version, record_size) in [(4, 24), (6, 28), (6, 32)] {
        let file = of_networks(ip_version, record_size).bytes();
        for length in 0..file.len() {
            let error = read(&file[..length], GeoKind::Asn, &["64500"])
                .unwrap_err()
                .to_string();
            assert!(error.ends_with("download it again"), "{length}: {error}");
        }
    }
}

#[test]
fn pointers_are_followed_and_circles_of_them_are_errors() {
    let mut file = Mmdb::new(4, 24);
    testbed::mmdb::encode(&Value::Uint32(64500), &mut file.data);
    let by_pointer = |offset| map([("autonomous_system_number", Value::Pointer(offset))]);
    assert_eq!(
        prefixes(
            &file.clone().with("192.0.2.0/24", by_pointer(0)).bytes(),
            GeoKind::Asn,
            "64500"
        ),
        ["192.0.2.0/24"]
    );
    let own = file.data.len() as u32;
    for wrong in [
        by_pointer(own),
        Value::Pointer(own),
        by_pointer(1 << 20),
        Value::Pointer(u32::MAX),
    ] {
        let file = file.clone().with("192.0.2.0/24", wrong.clone()).bytes();
        assert!(
            matches!(
                read(&file, GeoKind::Asn, &["64500"]),
                Err(GeoError::Invalid(_))
            ),
            "{wrong:?}"
        );
    }
}

#[test]
fn values_of_another_type_are_errors_and_another_kind_of_database_is_named() {
    for wrong in [map([]), Value::Array(vec![]), Value::Uint64(1 << 40)] {
        let record = map([("autonomous_system_number", wrong)]);
        let file = of_networks(6, 24).with("10.0.0.0/8", record).bytes();
        let error = read(&file, GeoKind::Asn, &["64500"])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("the number of an autonomous system"),
            "{error}"
        );
    }
    for wrong in [Value::Uint32(7), map([("iso_code", Value::Uint32(7))])] {
        let file = Mmdb::new(4, 24)
            .with("10.0.0.0/8", map([("country", wrong)]))
            .bytes();
        let error = read(&file, GeoKind::Country, &["XX"])
            .unwrap_err()
            .to_string();
        assert!(error.contains("the code of a country"), "{error}");
    }
    let not_a_map = Mmdb::new(4, 24)
        .with("10.0.0.0/8", Value::Uint32(64500))
        .bytes();
    assert!(matches!(
        read(&not_a_map, GeoKind::Asn, &["64500"]),
        Err(GeoError::Invalid(_))
    ));
    let error = read(&of_networks(4, 24).bytes(), GeoKind::Country, &["XX"])
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "it has no code of a country in any record (its type is \"Test\"); set [geo] country to a database of countries"
    );
    assert!(matches!(
        read(&Mmdb::new(6, 24).bytes(), GeoKind::Asn, &["1"]),
        Err(GeoError::OtherKind { .. })
    ));
}

#[test]
fn metadata_that_lies_is_an_error() {
    let honest = of_networks(6, 28);
    let lying = |node_count, claims| {
        let mut file = honest.clone();
        (file.node_count, file.claims) = (node_count, claims);
        file
    };
    let nodes = |count| lying(Some(count), (None, None));
    let claims = |size, version| lying(None, (size, version));
    for (what, file) in [
        ("no nodes", nodes(0)),
        ("few nodes", nodes(20)),
        ("more nodes than the file has", nodes(u32::MAX)),
        ("nodes in the data", nodes(500)),
        ("another size", claims(Some(24), None)),
        ("a larger size", claims(Some(32), None)),
        ("an impossible size", claims(Some(7), None)),
        ("another version", claims(None, Some(4))),
        ("an impossible version", claims(None, Some(5))),
    ] {
        assert!(
            read(&file.bytes(), GeoKind::Asn, &["64500"]).is_err(),
            "{what}"
        );
    }
}

#[test]
fn no_key_has_a_large_part_of_the_internet_and_no_ipv6_prefix_contains_ipv4() {
    for wide in ["0.0.0.0/3", "128.0.0.0/1", "2000::/3", "::/1"] {
        let version = if wide.contains(':') { 6 } else { 4 };
        let file = Mmdb::new(version, 24).with(wide, asn(64500)).bytes();
        let result = read(&file, GeoKind::Asn, &["64500"]);
        // ::/1 contains IPv4 addresses, and is left out.
        let is_refused = matches!(result, Err(GeoError::TooWide { .. }));
        assert!(
            is_refused || result.unwrap().prefixes[&GeoKey::Asn(64500)].is_empty(),
            "{wide}"
        );
    }
    // The networks around and beside the IPv4 addresses have the same record.
    let file = Mmdb::new(6, 24)
        .with("::/8", asn(64500))
        .with("2001:db8::/32", asn(64500))
        .bytes();
    assert_eq!(prefixes(&file, GeoKind::Asn, "64500"), ["2001:db8::/32"]);
}

fn number_of(key: &GeoKey) -> Option<u32> {
    match key {
        GeoKey::Asn(number) => Some(*number),
        GeoKey::Country(_) => None,
    }
}

fn country_of(key: &GeoKey) -> Option<Country> {
    match key {
        GeoKey::Asn(_) => None,
        GeoKey::Country(country) => Some(*country),
    }
}

fn class(name: &str, sources: &[&str], geo: &[GeoKey]) -> Class {
    Class {
        name: name.to_owned(),
        sources: parsed(sources),
        asn: geo.iter().filter_map(number_of).collect(),
        country: geo.iter().filter_map(country_of).collect(),
        multiplier: Multiplier::ONE,
        unlimited: false,
    }
}

fn parsed(texts: &[&str]) -> Vec<Prefix> {
    texts
        .iter()
        .map(|text| config::prefix::parse(text).unwrap_or_else(|_| panic!("{text}")))
        .collect()
}

#[test]
fn sources_take_precedence_and_then_the_first_class() {
    let network = parsed(&["198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32"]);
    let region = parsed(&[
        "192.0.2.0/24",
        "198.51.0.0/16",
        "203.0.113.7",
        "203.0.113.64/26",
        "2001:db8:7::/48",
    ]);
    let (asn, country) = (GeoKey::Asn(64500), key(GeoKind::Country, "XX"));
    let find = |key| {
        if key == asn {
            network.as_slice()
        } else {
            region.as_slice()
        }
    };
    let classes = [
        class("payer", &["198.51.100.0/22", "192.0.2.0/24"], &[]),
        class("partner", &[], &[asn]),
        class("region", &["203.0.113.64/26"], &[country]),
    ];
    let Classes { classes, overlaps } = with_prefixes(classes.to_vec(), find);
    let shown = |nth: usize| {
        classes[nth]
            .sources
            .iter()
            .map(Prefix::short)
            .collect::<Vec<_>>()
    };
    assert_eq!(shown(0), ["198.51.100.0/22", "192.0.2.0/24"]);
    // 198.51.100.0/24 is within the sources of "payer".
    assert_eq!(shown(1), ["203.0.113.0/24", "2001:db8::/32"]);
    assert_eq!(shown(2), ["203.0.113.64/26", "198.51.0.0/16"]);
    assert_eq!(
        overlaps,
        [
            "4 of 5 prefixes of class \"region\" overlap with networks or countries of classes before it, which take \
          precedence"
        ]
    );
}

#[test]
fn all_networks_are_read_if_requested() {
    let file = Mmdb::new(6, 24)
        .with("192.0.2.0/24", asn(64_500))
        .with("198.51.100.0/25", asn(4_200_000_000))
        .with("2001:db8::/32", asn(64_500))
        .with("203.0.113.0/24", asn(4_000_000_000))
        .bytes();
    let wanted = [GeoKey::Asn(64_500)].into();
    let database = Database::read(&file, GeoKind::Asn, &wanted, true).unwrap();
    assert_eq!(database.prefixes[&GeoKey::Asn(64_500)].len(), 2);
    let AllNetworks { prefixes, reserved } = database.networks.unwrap();
    let found: BTreeSet<(String, u32)> = prefixes
        .iter()
        .map(|(prefix, number)| (prefix.short(), *number))
        .collect();
    let expected = [
        ("192.0.2.0/24", 64_500),
        ("198.51.100.0/25", 1 << 28),
        ("2001:db8::/32", 64_500),
    ];
    assert_eq!(
        found,
        expected
            .map(|(prefix, number)| (prefix.to_owned(), number))
            .into()
    );
    assert_eq!(reserved, 1);
    assert_eq!(
        Database::read(&file, GeoKind::Asn, &wanted, false)
            .unwrap()
            .networks,
        None
    );
    let wide = Mmdb::new(6, 24).with("64.0.0.0/3", asn(64_500)).bytes();
    let error = Database::read(&wide, GeoKind::Asn, &BTreeSet::new(), true).unwrap_err();
    assert!(error.to_string().contains("AS64500"), "{error}");
}

fn of<'p>(
    list: &'p str,
    class: &'p str,
    prefixes: &'p [Prefix],
) -> ClassPrefixes<'p, impl Iterator<Item = Prefix> + 'p> {
    ClassPrefixes {
        list,
        class,
        prefixes: prefixes.iter().copied(),
    }
}

#[test]
fn a_prefix_of_several_lists_is_in_the_class_of_its_sources_or_of_the_first_list() {
    let classes = [
        class("a", &["192.0.2.0/24"], &[]),
        class("b", &[], &[GeoKey::Asn(1)]),
        class("c", &[], &[]),
    ];
    let (first, second) = (
        parsed(&["192.0.2.0/24", "198.51.100.7", "192.0.2.64/26"]),
        parsed(&["198.51.100.7", "203.0.113.0/24"]),
    );
    let lists = [
        of("one", "b", &first),
        of("two", "c", &second),
        of("gone", "z", &second),
    ];
    let Classes { classes, overlaps } = with_lists(classes.to_vec(), lists.into_iter());
    let shown = |nth: usize| {
        classes[nth]
            .sources
            .iter()
            .map(Prefix::short)
            .collect::<Vec<_>>()
    };
    assert_eq!(shown(0), ["192.0.2.0/24"]);
    assert_eq!(shown(1), ["198.51.100.7", "192.0.2.64/26"]);
    assert_eq!(shown(2), ["203.0.113.0/24"]);
    let expected = ["one\" are in", "two\" are in"];
    assert!(
        overlaps.len() == 2
            && overlaps
                .iter()
                .zip(expected)
                .all(|(note, part)| note.contains(part)),
        "{overlaps:?}"
    );
    // Databases come after them.
    let network = parsed(&["203.0.113.0/25", "198.51.0.0/16"]);
    let resolved = with_prefixes(classes, |_| &network).classes;
    assert_eq!(
        resolved[1].sources.last().map(Prefix::short).as_deref(),
        Some("198.51.0.0/16")
    );
    let class_of = |address: [u8; 4]| {
        config::policy::class_of(&resolved, IpAddr::from(address))
            .unwrap()
            .name
            .clone()
    };
    assert_eq!(
        (
            class_of([203, 0, 113, 1]),
            class_of([192, 0, 2, 65]),
            class_of([192, 0, 2, 1])
        ),
        ("c".into(), "b".into(), "a".into())
    );
}

/// A class's number for an address, by its definition.
fn class_by_definition(
    classes: &[Class],
    find: &dyn Fn(GeoKey) -> Vec<Prefix>,
    address: IpAddr,
) -> Option<usize> {
    let literal = classes
        .iter()
        .enumerate()
        .flat_map(|(nth, class)| class.sources.iter().map(move |it| (it, nth)));
    let literal = literal.filter(|(prefix, _)| prefix.contains(address));
    let longest = literal
        .max_by_key(|(prefix, _)| prefix.mapped_length())
        .map(|(_, nth)| nth);
    longest.or_else(|| {
        classes.iter().position(|class| {
            class
                .geo()
                .iter()
                .any(|key| find(*key).iter().any(|it| it.contains(address)))
        })
    })
}

fn some_prefixes() -> impl Strategy<Value = Vec<Prefix>> {
    let prefix = (0u32..256, 24u8..=32).prop_map(|(address, length)| {
        Prefix::from(
            ipnet::IpNet::new(Ipv4Addr::from(0xc000_0200 | address).into(), length).unwrap(),
        )
    });
    prop::collection::vec(prefix, 0..8)
}

proptest! {
    #[test]
    fn each_address_has_the_class_that_the_definition_says(
        literal in prop::collection::vec(some_prefixes(), 4), found in prop::collection::vec(some_prefixes(), 4),
        last in any::<u8>(),
    ) {
        // A prefix is in the sources of one class.
        let mut seen = BTreeSet::new();
        let classes: Vec<Class> = literal.into_iter().zip(1u32..).map(|(sources, number)| Class {
            name: number.to_string(),
            sources: sources.into_iter().filter(|prefix| seen.insert(*prefix)).collect(),
            asn: vec![number],
            country: Vec::new(),
            multiplier: Multiplier::ONE,
            unlimited: true,
        }).collect();
        let at = |key: GeoKey| match key {
            GeoKey::Asn(number) => found[number as usize - 1].as_slice(),
            GeoKey::Country(_) => &[],
        };
        let resolved = with_prefixes(classes.clone(), at).classes;
        let address = IpAddr::from([192, 0, 2, last]);
        let expected = class_by_definition(&classes, &|key| at(key).to_vec(), address).map(|nth| &classes[nth].name);
        prop_assert_eq!(config::policy::class_of(&resolved, address).map(|class| &class.name), expected);
        let mut distinct = BTreeSet::new();
        prop_assert!(resolved.iter().flat_map(|class| &class.sources).all(|prefix| distinct.insert(*prefix)));
    }

    #[test]
    fn no_damage_of_a_file_stops_the_reader(
        ip_version in prop_oneof![Just(4u16), Just(6)], size in prop_oneof![Just(24u16), Just(28), Just(32)],
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut file = of_networks(ip_version, size).bytes();
        for (at, byte) in damage {
            let at = at.index(file.len());
            file[at] = byte;
        }
        let _ = read(&file, GeoKind::Asn, &["64500"]);
    }
}

#[test]
fn a_country_with_two_hundred_thousand_prefixes_is_read() {
    let mut file = Mmdb::new(6, 28);
    let (wanted, other) = (country("XX"), country("YY"));
    for nth in 0..400_000u32 {
        let record = if nth % 2 == 0 { &wanted } else { &other };
        file.add(
            Ipv4Addr::from(0x0100_0000 + (nth << 8)).into(),
            24,
            record.clone(),
        );
    }
    let bytes = file.bytes();
    let began = Instant::now();
    let database = read(&bytes, GeoKind::Country, &["XX"]).unwrap();
    let read = began.elapsed();
    let found = &database.prefixes[&key(GeoKind::Country, "XX")];
    assert_eq!(found.len(), 200_000);
    let classes = [class("region", &[], &[key(GeoKind::Country, "XX")])];
    let resolved = with_prefixes(classes.to_vec(), |_| found);
    println!(
        "reading took {read:?}, and the class {:?}, of {} bytes",
        began.elapsed() - read,
        bytes.len()
    );
    assert_eq!(resolved.classes[0].sources.len(), 200_000);
}
