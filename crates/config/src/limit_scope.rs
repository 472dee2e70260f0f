//! `sources`, `asn`, `country` and `interfaces` of `[[limit]]`: its scope.

use std::fmt;
use std::net::IpAddr;
use std::ops::Deref;

use super::agent::InterfacePattern;
use super::policy::{GeoKey, Prefix};
use super::prefix;
use super::report::{Problems, Span, Wrong};
use super::schema::{At, Key, Kind, Text, Value};

/// The sources of a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitSources {
    /// Distinct prefixes. The longest one that contains an address decides.
    pub prefixes: Vec<SourcePrefix>,
    /// Networks and countries.
    pub geo: Vec<GeoKey>,
    /// Their prefixes, by the databases: none within `prefixes`. Empty in a config that was only read.
    pub of_geo: Vec<Prefix>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourcePrefix {
    pub prefix: Prefix,
    /// Whether it is an exclusion (`!`).
    pub is_excluded: bool,
}

impl LimitSources {
    /// Whether addresses outside of all prefixes are included: true if all prefixes are exclusions, and there are no
    /// networks and countries.
    #[must_use]
    pub fn includes_others(&self) -> bool {
        self.geo.is_empty() && self.prefixes.iter().all(|it| it.is_excluded)
    }

    /// Whether the limit applies to an address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let longest = self
            .all()
            .filter(|it| it.prefix.contains(address))
            .max_by_key(|it| it.prefix.mapped_length());
        longest.map_or_else(|| self.includes_others(), |it| !it.is_excluded)
    }

    /// The prefixes as written in limits.toml, then networks and countries.
    #[must_use]
    pub fn texts(&self) -> Vec<String> {
        let prefixes = self.prefixes.iter().map(ToString::to_string);
        prefixes
            .chain(self.geo.iter().map(ToString::to_string))
            .collect()
    }

    /// With the prefixes of its networks and countries. A written prefix decides for all within it.
    #[must_use]
    pub fn with_prefixes(&self, of_geo: impl Iterator<Item = Prefix>) -> Self {
        let is_free = |prefix: &Prefix| {
            !self
                .prefixes
                .iter()
                .any(|written| written.prefix.covers(prefix))
        };
        let mut of_geo: Vec<Prefix> = of_geo.filter(is_free).collect();
        of_geo.sort_unstable();
        of_geo.dedup();
        Self {
            of_geo,
            ..self.clone()
        }
    }

    /// All prefixes, also those of networks and countries.
    pub fn all(&self) -> impl Iterator<Item = SourcePrefix> + '_ {
        let of_geo = self.of_geo.iter().map(|prefix| SourcePrefix {
            prefix: *prefix,
            is_excluded: false,
        });
        self.prefixes.iter().copied().chain(of_geo)
    }
}

impl fmt::Display for SourcePrefix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{}{}",
            if self.is_excluded { "!" } else { "" },
            self.prefix.short()
        )
    }
}

impl Text for SourcePrefix {
    const KIND: Kind = Kind::Text(&[]);

