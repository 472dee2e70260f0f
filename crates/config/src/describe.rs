//! One-line summaries of a config's parts.

use crate::human;
use crate::policy::{
    Algorithm, Direction, Key, KeyEntry, Level, LevelKey, Limit, LimitSources, OnFull,
    ProtocolFilter, Prove, RequestEnforcement, RequestLimit, Tier,
};

use super::policy::Unit;

impl Limit {
    /// The summary without the name: `ingress tcp/22  5 connections/min per address (IPv6 /64), burst 5, reject`.
    #[must_use]
    pub fn summary(&self) -> String {
        let unit = if self.unit == Unit::Bytes {
            String::new()
        } else {
            self.unit.to_string()
        };
        let amount = match self.concurrent {
            Some(number) => format!("{} open connections", human::number(number)),
            None if self.is_fair() => format!("fair share of {}", self.unit),
            None => rates(&self.rates.rate_text, &unit, &self.rates.tiers),
        };
        let mut parts = vec![format!("{amount} per {}", self.key_in_words())];
        if let Some(shares) = &self.shares {
            parts.push(shares.words(self.unit));
        } else if self.concurrent.is_none() {
            parts.extend(of_algorithm(self.rates.algorithm, || match self.unit {
                Unit::Bytes => human::size(self.rates.burst),
                _ => human::number(self.rates.burst),
            }));
        }
        parts.extend(self.levels.iter().map(|level| self.level_in_words(level)));
        parts.extend(self.throttle.words());
        parts.push(self.action.words());
        parts.extend(
            (self.on_full != OnFull::Share)
                .then(|| format!("{} when the table is full", self.on_full)),
        );
        parts.extend(self.escalate.map(|escalate| escalate.words()));
        parts.extend(
            self.cluster
                .map(|mode| format!("all hosts together ({mode})")),
        );
        parts.extend(self.prove.map(|when| match when {
            Prove::InUse => "sources prove their address while SYN cookies are in use".to_owned(),
            Prove::Always => "sources always prove their address".to_owned(),
            Prove::Reset => "sources prove their address by resets".to_owned(),
        }));
        parts.extend(
            self.sources
                .as_ref()
                .map(|sources| self.sources_in_words(sources)),
        );
        parts.extend(
            self.interfaces
                .as_ref()
                .map(|names| format!("on {}", shortened(names.iter()))),
        );
        format!(
            "{} {}  {}",
            self.direction_name(),
            self.traffic(),
            parts.join(", ")
        )
    }

    /// `20 times per IPv4 /24, IPv6 /48`, `2,000 times for all`.
    fn level_in_words(&self, level: &Level) -> String {
        let key = match level.key {
            LevelKey::Prefix { ipv4, ipv6 } => format!("per IPv4 /{ipv4}, IPv6 /{ipv6}"),
            LevelKey::Asn { .. } => "per network".to_owned(),
            LevelKey::All => "for all".to_owned(),
        };
        if self.is_fair() {
            return format!("when needed {key}");
        }
        format!("{} times {key}", level.factor.factor())
    }

    /// `tcp/22`, `any`, `tcp+udp/53`.
    fn traffic(&self) -> String {
        match &self.ports {
            None => self.protocol.to_string(),
            Some(ports) if self.protocol == ProtocolFilter::Any => format!("tcp+udp/{ports}"),
            Some(ports) => format!("{}/{ports}", self.protocol),
        }
    }

    /// `from 192.0.2.0/24 except 192.0.2.7`.
    fn sources_in_words(&self, sources: &LimitSources) -> String {
        let preposition = if self.direction == Direction::Egress {
            "to"
        } else {
            "from"
        };
        let of = |is_excluded: bool| {
            sources
                .prefixes
                .iter()
                .filter(move |it| it.is_excluded == is_excluded)
                .map(|it| it.prefix.short())
        };
        let mut words = Vec::new();
        if !sources.includes_others() {
            let all = of(false).chain(sources.geo.iter().map(ToString::to_string));
            words.push(format!("{preposition} {}", shortened(all)));
        }
        if of(true).next().is_some() {
            words.push(format!("except {preposition} {}", shortened(of(true))));
        }
        words.join(" ")
    }

