use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use common::packet::{Address, Direction, Kind, Protocol};
use common::scope::{ScopeSpans, ScopedPacket, Scopes, Scoping, find};
use common::settings::{PortSpans, span_index};
use config::policy::{Config, Multiplier, Service};
use config::prefix::mapped;
use proptest::prelude::*;

use crate::compile::{CompileError, Image, compile};

fn config(text: &str) -> Config {
    let loaded = config::parse(Path::new("limits.toml"), text);
    loaded
        .unwrap_or_else(|report| panic!("{report}\n{text}"))
        .config
}

/// An image as the kernel reads it, with a name for the interface of index 1.
struct Loaded<'a>(&'a Image, &'a str);

impl Scopes for Loaded<'_> {
    fn scoping(&self) -> Scoping {
        self.0.settings.scoping
    }

    fn interface_number(&self, _index: u32) -> u32 {
        self.0.interfaces.of(std::iter::once(self.1))
    }

    fn port_row(&self, port: u16) -> u32 {
        self.0.ports[usize::from(port)].packed[0]
    }

    fn scope_spans(&self, row: u32) -> Option<&ScopeSpans> {
        self.0.scopes.get(row as usize)
    }

    fn rules_of_multiplier(&self) -> u32 {
        self.0.settings.rules_per_multiplier
    }
}

/// The limits of a packet by an image's rows, and the multiplier of their rules.
fn compiled(
    image: &Image,
    address: IpAddr,
    interface: &str,
    protocol: Protocol,
    port: u16,
) -> (BTreeSet<usize>, u32) {
    let Address { hi, lo } = Address::from_ipv6(mapped(address));
    let entry = image.entry(Address { hi, lo });
    let index = span_index(protocol, Kind::Plain);
    let has_port = matches!(protocol, Protocol::Tcp | Protocol::Udp);
    let settings = &image.settings;
    let (span, first) = match settings.spans_by {
        2 => {
            let packet = ScopedPacket::new(index);
            let packet = if has_port {
                packet.with_port(port)
            } else {
                packet
            };
            (
                find(&Loaded(image, interface), entry.source_index(), 1, packet),
                image.rules_of(entry),
            )
        }
        1 if has_port => (
            PortSpans::unpack(image.ports[usize::from(port)].packed[index]),
            0,
        ),
        _ => (settings.spans[index], 0),
    };
    let rows = span.first..span.first + span.count;
    let limits = rows.map(|row| {
        image.catalogue[(row - if span.count > 0 { first } else { 0 }) as usize]
            .at
            .limit
    });
    (
        limits.collect(),
        settings.scoping.multiplier(entry.source_index()),
    )
}

/// The same by evaluating the config.
fn naive(
    config: &Config,
    address: IpAddr,
    interface: &str,
    protocol: Protocol,
    port: u16,
) -> BTreeSet<usize> {
    use config::policy::ProtocolFilter as Filter;
    let has_port = matches!(protocol, Protocol::Tcp | Protocol::Udp);
    let applying = config.limits.iter().enumerate().filter(|(_, limit)| {
        limit.direction == Direction::Ingress
            && match limit.protocol {
                Filter::Any => true,
                Filter::Tcp => protocol == Protocol::Tcp,
                Filter::Udp => protocol == Protocol::Udp,
                Filter::Icmp => protocol == Protocol::Icmp,
            }
            && limit
                .ports
                .as_ref()
                .is_none_or(|ports| has_port && ports.contains(port))
            && limit
                .sources
                .as_ref()
                .is_none_or(|sources| sources.contains(address))
            && limit
                .interfaces
                .as_ref()
                .is_none_or(|list| list.iter().any(|pattern| pattern.matches(interface)))
    });
    applying.map(|(nth, _)| nth).collect()
}

/// The factor of the longest class prefix that contains an address.
fn factor(config: &Config, address: IpAddr) -> Multiplier {
    let all = config.classes.iter().flat_map(|class| {
        class
            .sources
            .iter()
            .map(move |prefix| (prefix, class.service()))
    });
    let longest = all
        .filter(|(prefix, _)| prefix.contains(address))
        .max_by_key(|(prefix, _)| prefix.mapped_length());
    match longest {
        Some((_, Service::Multiplier(multiplier))) => multiplier,
        _ => Multiplier::ONE,
    }
}

