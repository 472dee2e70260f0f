//! `ports` of `[[limit]]`: numbers, ranges and services.

use std::fmt;

use super::report::Problems;
use super::schema::{At, Key, Kind, Value};
use super::table;

/// Ports, as ranges that neither overlap nor are adjacent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortSet(Vec<(u16, u16)>);

impl PortSet {
    /// The union of ranges in any order.
    #[must_use]
    pub fn new(mut ranges: Vec<(u16, u16)>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<(u16, u16)> = Vec::new();
        for (first, last) in ranges {
            match merged.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }

    #[must_use]
    pub fn contains(&self, port: u16) -> bool {
        self.0
            .iter()
            .any(|(first, last)| (*first..=*last).contains(&port))
    }

    /// Each port or range as written in limits.toml.
    #[must_use]
    pub fn texts(&self) -> Vec<String> {
        let text = |(first, last): &(u16, u16)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        self.0.iter().map(text).collect()
    }

    /// Every port of the set.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.0.iter().flat_map(|(first, last)| *first..=*last)
    }
}

impl fmt::Display for PortSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.texts().join(","))
    }
}

impl Value for PortSet {
    const KIND: Kind = Kind::Either(&[PORT, TEXT, Kind::List(&Kind::Either(&[PORT, TEXT]))]);

    fn read(at: At<'_>, key: &Key, problems: &mut Problems) -> Option<Self> {
        let list = at.get_ref().as_array();
        let elements: Vec<At<'_>> = list.map_or_else(|| vec![at], |list| list.iter().collect());
        if elements.is_empty() {
            let message = "ports is empty, so that nothing would be limited";
            problems.error(at.span(), message, "name one, or leave ports out for all");
        }
        let mut ranges = Vec::new();
        for at in elements {
            match range(at) {
                Some(range) => ranges.push(range),
                None => {
                    let typed = table::typed(at);
                    let message =
                        format!("invalid port {typed}: not a number, a range or a known service");
                    let help = format!(
                        "write ports from 1 to 65535, ranges (the lower first) or services: {} = [443, \"8000-8100\", \"ssh\"]",
                        key.name
                    );
                    problems.error(at.span(), message, help);
                }
            }
        }
        Some(Self::new(ranges))
    }

    fn write(&self) -> Option<toml::Value> {
        None
    }

    fn shown(&self) -> String {
        self.texts().join(", ")
    }
}

const PORT: Kind = Kind::Integer(1, 65_535);
const TEXT: Kind = Kind::Text(&[]);

fn range(at: At<'_>) -> Option<(u16, u16)> {
    let port = |number: u64| u16::try_from(number).ok().filter(|port| *port > 0);
    if let Some(number) = table::integer(at) {
        return port(number).map(|port| (port, port));
    }
    let text = at.get_ref().as_str()?;
    if let Some(port) = service(text) {
        return Some((port, port));
    }
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let parse = |text: &str| text.trim().parse().ok().and_then(port);
    Some((parse(first)?, parse(last)?)).filter(|(first, last)| first <= last)
}

/// A built-in table: a config has the same meaning on every host, whatever its /etc/services contains.
const SERVICES: [(&str, u16); 39] = [
    ("amqp", 5672),
    ("bgp", 179),
    ("dns", 53),
    ("domain", 53),
    ("domain-s", 853),
    ("ftp", 21),
    ("git", 9418),
    ("http", 80),
    ("http-alt", 8080),
    ("https", 443),
    ("imap", 143),
    ("imaps", 993),
    ("ipp", 631),
    ("ipsec-nat-t", 4500),
    ("irc", 194),
    ("isakmp", 500),
    ("kerberos", 88),
    ("ldap", 389),
    ("ldaps", 636),
    ("mqtt", 1883),
    ("ms-wbt-server", 3389),
    ("mysql", 3306),
    ("nfs", 2049),
    ("ntp", 123),
    ("openvpn", 1194),
    ("pop3", 110),
    ("pop3s", 995),
    ("postgresql", 5432),
    ("rdp", 3389),
    ("redis", 6379),
    ("rsync", 873),
    ("sip", 5060),
    ("smtp", 25),
    ("snmp", 161),
    ("ssh", 22),
    ("submission", 587),
    ("submissions", 465),
    ("syslog", 514),
    ("telnet", 23),
];

/// The port of a service.
fn service(name: &str) -> Option<u16> {
    SERVICES
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(name))
        .map(|(_, port)| *port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_have_their_ports() {
        assert_eq!(
            (
                service("ssh"),
                service("HTTPS"),
                service("dns"),
                service("nonsense")
            ),
            (Some(22), Some(443), Some(53), None)
        );
        assert!(
            SERVICES.windows(2).all(|pair| pair[0].0 < pair[1].0),
            "sorted, each once"
        );
    }
}
