//! From the operator's policy to the kernel's rows.
//!
//! Every packet is held to a *span*: the rules that apply to its protocol, port and kind, side by side. Spans are made
//! here, once each, so that the kernel has one look-up to do however many limits there are. Limits that count by the
//! same key share a slot of the table of sources where they fit, so that one cache line has all their states.

mod groups;
mod image;
mod layout;
mod prefixes;
mod rules;
mod spans;
mod table;

pub use image::{CountedRule, Group, Image, PrefixKey};
pub use layout::{CarryPlan, Layout, StateCarry};
pub use table::TableSpec;

use common::counters::BYPASS_ROWS;
use common::essential::{Essential, PacketBucket};
use common::packet::{Depth, Direction, Kind, Protocol};
use common::prefix::MAX_CLASSES;
use common::rule::{MAX_RULES, Rule, RuleSpan};
use common::settings::{HIDDEN_SPAN, Mark, PortSpans, SPANS, Settings, span_index};
use common::time::TickScale;
use thiserror::Error;

use crate::config::policy::{Action, Attach, Config, DEFAULT_SOURCES, Key, Limit, Mode, Unit};

/// A policy that is right by itself and more than the kernel's rows can say.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum CompileError {
    /// Too many on one packet.
    #[error(
        "{rules} rules (limits, their tiers, and two for each soft or elastic one) would apply to {packet} packets; the most is {MAX_RULES}: give some of them other protocols or ports"
    )]
    TooManyRules {
        /// How many.
        rules: usize,
        /// Which packets.
        packet: String,
    },
    /// Too many states for one slot.
    #[error("limit {limit} needs {words} words of state; the most is 7: give it fewer tiers")]
    TooWide {
        /// Which limit.
        limit: String,
        /// How many.
        words: u32,
    },
    /// Logs would take more memory than anybody means to give.
    #[error(
        "the sliding logs need {mebibytes} MiB for {max_sources} sources; the most is 1024: lower max_sources to {fits} or the limits' N, or use sliding-window"
    )]
    LogsTooLarge {
        /// How much.
        mebibytes: u64,
        /// For how many.
        max_sources: u32,
        /// The most sources whose logs fit.
        fits: u32,
    },
    /// More classes than an entry of a prefix can tell apart.
    #[error("there are {classes} classes; the most is {MAX_CLASSES}: put prefixes that are treated alike into one")]
    TooManyClasses {
        /// How many.
        classes: usize,
    },
    /// Windows too short for their counts.
    #[error("limit {limit} counts more in its window than the window has ticks: use token-bucket for rates this high")]
    WindowTooShort {
        /// Which limit.
        limit: String,
    },
}

/// A whole policy as the kernel wants it.
#[derive(Clone, Debug)]
pub struct Plan {
    /// For what comes in. There always is one: bans are held there.
    pub ingress: Image,
    /// For what goes out, if some limit is on it.
    pub egress: Option<Image>,
    /// The layout that it was made to go on from.
    pub after: Layout,
}

impl Plan {
    /// What an operator should know of it.
    #[must_use]
    pub fn note(&self, config: &Config) -> Option<String> {
        let sources = self.ingress.max_sources;
        (config.agent.max_sources.is_none() && sources < DEFAULT_SOURCES).then(|| {
            format!(
                "max_sources is {sources}: the sliding logs of more take too much memory for a default; [agent] max_sources sets another number"
            )
        })
    }
}

/// Compiles both directions.
///
/// # Errors
///
/// As [`compile`].
pub fn plan(config: &Config) -> Result<Plan, CompileError> {
    plan_after(config, &Layout::default())
}

/// Compiles both directions, such that as much as can be goes on in the table that a policy before it used.
///
/// # Errors
///
/// As [`compile`].
pub fn plan_after(config: &Config, before: &Layout) -> Result<Plan, CompileError> {
    let has_egress = config.limits.iter().any(|limit| limit.direction == Direction::Egress);
    Ok(Plan {
        ingress: compile_after(config, Direction::Ingress, before)?,
        egress: has_egress.then(|| compile_after(config, Direction::Egress, before)).transpose()?,
        after: before.clone(),
    })
}

/// Compiles the limits of one direction. Table, clock and groups are those of both, which share them.
///
/// # Errors
///
/// When more rules would apply to one packet, or more states belong to one key, than the kernel's rows can say.
pub fn compile(config: &Config, direction: Direction) -> Result<Image, CompileError> {
    compile_after(config, direction, &Layout::default())
}

