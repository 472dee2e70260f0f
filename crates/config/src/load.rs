//! Reading a limits.toml.

use std::path::{Path, PathBuf};

use host::read::{self, ReadError};
use thiserror::Error;
use toml::de::DeTable;

use super::checks::{check_bans, check_classes, check_exchanged, check_limits, check_scopes};
use super::group::Group;
use super::policy::{
    AgentConfig, BanList, Class, ClusterMode, Config, FleetRules, Geo, Limit, RequestLimit,
};
use super::reference;
use super::report::{self, Placed, Problems, Report, Span};
use super::schema::{read_all, read_one};
use super::table::Table;
use super::{
    ban_list, class, cluster, crowdsec, fair_rules, geo, group, notify, requests, tcp, ticks,
};

/// The most bytes of a config.
const MOST_BYTES: u64 = 64 << 20;

/// A valid config, and its warnings.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The validated policy.
    pub config: Config,
    /// Settings that are probably mistakes.
    pub warnings: Vec<Placed>,
}

/// A config that cannot be loaded.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}; name a readable file with --config", .0.without_fix())]
    Read(ReadError),
    /// The file is invalid.
    #[error("{0}")]
    Invalid(Report),
}

impl ConfigError {
    /// The errors as JSON.
    #[must_use]
    pub fn document(&self) -> serde_json::Value {
        match self {
            Self::Read(_) => {
                serde_json::json!({ "valid": false, "errors": [{ "message": self.to_string() }] })
            }
            Self::Invalid(report) => serde_json::json!({ "valid": false, "errors": report.errors }),
        }
    }
}

/// Reads and validates an argument of a command.
///
/// # Errors
///
/// When the file cannot be read or is invalid; the error lists all problems.
pub fn load(path: &Path) -> Result<Loaded, ConfigError> {
    parse(path, &read_argument(path)?).map_err(ConfigError::Invalid)
}

/// Reads a file's text.
///
/// # Errors
///
/// When it cannot be read, or is not a regular file.
pub fn read_text(path: &Path) -> Result<String, ConfigError> {
    read::read_text(path, MOST_BYTES).map_err(ConfigError::Read)
}

/// Reads the text of an argument of a command, which may be a pipe.
///
/// # Errors
///
/// When it cannot be read.
pub fn read_argument(path: &Path) -> Result<String, ConfigError> {
    read::read_text_argument(path, MOST_BYTES).map_err(ConfigError::Read)
}

/// The `[agent]` paths in a config that may be invalid otherwise; missing ones have their defaults.
#[must_use]
pub fn paths(text: &str) -> AgentConfig {
    let (document, _) = DeTable::parse_recoverable(text);
    let agent = document
        .get_ref()
        .get("agent")
        .and_then(|agent| agent.get_ref().as_table());
    let path = |key: &str| {
        agent?
            .get(key)?
            .get_ref()
            .as_str()
            .filter(|path| path.starts_with('/'))
            .map(PathBuf::from)
    };
    let default = AgentConfig::default();
    AgentConfig {
        control: path("control").unwrap_or(default.control),
        pins: path("pins").unwrap_or(default.pins),
        state_dir: path("state_dir").unwrap_or(default.state_dir),
        ..AgentConfig::default()
    }
}

/// Validates a text.
///
/// # Errors
///
/// When the text is invalid; the report lists all problems.
pub fn parse(path: &Path, text: &str) -> Result<Loaded, Report> {
    let mut problems = Problems::default();
    let (document, syntax) = DeTable::parse_recoverable(text);
    let shown = || reference::without_secrets(text);
    // After a syntax error the parser guesses, and errors in its guesses mislead.
    if let Some(error) = syntax.first() {
        let is_duplicate = error.message().starts_with("duplicate key");
        let help = if is_duplicate {
            "leave out one of them"
        } else {
            "correct the TOML syntax here"
        };
        problems.error(error.span().unwrap_or(0..0), error.message(), help);
    }
    let config = if syntax.is_empty() {
        read(document.get_ref(), document.span(), &mut problems)
    } else {
        None
    };
    match config {
        Some(config) if problems.errors.is_empty() => {
            let is_quiet = problems.warnings.is_empty();
            let warnings = if is_quiet {
                Vec::new()
            } else {
                report::place(path, &shown(), &problems.warnings)
            };
            Ok(Loaded { config, warnings })
        }
        _ => Err(Report::new(path, &shown(), problems.errors)),
    }
}

