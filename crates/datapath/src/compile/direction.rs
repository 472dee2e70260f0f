//! Compiles the limits of one direction.

use std::hash::{DefaultHasher, Hash, Hasher};

use common::connections::Connection;
use common::essential::{Essential, PacketBucket};
use common::packet::{Depth, Direction, Kind, Protocol};
use common::prefix::{PrefixRoots, Roots};
use common::rule::{Rule, RuleSpan};
use common::scope::SpansBy;
use common::settings::{Mark, PortSpans, SPANS, Settings, span_index};
use common::time::TickScale;
use config::policy::{Action, Attach, Class, Config, Key, Limit, Mode, Multiplier, Unit};

use super::at::{self, LimitAt};
use super::error::CompileError;
use super::groups::{self, Groups};
use super::image::Image;
use super::layout::Layout;
use super::rules::RuleSource;
use super::spans::{Limits, PairSpans, PortKinds};
use super::table::TableSpec;
use super::{prefixes, rules, scopes, spans};

/// Compiles the limits of one direction. Both directions share the table, clock and groups.
///
/// # Errors
///
/// When the policy exceeds what the kernel program supports.
pub fn compile(config: &Config, direction: Direction) -> Result<Image, CompileError> {
    compile_after(config, direction, &Layout::default())
}

