//! `[cluster]`: the store through which several hosts enforce one limit.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use redis::IntoConnectionInfo;

use super::policy::{ClusterMode, WhenStoreIsDown};
use super::report::{Problems, Span, Wrong};
use super::schema::{self, Key, Kind, Located, Mask, OneOrMore, Text};
use super::table::Table;

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
const EXAMPLE: &str = "redis://127.0.0.1:6379";

/// The store through which many hosts enforce limits with `cluster` together, and share bans.
#[derive(Clone, Debug, PartialEq, Eq, schema::Table)]
#[table(heading = "[cluster]", since = "0.1.0", check = check)]
#[table(
    example = "[cluster]\nstore = \"redis://127.0.0.1:6379\"\nnode = \"host-1\"\n\n\
                   [[limit]]\nname = \"logins\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"600/min\"\n\
                   cluster = true\n"
)]
pub struct Cluster {
    /// Address of Redis or Valkey; several for a Redis Cluster's nodes or for Sentinels. `rediss://` uses TLS.
    #[key(examples = [EXAMPLE, "rediss://user:password@host:6379"])]
    pub store: OneOrMore<StoreUrl>,
    /// Name of the master, if `store` lists Sentinels.
    #[key(absent = "`store` is not a Sentinel", examples = ["mymaster"], check = check_name)]
    pub sentinel: Option<String>,
    /// Certificate authorities of the store, in PEM.
    #[key(absent = "the system's", examples = ["/etc/ssl/store.pem"])]
    pub authorities: Option<PathBuf>,
    /// Name of the cluster. Clusters on one store require different names.
    #[key(default = "weir".to_owned(), examples = ["shop"], check = check_name)]
    pub name: String,
    /// Name of this host, unique in the cluster.
    #[key(absent = "the host name", default = host_name(), examples = ["host-1"], check = check_name)]
    pub node: String,
    /// Time between two exchanges with the store. Above 100 hosts, `1s` saves the store work.
    #[key(default = Duration::from_millis(100), range = (0.01, 60.0), examples = ["100ms"])]
    pub sync: Duration,
    /// Keys of limits with `cluster = "keys"` that a host publishes at a time. Of other busy keys, each host passes the
    /// limit divided by the hosts.
    #[key(default = 10_000, range = (1.0, 1_000_000.0))]
    pub max_hot_keys: u64,
    /// What a host enforces when its leases have expired and the store is unavailable. `share`: the limit divided by the
    /// hosts last seen. `local`: the whole limit. `open`: nothing is refused. `closed`: everything is refused.
    #[key(default = WhenStoreIsDown::Share)]
    pub when_store_is_down: WhenStoreIsDown,
    /// Whether every host enforces the bans that operators (`weir ban`) and limits (`escalate`) of all hosts make,
    /// within a second.
    #[key(default = false)]
    pub share_bans: bool,
    /// The zone of this host, such as a data centre, written as `[cluster.zone]`. Limits with `cluster = "shares"` are divided
    /// between zones through `store`, and within each zone through a store of its own. Limits with `cluster = "keys"` and
    /// bans use `store`.
    #[key(absent = "one zone")]
    pub zone: Option<Zone>,
}

/// A part of a cluster whose hosts are near each other.
#[derive(Clone, Debug, PartialEq, Eq, schema::Table)]
#[table(inner, since = "0.1.0")]
pub struct Zone {
    /// Name of the zone, the same on all its hosts.
    #[key(examples = ["eu"], check = check_name)]
    pub name: String,
    /// Address of the zone's own store, as `[cluster] store` has it.
    #[key(examples = ["redis://10.1.0.5:6379"])]
    pub store: OneOrMore<StoreUrl>,
    /// Name of the master, if the zone's `store` lists Sentinels.
    #[key(absent = "`store` is not a Sentinel", examples = ["mymaster"], check = check_name)]
    pub sentinel: Option<String>,
    /// Time between two exchanges between the zones, at least `[cluster] sync`: twice the round trip or more.
    #[key(absent = "`500ms`", default = Duration::from_millis(500), range = (0.01, 60.0), examples = ["500ms"])]
    pub sync: Duration,
}

impl Cluster {
    /// The cluster of this host's zone alone, through the zone's store; the whole cluster without zones.
    #[must_use]
    pub fn of_zone(&self) -> Self {
        let Some(zone) = &self.zone else {
            return self.clone();
        };
        Self {
            store: zone.store.clone(),
            sentinel: zone.sentinel.clone(),
            // No cluster's name has this character, so one store may serve both.
            name: format!("{}@{}", self.name, zone.name),
            ..self.clone()
        }
    }
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

impl Text for StoreUrl {
    const KIND: Kind = Kind::Text(&[]);
    const MASK: Option<Mask> = Some(|text, _| without_credentials(text));

    fn parse(text: &str, _: &Key) -> Result<Self, Wrong> {
        let help = format!("write {EXAMPLE:?}, or \"rediss://user:password@host:6379\" for TLS");
        if !SCHEMES.iter().any(|scheme| text.starts_with(scheme)) {
            // The value may be a password: messages do not repeat it.
            let message =
                "invalid address of a store: it does not begin with redis:// or rediss://";
            return Err(Wrong::new(message, help));
        }
        // The redis crate supports only the older scheme names.
        let text = text
            .replacen("valkeys://", "rediss://", 1)
            .replacen("valkey://", "redis://", 1);
        match text.as_str().into_connection_info() {
            Ok(_) => Ok(Self(text)),
            Err(_) => Err(Wrong::new("invalid address of a store", help)),
        }
    }

