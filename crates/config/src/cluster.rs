//! `[cluster]`: the store through which several hosts enforce one limit.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use redis::IntoConnectionInfo;
use toml::Spanned;
use toml::de::DeValue;

use super::policy::WhenStoreIsDown;
use super::report::{Problems, Span};
use super::table::Table;
use super::units;

/// The default interval between renewals of shares.
const DEFAULT_SYNC: Duration = Duration::from_millis(100);
/// The range of the interval between two exchanges.
const SYNC: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(60);
/// The default number of busy keys that a host exchanges.
const DEFAULT_HOT_KEYS: u64 = 10_000;
pub(super) const MOST_HOT_KEYS: u64 = 1_000_000;
/// The longest name of a host or a cluster.
const LONGEST_NAME: usize = 128;
const SCHEMES: [&str; 6] = [
    "redis://",
    "rediss://",
    "valkey://",
    "valkeys://",
    "redis+unix://",
    "unix://",
];
const EXAMPLE: &str = "\"redis://127.0.0.1:6379\"";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// The store's addresses: one server, several nodes of a Cluster, or Sentinels.
    pub store: Vec<StoreUrl>,
    /// The master's name, if the addresses are Sentinels.
    pub sentinel: Option<String>,
    /// A PEM file of authorities that replaces the system's when the store uses TLS.
    pub authorities: Option<PathBuf>,
    /// The cluster's name, which separates clusters on one store.
    pub name: String,
    /// This host's name.
    pub node: String,
    /// The time between two exchanges with the store.
    pub sync: Duration,
    /// The most busy keys that this host exchanges at a time, over all limits with `cluster = "keys"`.
    pub max_hot_keys: u64,
    /// The limit of this host while the store is unavailable.
    pub when_store_is_down: WhenStoreIsDown,
    /// Whether all hosts enforce the bans that operators and limits of each make.
    pub share_bans: bool,
}

/// The address of a store. `Display` and `Debug` omit its credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(String);

