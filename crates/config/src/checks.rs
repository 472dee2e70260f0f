//! Checks that combine limits, classes and `[agent]`: conflicts, and settings without effect.

use super::class::ClassPrefix;
use super::policy::{
    Action, AgentConfig, Attach, Class, ClusterMode, Direction, Limit, Mode, Prefix,
};
use super::read_limit::ReadLimit;
use super::report::{Problems, Span};
use super::schema::Located;

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
    limits: &[ReadLimit],
    classes: &[Located<'_, Class>],
    problems: &mut Problems,
) {
    for read in limits
        .iter()
        .filter(|read| read.limit.cluster == Some(ClusterMode::Keys))
    {
        let limit = &read.limit;
        let key = |limit: &Limit| {
            (
                limit.direction,
                limit.key,
                limit.ipv4_prefix,
                limit.ipv6_prefix,
            )
        };
        let is_other = |other: &&ReadLimit| {
            other.limit.name != limit.name
                && other
                    .limit
                    .at_levels()
                    .iter()
                    .any(|at| key(at) == key(limit))
        };
        if let Some(other) = limits.iter().find(is_other) {
            let name = &other.limit.name;
            let message = format!(
                "cluster = \"keys\" conflicts with limit {name:?}, which has the same key and prefixes"
            );
            let help =
                "set cluster = \"shares\", or another ipv4_prefix or ipv6_prefix in one of them";
            problems.error(read.name_span.clone(), message, help);
        }
        if let Some(class) = classes.iter().find(|read| !read.table.unlimited) {
            let name = &class.table.name;
            let message = format!(
                "cluster = \"keys\" on packets is not supported with a multiplier, as class {name:?} has one"
            );
            problems.error(
                read.name_span.clone(),
                message,
                "set cluster = \"shares\", or leave out the multiplier",
            );
        }
    }
}

pub fn check_limits(
    limits: &[ReadLimit],
    agent: &AgentConfig,
    agent_span: Span,
    problems: &mut Problems,
) {
    let mut names = std::collections::HashMap::new();
    for read in limits {
        if names.insert(&read.limit.name, ()).is_some() {
            let message = format!("duplicate limit name {:?}", read.limit.name);
            problems.error(
                read.name_span.clone(),
                message,
                "give one of them another name: it is the label in counters",
            );
        }
        for level in &read.limit.levels {
            let name = read.limit.level_name(level);
            if limits.iter().any(|other| other.limit.name == name) {
                let message = format!("duplicate limit name {name:?}: it is the name of a level");
                problems.error(
                    read.levels_span.clone(),
                    message,
                    "give the limit with this name another one",
                );
            }
        }
        let is_xdp = matches!(agent.attach, Attach::Native | Attach::Generic);
        if read.limit.direction == Direction::Ingress
            && matches!(read.limit.action, Action::Mark(_))
            && is_xdp
        {
            let message = format!(
                "action = \"mark\" of limit {:?} is not supported: XDP cannot mark packets",
                read.limit.name
            );
            problems.error(
                read.name_span.clone(),
                message,
                "set attach = \"auto\" or \"tc\"",
            );
        }
        if read.limit.action == Action::Observe && agent.mode == Mode::Observe {
            let message = format!(
                "action = \"observe\" of limit {:?} has no effect: the agent's mode is observe",
                read.limit.name
            );
            problems.warning(read.name_span.clone(), message, "leave out one of them");
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