const PREFIXES: [&str; 12] = [
    "0.0.0.0/0",
    "10.0.0.0/8",
    "10.1.0.0/16",
    "10.1.1.0/24",
    "10.1.1.7",
    "192.0.2.0/24",
    "192.0.2.128/25",
    "::/0",
    "2001:db8::/32",
    "2001:db8:1::/48",
    "2001:db8:1:1::/64",
    "2001:db8:1:1::7",
];
const INTERFACES: [&str; 5] = ["eth0", "eth1", "wg*", "wg1", "e*"];
const NAMES: [&str; 6] = ["eth0", "eth1", "eth2", "wg0", "wg1", "lo"];

fn some_of(all: &'static [&'static str], most: usize) -> impl Strategy<Value = Vec<&'static str>> {
    proptest::sample::subsequence(all, 1..=most)
}

fn limits() -> impl Strategy<Value = String> {
    let sources = proptest::option::of((some_of(&PREFIXES, 5), any::<u8>()).prop_map(
        |(prefixes, excluded)| {
            let text = |(nth, prefix): (usize, &&str)| {
                format!(
                    "\"{}{prefix}\"",
                    if excluded >> nth & 1 == 1 { "!" } else { "" }
                )
            };
            format!(
                "sources = [{}]\n",
                prefixes
                    .iter()
                    .enumerate()
                    .map(text)
                    .collect::<Vec<_>>()
                    .join(", ")
            )
        },
    ));
    let interfaces = proptest::option::of(
        some_of(&INTERFACES, 3).prop_map(|names| format!("interfaces = {names:?}\n")),
    );
    let protocol = prop_oneof![
        Just(""),
        Just("protocol = \"udp\"\n"),
        Just("protocol = \"icmp\"\n")
    ];
    let ports = prop_oneof![
        Just(""),
        Just("ports = [53]\nprotocol = \"udp\"\n"),
        Just("ports = [53, \"80-90\"]\n")
    ];
    let traffic = prop_oneof![protocol, ports];
    let limit = (sources, interfaces, traffic).prop_map(|(sources, interfaces, traffic)| {
        format!(
            "{}{}{traffic}",
            sources.unwrap_or_default(),
            interfaces.unwrap_or_default()
        )
    });
    proptest::collection::vec(limit, 1..6).prop_map(|limits| {
        let text = |(nth, rest): (usize, &String)| {
            format!("[[limit]]\nname = \"l{nth}\"\nrate = \"10/s\"\n{rest}")
        };
        limits.iter().enumerate().map(text).collect()
    })
}

fn classes() -> impl Strategy<Value = String> {
    proptest::sample::subsequence(&PREFIXES[1..], 0..4).prop_map(|prefixes| {
        let class = |(nth, prefix): (usize, &&str)| {
            format!(
                "[[class]]\nname = \"c{nth}\"\nsources = [{prefix:?}]\nmultiplier = {}\n",
                nth + 2
            )
        };
        prefixes
            .iter()
            .filter(|prefix| **prefix != "::/0")
            .enumerate()
            .map(class)
            .collect()
    })
}

fn addresses() -> Vec<IpAddr> {
    let v4 = [
        [10, 1, 1, 7],
        [10, 1, 1, 8],
        [10, 1, 2, 1],
        [10, 2, 0, 1],
        [192, 0, 2, 1],
        [192, 0, 2, 200],
        [198, 51, 100, 1],
    ];
    let v6 = [
        "2001:db8:1:1::7",
        "2001:db8:1:1::8",
        "2001:db8:1:2::1",
        "2001:db8:2::1",
        "2001:db9::1",
        "::1",
    ];
    let v4 = v4
        .into_iter()
        .map(|octets| IpAddr::V4(Ipv4Addr::from(octets)));
    v4.chain(
        v6.into_iter()
            .map(|text| IpAddr::V6(text.parse::<Ipv6Addr>().unwrap())),
    )
    .collect()
}

proptest! {
    #[test]
    fn every_packet_comes_under_the_limits_that_the_config_says(
        limits in limits(),
        classes in classes(),
        held in prop_oneof![Just("\"e*\", \"wg*\""), Just("\"eth0\", \"eth1\", \"wg0\", \"wg1\"")],
    ) {
        let config = config(&format!("[agent]\ninterfaces = [{held}]\n{classes}{limits}"));
        let image = compile(&config, Direction::Ingress).unwrap();
        for address in addresses() {
            for interface in NAMES.iter().filter(|name| config.agent.interfaces.iter().any(|held| held.matches(name))) {
                for (protocol, port) in
                    [(Protocol::Udp, 53), (Protocol::Udp, 9), (Protocol::Tcp, 85), (Protocol::Icmp, 0), (Protocol::Other, 0)]
                {
                    let (found, multiplier) = compiled(&image, address, interface, protocol, port);
                    let expected = naive(&config, address, interface, protocol, port);
                    prop_assert_eq!(&found, &expected, "{} on {} {:?} {}", address, interface, protocol, port);
                    let entry = image.entry(Address::from_ipv6(mapped(address)));
                    prop_assert!(expected.iter().all(|limit| image.applies(*limit, entry)));
                    // The first multiplier is 1, the others are in the order of the classes.
                    let factors = std::iter::once(1.0).chain(config.classes.iter().enumerate().map(|(nth, _)| (nth + 2) as f64));
                    prop_assert_eq!(factors.collect::<Vec<_>>()[multiplier as usize], factor(&config, address).factor());
                }
            }
        }
    }
}

