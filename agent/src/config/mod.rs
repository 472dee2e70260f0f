//! limits.toml: raw TOML → validated values → a policy in which what is invalid cannot be said.
//!
//! One file a table. Every error of a file is found and told at once, with its place and what to write instead.

mod agent;
mod changes;
mod class;
pub mod cluster;
mod decide;
mod describe;
mod group;
mod limit;
pub mod policy;
pub mod policy_group;
pub mod prefix;
pub mod report;
mod request;
pub(crate) mod request_key;
pub(crate) mod request_limit;
mod request_notes;
mod services;
pub mod ssh;
pub(crate) mod table;
mod tcp;
pub mod units;
mod words;

pub use changes::{Change, Changes};

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use self::policy::{
    Action, AgentConfig, Algorithm, Attach, Config, Direction, InterfacePattern, Key, Limit, Mode, OnExit, OnFull,
    ProtocolFilter, Rate, Service, Throttle, Unit,
};
use self::report::{Placed, Problems, Report, Span};
use self::table::Table;

/// A valid config, and what in it is probably not meant.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The config.
    pub config: Config,
    /// What is probably not meant.
    pub warnings: Vec<Placed>,
}

/// A config that cannot be had.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("reading {} failed: {source}; name a readable file with --config", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is wrong.
    #[error("{0}")]
    Invalid(Report),
}

impl ConfigError {
    /// As a document for programs.
    #[must_use]
    pub fn document(&self) -> serde_json::Value {
        match self {
            Self::Read { .. } => serde_json::json!({ "valid": false, "errors": [{ "message": self.to_string() }] }),
            Self::Invalid(report) => serde_json::json!({ "valid": false, "errors": report.errors }),
        }
    }
}

/// Reads and validates a file.
///
/// # Errors
///
/// When it cannot be read, or with everything that is wrong with it.
pub fn load(path: &Path) -> Result<Loaded, ConfigError> {
    parse(path, &read_text(path)?).map_err(ConfigError::Invalid)
}

/// Reads a file's text.
///
/// # Errors
///
/// When it cannot be read.
pub fn read_text(path: &Path) -> Result<String, ConfigError> {
    let read = |source| ConfigError::Read { path: path.to_owned(), source };
    let bytes = fs::read(path).map_err(read)?;
    String::from_utf8(bytes).map_err(|_| read(io::Error::other("it is not UTF-8 text")))
}