pub(super) fn compile_after(
    config: &Config,
    direction: Direction,
    before: &Layout,
) -> Result<Image, CompileError> {
    let every = at::every(config);
    let limits: Vec<(LimitAt, &Limit)> = every.iter().map(|(at, limit)| (*at, limit)).collect();
    let own: Vec<&Limit> = config
        .limits
        .iter()
        .filter(|limit| limit.direction == direction)
        .collect();
    let factors = config.multipliers();
    let scale = TickScale::for_longest_life(
        limits
            .iter()
            .map(|(_, limit)| rules::longest_life_of_classes(limit, &factors))
            .max()
            .unwrap_or(0),
    );
    let multipliers = prefixes::Multipliers::of(config);
    let mut scopes = scopes::Scopes::of(config, direction)?;
    let mut prefixes = multipliers.tree(config, &mut scopes)?;
    let networks = if own.iter().any(|limit| limit.uses_networks()) {
        prefixes::networks(&mut prefixes.lines, &config.geo.networks)
    } else {
        PrefixRoots::NONE
    };
    let mut groups = assign(config, &limits, &factors)?;
    groups.renumber(&before.numbers(&limits, &groups));
    let layout = Layout::of(&limits, &config.classes, &groups, scale);

    let mut rows = spans::Rows::new(&limits, &groups, scale, config.agent.mode);
    let kinds = spans::PortKinds::of(&limits, direction);
    let scoping = scopes.scoping(kinds.count() + 1)?;
    let prove = |bit: u32, by: fn(&Limit) -> bool| {
        if config.agent.mode == Mode::Enforce && own.iter().any(|limit| by(limit)) {
            bit
        } else {
            0
        }
    };
    let prove_in_use = prove(Settings::BY_COOKIES, Limit::proves_by_cookies)
        | prove(Settings::BY_RESETS, Limit::proves_by_resets);
    let mut pairs = Vec::new();
    for pair in scopes.pairs() {
        let applies = |nth: usize| scopes.applies(limits[nth].0.limit, pair);
        pairs.push(
            Limits {
                all: &limits,
                direction,
                applies: &applies,
                proofs: prove_in_use,
            }
            .spans(&kinds, &mut rows)?,
        );
    }
    let by_pair = scopes.are_in_use();
    let (spans, ports) = match pairs.as_slice() {
        [only] if !by_pair => {
            let mut elsewhere = PortSpans::default();
            elsewhere
                .packed
                .iter_mut()
                .zip(&only.elsewhere)
                .for_each(|(at, span)| *at = PortSpans::pack(*span));
            (
                only.elsewhere,
                kinds.rows(elsewhere, |kind| only.of_ports[kind]),
            )
        }
        _ => {
            let row = |kind: usize| PortSpans {
                packed: [kind as u32 + 1, 0, 0, 0, 0, 0],
            };
            (
                [RuleSpan::default(); SPANS],
                kinds.rows(PortSpans::default(), row),
            )
        }
    };
    let (rules_of_one, catalogue, most_rules) = rows.finish()?;
    let rules_per_multiplier = rules_of_one.len() as u32;
    let rules: Vec<Rule> = multipliers
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
        rules_per_multiplier,
        depth: depth(&own) as u32,
        spans_by: match (by_pair, ports.is_empty()) {
            (true, _) => SpansBy::Scope,
            (false, false) => SpansBy::Port,
            (false, true) => SpansBy::Protocol,
        } as u32,
        prefixes_in_use: u32::from(multipliers.are_needed(config) || scopes.have_sources()),
        networks_in_use: u32::from(!networks.are_empty()),
        algorithms: rules
            .iter()
            .fold(0, |bits, rule| bits | 1 << rule.algorithm),
        elastic_in_use: u32::from(own.iter().any(|limit| limit.throttle.is_elastic())),
        interfaces_in_use: u32::from(own.iter().any(|limit| limit.key == Key::Interface)),
        bytes_in_use: u32::from(own.iter().any(|limit| limit.unit == Unit::Bytes)),
        observe: u32::from(config.agent.mode == Mode::Observe),
        is_egress: u32::from(direction == Direction::Egress),
        is_generic: u32::from(
            direction == Direction::Ingress && config.agent.attach == Attach::Generic,
        ),
        reject_in_use: in_use(|action| action == Action::Reject),
        mark_in_use: in_use(|action| matches!(action, Action::Mark(_))),
        shape_in_use: in_use(|action| action == Action::Shape),
        // A hidden SYN proves nothing.
        refuse_hidden: u32::from(prove_in_use != 0 || pairs.iter().any(|pair| pair.refuses_hidden)),
        essential_limited: pairs.iter().fold(u32::MAX, |bits, pair| {
            bits & essential_limited(pair, &kinds, &rules_of_one)
        }),
        scoping,
        lists_in_use: u32::from(
            direction == Direction::Ingress
                && config.agent.mode == Mode::Enforce
                && config.ban_lists.iter().any(|list| list.class().is_none()),
        ),
        prove_in_use,
        connections_in_use: u32::from(own.iter().any(|limit| limit.concurrent.is_some())),
        escalate_in_use: u32::from(own.iter().any(|limit| limit.escalate.is_some())),
        fair_in_use: fair_in_use(&own),
        answers: PacketBucket::of_replies(scale),
        cookies: PacketBucket::of_cookies(scale),
        essential: PacketBucket::of_essential(scale),
        neighbour: PacketBucket::of_neighbour(scale),
        not_ip: PacketBucket::of_not_ip(scale),
        spans,
        ..Settings::NONE
    };
    let connections = connections_of(&limits, &groups, direction, &config.classes);
    let logs = groups.logs;
    let groups = groups.describe(&limits, scale);
    let marks = catalogue
        .iter()
        .map(|counted| mark(&config.limits[counted.at.limit]))
        .collect();
    Ok(Image {
        settings,
        max_sources,
        rules,
        marks,
        ports,
        scopes: if by_pair {
            scopes::rows(&pairs)
        } else {
            Vec::new()
        },
        interfaces: scopes.interfaces().clone(),
        limits_of_sources: scopes.limits_of_sources(),
        prefixes: prefixes.lines,
        roots: Roots {
            prefixes: prefixes.roots,
            networks,
        },
        catalogue,
        groups,
        layout,
        logs,
        connections,
    })
}

/// Groups whose logs have places for the multipliers of classes, if the table can have them, and for larger ones if that takes
/// no sources from the table.
fn assign(
    config: &Config,
    limits: &[(LimitAt, &Limit)],
    factors: &[Multiplier],
) -> Result<Groups, CompileError> {
    let sources = |groups: &Groups| TableSpec::of(groups).sources(config.agent.max_sources).ok();
    let (largest, of_classes) = (
        groups::largest(factors),
        groups::largest_of_classes(&config.classes),
    );
    let groups = groups::assign(limits, largest, of_classes)?;
    let of_classes = sources(&groups);
    if of_classes.is_none() {
        return groups::assign(limits, largest, Multiplier::ONE);
    }
    let raised = groups::assign(limits, largest, largest)?;
    Ok(if sources(&raised) == of_classes {
        raised
    } else {
        groups
    })
}

