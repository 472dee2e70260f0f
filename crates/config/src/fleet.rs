//! `[fleet]`: rules that many hosts share, from a store.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use super::cluster::{check_name, host_name};
use super::fleet_stream::{PublicKeyText, RulesAddress};
use super::fleet_team::{self, FleetTeam};
use super::report::{Problems, Wrong};
use super::schema::{HttpUrl, Key, Kind, Located, OneOrMore, Table, Text};

/// Rules that many hosts share: signed releases in a store, which a few hosts try before the others. A host reads them,
/// and adds them to this file. Its own limits, classes, lists, groups and requests replace those of the same name. Other
/// tables are this file's alone. Rules in effect stay without the store, and over restarts.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
#[table(heading = "[fleet]", since = "0.1.0", check = check)]
#[table(
    example = "[agent]\ninterfaces = [\"eth0\"]\n\n[fleet]\nrules = \"https://rules.example.net/web\"\n\
               public_keys = [\"ed25519:RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3\"]\n\
               labels = { role = \"web\", zone = \"a\" }\nhealth = \"http://127.0.0.1:8080/healthz\"\n"
)]
pub struct FleetRules {
    /// Address of the store, and the name of the stream in it: of `https://rules.example.net/web`, the stream is `web`. A
    /// folder (`file:///srv/rules/web`), an HTTP server, a bucket of S3 (`s3+https://ENDPOINT/BUCKET/web`), or Redis or
    /// Valkey (`redis://HOST:6379/web`). Hosts write their reports there.
    #[key(unless = "team", restart)]
    #[key(examples = ["https://rules.example.net/web", "file:///srv/rules/web", "redis://127.0.0.1:6379/web"])]
    pub rules: Option<RulesAddress>,
    /// Public keys of minisign, one of which signed a release. Several keys are for replacing one: add the new key, publish
    /// with it, then remove the old one.
    #[key(unless = "team")]
    #[key(examples = ["ed25519:RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3"])]
    pub public_keys: Option<OneOrMore<PublicKeyText>>,
    /// Time between two requests to the store.
    #[key(default = Duration::from_secs(10), range = (1.0, 3_600.0), examples = ["10s"], restart)]
    pub every: Duration,
    /// Labels of this host, by which releases select hosts.
    #[key(absent = "none", examples = ["{ role = \"web\", zone = \"a\" }"], restart)]
    pub labels: BTreeMap<String, String>,
    /// Name of this host, unique in the fleet.
    #[key(absent = "the host name", default = host_name(), examples = ["web-1"], check = check_host, restart)]
    pub node: String,
    /// URL of the application's health endpoint. While rules are on trial, it has to reply with a status from 200 to 299
    /// within 2 s.
    #[key(absent = "not checked", examples = ["http://127.0.0.1:8080/healthz"])]
    pub health: Option<HttpUrl>,
    /// Addresses from which this host is managed. While rules are on trial, no limit and no ban may refuse their packets.
    #[key(absent = "none", examples = ["192.0.2.10"])]
    pub management: Vec<IpAddr>,
    /// Teams that publish limits of their own, each in a stream of its own, written as `[[fleet.team]]`. Their limits follow
    /// those of `rules`. All streams have the same `every`, `labels`, `node`, `health` and `management`.
    #[key(absent = "none")]
    pub team: Vec<FleetTeam>,
}

/// A stream that a host follows.
#[derive(Clone, Copy, Debug)]
pub struct Followed<'f> {
    pub rules: &'f RulesAddress,
    /// The keys that count for it.
    pub public_keys: &'f [PublicKeyText],
    /// `None`: the stream of `[fleet]` itself.
    pub team: Option<&'f FleetTeam>,
}

impl FleetRules {
    /// The streams in the order of precedence: that of `[fleet]`, then those of teams.
    pub fn streams(&self) -> impl Iterator<Item = Followed<'_>> {
        let own = self.rules.iter().map(|rules| Followed {
            rules,
            public_keys: self.public_keys.as_deref().unwrap_or_default(),
            team: None,
        });
        let of_teams = self.team.iter().map(|team| Followed {
            rules: &team.rules,
            public_keys: &team.public_keys,
            team: Some(team),
        });
        own.chain(of_teams)
    }
}

impl Text for IpAddr {
    const KIND: Kind = Kind::Text(&[]);

