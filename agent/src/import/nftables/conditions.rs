//! Matches of nftables as conditions.

use std::rc::Rc;

use super::super::iptables::interface;
use super::super::json::Json;
use super::super::prefixes;
use super::super::rule::{Conditions, Connection, Family, Protocol, Sources};

/// Adds a `match`; adds what Weir does not have as `others`.
pub fn add(statement: &Json, table: &str, conditions: &mut Conditions) {
    let operator = statement.text_of("op").unwrap_or("==");
    let (Some(left), Some(right)) = (statement.get("left"), statement.get("right")) else {
        return conditions.other("an unknown match");
    };
    let is_equal = matches!(operator, "==" | "in");
    if is_loopback(left, right) && operator == "!=" {
        return;
    }
    let is_known = is_equal
        && match left.entry() {
            Some(("payload", payload)) => add_payload(payload, right, table, conditions),
            Some(("meta", meta)) => add_meta(meta, right, conditions),
            Some(("ct", ct)) => ct.text_of("key") == Some("state") && add_states(right, conditions),
            Some(("&", mask)) => add_flags(mask.elements(), operator, right, conditions),
            _ => false,
        };
    if !is_known {
        let negation = if is_equal { "" } else { operator };
        conditions.other(format!(
            "{negation}{}{}",
            if negation.is_empty() { "" } else { " " },
            name(left)
        ));
    }
}

/// A short name of the left side.
fn name(left: &Json) -> String {
    let part = |value: &Json| {
        let text = |key| value.text_of(key).unwrap_or_default().to_owned();
        format!("{} {}{}", text("protocol"), text("field"), text("key"))
            .trim()
            .to_owned()
    };
    match left.entry() {
        Some(("payload", payload)) => part(payload),
        Some((kind @ ("meta" | "ct" | "fib" | "rt"), value)) => format!("{kind} {}", part(value)),
        Some((kind, _)) => kind.chars().take(20).collect(),
        None => "an unknown match".to_owned(),
    }
}

fn is_loopback(left: &Json, right: &Json) -> bool {
    let key = left.get("meta").and_then(|meta| meta.text_of("key"));
    matches!(key, Some("iif" | "iifname")) && right.text() == Some("lo")
}

fn add_payload(payload: &Json, right: &Json, table: &str, conditions: &mut Conditions) -> bool {
    match (payload.text_of("protocol"), payload.text_of("field")) {
        (Some("ip"), Some("saddr")) => {
            conditions.restrict_family(Family::V4) && add_sources(right, table, conditions)
        }
        (Some("ip6"), Some("saddr")) => {
            conditions.restrict_family(Family::V6) && add_sources(right, table, conditions)
        }
        (Some("ip"), Some("protocol")) => {
            conditions.restrict_family(Family::V4) && add_protocol(right, conditions)
        }
        (Some("ip6"), Some("nexthdr")) => {
            conditions.restrict_family(Family::V6) && add_protocol(right, conditions)
        }
        (Some("tcp"), Some("dport")) => {
            conditions.restrict_protocol(Protocol::Tcp) && add_ports(right, conditions)
        }
        (Some("udp"), Some("dport")) => {
            conditions.restrict_protocol(Protocol::Udp) && add_ports(right, conditions)
        }
        (Some("th"), Some("dport")) => {
            conditions.protocol.is_some() && add_ports(right, conditions)
        }
        // SYN with or without ACK: Weir counts those without.
        (Some("tcp"), Some("flags")) if right.text() == Some("syn") => {
            conditions.connection = Connection::Syn;
            conditions.restrict_protocol(Protocol::Tcp)
        }
        // Other fields are no conditions of Weir's, but only packets of this protocol have them.
        (Some(protocol), _) => {
            let protocol = match protocol {
                "tcp" => Protocol::Tcp,
                "udp" => Protocol::Udp,
                "icmp" | "icmpv6" => Protocol::Icmp,
                _ => return false,
            };
            conditions.restrict_protocol(protocol);
            false
        }
        _ => false,
    }
}

fn add_meta(meta: &Json, right: &Json, conditions: &mut Conditions) -> bool {
    match meta.text_of("key") {
        Some("iif" | "iifname") => {
            let names = right.get("set").unwrap_or(right).elements();
            let names: Option<Vec<String>> = names
                .iter()
                .map(|name| Some(interface(name.text()?, conditions)))
                .collect();
            if conditions.interfaces.is_some() {
                return false;
            }
            conditions.interfaces = names;
            conditions.interfaces.is_some()
        }
        Some("l4proto") => add_protocol(right, conditions),
        Some("nfproto" | "protocol") => match right.text() {
            Some("ipv4" | "ip") => conditions.restrict_family(Family::V4),
            Some("ipv6" | "ip6") => conditions.restrict_family(Family::V6),
            _ => false,
        },
        _ => false,
    }
}

