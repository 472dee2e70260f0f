//! The settings of a fair limit in the config.

use std::ops::RangeInclusive;

use config::policy::{Limit, ProtocolFilter, Rate, Signal, Unit};
use fair::signals::Ports;
use fair::{Settings, Tier};

/// The least level without `at_least`, in packets or connections a second, and in bytes.
const LEAST: f64 = 1.0;
const LEAST_BYTES: f64 = 1500.0;
/// The most ports of a limit that are reported where no socket is open on them: of more, some are to be closed.
const MOST_NAMED: usize = 16;

/// The settings of a limit's law, and the sockets that are its signals.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LimitSettings {
    pub law: Settings,
    /// The lengths of a key's prefix, IPv4 and IPv6: samples of others are not of these keys.
    pub prefixes: (u8, u8),
    pub ports: Ports,
    pub listeners: bool,
    pub datagrams: bool,
    /// The ports on each of which a socket should be open, in ascending order.
    pub named: Vec<u16>,
    /// Whether the load that the service reports is a signal, and who may report it beside root.
    pub takes_load: bool,
    pub reported_by: Option<String>,
}

impl LimitSettings {
    /// `None` for a limit whose rate is a number.
    pub(super) fn of(limit: &Limit) -> Option<Self> {
        let fair = limit.shares.as_ref()?;
        let unit = match limit.unit {
            Unit::Bytes => fair::Unit::Bytes,
            Unit::Connections => fair::Unit::Connections,
            _ => fair::Unit::Packets,
        };
        let least = if unit == fair::Unit::Bytes {
            LEAST_BYTES
        } else {
            LEAST
        };
        let (mut ports, mut named) = (Vec::new(), Vec::new());
        let mut backends = Vec::new();
        for signal in &fair.signals {
            match signal {
                Signal::Load => {}
                Signal::Port(port) => {
                    named.push(*port);
                    backends.push(*port);
                }
                Signal::Sockets => match &limit.ports {
                    Some(own) => {
                        if own.iter().nth(MOST_NAMED).is_none() {
                            named.extend(own.iter());
                        }
                        ports.extend(ranges(own.iter()));
                    }
                    None => ports.push(1..=u16::MAX),
                },
            }
        }
        let (mut listeners, mut datagrams) = match limit.protocol {
            ProtocolFilter::Any => (true, true),
            ProtocolFilter::Tcp => (true, false),
            ProtocolFilter::Udp => (false, true),
            ProtocolFilter::Icmp => (false, false),
        };
        datagrams &= unit != fair::Unit::Connections;
        if ports.is_empty() && backends.is_empty() {
            (listeners, datagrams) = (false, false);
        }
        named.sort_unstable();
        named.dedup();
        // A backend listens.
        listeners |= !backends.is_empty();
        Some(Self {
            law: Settings {
                unit,
                at_least: fair.at_least.map_or(least, per_second),
                at_most: fair.at_most.map(per_second),
                widest: widest(limit),
            },
            prefixes: (limit.ipv4_prefix, limit.ipv6_prefix),
            ports: Ports::new(ports).and_backends(&backends),
            listeners,
            datagrams,
            named,
            takes_load: limit.takes_load(),
            reported_by: fair.reported_by.clone(),
        })
    }

    /// Whether sockets are signals.
    pub(super) const fn reads_sockets(&self) -> bool {
        self.listeners || self.datagrams
    }
}

/// The widest keys of a limit that can have a level: networks come before all sources.
fn widest(limit: &Limit) -> Tier {
    match limit.levels.len() {
        0 => Tier::Sources,
        1 => Tier::Networks,
        _ => Tier::All,
    }
}

/// A user's number, by its name in a file of users as `/etc/passwd`, or by the number as text. Not by other databases of
/// users: these may be slow.
pub(super) fn user_id(text: &str, users: &str) -> Option<u32> {
    let fields = users.lines().map(|line| line.split(':'));
    let mut users = fields.filter_map(|mut fields| Some((fields.next()?, fields.nth(1)?)));
    match users.find(|(name, _)| *name == text) {
        Some((_, number)) => number.parse().ok(),
        None => text.parse().ok(),
    }
}

fn per_second(rate: Rate) -> f64 {
    rate.count as f64 * 1e9 / rate.per_nanoseconds as f64
}