    fn parse(text: &str, key: &Key) -> Result<Self, Wrong> {
        let help = || format!("write an address: {}", key.example());
        text.parse()
            .map_err(|_| Wrong::new(format!("invalid address {text:?} of {}", key.name), help()))
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

/// The name is that of a file in the store, where those that begin with a dot are other programs'.
fn check_host(text: &str, key: &Key) -> Result<(), Wrong> {
    check_name(text, key)?;
    if text.starts_with('.') {
        let help = format!(
            "write a name that begins with another character: {}",
            key.example()
        );
        return Err(Wrong::new(format!("invalid {} {text:?}", key.name), help));
    }
    Ok(())
}

fn check(read: &Located<'_, FleetRules>, problems: &mut Problems) {
    if read.table.node.is_empty() {
        let message = "missing key \"node\" in [fleet]: this host's name is not usable instead";
        let help = format!("add {}", FleetRules::NODE.example());
        problems.conflict(read.span_of(&FleetRules::NODE), message, help);
    }
    // One without the other may be left of a stream that was removed.
    for (key, other) in [
        (&FleetRules::RULES, &FleetRules::PUBLIC_KEYS),
        (&FleetRules::PUBLIC_KEYS, &FleetRules::RULES),
    ] {
        if read.has(key) && !read.has(other) && read.has(&FleetRules::TEAM) {
            let message = format!("{} of [fleet] requires {}", key.name, other.name);
            let help = format!("add {}, or leave out {}", other.example(), key.name);
            problems.conflict(read.span_of(key), message, help);
        }
    }
    let teams = read.tables::<FleetTeam>(&FleetRules::TEAM);
    let own = read.table.rules.as_ref();
    fleet_team::check(own, &teams, problems);
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::path::Path;

    pub(crate) const KEY: &str = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";

    pub(crate) fn parse(lines: &str) -> Result<crate::Loaded, crate::report::Report> {
        let text = format!("[agent]\ninterfaces = [\"eth0\"]\n[fleet]\n{lines}");
        crate::parse(Path::new("limits.toml"), &text)
    }

    #[test]
    fn a_fleet_without_limits_of_the_host_is_a_config() {
        let loaded = parse(&format!(
            "rules = \"/srv/rules/web\"\npublic_keys = \"ed25519:{KEY}\"\nlabels = {{ role = \"web\" }}\n"
        ))
        .unwrap_or_else(|report| panic!("{report}"));
        let fleet = loaded.config.fleet.unwrap();
        assert_eq!(fleet.every, Duration::from_secs(10));
        assert_eq!(fleet.labels["role"], "web");
        assert!(!fleet.node.is_empty() && fleet.health.is_none());
    }

    #[test]
    fn errors_name_the_key_and_never_a_password() {
        let key = format!("public_keys = [\"{KEY}\"]\n");
        for (lines, message) in [
            (
                format!("rules = \"web\"\n{key}"),
                "invalid address of rules",
            ),
            (
                format!("rules = \"redis://me:cret@host:6379\"\n{key}"),
                "invalid address of rules",
            ),
            (
                format!("rules = \"https://me:cret@host/web\"\n{key}"),
                "credentials",
            ),
            (
                format!("rules = \"s3+https://me:cret@host/rules/web\"\n{key}"),
                "credentials",
            ),
            (format!("rules = \"s3+https://host/web\"\n{key}"), "bucket"),
            (
                format!("rules = \"s3+https://host/a b/web\"\n{key}"),
                "bucket",
            ),
            (format!("rules = \"/srv/..\"\n{key}"), "name of a stream"),
            (key.clone(), "missing key \"rules\""),
            ("rules = \"/srv/web\"\n".to_owned(), "\"public_keys\""),
            (
                "rules = \"/srv/web\"\npublic_keys = [\"RWabc\"]\n".to_owned(),
                "invalid public_keys",
            ),
            (
                format!("rules = \"/srv/web\"\n{key}every = \"1ms\"\n"),
                "out of range",
            ),
            (
                format!("rules = \"/srv/web\"\n{key}node = \"..\"\n"),
                "invalid node \"..\"",
            ),
            (
                format!("rules = \"/srv/web\"\n{key}management = [\"me\"]\n"),
                "invalid address \"me\"",
            ),
        ] {
            let report = parse(&lines).map(|_| ()).unwrap_err().to_string();
            assert!(report.contains(message), "{lines}: {report}");
            let shown = report.replace(|c: char| !c.is_ascii_alphanumeric(), "");
            assert!(
                !shown.contains("mecret") || !lines.contains("redis"),
                "{report}"
            );
        }
    }
}