/// The paths of `[agent]` that a config names, also one that is otherwise invalid; the rest has its defaults.
#[must_use]
pub fn paths(text: &str) -> AgentConfig {
    let (document, _) = DeTable::parse_recoverable(text);
    let agent = document.get_ref().get("agent").and_then(|agent| agent.get_ref().as_table());
    let path = |key: &str| agent?.get(key)?.get_ref().as_str().filter(|path| path.starts_with('/')).map(PathBuf::from);
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
/// With everything that is wrong with it.
pub fn parse(path: &Path, text: &str) -> Result<Loaded, Report> {
    let mut problems = Problems::default();
    let (document, syntax) = DeTable::parse_recoverable(text);
    let shown = cluster::without_credentials(text);
    // What the parser makes of the text after broken syntax is a guess, and errors in guesses mislead.
    if let Some(error) = syntax.first() {
        problems.error(error.span().unwrap_or(0..0), error.message(), "correct the TOML syntax here");
    }
    let config = if syntax.is_empty() { read(document.get_ref(), document.span(), &mut problems) } else { None };
    match config {
        Some(config) if problems.errors.is_empty() => {
            let warnings = report::place(path, &shown, &problems.warnings);
            Ok(Loaded { config, warnings })
        }
        _ => Err(Report::new(path, &shown, problems.errors)),
    }
}

fn read(document: &DeTable<'_>, span: Span, problems: &mut Problems) -> Option<Config> {
    let mut root = Table::new(document, span, "limits.toml", problems);
    let agent = match root.value("agent") {
        Some(value) => match value.get_ref().as_table() {
            Some(content) => agent::read(Table::new(content, value.span(), "[agent]", root.problems)),
            None => {
                root.wrong_type("agent", value, "a table: [agent]");
                AgentConfig::default()
            }
        },
        None => AgentConfig::default(),
    };
    let classes = entries(&mut root, "class", "[[class]]", class::read);
    let (limits, request_limits) = decide::limits(&mut root);
    let of_packets = limits.iter().map(|read| (read.limit.name.clone(), read.name_span.clone(), read.limit.cluster));
    let of_requests =
        request_limits.iter().map(|read| (read.limit.name.clone(), read.name_span.clone(), read.limit.cluster));
    let clustered: Vec<(String, Span, bool)> = of_packets.chain(of_requests).collect();
    let classes_read: Vec<policy::Class> = classes.iter().map(|read| read.class.clone()).collect();
    let decide = decide::read_all(&mut root, request_limits, &limits, &classes_read, &agent);
    let groups = entries(&mut root, "group", "[[group]]", group::read);
    let cluster = cluster::read(&mut root, &clustered);
    check_classes(&classes, &agent, root.problems);
    class::check_reach(&classes, &agent, root.problems);
    check_limits(&limits, &agent, root.span_of("agent"), root.problems);
    tcp::check(&limits, &classes, root.problems);
    group::check(&groups, root.problems);
    let is_empty = limits.is_empty() && decide.limits.is_empty() && groups.is_empty();
    if is_empty && !agent.allow_empty && root.problems.errors.is_empty() {
        let message = "the config limits nothing: it has no [[limit]] and no [[group]]";
        root.problems.error(root.span(), message, "add one, or set [agent] allow_empty = true");
    }
    root.finish();
    Some(Config {
        agent,
        classes: classes.into_iter().map(|read| read.class).collect(),
        limits: limits.into_iter().map(|read| read.limit).collect(),
        decide,
        groups: groups.into_iter().map(|read| read.group).collect(),
        cluster,
    })
}

/// The tables of an array of tables.
fn entries<T>(
    root: &mut Table<'_, '_>,
    key: &'static str,
    what: &'static str,
    read: impl Fn(Table<'_, '_>) -> Option<T>,
) -> Vec<T> {
    let Some(value) = root.value(key) else { return Vec::new() };
    let tables: Vec<&Spanned<DeValue<'_>>> = match value.get_ref() {
        DeValue::Array(array) => array.iter().collect(),
        _ => {
            root.wrong_type(key, value, &format!("each one as {what}"));
            return Vec::new();
        }
    };
    let mut all = Vec::new();
    for value in tables {
        match value.get_ref().as_table() {
            Some(content) => all.extend(read(Table::new(content, value.span(), what, root.problems))),
            None => root.wrong_type(key, value, &format!("each one as {what}")),
        }
    }
    all
}

fn check_classes(classes: &[class::ReadClass], agent: &AgentConfig, problems: &mut Problems) {
    let mut names = std::collections::HashMap::new();
    let mut prefixes = std::collections::HashMap::new();
    for class in classes {
        if names.insert(&class.class.name, ()).is_some() {
            let message = format!("there are two classes named {:?}", class.class.name);
            problems.error(class.name_span.clone(), message, "give one of them another name");
        }
        for (prefix, span) in &class.prefix_spans {
            if let Some(other) = prefixes.insert(*prefix, &class.class.name) {
                let message = format!("{prefix} is in class {other:?} already");
                problems.error(span.clone(), message, "leave it in one of them: a source has one class");
            }
        }
        let covered = |prefix: &policy::Prefix| agent.never_limit.iter().any(|never| never.covers(prefix));
        let is_limited = matches!(class.class.service, Service::Multiplier(_));
        if is_limited && !class.class.sources.is_empty() && class.class.sources.iter().all(covered) {
            let message = format!("no limit can reach class {:?}: never_limit holds all of it", class.class.name);
            problems.warning(class.name_span.clone(), message, "take it out of never_limit, or leave out the class");
        }
    }
}