fn add_protocol(right: &Json, conditions: &mut Conditions) -> bool {
    match (right.text(), right.number()) {
        (Some("tcp"), _) | (_, Some(6)) => conditions.restrict_protocol(Protocol::Tcp),
        (Some("udp"), _) | (_, Some(17)) => conditions.restrict_protocol(Protocol::Udp),
        (Some("icmp"), _) | (_, Some(1)) => {
            conditions.restrict_protocol(Protocol::Icmp) && conditions.restrict_family(Family::V4)
        }
        (Some("ipv6-icmp" | "icmpv6"), _) | (_, Some(58)) => {
            conditions.restrict_protocol(Protocol::Icmp) && conditions.restrict_family(Family::V6)
        }
        _ => false,
    }
}

fn add_sources(right: &Json, table: &str, conditions: &mut Conditions) -> bool {
    if conditions.sources.is_some() {
        return false;
    }
    if let Some(name) = right.text().and_then(|text| text.strip_prefix('@')) {
        conditions.sources = Some(Sources::Set(format!("{table} {name}")));
        return true;
    }
    let mut sources = Vec::new();
    let elements = right
        .get("set")
        .map_or_else(|| std::slice::from_ref(right), Json::elements);
    let are_all = elements.iter().all(|element| append(element, &mut sources));
    if !are_all || sources.is_empty() || sources.iter().any(|prefix| prefix.prefix_len() == 0) {
        return false;
    }
    conditions.sources = Some(Sources::Prefixes(Rc::from(sources)));
    true
}

fn add_ports(right: &Json, conditions: &mut Conditions) -> bool {
    if conditions.ports.is_some() {
        return false;
    }
    let port = |value: &Json| u16::try_from(value.number()?).ok().filter(|port| *port > 0);
    let range = |element: &Json| match element.get("range").map(Json::elements) {
        Some([first, last]) => {
            Some((port(first)?, port(last)?)).filter(|(first, last)| first <= last)
        }
        _ => port(element).map(|port| (port, port)),
    };
    let elements = right
        .get("set")
        .map_or_else(|| std::slice::from_ref(right), Json::elements);
    conditions.ports = elements.iter().map(range).collect();
    conditions.ports.is_some()
}

fn add_states(right: &Json, conditions: &mut Conditions) -> bool {
    let states = right.get("set").unwrap_or(right).elements();
    let is_of = |known: &[&str]| {
        states
            .iter()
            .all(|state| state.text().is_some_and(|text| known.contains(&text)))
    };
    match () {
        () if is_of(&["new"]) => conditions.connection = Connection::New,
        () if is_of(&["established", "related"]) => conditions.connection = Connection::Established,
        () => return false,
    }
    true
}

/// `tcp flags & (fin | syn | rst | ack) == syn`.
fn add_flags(mask: &[Json], operator: &str, right: &Json, conditions: &mut Conditions) -> bool {
    let [payload, flags] = mask else { return false };
    let of = payload.get("payload");
    let is_of_tcp = of.is_some_and(|of| {
        (of.text_of("protocol"), of.text_of("field")) == (Some("tcp"), Some("flags"))
    });
    let has_syn = flags
        .get("|")
        .unwrap_or(flags)
        .elements()
        .iter()
        .any(|flag| flag.text() == Some("syn"));
    if !is_of_tcp || !has_syn || operator != "==" || right.text() != Some("syn") {
        return false;
    }
    conditions.connection = Connection::Syn;
    conditions.restrict_protocol(Protocol::Tcp)
}

/// Appends an address, a prefix or a range.
pub fn append(value: &Json, into: &mut Vec<ipnet::IpNet>) -> bool {
    if let Some(text) = value.text() {
        return prefixes::append(text, into);
    }
    if let Some(prefix) = value.get("prefix") {
        let parts = prefix
            .text_of("addr")
            .zip(prefix.get("len").and_then(Json::number));
        return parts.is_some_and(|(address, length)| {
            prefixes::append(&format!("{address}/{length}"), into)
        });
    }
    match value.get("range").map(Json::elements) {
        Some([first, last]) => first
            .text()
            .zip(last.text())
            .is_some_and(|(first, last)| prefixes::append_range(first, last, into)),
        _ => false,
    }
}