/// The ranges of ports in ascending order.
fn ranges(ports: impl Iterator<Item = u16>) -> Vec<RangeInclusive<u16>> {
    let mut ranges: Vec<RangeInclusive<u16>> = Vec::new();
    for port in ports {
        match ranges.last_mut() {
            Some(last) if *last.end() + 1 == port => *last = *last.start()..=port,
            _ => ranges.push(port..=port),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_named_unless_a_limit_has_many() {
        let named = |ports: &str, fair: &str| {
            let text = format!(
                "[agent]\ninterfaces = [\"lo\"]\n[[limit]]\nname = \"web\"\nports = [{ports}]\nunit = \"connections\"\n\
                 rate = \"fair\"\nfair = {{ {fair} }}\n"
            );
            let config = config::parse("limits.toml".as_ref(), &text).unwrap().config;
            LimitSettings::of(&config.limits[0]).unwrap().named
        };
        assert_eq!(named("443, 80", ""), [80, 443]);
        assert_eq!(named("80", "signals = [\"sockets\", 8080]"), [80, 8080]);
        assert_eq!(named("80", "signals = [8080]"), [8080]);
        assert_eq!(named("\"1000-1015\"", "").len(), 16);
        let many = "signals = [\"sockets\", 8080]";
        assert_eq!(named("\"1000-1016\"", many), [8080]);
    }

    #[test]
    fn levels_are_the_widest_keys_of_the_law() {
        let widest = |levels: &str| {
            let text = format!(
                "[agent]\ninterfaces = [\"lo\"]\n[[limit]]\nname = \"dns\"\nprotocol = \"udp\"\nports = [53]\n\
                 rate = \"fair\"\nlevels = [{levels}]\n"
            );
            let config = config::parse("limits.toml".as_ref(), &text).unwrap().config;
            LimitSettings::of(&config.limits[0]).unwrap().law.widest
        };
        assert_eq!(widest(""), Tier::Sources);
        assert_eq!(widest("{ prefix = \"24/48\" }"), Tier::Networks);
        assert_eq!(
            widest("{ prefix = \"24/48\" }, { key = \"all\" }"),
            Tier::All
        );
    }

    #[test]
    fn a_user_has_the_number_of_its_name_or_is_one() {
        let users = "root:x:0:0:root:/root:/bin/sh\napp:x:993:990::/srv/app:/bin/false\n12:x:77:1::/:\nodd:x\n";
        assert_eq!(user_id("app", users), Some(993));
        assert_eq!(user_id("1000", users), Some(1000));
        // A name goes before a number.
        assert_eq!(user_id("12", users), Some(77));
        assert_eq!(user_id("ap", users), None);
        assert_eq!(user_id("odd", users), None);
    }

    #[test]
    fn a_limit_without_sockets_as_signals_reads_none() {
        let settings = |signals: &str| {
            let text = format!(
                "[agent]\ninterfaces = [\"lo\"]\n[decide]\nhttp = \"unix:/run/weir/decide.sock\"\n[[limit]]\nname = \"web\"\n\
                 rate = \"fair\"\nfair = {{ signals = [{signals}], reported_by = \"app\" }}\n"
            );
            let config = config::parse("limits.toml".as_ref(), &text).unwrap().config;
            LimitSettings::of(&config.limits[0]).unwrap()
        };
        assert!(!settings("\"load\"").reads_sockets());
        assert!(settings("\"sockets\", \"load\"").reads_sockets());
        assert!(settings("8080, \"load\"").reads_sockets());
    }

    #[test]
    fn ports_in_signals_are_those_of_backends() {
        let text = "[agent]\ninterfaces = [\"lo\"]\n[[limit]]\nname = \"web\"\nports = [443]\nunit = \"connections\"\n\
             rate = \"fair\"\nfair = { signals = [\"sockets\", 8080] }\n";
        let config = config::parse("limits.toml".as_ref(), text).unwrap().config;
        let settings = LimitSettings::of(&config.limits[0]).unwrap();
        let expected = Ports::new(vec![443..=443]).and_backends(&[8080]);
        assert_eq!(settings.ports, expected);
    }

    #[test]
    fn adjacent_ports_are_one_range() {
        assert_eq!(
            ranges([80, 443, 444, 445, u16::MAX].into_iter()),
            [80..=80, 443..=445, u16::MAX..=u16::MAX]
        );
        assert_eq!(ranges(std::iter::empty()), []);
    }
}