fn one(rest: &str) -> String {
    format!(
        "[agent]\ninterfaces = [\"eth0\", \"wg*\"]\n[[limit]]\nname = \"a\"\nrate = \"10/s\"\n{rest}"
    )
}

#[test]
fn limits_for_everybody_take_no_rows() {
    let image = compile(&config(&one("ports = [53]\n")), Direction::Ingress).unwrap();
    assert_eq!(
        (
            image.settings.spans_by,
            image.scopes.len(),
            image.settings.prefixes_in_use
        ),
        (1, 0, 0)
    );
    assert!(!image.interfaces.are_in_use());
    // Limits of the other direction have no effect.
    let text = one("")
        + "[[limit]]\nname = \"b\"\nrate = \"1/s\"\ndirection = \"egress\"\nsources = [\"192.0.2.0/24\"]\n";
    let config = config(&text);
    assert_eq!(
        compile(&config, Direction::Ingress)
            .unwrap()
            .settings
            .spans_by,
        0
    );
    assert_eq!(
        compile(&config, Direction::Egress)
            .unwrap()
            .settings
            .spans_by,
        2
    );
}

#[test]
fn more_sets_than_the_kernel_tells_apart_are_refused() {
    let limits = |count: usize, list: &dyn Fn(usize) -> String| -> String {
        (0..count)
            .map(|nth| {
                format!(
                    "[[limit]]\nname = \"l{nth}\"\nrate = \"10/s\"\n{}\n",
                    list(nth)
                )
            })
            .collect()
    };
    let agent = "[agent]\ninterfaces = [\"eth*\"]\n";
    let patterns = limits(7, &|nth| format!("interfaces = [\"eth{nth}*\"]"));
    let refused = compile(&config(&format!("{agent}{patterns}")), Direction::Ingress).unwrap_err();
    assert_eq!(refused, CompileError::TooManyPatterns { lists: 7 });
    let source = |nth: usize| format!("sources = [\"10.{}.{}.0/24\"]", nth / 256, nth % 256);
    let class = |nth: usize| {
        let prefix = format!("\"192.0.{}.{}\"", nth / 256, nth % 256);
        format!(
            "[[class]]\nname = \"c{nth}\"\nsources = [{prefix}]\nmultiplier = {}\n",
            nth + 2
        )
    };
    let classes: String = (0..600).map(class).collect();
    let of = |count: usize| {
        compile(
            &config(&format!("{agent}{classes}{}", limits(count, &source))),
            Direction::Ingress,
        )
    };
    assert!(of(7).is_ok());
    assert_eq!(
        of(8).unwrap_err(),
        CompileError::TooManySources {
            sources: 9,
            multipliers: 601
        }
    );
    let ports = limits(300, &|nth| {
        format!("{}\nports = [{}]", source(nth), nth + 1)
    });
    assert!(compile(&config(&format!("{agent}{ports}")), Direction::Ingress).is_ok());
    let many = limits(400, &|nth| {
        format!("{}\nports = [{}]", source(nth), nth + 1)
    });
    let refused = compile(&config(&format!("{agent}{many}")), Direction::Ingress).unwrap_err();
    assert_eq!(refused, CompileError::TooManyScopes { rows: 401 * 401 });
}

#[test]
fn a_pattern_that_excludes_a_name_excludes_its_interface() {
    let text = "[agent]\ninterfaces = [\"eth*\"]\n\
        [[limit]]\nname = \"a\"\nrate = \"1/s\"\ninterfaces = [\"!enp4s0\"]\n";
    let numbers = compile(&config(text), Direction::Ingress)
        .unwrap()
        .interfaces;
    let number = |names: &[&'static str]| numbers.of(names.iter().copied());
    assert_ne!(number(&["eth1"]), 0);
    assert_eq!(number(&["eth1", "enp4s0"]), 0);
}