fn compile_after(config: &Config, direction: Direction, before: &Layout) -> Result<Image, CompileError> {
    let limits: Vec<(usize, &Limit)> = config.limits.iter().enumerate().collect();
    let own: Vec<&Limit> = config.limits.iter().filter(|limit| limit.direction == direction).collect();
    let scale =
        TickScale::for_longest_life(limits.iter().map(|(_, limit)| rules::longest_life(limit)).max().unwrap_or(0));
    let grades = prefixes::Grades::of(config);
    let prefixes = grades.tree(config)?;
    let mut groups = groups::assign(&limits)?;
    groups.renumber(&before.numbers(&limits, &groups));
    let layout = Layout::of(&limits, &config.classes, &groups, scale);

    let mut rows = spans::Rows::new(&limits, &groups, scale, config.agent.mode);
    let mut table = [RuleSpan::default(); SPANS];
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Icmp, Protocol::Other] {
        for kind in [Kind::Plain, Kind::Connection, Kind::Request] {
            let applying = spans::applying(&limits, direction, protocol, kind, None);
            table[span_index(protocol, kind)] =
                rows.span(&applying, || format!("{protocol:?} {kind:?}").to_lowercase())?;
        }
    }
    let ports = spans::ports(&limits, direction, &mut rows, &table)?;
    let hidden = spans::hidden(&limits, direction, config.agent.mode);
    if let Some(all) = &hidden {
        table[HIDDEN_SPAN] = rows.span(all, || "packet with a hidden protocol".to_owned())?;
    }
    let (rules_of_one, catalogue, most_rules) = rows.finish()?;
    let rules_per_grade = rules_of_one.len() as u32;
    let rules: Vec<Rule> = grades
        .multipliers()
        .flat_map(|multiplier| rules_of_one.iter().map(move |source| (source, multiplier)))
        .map(|(source, multiplier)| source.rule(multiplier, scale))
        .collect();

    let table_spec = TableSpec::of(&groups);
    let max_sources = table_spec.sources(config.agent.max_sources)?;
    let shape = table_spec.shape(max_sources);
    let in_use = |is: fn(Action) -> bool| {
        u32::from(config.agent.mode == Mode::Enforce && own.iter().any(|limit| is(limit.action)))
    };
    let settings = Settings {
        shape,
        scale,
        groups: layout.fingerprint(),
        ring_words: groups.ring_words,
        most_rules,
        rules_per_grade,
        depth: depth(&own) as u32,
        ports_in_use: u32::from(!ports.is_empty()),
        prefixes_in_use: u32::from(grades.are_needed(config)),
        algorithms: rules.iter().fold(0, |bits, rule| bits | 1 << rule.algorithm),
        elastic_in_use: u32::from(own.iter().any(|limit| limit.throttle.is_elastic())),
        interfaces_in_use: u32::from(own.iter().any(|limit| limit.key == Key::Interface)),
        bytes_in_use: u32::from(own.iter().any(|limit| limit.unit == Unit::Bytes)),
        observe: u32::from(config.agent.mode == Mode::Observe),
        is_egress: u32::from(direction == Direction::Egress),
        is_generic: u32::from(direction == Direction::Ingress && config.agent.attach == Attach::Generic),
        reject_in_use: in_use(|action| action == Action::Reject),
        mark_in_use: in_use(|action| matches!(action, Action::Mark(_))),
        shape_in_use: in_use(|action| action == Action::Shape),
        refuse_hidden: u32::from(hidden.is_none()),
        essential_limited: essential_limited(&table, &ports),
        answers: PacketBucket::of_replies(scale),
        essential: PacketBucket::of_essential(scale),
        not_ip: PacketBucket::of_not_ip(scale),
        prefixes: prefixes.roots,
        spans: table,
        ..Settings::NONE
    };
    let groups = groups.describe(&limits, scale);
    let marks = catalogue.iter().map(|counted| mark(&config.limits[counted.limit])).collect();
    Ok(Image { settings, max_sources, rules, marks, ports, prefixes: prefixes.lines, catalogue, groups, layout })
}

/// A bit for each kind of essential traffic that is sure to come under a limit: DHCP's four ports have rows of their own.
fn essential_limited(table: &[RuleSpan; SPANS], ports: &[PortSpans]) -> u32 {
    let udp = span_index(Protocol::Udp, Kind::Plain);
    let is_limited = |port: &usize| match ports.get(*port) {
        Some(row) => row.packed.get(udp).is_some_and(|packed| PortSpans::unpack(*packed).count > 0),
        None => table[udp].count > 0,
    };
    let dhcp = [67, 68, 546, 547].iter().all(is_limited);
    let neighbour_discovery = table[span_index(Protocol::Icmp, Kind::Plain)].count > 0;
    u32::from(dhcp) << Essential::Dhcp as u32 | u32::from(neighbour_discovery) << Essential::NeighbourDiscovery as u32
}

/// How a limit marks.
fn mark(limit: &Limit) -> Mark {
    match limit.action {
        Action::Mark(how) => Mark {
            mark: how.mark.unwrap_or(0),
            sets_mark: u32::from(how.mark.is_some()),
            dscp: how.dscp.map_or(Mark::SAME_DSCP, u32::from),
        },
        _ => Mark { mark: 0, sets_mark: 0, dscp: Mark::SAME_DSCP },
    }
}

/// How far packets have to be parsed.
fn depth(limits: &[&Limit]) -> Depth {
    let needs = |limit: &Limit| match limit.unit {
        Unit::Requests => Depth::Requests,
        Unit::Connections => Depth::Ports,
        Unit::Packets | Unit::Bytes
            if limit.ports.is_some() || limit.key.has_port() || limit.action == Action::Reject =>
        {
            Depth::Ports
        }
        Unit::Packets | Unit::Bytes => Depth::Addresses,
    };
    limits.iter().map(|limit| needs(limit)).max().unwrap_or(Depth::Addresses)
}

/// The row of counters that the nth rule of the catalogue counts in.
const fn counter_row(nth: usize) -> u32 {
    BYPASS_ROWS + nth as u32
}
