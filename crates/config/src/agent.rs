//! `[agent]`.

use super::policy::{
    AgentConfig, Attach, InterfacePattern, LivePage, MOST_SOURCES, Mode, OnExit, Shield,
};
use super::prefix;
use super::report::{Problems, Span};
use super::table::{Table, suggestion};

/// The interface names and patterns with their spans.
pub fn interfaces(
    texts: Vec<(&str, Span)>,
    problems: &mut Problems,
) -> Vec<(InterfacePattern, Span)> {
    let mut interfaces = Vec::new();
    for (text, span) in texts {
        if text.is_empty() || text.len() > 15 || text.contains(['/', ' ']) {
            let help = "write a name as `ip link` shows it, at most 15 characters, or a pattern as \"ens*\"";
            problems.error(span, format!("invalid interface name {text:?}"), help);
        } else {
            interfaces.push((InterfacePattern(text.to_owned()), span));
        }
    }
    interfaces
}

pub fn read(mut table: Table<'_, '_>) -> AgentConfig {
    let mut agent = AgentConfig::default();
    let texts = table.strings("interfaces", "[\"eth0\"]");
    agent.interfaces = interfaces(texts, table.problems)
        .into_iter()
        .map(|(pattern, _)| pattern)
        .collect();
    agent.attach = table.word("attach", Attach::WORDS).unwrap_or(agent.attach);
    agent.mode = table.word("mode", Mode::WORDS).unwrap_or(agent.mode);
    agent.on_exit = table
        .word("on_exit", OnExit::WORDS)
        .unwrap_or(agent.on_exit);
    if let Some((text, span)) = table.string("control", "\"/run/weir/control.sock\"") {
        agent.control = path(text, span, table.problems).unwrap_or(agent.control);
    }
    if let Some((text, span)) = table.string("metrics", "\"127.0.0.1:9464\"") {
        match text.parse() {
            Ok(address) => agent.metrics = Some(address),
            Err(_) => {
                let help =
                    "write an address and a port: metrics = \"127.0.0.1:9464\", or \"[::1]:9464\"";
                table
                    .problems
                    .error(span, format!("invalid metrics address {text:?}"), help);
            }
        }
    }
    agent.live = live(&mut table).unwrap_or(agent.live);
    if let Some((text, span)) = table.string("pins", "\"/sys/fs/bpf/weir\"") {
        agent.pins = path(text, span, table.problems).unwrap_or(agent.pins);
    }
    if let Some((text, span)) = table.string("state_dir", "\"/var/lib/weir\"") {
        agent.state_dir = path(text, span, table.problems).unwrap_or(agent.state_dir);
    }
    if let Some((text, span)) = table.string("cgroup", "\"weir\"") {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if !text.is_empty() && text.chars().all(is_plain) {
            agent.cgroup = text.to_owned();
        } else {
            let help = "write letters, digits, dashes and underscores: cgroup = \"weir\"";
            table
                .problems
                .error(span, format!("invalid cgroup name {text:?}"), help);
        }
    }
    const SOCKETS: &str = "[\"/run/docker.sock\"]";
    if table.value("container_sockets").is_some() {
        let texts = table.strings("container_sockets", SOCKETS);
        agent.container_sockets = texts
            .into_iter()
            .filter_map(|(text, span)| path(text, span, table.problems))
            .collect();
    }
    let max_sources = table.number("max_sources", 1, u64::from(MOST_SOURCES));
    agent.max_sources = max_sources.and_then(|number| u32::try_from(number).ok());
    for (text, span) in table.strings("never_limit", "[\"192.0.2.10\"]") {
        match prefix::parse(text) {
            Ok(prefix) => {
                if prefix.mapped_length() == 0 || prefix.mapped_length() == 96 {
                    let help = "to count without refusing, set mode = \"observe\"";
                    table.problems.warning(
                        span,
                        format!("{text} exempts every address: nothing will be limited"),
                        help,
                    );
                }
                agent.never_limit.push(prefix);
            }
            Err(wrong) => table.problems.error(span, wrong.message, wrong.help),
        }
    }
    agent.protect = protect(&mut table).unwrap_or(agent.protect);
    agent.watch = flag(&mut table, "watch").unwrap_or(agent.watch);
    agent.allow_empty = flag(&mut table, "allow_empty").unwrap_or(agent.allow_empty);
    table.finish();
    agent
}

/// `true`, `false`, or a list of host names.
fn live(table: &mut Table<'_, '_>) -> Option<LivePage> {
    const EXAMPLE: &str = "[\"weir.example.org\"]";
    let value = table.value("live")?;
    let page = match (value.get_ref().as_bool(), value.get_ref().as_array()) {
        (Some(false), _) => return Some(LivePage::Nowhere),
        (Some(true), _) => LivePage::Everywhere(Vec::new()),
        (None, Some(list)) if !list.is_empty() => {
            let mut names = Vec::new();
            for (text, span) in table.strings("live", EXAMPLE) {
                if is_host_name(text) {
                    names.push(text.to_ascii_lowercase());
                } else {
                    let help = "write a host name without a port: live = [\"weir.example.org\"]";
                    table
                        .problems
                        .error(span, format!("invalid host name {text:?} in live"), help);
                }
            }
            LivePage::Everywhere(names)
        }
        (None, _) => {
            table.wrong_type(
                "live",
                value,
                "true, false, or a list of host names: live = [\"weir.example.org\"]",
            );
            return None;
        }
    };
    if table.value("metrics").is_none() {
        let help = "add metrics = \"127.0.0.1:9464\", on which the page is served";
        table
            .problems
            .error(value.span(), "live requires metrics".to_owned(), help);
    }
    Some(page)
}

/// Whether a text is a host name: labels of letters, digits, dashes and underscores.
fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

/// `true` for all, `false` for none, or a list of words.
fn protect(table: &mut Table<'_, '_>) -> Option<Vec<Shield>> {
    let all = || Shield::WORDS.iter().map(|(_, shield)| *shield);
    let value = table.value("protect")?;
    match (value.get_ref().as_bool(), value.get_ref().as_array()) {
        (Some(true), _) => Some(all().collect()),
        (Some(false), _) => Some(Vec::new()),
        (None, Some(_)) => {
            let names: Vec<&str> = Shield::WORDS.iter().map(|(name, _)| *name).collect();
            let mut shields = Vec::new();
            for (text, span) in table.strings("protect", "[\"ssh\", \"gateways\"]") {
                match Shield::WORDS.iter().find(|(name, _)| *name == text) {
                    Some((_, shield)) => shields.push(*shield),
                    None => {
                        let help = suggestion(text, &names);
                        table.problems.error(
                            span,
                            format!("unknown value {text:?} in protect"),
                            help,
                        );
                    }
                }
            }
            Some(shields)
        }
        (None, None) => {
            table.wrong_type(
                "protect",
                value,
                "true, false, or a list: protect = [\"ssh\", \"gateways\", \"store\"]",
            );
            None
        }
    }
}

fn flag(table: &mut Table<'_, '_>, key: &'static str) -> Option<bool> {
    let value = table.value(key)?;
    let flag = value.get_ref().as_bool();
    if flag.is_none() {
        table.wrong_type(key, value, &format!("{key} = true or {key} = false"));
    }
    flag
}

fn path(text: &str, span: Span, problems: &mut Problems) -> Option<std::path::PathBuf> {
    if text.starts_with('/') {
        return Some(text.into());
    }
    problems.error(
        span,
        format!("{text:?} is not an absolute path"),
        "begin it with /",
    );
    None
}