    fn key_in_words(&self) -> String {
        let address = if self.direction == Direction::Egress {
            "destination"
        } else {
            "address"
        };
        let key = match self.key {
            Key::Source => address.to_owned(),
            Key::SourcePort => format!("{address} and port"),
            Key::Asn => {
                let prefixes = prefixes(self.ipv4_prefix, self.ipv6_prefix);
                return format!("network (AS; outside of all {prefixes})");
            }
            other => return other.to_string(),
        };
        let prefixes = prefixes(self.ipv4_prefix, self.ipv6_prefix);
        if prefixes.is_empty() {
            key
        } else {
            format!("{key} ({prefixes})")
        }
    }
}

/// The first few elements of a list, to fit one line.
fn shortened(items: impl Iterator<Item = impl ToString>) -> String {
    const SHOWN: usize = 3;
    let all: Vec<_> = items.collect();
    let words = |items: &[_]| {
        items
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    };
    match all.len() {
        more if more > SHOWN + 1 => format!("{} and {} more", words(&all[..SHOWN]), more - SHOWN),
        _ => words(&all),
    }
}

impl RequestLimit {
    /// The summary without the name: `requests  600/min per user, source (IPv6 /64), burst 1,000, refuse`.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut parts = vec![format!(
            "{} {}",
            rates(
                &self.rates.rate_text,
                &self.unit.to_string(),
                &self.rates.tiers
            ),
            self.counted_by()
        )];
        parts.extend(of_algorithm(self.rates.algorithm, || {
            human::number(self.rates.burst)
        }));
        parts.extend(
            self.calendar
                .as_ref()
                .map(|calendar| format!("time zone {}", calendar.zone.name())),
        );
        parts.extend(self.throttle.words());
        parts.push(self.enforcement.word().to_owned());
        parts.extend(
            self.domain
                .as_ref()
                .map(|domain| format!("domain {domain}")),
        );
        parts.extend(self.escalate.map(|escalate| escalate.words()));
        parts.extend(
            self.cluster
                .map(|mode| format!("all hosts together ({mode})")),
        );
        format!("requests  {}", parts.join(", "))
    }

    /// `per user, all values of path=/api/* together`.
    fn counted_by(&self) -> String {
        let prefixes = prefixes(self.ipv4_prefix, self.ipv6_prefix);
        let (over, each): (Vec<&KeyEntry>, Vec<&KeyEntry>) =
            self.key.iter().partition(|entry| self.over.has(entry));
        let joined = |entries: Vec<String>| entries.join(", ");
        let each = each
            .into_iter()
            .map(|entry| match entry.is_source() && !prefixes.is_empty() {
                true => format!("{entry} ({prefixes})"),
                false => entry.to_string(),
            });
        let each = joined(each.collect());
        let over = joined(over.iter().map(ToString::to_string).collect());
        match (each.is_empty(), over.is_empty()) {
            (_, true) => format!("per {each}"),
            (true, false) => format!("for all values of {over} together"),
            (false, false) => format!("per {each}, all values of {over} together"),
        }
    }
}

impl RequestEnforcement {
    /// `refuse` or `observe`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Enforce => "refuse",
            Self::Observe => "observe",
        }
    }
}

/// `5 connections/min and 60/h`: only the first rate has the unit.
fn rates(main: &str, unit: &str, tiers: &[Tier]) -> String {
    let main = match main.split_once('/') {
        Some((count, time)) if !unit.is_empty() => format!("{count} {unit}/{time}"),
        _ => main.to_owned(),
    };
    std::iter::once(main)
        .chain(tiers.iter().map(|tier| tier.text.clone()))
        .collect::<Vec<_>>()
        .join(" and ")
}

