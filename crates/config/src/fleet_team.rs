//! `[[fleet.team]]`: a stream of its own for the limits of a team, and the rules between teams.

use super::cluster::is_name;
use super::fleet_stream::{PublicKeyText, RulesAddress};
use super::report::{Problems, Wrong};
use super::schema::{Key, Located, OneOrMore, Table};

/// The most teams: each has a thread and a connection to its store.
const MOST: usize = 32;
const LONGEST_PREFIX: usize = 32;
const DEFAULT_LIMITS: u64 = 20;

/// A team that publishes limits of its own.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
#[table(inner, since = "0.1.0")]
pub struct FleetTeam {
    /// Address of the team's stream, as `[fleet] rules` has it. The streams of a host have different names.
    #[key(examples = ["https://rules.example.net/search"])]
    pub rules: RulesAddress,
    /// Public keys that count for this stream. Those of `[fleet]` and of other teams do not.
    #[key(examples = ["ed25519:RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3"])]
    pub public_keys: OneOrMore<PublicKeyText>,
    /// The beginning of the names of the team's limits. No prefix is the beginning of another, and `[fleet] rules` has no
    /// limits that begin so.
    #[key(examples = ["search-"], check = check_prefix)]
    pub prefix: String,
    /// The most limits of a release.
    #[key(absent = "20", default = DEFAULT_LIMITS, range = (1.0, 1_000.0))]
    pub limits: u64,
}

fn check_prefix(text: &str, key: &Key) -> Result<(), Wrong> {
    if is_name(text) && text.len() <= LONGEST_PREFIX {
        return Ok(());
    }
    let help = format!(
        "write letters, digits, dashes, dots and underscores, {LONGEST_PREFIX} at most: {}",
        key.example()
    );
    Err(Wrong::new(format!("invalid {} {text:?}", key.name), help))
}

/// Checks the rules between teams: streams and names of limits are of one team alone.
pub(super) fn check(
    own: Option<&RulesAddress>,
    teams: &[Located<'_, FleetTeam>],
    problems: &mut Problems,
) {
    if let Some(team) = teams.get(MOST) {
        let message = format!("{} teams in [fleet], of at most {MOST}", teams.len());
        problems.error(
            team.span(),
            message,
            "let teams share a stream and a prefix",
        );
    }
    for (nth, team) in teams.iter().enumerate() {
        let earlier = &teams[..nth];
        let stream = &team.table.rules.stream;
        let mut streams = own
            .into_iter()
            .chain(earlier.iter().map(|team| &team.table.rules));
        if streams.any(|other| other.stream == *stream) {
            let message = format!("duplicate stream {stream:?} in [fleet]");
            let help = "name another stream: its name is the last part of the address";
            problems.conflict(team.span_of(&FleetTeam::RULES), message, help);
        }
        let prefix = &team.table.prefix;
        let overlaps =
            |other: &&str| prefix.starts_with(other) || other.starts_with(prefix.as_str());
        let mut prefixes = earlier.iter().map(|team| team.table.prefix.as_str());
        if let Some(other) = prefixes.find(overlaps) {
            let message = if other == prefix {
                format!("duplicate prefix {prefix:?} in [fleet]")
            } else {
                format!(
                    "prefix {prefix:?} conflicts with {other:?}: one is the beginning of the other"
                )
            };
            let help = "give each team a prefix of its own, which ends with a dash";
            problems.conflict(team.span_of(&FleetTeam::PREFIX), message, help);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::fleet::tests::{KEY, parse};

    /// The fleet's own stream.
    fn own() -> String {
        format!("rules = \"/srv/web\"\npublic_keys = [{KEY:?}]\n")
    }

    fn team(stream: &str, prefix: &str) -> String {
        format!(
            "[[fleet.team]]\nrules = \"/srv/{stream}\"\npublic_keys = [{KEY:?}]\nprefix = {prefix:?}\n"
        )
    }

    #[test]
    fn teams_follow_the_stream_of_the_fleet_and_need_none() {
        let streams = |lines: &str| {
            let loaded = parse(lines).unwrap_or_else(|report| panic!("{report}"));
            let fleet = loaded.config.fleet.unwrap();
            let streams = fleet.streams().map(|followed| {
                let limits = followed.team.map_or(0, |team| team.limits);
                (
                    followed.rules.stream.clone(),
                    followed.public_keys.len(),
                    limits,
                )
            });
            streams.collect::<Vec<_>>()
        };
        let own = own();
        let teams = format!(
            "{}limits = 3\n{}",
            team("search", "search-"),
            team("pay", "pay-")
        );
        let of_teams = [("search".to_owned(), 1, 3), ("pay".to_owned(), 1, 20)];
        assert_eq!(streams(&teams), of_teams);
        let all = streams(&format!("{own}{teams}"));
        assert_eq!(all[0], ("web".to_owned(), 1, 0));
        assert_eq!(all[1..], of_teams);
        let loaded = |lines: &str| parse(lines).unwrap().config;
        let (one, both) = (
            loaded(&own),
            loaded(&format!("{own}{}", team("pay", "pay-"))),
        );
        // A reload adds and removes them.
        assert_eq!(crate::needing_restart(&one, &both), Vec::<String>::new());
        assert_eq!(
            crate::Changes::between(&one, &both).lines(),
            [format!(
                "+ [fleet] team  {{ rules = /srv/pay, public_keys = {KEY}, prefix = pay- }}"
            )]
        );
    }

    #[test]
    fn teams_share_neither_streams_nor_names() {
        let own = own();
        let two = |one: (&str, &str), other: (&str, &str)| {
            format!("{own}{}{}", team(one.0, one.1), team(other.0, other.1))
        };
        for (lines, message) in [
            (
                two(("a", "a-"), ("web", "b-")),
                "duplicate stream \"web\" in [fleet]",
            ),
            (two(("a", "a-"), ("a", "b-")), "duplicate stream \"a\""),
            (two(("a", "a-"), ("b", "a-")), "duplicate prefix \"a-\""),
            (
                two(("a", "a-"), ("b", "a-b-")),
                "prefix \"a-b-\" conflicts with \"a-\": one is the beginning of the other",
            ),
            (two(("a", "ab"), ("b", "a")), "\"a\" conflicts with \"ab\""),
            (team("a", ""), "invalid prefix \"\""),
            (team("a", "a b"), "invalid prefix \"a b\""),
            (format!("{}limits = 0\n", team("a", "a-")), "out of range"),
            (
                format!("{}name = \"a\"\n", team("a", "a-")),
                "unknown key \"name\" in team",
            ),
            (
                "[[fleet.team]]\nrules = \"/srv/a\"\nprefix = \"a-\"\n".to_owned(),
                "missing key \"public_keys\"",
            ),
            (
                format!("rules = \"/srv/web\"\n{}", team("a", "a-")),
                "rules of [fleet] requires public_keys",
            ),
            (
                format!("public_keys = [{KEY:?}]\n{}", team("a", "a-")),
                "public_keys of [fleet] requires rules",
            ),
        ] {
            let report = parse(&lines).map(|_| ()).unwrap_err().to_string();
            assert!(report.contains(message), "{lines}: {report}");
        }
    }
}