impl StoreUrl {
    /// The address with its credentials, for connecting.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&without_credentials(&self.0))
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// Masks the credentials of every store's address in a text, without changing its length: for error snippets of a
/// config.
#[must_use]
pub fn without_credentials(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for scheme in SCHEMES {
        for (start, _) in text.match_indices(scheme) {
            let rest = start + scheme.len();
            let ends = |c: char| c == '"' || c == '\'' || c.is_whitespace();
            let address = &text[rest..text[rest..].find(ends).map_or(text.len(), |end| rest + end)];
            if let Some(end) = address.rfind('@') {
                bytes[rest..rest + end].fill(b'*');
            }
            // A Unix socket's address has them after the path.
            if let Some(query) = address.find('?') {
                bytes[rest + query + 1..rest + address.len()].fill(b'*');
            }
        }
    }
    // The replacement starts and ends at character boundaries.
    String::from_utf8(bytes).unwrap_or_default()
}

/// Reads `[cluster]` and checks the limits against it: (name, span, whether it has `cluster`). `has_interfaces`: bans can
/// be enforced.
pub fn read(
    root: &mut Table<'_, '_>,
    limits: &[(String, Span, bool)],
    has_interfaces: bool,
) -> Option<Cluster> {
    let value = root.value("cluster");
    let cluster = match value {
        Some(value) => match value.get_ref().as_table() {
            Some(content) => table(Table::new(
                content,
                value.span(),
                "[cluster]",
                root.problems,
            )),
            None => {
                root.wrong_type("cluster", value, "a table: [cluster]");
                None
            }
        },
        None => None,
    };
    match value {
        None => {
            if let Some((name, span, _)) = limits.iter().find(|(_, _, is_clusters)| *is_clusters) {
                let message = format!("limit {name:?} has cluster, and table [cluster] is missing");
                let help = format!("add [cluster] store = {EXAMPLE}, or leave out cluster");
                root.problems.error(span.clone(), message, help);
            }
        }
        Some(value) if is_unused(cluster.as_ref(), limits) => {
            let help = "add cluster = \"shares\" or \"keys\" to a [[limit]], or share_bans = true to [cluster], or leave out [cluster]";
            root.problems.warning(
                value.span(),
                "[cluster] has no effect: no limit has cluster, and bans are not shared",
                help,
            );
        }
        Some(value)
            if !has_interfaces && cluster.as_ref().is_some_and(|cluster| cluster.share_bans) =>
        {
            let help = "add [agent] interfaces = [\"eth0\"], or leave out share_bans";
            root.problems.warning(
                value.span(),
                "share_bans has no effect on this host: no interface is named",
                help,
            );
        }
        Some(_) => {}
    }
    cluster
}

/// Whether neither limits nor bans are shared. An invalid table has errors of its own.
fn is_unused(cluster: Option<&Cluster>, limits: &[(String, Span, bool)]) -> bool {
    !limits.iter().any(|(_, _, is_clusters)| *is_clusters)
        && cluster.is_some_and(|cluster| !cluster.share_bans)
}

fn table(mut table: Table<'_, '_>) -> Option<Cluster> {
    let store = stores(&mut table);
    let sentinel = named(&mut table, "sentinel", "\"mymaster\"");
    let authorities = table
        .string("authorities", "\"/etc/ssl/store.pem\"")
        .and_then(|(text, span)| {
            if !text.starts_with('/') {
                table.problems.error(
                    span,
                    format!("{text:?} is not an absolute path"),
                    "begin it with /",
                );
                return None;
            }
            Some(PathBuf::from(text))
        });
    let name = named(&mut table, "name", "\"weir\"").unwrap_or_else(|| "weir".to_owned());
    let node = match named(&mut table, "node", "\"host-1\"") {
        Some(node) => Some(node),
        None => match nix::unistd::gethostname()
            .ok()
            .and_then(|name| name.into_string().ok())
        {
            Some(name) if is_name(&name) => Some(name),
            _ => {
                let span = table.span();
                table.problems.error(
                    span,
                    "missing key \"node\" in [cluster]: this host's name is not usable instead",
                    "add node = \"host-1\"",
                );
                None
            }
        },
    };
    let sync = sync(&mut table);
    let max_hot_keys = table
        .number("max_hot_keys", 1, MOST_HOT_KEYS)
        .unwrap_or(DEFAULT_HOT_KEYS);
    let when = table
        .word("when_store_is_down", WhenStoreIsDown::WORDS)
        .unwrap_or(WhenStoreIsDown::Share);
    let share_bans = match table.value("share_bans") {
        None => false,
        Some(value) => value.get_ref().as_bool().unwrap_or_else(|| {
            table.wrong_type("share_bans", value, "true or false: share_bans = true");
            false
        }),
    };
    table.finish();
    Some(Cluster {
        store: store?,
        sentinel,
        authorities,
        name,
        node: node?,
        sync,
        max_hot_keys,
        when_store_is_down: when,
        share_bans,
    })
}

/// One address, or a list of them.
fn stores(table: &mut Table<'_, '_>) -> Option<Vec<StoreUrl>> {
    let value = table.required("store", EXAMPLE)?;
    let urls: Vec<&Spanned<DeValue<'_>>> = match value.get_ref() {
        DeValue::String(_) => vec![value],
        DeValue::Array(array) => array.iter().collect(),
        _ => {
            table.wrong_type("store", value, &format!("an address: store = {EXAMPLE}"));
            return None;
        }
    };
    if urls.is_empty() {
        table.problems.error(
            value.span(),
            "empty store",
            format!("write store = {EXAMPLE}"),
        );
        return None;
    }
    let read =
        |value: &Spanned<DeValue<'_>>| url(value.get_ref().as_str(), value.span(), table.problems);
    // Every address is read, so that all errors are reported.
    let urls: Vec<Option<StoreUrl>> = urls.into_iter().map(read).collect();
    urls.into_iter().collect()
}