/// The burst, and the algorithm unless it is the default.
fn of_algorithm(algorithm: Algorithm, burst: impl Fn() -> String) -> Vec<String> {
    let name = (algorithm != Algorithm::TokenBucket).then(|| algorithm.to_string());
    name.into_iter()
        .chain(algorithm.has_burst().then(|| format!("burst {}", burst())))
        .collect()
}

/// The prefix lengths that are shorter than an address.
fn prefixes(ipv4: u8, ipv6: u8) -> String {
    let of = |family: &str, length: u8, whole: u8| {
        (length != whole).then(|| format!("{family} /{length}"))
    };
    of("IPv4", ipv4, 32)
        .into_iter()
        .chain(of("IPv6", ipv6, 128))
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    fn summary(lines: &str) -> String {
        let text = format!("[agent]\ninterfaces = [\"eth0\"]\n[[limit]]\nname = \"a\"\n{lines}\n");
        let loaded = crate::parse(Path::new("limits.toml"), &text)
            .unwrap_or_else(|report| panic!("{report}"));
        loaded.config.limits[0].summary()
    }

    #[test]
    fn a_limit_on_requests_names_shared_entries_and_its_time_zone() {
        for (lines, expected) in [
            (
                "key = [\"user\", \"path=/api/*\"]",
                "5 requests/min per user, path=/api/*, burst 5, refuse",
            ),
            (
                "key = [\"user\", \"path=/api/*\"]\nover = [\"path\"]",
                "5 requests/min per user, all values of path=/api/* together, burst 5, refuse",
            ),
            (
                "key = [\"source\", \"path\"]\nover = [\"path\", \"source\"]",
                "5 requests/min for all values of source, path together, burst 5, refuse",
            ),
            (
                "key = [\"user\"]\nrate = \"5/calendar-month\"\ntiers = [\"2/h\"]\ntime_zone = \"Europe/Berlin\"",
                "5 requests/calendar-month and 2/h per user, fixed-window, time zone Europe/Berlin, refuse",
            ),
        ] {
            let rate = if lines.contains("rate = ") {
                ""
            } else {
                "rate = \"5/min\"\n"
            };
            let text = format!("[[limit]]\nname = \"a\"\nscope = \"request\"\n{rate}{lines}\n");
            let loaded = crate::parse(Path::new("limits.toml"), &text)
                .unwrap_or_else(|report| panic!("{report}"));
            let summary = loaded.config.decide.limits[0].summary();
            assert_eq!(summary, format!("requests  {expected}"));
        }
    }

    #[test]
    fn a_limit_is_one_readable_line() {
        for (lines, expected) in [
            (
                "protocol = \"tcp\"\nports = [22]\nunit = \"connections\"\nrate = \"5/min\"\naction = \"reject\"",
                "ingress tcp/22  5 connections/min per address (IPv6 /64), burst 5, reject",
            ),
            (
                "unit = \"connections\"\nrate = \"5/min\"\nprove = \"always\"",
                "ingress any  5 connections/min per address (IPv6 /64), burst 5, drop, sources always prove their address",
            ),
            (
                "direction = \"egress\"\nunit = \"bytes\"\nrate = \"20Mbit/s\"\nipv4_prefix = 24\nipv6_prefix = 128\n\
                 throttle = { soft = \"10%\" }",
                "egress any  20Mbit/s per destination (IPv4 /24), burst 610 KiB, soft up to 1.1 times, drop",
            ),
            (
                "ports = [53, \"8000-8100\"]\nkey = \"class\"\nrate = \"10/s\"\ntiers = [\"100/min\"]\n\
                 algorithm = \"sliding-window\"\non_full = \"pass\"",
                "ingress tcp+udp/53,8000-8100  10 packets/s and 100/min per class, sliding-window, drop, pass when the \
                 table is full",
            ),
        ] {
            assert_eq!(summary(lines), expected);
        }
    }
}