fn read(document: &DeTable<'_>, span: Span, problems: &mut Problems) -> Option<Config> {
    let mut root = Table::new(document, span, "limits.toml", problems);
    let agent: AgentConfig = read_one(&mut root).map_or_else(Default::default, |read| read.table);
    let geo = read_one::<Geo>(&mut root);
    let classes = read_all::<Class>(&mut root);
    let (limits, request_limits) = requests::limits(&mut root);
    let of_packets = limits.iter().map(|read| {
        let Limit { name, cluster, .. } = &read.table;
        (name.clone(), read.span_of(&Limit::NAME), *cluster)
    });
    let of_requests = request_limits.iter().map(|read| {
        let RequestLimit { name, cluster, .. } = &read.table;
        let span = read.span_of(&RequestLimit::NAME);
        (name.clone(), span, *cluster)
    });
    let clustered: Vec<(String, Span, Option<ClusterMode>)> =
        of_packets.chain(of_requests).collect();
    let decide = requests::read_decide(&mut root, request_limits, &limits, &classes, &agent);
    let ban_lists = read_all::<BanList>(&mut root);
    let groups = read_all::<Group>(&mut root);
    let cluster = cluster::read(&mut root, &clustered, !agent.interfaces.is_empty());
    let notify = notify::read(&mut root);
    let crowdsec = crowdsec::read(&mut root, !agent.interfaces.is_empty());
    let fleet = read_one::<FleetRules>(&mut root).map(|read| read.table);
    let names: Vec<&str> = classes
        .iter()
        .map(|read| read.table.name.as_str())
        .collect();
    let listed: Vec<&str> = ban_lists
        .iter()
        .filter_map(|read| read.table.class())
        .collect();
    let prefixes = class::in_order(&classes, &agent);
    check_classes(&classes, &prefixes, &agent, root.problems);
    class::check_reach(&classes, &prefixes, &listed, root.problems);
    check_limits(&limits, &agent, root.span_of("agent"), root.problems);
    check_scopes(&limits, &agent, root.problems);
    check_bans(&limits, root.problems);
    tcp::check(&limits, &classes, root.problems);
    ticks::check(&limits, &classes, root.problems);
    check_exchanged(&limits, &classes, root.problems);
    fair_rules::check_classes(&limits, &classes, root.problems);
    group::check(&groups, root.problems);
    ban_list::check(&ban_lists, &names, &agent, root.problems);
    geo::check(geo.as_ref(), &classes, &ban_lists, &limits, root.problems);
    let shares_bans = cluster.as_ref().is_some_and(|cluster| cluster.share_bans);
    let bans = ban_lists.iter().any(|read| read.table.class().is_none())
        || crowdsec.is_some()
        || shares_bans;
    // Its rules are added when they are known.
    let is_empty = limits.is_empty()
        && decide.limits.is_empty()
        && groups.is_empty()
        && !bans
        && fleet.is_none();
    if is_empty && !agent.allow_empty && root.problems.errors.is_empty() {
        let message = "the config limits nothing: it has no [[limit]] and no [[group]]";
        root.problems.error(
            root.span(),
            message,
            "add one, or set [agent] allow_empty = true",
        );
    }
    root.finish();
    Some(Config {
        agent,
        geo: geo.map_or_else(Default::default, |read| read.table),
        classes: classes.into_iter().map(|read| read.table).collect(),
        ban_lists: ban_lists.into_iter().map(|read| read.table).collect(),
        limits: limits.into_iter().map(|read| read.table).collect(),
        decide,
        groups: groups.into_iter().map(|read| read.table).collect(),
        cluster,
        notify,
        crowdsec,
        fleet,
    })
}
