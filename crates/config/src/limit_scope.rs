//! `sources`, `asn`, `country` and `interfaces` of `[[limit]]`: its scope.

use super::agent;
use super::geo_keys;
use super::policy::{AgentConfig, GeoKey, InterfacePattern, LimitSources, Prefix, SourcePrefix};
use super::prefix;
use super::read_limit::{ReadLimit, ScopeSpans};
use super::report::{Problems, Span};
use super::table::Table;

/// Reads all lists.
pub fn read(
    table: &mut Table<'_, '_>,
) -> (
    Option<LimitSources>,
    Option<Vec<InterfacePattern>>,
    ScopeSpans,
) {
    for key in ["asn", "country"] {
        is_written(table, key, "all sources");
    }
    let geo = geo_keys::keys(table);
    let sources = sources(table, &geo);
    let interfaces = interfaces(table);
    let names = interfaces
        .as_ref()
        .map(|list| list.iter().map(|(pattern, _)| pattern.clone()).collect());
    let spans = ScopeSpans {
        sources: table.span_of("sources"),
        geo,
        interfaces: interfaces.unwrap_or_default(),
    };
    (sources, names, spans)
}

/// Whether a list has elements; warns of an empty one.
fn is_written(table: &mut Table<'_, '_>, key: &'static str, all: &str) -> Option<()> {
    let value = table.value(key)?;
    if value
        .get_ref()
        .as_array()
        .is_some_and(|array| array.iter().next().is_none())
    {
        let message = format!("{key} is empty, so that nothing would be limited");
        table.problems.error(
            value.span(),
            message,
            format!("name one, or leave out {key} for {all}"),
        );
    }
    Some(())
}

fn sources(table: &mut Table<'_, '_>, geo: &[(GeoKey, Span)]) -> Option<LimitSources> {
    let is_written = is_written(table, "sources", "all sources").is_some();
    if !is_written && geo.is_empty() {
        return None;
    }
    let mut read: Vec<(SourcePrefix, Span)> = Vec::new();
    for (text, span) in table.strings_or_one("sources", "[\"192.0.2.0/24\", \"!192.0.2.7\"]") {
        let excluded = text.strip_prefix('!');
        match prefix::parse(excluded.unwrap_or(text).trim()) {
            Ok(prefix) if read.iter().any(|(known, _)| known.prefix == prefix) => {
                let message = format!("duplicate source {}", prefix.short());
                table
                    .problems
                    .error(span, message, "write it once, with `!` or without");
            }
            Ok(prefix) => read.push((
                SourcePrefix {
                    prefix,
                    is_excluded: excluded.is_some(),
                },
                span,
            )),
            Err(wrong) => {
                let help = format!("{}; to exclude one, \"!192.0.2.10\"", wrong.help);
                table.problems.error(span, wrong.message, help);
            }
        }
    }
    let prefixes = read.iter().map(|(source, _)| *source).collect();
    let sources = LimitSources {
        prefixes,
        geo: geo.iter().map(|(key, _)| *key).collect(),
        of_geo: Vec::new(),
    };
    for (source, span) in &read {
        check_effect(*source, span, &sources, table.problems);
    }
    Some(sources)
}

/// Warns of a prefix without effect, because the prefix around it has the same sign.
fn check_effect(
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

fn interfaces(table: &mut Table<'_, '_>) -> Option<Vec<(InterfacePattern, Span)>> {
    is_written(table, "interfaces", "all of [agent] interfaces")?;
    let mut read: Vec<(InterfacePattern, Span)> = Vec::new();
    let texts = table.strings_or_one("interfaces", "[\"eth0\"]");
    for (pattern, span) in agent::interfaces(texts, table.problems) {
        if read.iter().any(|(known, _)| *known == pattern) {
            table.problems.error(
                span,
                format!("duplicate interface \"{pattern}\""),
                "write it once",
            );
        } else {
            read.push((pattern, span));
        }
    }
    Some(read)
}

/// Checks both lists of all limits against `[agent]`.
pub fn check(limits: &[ReadLimit], agent: &AgentConfig, problems: &mut Problems) {
    for ReadLimit {
        limit, scope_spans, ..
    } in limits
    {
        let is_exempt =
            |prefix: &Prefix| agent.never_limit.iter().any(|exempt| exempt.covers(prefix));
        let included = limit
            .sources
            .iter()
            .flat_map(|sources| &sources.prefixes)
            .filter(|it| !it.is_excluded);
        let mut included = included.map(|it| &it.prefix).peekable();
        if included.peek().is_some() && included.all(is_exempt) {
            let message = format!(
                "limit {:?} never applies: never_limit exempts all of its sources",
                limit.name
            );
            problems.warning(
                scope_spans.sources.clone(),
                message,
                "take them out of never_limit, or leave out the limit",
            );
        }
        // If `[agent]` has no interfaces, that is already an error.
        let held = &agent.interfaces;
        for (pattern, span) in scope_spans.interfaces.iter().filter(|_| !held.is_empty()) {
            if !held.iter().any(|held| may_meet(held, pattern)) {
                let held: Vec<String> = held.iter().map(|held| format!("\"{held}\"")).collect();
                let message = format!(
                    "limit {:?} never applies on \"{pattern}\": [agent] interfaces has only {}",
                    limit.name,
                    held.join(", ")
                );
                problems.error(span.clone(), message, "add it there, or correct the name");
            }
        }
    }
}

/// Whether some name may match both patterns.
fn may_meet(held: &InterfacePattern, named: &InterfacePattern) -> bool {
    match (held.is_pattern(), named.is_pattern()) {
        (true, true) => true,
        (_, false) => held.matches(&named.to_string()),
        (false, true) => named.matches(&held.to_string()),
    }
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
    fn what_has_no_effect_is_a_warning() {
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