    fn text(&self) -> String {
        self.to_string()
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

/// Reads `[cluster]` and checks the limits against it: (name, span, its `cluster`). `has_interfaces`: bans can be enforced.
pub fn read(
    root: &mut Table<'_, '_>,
    limits: &[(String, Span, Option<ClusterMode>)],
    has_interfaces: bool,
) -> Option<Cluster> {
    let cluster = schema::read_one::<Cluster>(root).map(|read| {
        warn_of_unused_zone(&read, limits, root.problems);
        read.table
    });
    match root.value("cluster") {
        None => {
            if let Some((name, span, _)) = limits.iter().find(|(.., mode)| mode.is_some()) {
                let message = format!("limit {name:?} has cluster, and table [cluster] is missing");
                let help = format!("add [cluster] store = {EXAMPLE:?}, or leave out cluster");
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
fn is_unused(cluster: Option<&Cluster>, limits: &[(String, Span, Option<ClusterMode>)]) -> bool {
    !limits.iter().any(|(.., mode)| mode.is_some())
        && cluster.is_some_and(|cluster| !cluster.share_bans)
}

fn warn_of_unused_zone(
    read: &Located<'_, Cluster>,
    limits: &[(String, Span, Option<ClusterMode>)],
    problems: &mut Problems,
) {
    let is_shared =
        |(.., mode): &(String, Span, Option<ClusterMode>)| *mode == Some(ClusterMode::Shares);
    if read.table.zone.is_some() && !limits.iter().any(is_shared) {
        problems.warning(
            read.span_of(&Cluster::ZONE),
            "[cluster.zone] has no effect: no limit has cluster = \"shares\"",
            "add cluster = \"shares\" to a [[limit]], or leave out [cluster.zone]; limits with cluster = \"keys\" use [cluster] store",
        );
    }
}

/// This host's name; empty if it is unusable in a cluster.
pub(crate) fn host_name() -> String {
    let name = nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok());
    name.filter(|name| is_name(name)).unwrap_or_default()
}

fn check(read: &Located<'_, Cluster>, problems: &mut Problems) {
    if let Some(zone) = &read.table.zone
        && zone.sync < read.table.sync
    {
        problems.conflict(
            read.span_of(&Cluster::ZONE),
            "sync of [cluster.zone] is shorter than [cluster] sync: a zone cannot release its share faster than its hosts",
            "set it to [cluster] sync or more, or leave it out",
        );
    }
    if read.table.node.is_empty() {
        let message = "missing key \"node\" in [cluster]: this host's name is not usable instead";
        let help = format!("add {}", Cluster::NODE.example());
        problems.conflict(read.span_of(&Cluster::NODE), message, help);
    }
}

pub(crate) fn is_name(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !text.is_empty() && text.len() <= LONGEST_NAME && text.chars().all(is_plain)
}

pub(crate) fn check_name(text: &str, key: &Key) -> Result<(), Wrong> {
    if is_name(text) {
        return Ok(());
    }
    let help = format!(
        "write letters, digits, dashes, dots and underscores, {LONGEST_NAME} at most: {}",
        key.example()
    );
    Err(Wrong::new(format!("invalid {} {text:?}", key.name), help))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate as config;
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
        assert_eq!(defaults.sync, Duration::from_millis(100));
        assert_eq!(
            Some(defaults.node),
            nix::unistd::gethostname().unwrap().into_string().ok()
        );
        assert_eq!(defaults.when_store_is_down, WhenStoreIsDown::Share);
    }

    #[test]
    fn a_zone_has_a_store_of_its_own() {
        let zone = |lines: &str| {
            format!(
                "[cluster]\nstore = \"redis://one\"\nname = \"shop\"\nsync = \"200ms\"\n\
                 [cluster.zone]\nname = \"eu\"\nstore = \"redis://me:secret@two\"\n{lines}"
            )
        };
        let text = format!("{}{LIMIT}", zone("sync = \"1s\"\n"));
        let loaded = parse(&text).unwrap_or_else(|report| panic!("{report}"));
        let of_zone = |warning: &config::report::Placed| warning.message.contains("zone");
        assert!(
            !loaded.warnings.iter().any(of_zone),
            "{:?}",
            loaded.warnings
        );
        let cluster = loaded.config.cluster.unwrap();
        assert_eq!(cluster.zone.as_ref().unwrap().sync, Duration::from_secs(1));
        let own = cluster.of_zone();
        assert_eq!(own.name, "shop@eu");
        assert_eq!(own.store[0].reveal(), "redis://me:secret@two");
        let shown = format!("{cluster:?}");
        assert!(!shown.contains("secret"), "{shown}");
        for (lines, message) in [
            ("sync = \"100ms\"\n", "shorter than [cluster] sync"),
            ("stores = 1\n", "unknown key \"stores\""),
        ] {
            let report = parse(&format!("{}{LIMIT}", zone(lines)))
                .map(|_| ())
                .unwrap_err();
            let report = report.to_string();
            assert!(
                report.contains(message) && !report.contains("secret"),
                "{lines}: {report}"
            );
        }
        let keys = LIMIT.replace("true", "\"keys\"");
        let warnings = parse(&format!("{}{keys}", zone(""))).unwrap().warnings;
        assert!(
            warnings
                .iter()
                .any(|warning| warning.message.contains("[cluster.zone] has no effect")),
            "{warnings:?}"
        );
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
    fn errors_have_their_position() {
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
                "store = \"redis:",
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
                "store is an integer",
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
