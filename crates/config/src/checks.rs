//! Checks that combine limits, classes and `[agent]`: conflicts, and settings without effect.

use super::class::ClassPrefix;
use super::human;
use super::policy::{
    Action, AgentConfig, Attach, Class, ClusterMode, Config, Direction, InterfacePattern, LevelKey,
    Limit, Mode, Prefix, ProtocolFilter, Unit,
};
use super::report::{Problems, Span};
use super::schema::Located;

/// The widest prefix lengths (IPv4, IPv6) that may be banned; `weir ban` requires `--force` beyond them.
const WIDEST: (u8, u8) = (8, 16);

/// `in_order` are the classes' prefixes and those of `never_limit`.
pub fn check_classes(
    classes: &[Located<'_, Class>],
    in_order: &[ClassPrefix],
    agent: &AgentConfig,
    problems: &mut Problems,
) {
    let mut names = std::collections::HashMap::new();
    let mut prefixes = std::collections::HashMap::new();
    let is_twice =
        |pair: &[ClassPrefix]| pair[0].0 == pair[1].0 && pair[0].1.and(pair[1].1).is_some();
    let has_duplicates = in_order.windows(2).any(is_twice);
    for class in classes {
        if names.insert(&class.table.name, ()).is_some() {
            let message = format!("duplicate class name {:?}", class.table.name);
            problems.conflict(
                class.span_of(&Class::NAME),
                message,
                "give one of them another name",
            );
        }
        // They are hashed only to name them, since there may be many.
        let spans = has_duplicates.then(|| class.elements::<Prefix>(&Class::SOURCES));
        for (prefix, span) in spans.into_iter().flatten() {
            if let Some(other) = prefixes.insert(prefix, &class.table.name) {
                let message = format!(
                    "duplicate source {}: it is in class {other:?} already",
                    prefix.short()
                );
                problems.error(span, message, "write it once: a source has one class");
            }
        }
        let covered = |prefix: &Prefix| agent.never_limit.iter().any(|never| never.covers(prefix));
        let is_limited = !class.table.unlimited;
        let has_sources = !class.table.sources.is_empty() && class.table.geo().is_empty();
        if is_limited && has_sources && class.table.sources.iter().all(covered) {
            let message = format!(
                "class {:?} has no effect: never_limit exempts all of its sources",
                class.table.name
            );
            problems.warning(
                class.span_of(&Class::NAME),
                message,
                "take them out of never_limit, or leave out the class",
            );
        }
    }
}

/// The kernel counts a source's packets over all limits, so only one limit may be exchanged between hosts.
pub fn check_exchanged(
    limits: &[Located<'_, Limit>],
    classes: &[Located<'_, Class>],
    problems: &mut Problems,
) {
    for read in limits
        .iter()
        .filter(|read| read.table.cluster == Some(ClusterMode::Keys))
    {
        let limit = &read.table;
        let key = |limit: &Limit| {
            (
                limit.direction,
                limit.key,
                limit.ipv4_prefix,
                limit.ipv6_prefix,
            )
        };
        let is_other = |other: &&Located<'_, Limit>| {
            other.table.name != limit.name
                && other
                    .table
                    .at_levels()
                    .iter()
                    .any(|at| key(at) == key(limit))
        };
        if let Some(other) = limits.iter().find(is_other) {
            let name = &other.table.name;
            let message = format!(
                "cluster = \"keys\" conflicts with limit {name:?}, which has the same key and prefixes"
            );
            let help =
                "set cluster = \"shares\", or another ipv4_prefix or ipv6_prefix in one of them";
            problems.error(read.span_of(&Limit::NAME), message, help);
        }
        if let Some(class) = classes.iter().find(|read| !read.table.unlimited) {
            let name = &class.table.name;
            let message = format!(
                "cluster = \"keys\" on packets is not supported with a multiplier, as class {name:?} has one"
            );
            problems.error(
                read.span_of(&Limit::NAME),
                message,
                "set cluster = \"shares\", or leave out the multiplier",
            );
        }
    }
}

pub fn check_limits(
    limits: &[Located<'_, Limit>],
    agent: &AgentConfig,
    agent_span: Span,
    problems: &mut Problems,
) {
    let mut names = std::collections::HashMap::new();
    for read in limits {
        if names.insert(&read.table.name, ()).is_some() {
            let message = format!("duplicate limit name {:?}", read.table.name);
            problems.error(
                read.span_of(&Limit::NAME),
                message,
                "give one of them another name: it is the label in counters",
            );
        }
        for level in &read.table.levels {
            let name = read.table.level_name(level);
            if limits.iter().any(|other| other.table.name == name) {
                let message = format!("duplicate limit name {name:?}: it is the name of a level");
                problems.error(
                    read.span_of(&Limit::LEVELS),
                    message,
                    "give the limit with this name another one",
                );
            }
        }
        let is_xdp = matches!(agent.attach, Attach::Native | Attach::Generic);
        if read.table.direction == Direction::Ingress
            && matches!(read.table.action, Action::Mark(_))
            && is_xdp
        {
            let message = format!(
                "action = \"mark\" of limit {:?} is not supported: XDP cannot mark packets",
                read.table.name
            );
            problems.error(
                read.span_of(&Limit::NAME),
                message,
                "set attach = \"auto\" or \"tc\"",
            );
        }
        if read.table.action == Action::Observe && agent.mode == Mode::Observe {
            let message = format!(
                "action = \"observe\" of limit {:?} has no effect: the agent's mode is observe",
                read.table.name
            );
            problems.warning(read.span_of(&Limit::NAME), message, "leave out one of them");
        }
    }
    if !limits.is_empty() && agent.interfaces.is_empty() {
        problems.error(
            agent_span,
            "missing interfaces: limits on packets require at least one",
            "add [agent] interfaces = [\"eth0\"]",
        );
    }
}

/// Checks both lists of all limits against `[agent]`.
pub fn check_scopes(limits: &[Located<'_, Limit>], agent: &AgentConfig, problems: &mut Problems) {
    for read in limits {
        let limit = &read.table;
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
                read.span_of(&Limit::SOURCES),
                message,
                "take them out of never_limit, or leave out the limit",
            );
        }
        // If `[agent]` has no interfaces, that is already an error.
        let held = &agent.interfaces;
        let interfaces = read.elements::<InterfacePattern>(&Limit::INTERFACES);
        for (pattern, span) in interfaces.into_iter().filter(|_| !held.is_empty()) {
            if !held.iter().any(|held| may_meet(held, &pattern)) {
                let held: Vec<String> = held.iter().map(|held| format!("\"{held}\"")).collect();
                let message = format!(
                    "limit {:?} never applies on \"{pattern}\": [agent] interfaces has only {}",
                    limit.name,
                    held.join(", ")
                );
                problems.error(span, message, "add it there, or correct the name");
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

/// Checks that limits on packets with `escalate` have a key that can be banned.
pub fn check_bans(limits: &[Located<'_, Limit>], problems: &mut Problems) {
    for read in limits.iter().filter(|read| read.table.escalate.is_some()) {
        let (limit, span) = (&read.table, read.span_of(&Limit::ESCALATE));
        let error = if limit.direction == Direction::Egress {
            let message = "escalate is not supported on egress: a ban refuses incoming packets, by their source";
            Some((
                message.to_owned(),
                "set direction = \"ingress\", or leave out escalate".to_owned(),
            ))
        } else if !limit.key.has_address() {
            let message = format!(
                "escalate requires a key with a source: key = \"{}\" has none to ban",
                limit.key
            );
            Some((
                message,
                "set key = \"source\", or leave out escalate".to_owned(),
            ))
        } else {
            let prefixes = [
                ("ipv4_prefix", limit.ipv4_prefix, WIDEST.0),
                ("ipv6_prefix", limit.ipv6_prefix, WIDEST.1),
            ];
            prefixes.into_iter().find(|(_, length, widest)| length < widest).map(|(key, length, widest)| {
                let message =
                    format!("escalate is not supported with {key} = {length}: one source would ban the whole prefix");
                (message, format!("set {key} to {widest} or more, or leave out escalate"))
            })
        };
        if let Some((message, help)) = error.or_else(|| too_wide(limit)) {
            problems.error(span, message, help);
        } else if !limit.refuses() {
            let message = "escalate has no effect: this action refuses nothing";
            problems.warning(
                span,
                message,
                "set action = \"drop\", or leave out escalate",
            );
        } else if let Some((packets, fix)) = forgeable(limit) {
            let message = format!(
                "escalate bans source addresses, which senders can forge to have others banned, here by {packets}"
            );
            let help =
                format!("{fix}, and list addresses that must not be banned in [agent] never_limit");
            problems.warning(span, message, help);
        }
    }
}

/// Packets of a limit that count towards a ban although anybody can send them in another's name, and the fix. The kernel counts them by
/// [`common::escalation`].
fn forgeable(limit: &Limit) -> Option<(&'static str, &'static str)> {
    let tcp_only = "set protocol = \"tcp\" where that fits";
    let no_ban = "leave out escalate where that fits";
    match (limit.unit, limit.protocol) {
        (Unit::Connections, _) if !limit.bans_by_syns() => None,
        (Unit::Connections, _) if limit.proves_by_resets() => Some((
            "SYNs in the name of a source that has proven its address",
            "set prove = \"always\" where this host accepts the connections itself",
        )),
        (Unit::Connections, _) => Some(("SYNs", "set prove = true")),
        // Segments count only if this host has their connection.
        (_, ProtocolFilter::Tcp) => None,
        (Unit::Requests, ProtocolFilter::Any) => Some(("DNS queries over UDP", tcp_only)),
        (Unit::Requests, _) => Some(("DNS queries over UDP", no_ban)),
        (_, ProtocolFilter::Any) => Some(("UDP and ICMP packets", tcp_only)),
        (_, ProtocolFilter::Udp) => Some(("UDP packets", no_ban)),
        (_, ProtocolFilter::Icmp) => Some(("ICMP packets", no_ban)),
    }
}

/// The most exempt prefixes that a note names.
const MOST_NAMED: usize = 5;

/// A note on addresses without limits on packets, in whose name others can send: all but those of loopback.
#[must_use]
pub fn forgeable_exemptions(config: &Config) -> Option<String> {
    let own = config.agent.never_limit.iter();
    let own = own.map(|prefix| (prefix, "never_limit".to_owned()));
    let unlimited = config.classes.iter().filter(|class| class.unlimited);
    let of_classes = unlimited.flat_map(|class| {
        let sources = class.sources.iter();
        sources.map(|prefix| (prefix, format!("class {:?}", class.name)))
    });
    let forgeable: Vec<_> = own
        .chain(of_classes)
        .filter(|(prefix, _)| !prefix.is_loopback())
        .collect();
    if forgeable.is_empty() || config.limits.is_empty() {
        return None;
    }
    let named = forgeable
        .iter()
        .map(|(prefix, by)| format!("{} ({by})", prefix.short()));
    let named = human::listed(named, MOST_NAMED);
    let proves = config.limits.iter().any(Limit::proves);
    let instead = if proves {
        "; they prove nothing, which only peers with TCP-MD5 or TCP-AO require, such as BGP routers: put others into a class with a multiplier"
    } else {
        ""
    };
    Some(format!(
        "no limit applies to packets that others send in the name of {named}: have them dropped where they cannot come from (BCP 38, \
         rp_filter){instead}"
    ))
}

/// The error for a level whose prefix is too wide to be banned.
fn too_wide(limit: &Limit) -> Option<(String, String)> {
    let is_wide = |key: &LevelKey| matches!(key, LevelKey::Prefix { ipv4, ipv6 } if *ipv4 < WIDEST.0 || *ipv6 < WIDEST.1);
    let key = limit.levels.iter().map(|level| level.key).find(is_wide)?;
    let message =
        format!("escalate is not supported with level {key}: it would ban the whole prefix");
    let help = format!(
        "write lengths of at least {}/{}, or key = \"all\", which is never banned",
        WIDEST.0, WIDEST.1
    );
    Some((message, help))
}