/// The hash of the limits on open connections: all but their numbers and actions.
fn connections_of(
    limits: &[(LimitAt, &Limit)],
    groups: &groups::Groups,
    direction: Direction,
    classes: &[Class],
) -> u64 {
    let mut hasher = DefaultHasher::new();
    // Counts of another version may have another meaning.
    (env!("CARGO_PKG_VERSION"), size_of::<Connection>()).hash(&mut hasher);
    let mut any = false;
    for ((_, limit), place) in limits.iter().zip(&groups.places) {
        if limit.concurrent.is_none() || limit.direction != direction {
            continue;
        }
        any = true;
        let Limit {
            name,
            protocol,
            ports,
            key,
            ipv4_prefix,
            ipv6_prefix,
            sources,
            interfaces,
            ..
        } = limit;
        (
            place.group,
            name,
            format!("{protocol:?} {ports:?} {key:?} {sources:?} {interfaces:?}"),
        )
            .hash(&mut hasher);
        (ipv4_prefix, ipv6_prefix).hash(&mut hasher);
        if *key == Key::Class {
            // Their keys are the classes' numbers.
            classes
                .iter()
                .for_each(|class| class.name.hash(&mut hasher));
        }
    }
    if any { hasher.finish().max(1) } else { 0 }
}

/// A bit for each kind of essential traffic whose packets are all under a limit that is always in effect. DHCP's four ports have
/// separate rows.
fn essential_limited(spans: &PairSpans, kinds: &PortKinds, rules: &[RuleSource]) -> u32 {
    let table = &spans.elsewhere;
    let udp = span_index(Protocol::Udp, Kind::Plain);
    let is_limited = |span: RuleSpan| {
        let count = span.without_proofs().count & !RuleSpan::FAIR;
        let rules = rules.iter().skip(span.first as usize).take(count as usize);
        rules.map(|rule| &rule.frame).any(|rule| !rule.is_fair())
    };
    let is_limited_port = |port: &u16| {
        is_limited(match kinds.of_port(*port) {
            Some(kind) => PortSpans::unpack(spans.of_ports[kind].packed[udp]),
            None => table[udp],
        })
    };
    let dhcp = [67, 68, 546, 547].iter().all(is_limited_port);
    let neighbour_discovery = is_limited(table[span_index(Protocol::Icmp, Kind::Plain)]);
    u32::from(dhcp) << Essential::Dhcp as u32
        | u32::from(neighbour_discovery) << Essential::NeighbourDiscovery as u32
}

/// The bits of [`Settings::fair_in_use`].
fn fair_in_use(limits: &[&Limit]) -> u32 {
    let fair = limits.iter().filter(|limit| limit.is_fair());
    fair.fold(0, |bits, limit| {
        let wider = if limit.levels.is_empty() {
            0
        } else {
            Settings::WIDER
        };
        bits | Settings::FAIR | wider
    })
}

/// The values that a limit with `action = "mark"` sets.
fn mark(limit: &Limit) -> Mark {
    match limit.action {
        Action::Mark(how) => Mark {
            mark: how.mark.unwrap_or(0),
            sets_mark: u32::from(how.mark.is_some()),
            dscp: how.dscp.map_or(Mark::SAME_DSCP, u32::from),
        },
        _ => Mark {
            mark: 0,
            sets_mark: 0,
            dscp: Mark::SAME_DSCP,
        },
    }
}

/// The deepest header that any limit requires.
fn depth(limits: &[&Limit]) -> Depth {
    let needs = |limit: &Limit| match limit.unit {
        Unit::Requests => Depth::Requests,
        Unit::Connections => Depth::Ports,
        Unit::Packets | Unit::Bytes
            if limit.ports.is_some()
                || limit.key.has_port()
                || limit.action == Action::Reject
                || limit.proves() =>
        {
            Depth::Ports
        }
        Unit::Packets | Unit::Bytes => Depth::Addresses,
    };
    limits
        .iter()
        .map(|limit| needs(limit))
        .max()
        .unwrap_or(Depth::Addresses)
}
