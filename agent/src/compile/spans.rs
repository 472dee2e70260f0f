//! Which rules each packet is held to, each set of them laid out once.

use std::collections::{BTreeMap, HashMap};

use common::packet::{Direction, Kind, Protocol};
use common::rule::{Enforcement, MAX_RULES, Rule, RuleSpan};
use common::settings::{PortSpans, SPANS, span_index};
use common::time::TickScale;

use super::groups::Groups;
use super::image::CountedRule;
use super::rules::{self, RuleSource};
use super::{CompileError, counter_row};
use crate::config::policy::{Limit, Mode, Multiplier, ProtocolFilter, Unit};

/// The limits of this direction that apply to packets of this protocol and kind: those without ports, or those with
/// this one.
pub fn applying(
    limits: &[(usize, &Limit)],
    direction: Direction,
    protocol: Protocol,
    kind: Kind,
    port: Option<u16>,
) -> Vec<usize> {
    (0..limits.len())
        .filter(|nth| {
            let limit = limits[*nth].1;
            limit.direction == direction
                && matches(limit, protocol, kind)
                && match (&limit.ports, port) {
                    (None, _) => true,
                    (Some(ports), Some(port)) => ports.contains(port),
                    (Some(_), None) => false,
                }
        })
        .collect()
}

/// The limits that a packet may come under whose protocol and ports are hidden: all. `None` if no packet can be held to
/// all of them, since they have too many rules or count by the port.
pub fn hidden(limits: &[(usize, &Limit)], direction: Direction, mode: Mode) -> Option<Vec<usize>> {
    let own = || (0..limits.len()).filter(|nth| limits[*nth].1.direction == direction);
    let rules: usize = own().map(|nth| rules::parts(limits[nth].1, mode).len()).sum();
    let needs_port = own().any(|nth| limits[nth].1.key.has_port());
    (rules <= MAX_RULES as usize && !needs_port).then(|| own().collect())
}

fn matches(limit: &Limit, protocol: Protocol, kind: Kind) -> bool {
    let of_protocol = match limit.protocol {
        ProtocolFilter::Any => true,
        ProtocolFilter::Tcp => protocol == Protocol::Tcp,
        ProtocolFilter::Udp => protocol == Protocol::Udp,
        ProtocolFilter::Icmp => protocol == Protocol::Icmp,
    };
    of_protocol
        && match limit.unit {
            Unit::Packets | Unit::Bytes => true,
            Unit::Connections => kind == Kind::Connection,
            Unit::Requests => kind == Kind::Request,
        }
}

const fn may_refuse(enforcement: Enforcement) -> bool {
    Rule { enforcement: enforcement as u8, ..Rule::EMPTY }.may_refuse()
}

/// The rows of rules as they are laid out.
pub struct Rows<'a> {
    limits: &'a [(usize, &'a Limit)],
    groups: &'a Groups,
    scale: TickScale,
    mode: Mode,
    rows: Vec<RuleSource>,
    catalogue: Vec<CountedRule>,
    known: HashMap<Vec<usize>, RuleSpan>,
    most: u32,
}