fn check_limits(limits: &[limit::ReadLimit], agent: &AgentConfig, agent_span: Span, problems: &mut Problems) {
    let mut names = std::collections::HashMap::new();
    for read in limits {
        if names.insert(&read.limit.name, ()).is_some() {
            let message = format!("there are two limits named {:?}", read.limit.name);
            problems.error(
                read.name_span.clone(),
                message,
                "give one of them another name: it is the label in counters",
            );
        }
        let is_xdp = matches!(agent.attach, Attach::Native | Attach::Generic);
        if read.limit.direction == Direction::Ingress && matches!(read.limit.action, Action::Mark(_)) && is_xdp {
            let message = format!("limit {:?} marks what comes in, and XDP cannot mark packets", read.limit.name);
            problems.error(read.name_span.clone(), message, "set attach = \"auto\" or \"tc\"");
        }
        if read.limit.action == Action::Observe && agent.mode == Mode::Observe {
            let message = format!("limit {:?} only observes, and so does the whole agent", read.limit.name);
            problems.warning(read.name_span.clone(), message, "leave out one of the two");
        }
    }
    if !limits.is_empty() && agent.interfaces.is_empty() {
        problems.error(
            agent_span,
            "there are limits on packets and no interface to hold them on",
            "add [agent] interfaces = [\"eth0\"]",
        );
    }
}

/// Whether the config could throttle the SSH session that the agent is started from.
#[must_use]
pub fn ssh_warning(config: &Config, client: Option<std::net::IpAddr>) -> Option<String> {
    let client = client?;
    let is_free = config.agent.never_limit.iter().any(|prefix| prefix.contains(client))
        || config
            .classes
            .iter()
            .filter_map(|class| {
                let longest = class
                    .sources
                    .iter()
                    .filter(|prefix| prefix.contains(client))
                    .map(policy::Prefix::mapped_length)
                    .max();
                longest.map(|length| (length, class.service))
            })
            .max_by_key(|(length, _)| *length)
            .is_some_and(|(_, service)| service == Service::Unlimited);
    let reaches = |limit: &&Limit| {
        limit.direction == Direction::Ingress
            && limit.action != Action::Observe
            && matches!(limit.protocol, ProtocolFilter::Any | ProtocolFilter::Tcp)
            && limit.ports.as_ref().is_none_or(|ports| ports.contains(22))
    };
    let limit = config.limits.iter().find(reaches).filter(|_| !is_free && config.agent.mode == Mode::Enforce)?;
    Some(format!(
        "limit {:?} applies to {client}, from where this SSH session comes: to be safe, add it to [agent] never_limit",
        limit.name
    ))
}

impl Config {
    /// What is observed without a config: generous limits on these interfaces, throttling nothing.
    #[must_use]
    pub fn built_in(interfaces: &[String]) -> Self {
        let limit = |name: &str, unit: Unit, per_second: u64, burst: u64| Limit {
            name: name.to_owned(),
            direction: Direction::Ingress,
            protocol: ProtocolFilter::Any,
            ports: None,
            key: Key::Source,
            ipv4_prefix: 32,
            ipv6_prefix: 64,
            unit,
            algorithm: Algorithm::TokenBucket,
            rate: Rate::per_second(per_second),
            rate_text: format!("{per_second}/s"),
            burst,
            throttle: Throttle::Hard,
            action: Action::Drop,
            on_full: OnFull::Share,
            tiers: Vec::new(),
            cluster: false,
        };
        Self {
            agent: AgentConfig {
                interfaces: interfaces.iter().cloned().map(InterfacePattern).collect(),
                mode: Mode::Observe,
                on_exit: OnExit::Detach,
                ..AgentConfig::default()
            },
            classes: Vec::new(),
            groups: Vec::new(),
            limits: vec![
                limit("packets-per-source", Unit::Packets, 10_000, 20_000),
                limit("connections-per-source", Unit::Connections, 200, 1_000),
            ],
            decide: policy::Decide::default(),
            cluster: None,
        }
    }
}

#[cfg(test)]
mod tests;