fn url(text: Option<&str>, span: Span, problems: &mut Problems) -> Option<StoreUrl> {
    let help = format!("write {EXAMPLE}, or \"rediss://user:password@host:6379\" for TLS");
    let Some(text) = text else {
        problems.error(span, "invalid store: each address is a string", help);
        return None;
    };
    if !SCHEMES.iter().any(|scheme| text.starts_with(scheme)) {
        // The value may be a password: messages do not repeat it.
        problems.error(
            span,
            "invalid address of a store: it does not begin with redis:// or rediss://",
            help,
        );
        return None;
    }
    // The redis crate supports only the older scheme names.
    let text = text
        .replacen("valkeys://", "rediss://", 1)
        .replacen("valkey://", "redis://", 1);
    match text.as_str().into_connection_info() {
        Ok(_) => Some(StoreUrl(text)),
        Err(_) => {
            problems.error(span, "invalid address of a store", help);
            None
        }
    }
}

fn is_name(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !text.is_empty() && text.len() <= LONGEST_NAME && text.chars().all(is_plain)
}

fn named(table: &mut Table<'_, '_>, key: &'static str, example: &str) -> Option<String> {
    let (text, span) = table.string(key, example)?;
    if is_name(text) {
        return Some(text.to_owned());
    }
    let help = format!(
        "write letters, digits, dashes, dots and underscores, {LONGEST_NAME} at most: {key} = {example}"
    );
    table
        .problems
        .error(span, format!("invalid {key} {text:?}"), help);
    None
}