    fn parse(text: &str, _: &Key) -> Result<Self, Wrong> {
        let excluded = text.strip_prefix('!');
        match prefix::parse(excluded.unwrap_or(text).trim()) {
            Ok(prefix) => Ok(Self {
                prefix,
                is_excluded: excluded.is_some(),
            }),
            Err(wrong) => {
                let help = format!("{}; to exclude one, \"!192.0.2.10\"", wrong.help);
                Err(Wrong::new(wrong.message, help))
            }
        }
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl Value for LimitSources {
    const KIND: Kind = one_or_list::<SourcePrefix>();

    fn read(at: At<'_>, key: &Key, problems: &mut Problems) -> Option<Self> {
        let mut sources = Self::default();
        for (source, span) in scope::<SourcePrefix>(at, key, "all sources", problems) {
            let prefix = source.prefix;
            if sources.prefixes.iter().any(|known| known.prefix == prefix) {
                let message = format!("duplicate source {}", prefix.short());
                problems.error(span, message, "write it once, with `!` or without");
            } else {
                sources.prefixes.push(source);
            }
        }
        Some(sources)
    }

    fn write(&self) -> Option<toml::Value> {
        self.prefixes.write()
    }

    fn shown(&self) -> String {
        self.prefixes.shown()
    }
}

/// The interfaces of a limit, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitInterfaces(Vec<InterfacePattern>);

impl Deref for LimitInterfaces {
    type Target = [InterfacePattern];

    fn deref(&self) -> &[InterfacePattern] {
        &self.0
    }
}

impl Value for LimitInterfaces {
    const KIND: Kind = one_or_list::<InterfacePattern>();

    fn read(at: At<'_>, key: &Key, problems: &mut Problems) -> Option<Self> {
        let mut interfaces = Vec::new();
        let all = "all of [agent] interfaces";
        for (pattern, span) in scope::<InterfacePattern>(at, key, all, problems) {
            if interfaces.contains(&pattern) {
                let message = format!("duplicate interface \"{pattern}\"");
                problems.error(span, message, "write it once");
            } else {
                interfaces.push(pattern);
            }
        }
        Some(Self(interfaces))
    }

    fn write(&self) -> Option<toml::Value> {
        self.0.write()
    }

    fn shown(&self) -> String {
        self.0.shown()
    }
}

const fn one_or_list<T: Text>() -> Kind {
    Kind::Either(&[<T as Value>::KIND, Kind::List(&<T as Value>::KIND)])
}

/// The valid elements of a list, or one by itself, with their spans. `all` are those without the key.
fn scope<T: Text>(at: At<'_>, key: &Key, all: &str, problems: &mut Problems) -> Vec<(T, Span)> {
    let example = format!("{} = [\"{}\"]", key.name, key.examples.join("\", \""));
    let elements: Vec<At<'_>> = match (at.get_ref().as_array(), at.get_ref().as_str()) {
        (Some(list), _) => list.iter().collect(),
        (None, Some(_)) => vec![at],
        (None, None) => {
            key.not_a(at, format!("write a list: {example}"), problems);
            return Vec::new();
        }
    };
    check_some(at, key, all, problems);
    let mut read = Vec::new();
    for at in elements {
        if at.get_ref().as_str().is_none() {
            key.not_a(at, format!("write strings: {example}"), problems);
        } else if let Some(value) = T::read(at, key, problems) {
            read.push((value, at.span()));
        }
    }
    read
}

/// Reports an empty list. `all` are those without the key.
pub fn check_some(at: At<'_>, key: &Key, all: &str, problems: &mut Problems) {
    if at.get_ref().as_array().is_some_and(|list| list.is_empty()) {
        let message = format!("{} is empty, so that nothing would be limited", key.name);
        let help = format!("name one, or leave out {} for {all}", key.name);
        problems.error(at.span(), message, help);
    }
}

/// Warns of a prefix without effect, because the prefix around it has the same sign.
pub fn check_effect(
    source: SourcePrefix,
    span: &Span,
    sources: &LimitSources,
    problems: &mut Problems,
) {
    let prefix = source.prefix;
    let name = prefix.short();
    let around = sources
        .prefixes
        .iter()
        .filter(|it| it.prefix != prefix && it.prefix.covers(&prefix));
    let around = around.max_by_key(|it| it.prefix.mapped_length());
    let message = match around {
        Some(around) if around.is_excluded == source.is_excluded && source.is_excluded => {
            format!("!{name} has no effect: {around} excludes it already")
        }
        Some(around) if around.is_excluded == source.is_excluded => {
            format!("{name} has no effect: {around} includes it already")
        }
        // A network or country may contain it.
        None if source.is_excluded && !sources.includes_others() && sources.geo.is_empty() => {
            format!("!{name} has no effect: no other prefix of sources includes it")
        }
        _ => return,
    };
    problems.warning(span.clone(), message, "leave it out");
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::{self as config, Loaded, report::Report};

    fn parse(agent: &str, limit: &str) -> Result<Loaded, Report> {
        let text = format!("[agent]\n{agent}\n[[limit]]\nname = \"a\"\nrate = \"5/s\"\n{limit}\n");
        config::parse(Path::new("limits.toml"), &text)
    }

    #[test]
    fn wrong_lists_are_errors_with_a_fix() {
        for (limit, message, help) in [
            (
                "sources = []",
                "sources is empty, so that nothing would be limited",
                "name one, or leave out sources for all",
            ),
            (
                "sources = 7",
                "sources is an integer",
                "a list: sources = [\"192.0.2.0/24\"",
            ),
            (
                "sources = \"10.0.0.300\"",
                "\"10.0.0.300\" is neither an address nor a prefix",
                "write \"192.0.2.10\"",
            ),
            (
                "interfaces = \"eth1\"",
                "limit \"a\" never applies on \"eth1\"",
                "add it there",
            ),
            (
                "sources = [7]",
                "sources is an integer",
                "strings: sources = [",
            ),
            (
                "sources = [\"payer\"]",
                "\"payer\" is neither an address nor a prefix",
                "to exclude one, \"!192.0.2.10\"",
            ),
            (
                "sources = [\"!\"]",
                "\"\" is neither an address nor a prefix",
                "write \"192.0.2.10\"",
            ),
            (
                "sources = [\"10.0.0.1/8\"]",
                "has bits set beyond its length",
                "write \"10.0.0.0/8\"",
            ),
            (
                "sources = [\"10.0.0.0/8\", \"!10.0.0.0/8\"]",
                "duplicate source 10.0.0.0/8",
                "write it once",
            ),
            (
                "sources = [\"10.0.0.1\", \"10.0.0.1/32\"]",
                "duplicate source 10.0.0.1",
                "write it once",
            ),
            (
                "interfaces = []",
                "interfaces is empty, so that nothing would be limited",
                "leave out interfaces for all of",
            ),
            (
                "interfaces = [\"eth0\", \"eth0\"]",
                "duplicate interface \"eth0\"",
                "write it once",
            ),
            (
                "interfaces = [\"a b\"]",
                "invalid interface name \"a b\"",
                "as `ip link` shows it",
            ),
            (
                "interfaces = [\"eth1\"]",
                "limit \"a\" never applies on \"eth1\": [agent] interfaces has only \"eth0\", \"wg*\"",
                "add it there, or correct the name",
            ),
            (
                "interfaces = [\"veth*\"]",
                "limit \"a\" never applies on \"veth*\"",
                "add it there",
            ),
            (
                "asn = []",
                "asn is empty, so that nothing would be limited",
                "leave out asn for all sources",
            ),
            (
                "country = [\"XX\"]",
                "country XX requires a database",
                "set [geo] country",
            ),
            ("asn = [7, 7]", "duplicate source AS7", "write it once"),
            (
                "source = [\"10.0.0.1\"]",
                "unknown key \"source\" in [[limit]]",
                "did you mean \"sources\"?",
            ),
        ] {
            let agent = "interfaces = [\"eth0\", \"wg*\"]";
            // A pattern may match the same names as another one.
            let agent = if limit.contains("veth*") {
                "interfaces = [\"eth0\"]"
            } else {
                agent
            };
            let report = parse(agent, limit).expect_err(limit).to_string();
            assert!(
                report.contains(message) && report.contains(help),
                "{limit}: {report}"
            );
        }
    }

    #[test]
    fn keys_without_effect_are_warnings() {
        for (agent, limit, warning) in [
            (
                "",
                "sources = [\"10.0.0.0/8\", \"10.1.0.0/16\"]",
                "10.1.0.0/16 has no effect: 10.0.0.0/8 includes it already",
            ),
            (
                "",
                "sources = [\"!10.1.0.0/16\", \"!10.0.0.0/8\"]",
                "!10.1.0.0/16 has no effect: !10.0.0.0/8 excludes it already",
            ),
            (
                "",
                "sources = [\"192.0.2.0/24\", \"!10.0.0.1\"]",
                "!10.0.0.1 has no effect: no other prefix of sources includes it",
            ),
            (
                "never_limit = [\"10.0.0.0/8\"]",
                "sources = [\"10.1.0.0/16\", \"10.2.0.0/16\"]",
                "limit \"a\" never applies: never_limit exempts all of its sources",
            ),
        ] {
            let loaded = parse(&format!("interfaces = [\"eth0\"]\n{agent}"), limit)
                .unwrap_or_else(|report| panic!("{report}"));
            let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
            assert!(
                warnings.len() == 1 && warnings[0].contains(warning),
                "{limit}: {warnings:?}"
            );
        }
    }

    #[test]
    fn the_longest_prefix_around_an_address_decides() {
        let list =
            "[\"10.0.0.0/8\", \"!10.1.0.0/16\", \"10.1.1.1\", \"2001:db8::/32\", \"!2001:db8::7\"]";
        let loaded = parse(
            "interfaces = [\"wg*\"]",
            &format!("sources = {list}\ninterfaces = [\"wg1\"]"),
        )
        .unwrap();
        assert!(loaded.warnings.is_empty());
        let one = parse(
            "interfaces = [\"wg*\"]",
            "sources = \"!10.0.0.1\"\ninterfaces = \"wg1\"",
        )
        .unwrap()
        .config;
        assert!(
            one.limits[0]
                .summary()
                .ends_with(", drop, except from 10.0.0.1, on wg1")
        );
        let sources = loaded.config.limits[0].sources.clone().unwrap();
        for (address, is_in) in [
            ("10.9.9.9", true),
            ("10.1.0.1", false),
            ("10.1.1.1", true),
            ("192.0.2.1", false),
            ("2001:db8::6", true),
            ("2001:db8::7", false),
        ] {
            assert_eq!(
                sources.contains(address.parse().unwrap()),
                is_in,
                "{address}"
            );
        }
    }

    #[test]
    fn a_session_over_ssh_is_warned_only_of_limits_for_its_source() {
        let of = |list: &str| {
            let agent = "interfaces = [\"eth0\"]\nprotect = false";
            parse(agent, &format!("sources = {list}")).unwrap().config
        };
        let client = "192.0.2.7".parse().ok();
        assert!(config::ssh_warning(&of("[\"192.0.2.0/24\"]"), client).is_some());
        assert!(config::ssh_warning(&of("[\"192.0.2.0/24\", \"!192.0.2.7\"]"), client).is_none());
    }
}