impl<'a> Rows<'a> {
    pub fn new(limits: &'a [(usize, &'a Limit)], groups: &'a Groups, scale: TickScale, mode: Mode) -> Self {
        Self {
            limits,
            groups,
            scale,
            mode,
            rows: Vec::new(),
            catalogue: Vec::new(),
            known: HashMap::from([(Vec::new(), RuleSpan::default())]),
            most: 0,
        }
    }

    /// The span of these limits, laid out if it is new.
    pub fn span(&mut self, applying: &[usize], packet: impl Fn() -> String) -> Result<RuleSpan, CompileError> {
        if let Some(span) = self.known.get(applying) {
            return Ok(*span);
        }
        // Rules of one key next to each other, otherwise in the order of the config.
        let mut ordered = applying.to_vec();
        // A limit that refuses comes before one that does not: what the first of a key finds out about room in the table
        // is for all of them.
        let yields = |nth: &usize| rules::parts(self.limits[*nth].1, self.mode).iter().all(|part| !may_refuse(part.2));
        ordered.sort_by_cached_key(|nth| (self.groups.places[*nth].group, yields(nth), *nth));
        let first = self.rows.len() as u32;
        for (position, nth) in ordered.iter().enumerate() {
            let place = &self.groups.places[*nth];
            let group_of = |other: Option<&usize>| other.map(|nth| self.groups.places[*nth].group);
            let opens = position == 0 || group_of(ordered.get(position - 1)) != Some(place.group);
            let closes = group_of(ordered.get(position + 1)) != Some(place.group);
            let (index, limit) = self.limits[*nth];
            let parts = rules::parts(limit, self.mode);
            let last = parts.len() - 1;
            // Observing lays out one rule where enforcing a soft limit lays out two: the first is the limit itself.
            let stride = place.positions.len() / parts.len();
            for (part, (rate, burst, enforcement)) in parts.into_iter().enumerate() {
                let frame = Rule {
                    group: place.group,
                    position: place.positions[part * stride],
                    ring: place.rings[part * stride],
                    counter: counter_row(self.rows.len()),
                    opens_key: u8::from(opens && part == 0),
                    closes_key: u8::from(closes && part == last),
                    ..rules::frame(limit, enforcement)
                };
                let frame = frame.when_full(rules::on_full(limit), place.moves, place.is_slow);
                self.rows.push(RuleSource { algorithm: limit.algorithm, unit: limit.unit, rate, burst, frame });
                self.catalogue.push(CountedRule { limit: index, span: counter_row(first as usize) });
            }
        }
        let count = self.rows.len() as u32 - first;
        if count > MAX_RULES {
            return Err(CompileError::TooManyRules { rules: count as usize, packet: packet() });
        }
        let span = RuleSpan { first, count };
        self.most = self.most.max(count);
        self.known.insert(applying.to_vec(), span);
        Ok(span)
    }

    /// (the rows, what their counters stand for, the most rules of any span).
    pub fn finish(self) -> Result<(Vec<RuleSource>, Vec<CountedRule>, u32), CompileError> {
        for (row, counted) in self.rows.iter().zip(&self.catalogue) {
            let rule = row.rule(Multiplier::ONE, self.scale);
            let is_sliding = rule.is(common::rule::Algorithm::SlidingWindow);
            if is_sliding && !rule.sliding_window().is_representable() {
                let limit = self.limits.iter().find(|(index, _)| *index == counted.limit);
                let limit = limit.map(|(_, limit)| limit.name.clone()).unwrap_or_default();
                return Err(CompileError::WindowTooShort { limit });
            }
        }
        Ok((self.rows, self.catalogue, self.most))
    }
}

/// A row for each port, or none if no limit is for certain ports.
pub fn ports(
    limits: &[(usize, &Limit)],
    direction: Direction,
    rows: &mut Rows<'_>,
    elsewhere: &[RuleSpan; SPANS],
) -> Result<Vec<PortSpans>, CompileError> {
    // Ports that the same limits name have the same row: found by where the limits' ranges begin and end.
    let mut named: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
    for (nth, (_, limit)) in limits.iter().enumerate().filter(|(_, (_, limit))| limit.direction == direction) {
        for port in limit.ports.iter().flat_map(|ports| ports.iter()) {
            named.entry(port).or_default().push(nth);
        }
    }
    if named.is_empty() {
        return Ok(Vec::new());
    }
    let mut without: [[Vec<usize>; 3]; 2] = Default::default();
    for (p, protocol) in [Protocol::Tcp, Protocol::Udp].into_iter().enumerate() {
        for (k, kind) in [Kind::Plain, Kind::Connection, Kind::Request].into_iter().enumerate() {
            without[p][k] = applying(limits, direction, protocol, kind, None);
        }
    }
    let pack = |spans: &[RuleSpan]| {
        let mut packed = PortSpans::default();
        for (place, span) in packed.packed.iter_mut().zip(spans) {
            *place = PortSpans::pack(*span);
        }
        packed
    };
    let mut table = vec![pack(elsewhere); 1 << 16];
    for (port, own) in named {
        let mut spans = [RuleSpan::default(); 6];
        for (p, protocol) in [Protocol::Tcp, Protocol::Udp].into_iter().enumerate() {
            for (k, kind) in [Kind::Plain, Kind::Connection, Kind::Request].into_iter().enumerate() {
                let mut all = without[p][k].clone();
                all.extend(own.iter().filter(|nth| matches(limits[**nth].1, protocol, kind)));
                all.sort_unstable();
                spans[span_index(protocol, kind)] =
                    rows.span(&all, || format!("{protocol:?} port {port}").to_lowercase())?;
            }
        }
        table[usize::from(port)] = pack(&spans);
    }
    Ok(table)
}