fn sync(table: &mut Table<'_, '_>) -> Duration {
    let Some((text, span)) = table.string("sync", "\"100ms\"") else {
        return DEFAULT_SYNC;
    };
    match units::time(text) {
        Ok(time) if SYNC.contains(&Duration::from_nanos(time)) => Duration::from_nanos(time),
        Ok(_) => {
            let help = "write sync = \"100ms\", or \"1s\" for more than 100 hosts";
            table.problems.error(
                span,
                format!("sync {text:?} is out of range: 10 ms to 60 s"),
                help,
            );
            DEFAULT_SYNC
        }
        Err(wrong) => {
            table
                .problems
                .error(span, wrong.message, "write sync = \"100ms\"");
            DEFAULT_SYNC
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate as config;
    use crate::policy::ClusterMode;
    use std::path::Path;

    const LIMIT: &str = "[[limit]]\nname = \"a\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"10/s\"\ncluster = true\n";

    fn parse(text: &str) -> Result<config::Loaded, config::report::Report> {
        config::parse(Path::new("limits.toml"), text)
    }

    #[test]
    fn keys_on_packets_are_one_limits_alone() {
        let with = |lines: &str, more: &str| {
            format!(
                "[agent]\ninterfaces = [\"eth0\"]\n[cluster]\nstore = \"redis://one\"\n[[limit]]\nname = \"a\"\n\
                 rate = \"10/s\"\ncluster = \"keys\"\n{lines}\n{more}"
            )
        };
        let limits = parse(&with("", ""))
            .unwrap_or_else(|report| panic!("{report}"))
            .config
            .limits;
        assert_eq!(limits[0].cluster, Some(ClusterMode::Keys));
        let other = "[[limit]]\nname = \"b\"\nrate = \"10/s\"\n";
        let class = "[[class]]\nname = \"c\"\nsources = [\"10.0.0.0/8\"]\nmultiplier = 2\n";
        for (lines, more, reason) in [
            (
                "key = \"interface\"",
                "",
                "not supported with these settings",
            ),
            (
                "algorithm = \"fixed-window\"",
                "",
                "not supported with these settings",
            ),
            ("ipv6_prefix = 128", "", "not supported with these settings"),
            ("tiers = [\"100/h\"]", "", "tiers is not supported"),
            ("", other, "conflicts with limit \"b\""),
            ("", class, "class \"c\" has one"),
        ] {
            let report = parse(&with(lines, more))
                .map(|_| ())
                .unwrap_err()
                .to_string();
            assert!(report.contains(reason), "{lines}{more}: {report}");
        }
        assert!(parse(&with("", &format!("{other}ipv4_prefix = 24\n"))).is_ok());
    }

    #[test]
    fn a_cluster_is_what_it_says() {
        let text = format!(
            "[cluster]\nstore = [\"redis://one:7000\", \"valkeys://me:secret@two/3\"]\nnode = \"host-1\"\nsync = \"250ms\"\n\
             when_store_is_down = \"closed\"\nname = \"shop\"\n{LIMIT}"
        );
        let config = parse(&text)
            .unwrap_or_else(|report| panic!("{report}"))
            .config;
        let cluster = config.cluster.unwrap();
        assert_eq!(
            (cluster.node.as_str(), cluster.name.as_str()),
            ("host-1", "shop")
        );
        assert_eq!(cluster.sync, Duration::from_millis(250));
        assert_eq!(cluster.when_store_is_down, WhenStoreIsDown::Closed);
        assert_eq!(cluster.store[1].reveal(), "rediss://me:secret@two/3");
        assert_eq!(config.decide.limits[0].cluster, Some(ClusterMode::Shares));
        let example = parse(include_str!("../../../config/limits.cluster.toml"))
            .unwrap_or_else(|report| panic!("{report}"));
        assert!(example.warnings.is_empty() && example.config.cluster.is_some());
        let defaults = parse(&format!("[cluster]\nstore = \"redis://one\"\n{LIMIT}"))
            .unwrap()
            .config
            .cluster
            .unwrap();
        assert_eq!(defaults.sync, DEFAULT_SYNC);
        assert_eq!(
            Some(defaults.node),
            nix::unistd::gethostname().unwrap().into_string().ok()
        );
        assert_eq!(defaults.when_store_is_down, WhenStoreIsDown::Share);
    }

    #[test]
    fn bans_are_shared_through_a_store() {
        let agent = "[agent]\ninterfaces = [\"eth0\"]\n";
        let shares = "[cluster]\nstore = \"redis://one\"\nshare_bans = true\n";
        let loaded = parse(&format!("{agent}{shares}")).unwrap_or_else(|report| panic!("{report}"));
        assert!(
            loaded.config.cluster.unwrap().share_bans && loaded.warnings.is_empty(),
            "{:?}",
            loaded.warnings
        );
        let warnings = parse(&format!("[agent]\nallow_empty = true\n{shares}"))
            .unwrap()
            .warnings;
        assert!(
            warnings
                .iter()
                .any(|warning| warning.message.contains("share_bans has no effect")),
            "{warnings:?}"
        );
        for (text, message, help) in [
            (
                "[cluster]\nshare_bans = true\n",
                "missing key \"store\"",
                "store = \"redis://127.0.0.1:6379\"",
            ),
            (
                "[cluster]\nstore = \"redis://one\"\nshare_bans = \"yes\"\n",
                "share_bans is a string",
                "share_bans = true",
            ),
            (
                "[cluster]\nstore = \"redis://one\"\nshare_ban = true\n",
                "unknown key \"share_ban\"",
                "share_bans",
            ),
        ] {
            let report = parse(&format!("{agent}{text}")).map(|_| ()).unwrap_err();
            let found = report
                .errors
                .iter()
                .any(|error| error.message.contains(message) && error.help.contains(help));
            assert!(found, "{text}: {report}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        let store = "store = \"redis://one\"\n";
        for (text, line, column, message, help) in [
            (
                LIMIT.to_owned(),
                2,
                8,
                "[cluster] is missing",
                "add [cluster]",
            ),
            (
                format!("[cluster]\n{LIMIT}"),
                1,
                1,
                "missing key \"store\"",
                "redis://127.0.0.1",
            ),
            (
                format!("cluster = 1\n{LIMIT}"),
                1,
                11,
                "is an integer",
                "[cluster]",
            ),
            (
                format!("[cluster]\nstore = 1\n{LIMIT}"),
                2,
                9,
                "store is an integer",
                "an address",
            ),
            (
                format!("[cluster]\nstore = []\n{LIMIT}"),
                2,
                9,
                "empty store",
                "redis://",
            ),
            (
                format!("[cluster]\nstore = [\"redis://one\", 2]\n{LIMIT}"),
                2,
                25,
                "is a string",
                "redis://",
            ),
            (
                format!("[cluster]\nstore = \"memcached://one\"\n{LIMIT}"),
                2,
                9,
                "invalid address",
                "redis://",
            ),
            (
                format!("[cluster]\nstore = \"redis://one:port\"\n{LIMIT}"),
                2,
                9,
                "invalid address",
                "redis://",
            ),
            (
                format!("[cluster]\n{store}node = \"a b\"\n{LIMIT}"),
                3,
                8,
                "invalid node \"a b\"",
                "letters",
            ),
            (
                format!("[cluster]\n{store}sync = \"1ms\"\n{LIMIT}"),
                3,
                8,
                "10 ms",
                "100ms",
            ),
            (
                format!("[cluster]\n{store}sync = \"fast\"\n{LIMIT}"),
                3,
                8,
                "unknown unit of time",
                "100ms",
            ),
            (
                format!("[cluster]\n{store}when_store_is_down = \"panic\"\n{LIMIT}"),
                3,
                22,
                "invalid when_store_is_down \"panic\"",
                "share",
            ),
            (
                format!("[cluster]\n{store}authorities = \"ca.pem\"\n{LIMIT}"),
                3,
                15,
                "absolute",
                "/",
            ),
            (
                format!("[cluster]\n{store}nodes = \"a\"\n{LIMIT}"),
                3,
                1,
                "unknown key",
                "\"node\"",
            ),
            (
                format!("[cluster]\n{store}{}", LIMIT.replace("true", "1")),
                8,
                11,
                "is an integer",
                "cluster = true",
            ),
        ] {
            let report = parse(&text).map(|_| text.clone()).unwrap_err();
            let found = report.errors.iter().any(|error| {
                (error.line, error.column) == (line, column)
                    && error.message.contains(message)
                    && error.help.contains(help)
            });
            assert!(found, "{text}\n{report}");
        }
        let warnings = parse(&format!(
            "[cluster]\n{store}{}",
            LIMIT.replace("cluster = true", "")
        ))
        .unwrap()
        .warnings;
        assert!(
            warnings
                .iter()
                .any(|warning| warning.message.contains("no limit has cluster"))
        );
    }

    #[test]
    fn credentials_are_never_shown() {
        let line = "store = \"rediss://me:sécret@:x@two:1/3\" # redis://you:other@three\n";
        // An error on that line, on another line, a syntax error, and a valid config.
        for text in [
            format!("[cluster]\n{}{LIMIT}", line.replace("two:1", "two:port")),
            format!("[cluster]\n{line}sync = \"never\"\n{LIMIT}"),
            format!("[cluster]\nstore = \"rediss://me:sécret@two\n{LIMIT}"),
        ] {
            let report = parse(&text).map(|_| text.clone()).unwrap_err();
            let shown = format!(
                "{report}\n{report:?}\n{}",
                serde_json::to_string(&report.errors).unwrap()
            );
            assert!(
                !shown.contains("cret") && !shown.contains("other"),
                "{shown}"
            );
        }
        let cluster = parse(&format!("[cluster]\n{line}{LIMIT}"))
            .unwrap()
            .config
            .cluster
            .unwrap();
        let shown = format!("{cluster:?} {}", cluster.store[0]);
        assert!(
            !shown.contains("cret") && shown.contains("two:1/3"),
            "{shown}"
        );
    }
}
