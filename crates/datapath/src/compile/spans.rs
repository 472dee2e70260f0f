//! Spans: the rules that apply to a packet, side by side. Each set of limits is laid out once.

use std::collections::{BTreeMap, HashMap};

use common::connections::MOST_KEYS;
use common::fair::MOST_FAIR;
use common::packet::{Direction, Kind, Protocol};
use common::proof::PROVEN_REQUEST;
use common::rule::{Enforcement, MAX_RULES, Rule, RuleSpan};
use common::settings::{HIDDEN_SPAN, PortSpans, SPANS, Settings, span_index};
use common::time::TickScale;
use config::policy::{ClusterMode, Key, Limit, Mode, Multiplier, ProtocolFilter, Unit};

use super::at::LimitAt;
use super::catalogue::{CountedRule, counter_row};
use super::error::CompileError;
use super::groups::Groups;
use super::rules::{self, RuleSource};

/// The limits of a direction that apply to a pair of sources and interfaces.
#[derive(Clone, Copy)]
pub struct Limits<'a> {
    pub all: &'a [(LimitAt, &'a Limit)],
    pub direction: Direction,
    pub applies: &'a dyn Fn(usize) -> bool,
    /// How sources of limits prove their address: `prove_in_use` of [`common::settings::Settings`].
    pub proofs: u32,
}

/// The spans of a pair of sources and interfaces.
pub struct PairSpans {
    /// For ports that no limit names, by [`span_index`].
    pub elsewhere: [RuleSpan; SPANS],
    /// For each set of ports that the same limits name.
    pub of_ports: Vec<PortSpans>,
    /// Whether packets with a hidden protocol are refused: no span can have all limits that may apply to one.
    pub refuses_hidden: bool,
}

impl Limits<'_> {
    fn own(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.all.len())
            .filter(|nth| self.all[*nth].1.direction == self.direction && (self.applies)(*nth))
    }

    /// The limits without ports that apply to packets of this protocol and kind.
    fn applying(&self, protocol: Protocol, kind: Kind) -> Vec<usize> {
        self.own()
            .filter(|nth| self.all[*nth].1.ports.is_none() && self.matches(*nth, protocol, kind))
            .collect()
    }

    /// The limits for a packet with hidden protocol and ports: all of them. `None` if they have too many rules for one
    /// packet, or too many fair ones, a key with the port, or count open connections: the kernel opens one by such a packet, and a reservation
    /// requires its ports.
    fn hidden(&self, mode: Mode) -> Option<Vec<usize>> {
        let own: Vec<usize> = self.own().collect();
        if own.iter().any(|nth| self.all[*nth].1.concurrent.is_some()) {
            return None;
        }
        // Those of wider keys of fair limits are outside of the span.
        let in_span = |nth: &&usize| {
            let (at, limit) = self.all[**nth];
            at.level == 0 || !limit.is_fair()
        };
        let rules: usize = own
            .iter()
            .filter(in_span)
            .map(|nth| rules::parts(self.all[*nth].1, mode).len())
            .sum();
        let fair = own.iter().filter(in_span);
        let fair = fair.filter(|nth| self.all[**nth].1.is_fair()).count();
        let needs_port = own.iter().any(|nth| self.all[*nth].1.key.has_port());
        (rules <= MAX_RULES as usize && fair <= MOST_FAIR as usize && !needs_port).then_some(own)
    }

    /// The bits of spans to which these limits apply: whether and how sources prove their address. Where limits differ,
    /// it is by resets, which need no listener.
    fn bits_of_proofs<'n>(&self, limits: impl Iterator<Item = &'n usize>) -> u32 {
        let bits = |limit: &Limit| match (limit.proves(), limit.proves_by_resets()) {
            (false, _) => 0,
            (true, false) => RuleSpan::PROVES,
            (true, true) => RuleSpan::PROVES | RuleSpan::RESETS,
        };
        if self.proofs != 0 {
            limits.fold(0, |all, nth| all | bits(self.all[*nth].1))
        } else {
            0
        }
    }

    /// Whether a limit applies to the packets of a row.
    fn matches(&self, nth: usize, protocol: Protocol, kind: Kind) -> bool {
        let limit = self.all[nth].1;
        if self.proofs & Settings::BY_COOKIES != 0 && span_index(protocol, kind) == PROVEN_REQUEST {
            return [Kind::Connection, Kind::Request]
                .iter()
                .any(|kind| matches(limit, Protocol::Tcp, *kind));
        }
        matches(limit, protocol, kind)
    }

    /// Lays out all spans.
    pub fn spans(&self, kinds: &PortKinds, rows: &mut Rows<'_>) -> Result<PairSpans, CompileError> {
        let mut elsewhere = [RuleSpan::default(); SPANS];
        let mut without: [Vec<usize>; SPANS] = Default::default();
        for protocol in [
            Protocol::Tcp,
            Protocol::Udp,
            Protocol::Icmp,
            Protocol::Other,
        ] {
            for kind in KINDS {
                let (index, applying) = (span_index(protocol, kind), self.applying(protocol, kind));
                elsewhere[index] = rows.span(&applying, || packets(protocol, kind))?;
                without[index] = applying;
            }
        }
        let proofs = self.bits_of_proofs(TCP_ROWS.iter().flat_map(|row| &without[*row]));
        TCP_ROWS
            .iter()
            .for_each(|row| elsewhere[*row].count |= proofs);
        let mut of_ports = Vec::new();
        for (named, port) in &kinds.kinds {
            let (mut spans, mut proofs) = (PortSpans::default(), 0);
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                for kind in KINDS {
                    let index = span_index(protocol, kind);
                    let mut all = without[index].clone();
                    let of_port = named
                        .iter()
                        .filter(|nth| self.matches(**nth, protocol, kind));
                    all.extend(of_port.filter(|nth| (self.applies)(**nth)));
                    all.sort_unstable();
                    let span =
                        rows.span(&all, || format!("{protocol:?} port {port}").to_lowercase())?;
                    spans.packed[index] = PortSpans::pack(span);
                    if TCP_ROWS.contains(&index) {
                        proofs |= self.bits_of_proofs(all.iter());
                    }
                }
            }
            TCP_ROWS.iter().for_each(|row| spans.packed[*row] |= proofs);
            of_ports.push(spans);
        }
        let hidden = self.hidden(rows.mode);
        if let Some(all) = &hidden {
            elsewhere[HIDDEN_SPAN] =
                rows.span(all, || "packet with a hidden protocol".to_owned())?;
        }
        Ok(PairSpans {
            elsewhere,
            of_ports,
            refuses_hidden: hidden.is_none(),
        })
    }
}

const KINDS: [Kind; 3] = [Kind::Plain, Kind::Connection, Kind::Request];
/// The rows of TCP, with that of [`PROVEN_REQUEST`].
const TCP_ROWS: [usize; 4] = [
    span_index(Protocol::Tcp, Kind::Plain),
    span_index(Protocol::Tcp, Kind::Connection),
    span_index(Protocol::Tcp, Kind::Request),
    PROVEN_REQUEST,
];

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
            Unit::Connections if limit.concurrent.is_some() => {
                kind == Kind::Connection && protocol == Protocol::Tcp
            }
            Unit::Connections => kind == Kind::Connection,
            Unit::Requests => kind == Kind::Request,
        }
}

/// `tcp`, `tcp connection`, `udp request`: the packets of a span, for errors.
fn packets(protocol: Protocol, kind: Kind) -> String {
    if span_index(protocol, kind) == PROVEN_REQUEST {
        return "tcp connection with a request".to_owned();
    }
    let kind = match kind {
        Kind::Plain => "",
        Kind::Connection => " connection",
        Kind::Request => " request",
    };
    format!("{protocol:?}{kind}").to_lowercase()
}

/// How wide a limit's key is. Limits of one group have the same width.
fn width(limit: &Limit) -> u16 {
    match limit.key {
        Key::Source | Key::SourcePort => {
            160 - u16::from(limit.ipv4_prefix) - u16::from(limit.ipv6_prefix)
        }
        Key::Class | Key::Interface | Key::Asn => 161,
        Key::All => 162,
    }
}

const fn may_refuse(enforcement: Enforcement) -> bool {
    Rule {
        enforcement: enforcement as u8,
        ..Rule::EMPTY
    }
    .may_refuse()
}

/// The rows of rules, and the spans laid out in them.
pub struct Rows<'a> {
    limits: &'a [(LimitAt, &'a Limit)],
    groups: &'a Groups,
    scale: TickScale,
    mode: Mode,
    rows: Vec<RuleSource>,
    catalogue: Vec<CountedRule>,
    known: HashMap<Vec<usize>, RuleSpan>,
    most: u32,
}

impl<'a> Rows<'a> {
    pub fn new(
        limits: &'a [(LimitAt, &'a Limit)],
        groups: &'a Groups,
        scale: TickScale,
        mode: Mode,
    ) -> Self {
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
    pub fn span(
        &mut self,
        applying: &[usize],
        packet: impl Fn() -> String,
    ) -> Result<RuleSpan, CompileError> {
        if let Some(span) = self.known.get(applying) {
            return Ok(*span);
        }
        // Rules of one key are adjacent; otherwise the order is the config's. With levels, narrow keys are first: the
        // narrowest key that refuses a packet is reported.
        let mut ordered = applying.to_vec();
        let has_levels = applying.iter().any(|nth| {
            let (at, limit) = self.limits[*nth];
            at.level > 0 && !limit.is_fair()
        });
        let width = |nth: &usize| {
            if has_levels {
                width(self.limits[*nth].1)
            } else {
                0
            }
        };
        // A limit that can refuse precedes one that cannot: the kernel program applies the first one's `on_full` to all
        // limits of a key.
        let cannot_refuse = |nth: &usize| {
            rules::parts(self.limits[*nth].1, self.mode)
                .iter()
                .all(|part| !may_refuse(part.2))
        };
        // Open connections come first: the kernel program reserves one before it evaluates the rest.
        let is_other = |nth: &usize| self.limits[*nth].1.concurrent.is_none();
        let of_connections = applying.iter().filter(|nth| !is_other(nth)).count() as u32;
        ordered.sort_by_cached_key(|nth| {
            (
                is_other(nth),
                width(nth),
                self.groups.places[*nth].group,
                cannot_refuse(nth),
                *nth,
            )
        });
        let first = self.rows.len() as u32;
        let (mut states, mut fair, mut wider) = (0u8, Vec::new(), Vec::new());
        for (position, nth) in ordered.iter().enumerate() {
            let place = &self.groups.places[*nth];
            let group_of = |other: Option<&usize>| other.map(|nth| self.groups.places[*nth].group);
            let opens = position == 0 || group_of(ordered.get(position - 1)) != Some(place.group);
            let closes = group_of(ordered.get(position + 1)) != Some(place.group);
            let (at, limit) = self.limits[*nth];
            if opens {
                states = 0;
            }
            let parts = rules::parts(limit, self.mode);
            let is_fair = |part: &(_, _, Enforcement)| part.2 == Enforcement::Fair;
            let last = parts.iter().rposition(|part| !is_fair(part));
            // On `observe`, a soft limit has one rule instead of two: the first is the limit itself.
            let stride = place.positions.len() / parts.len();
            for (part, (rate, burst, enforcement)) in parts.into_iter().enumerate() {
                let position = place.positions[part * stride];
                let frame = Rule {
                    group: place.group,
                    position,
                    ring: place.rings[part * stride],
                    ..rules::frame(limit, enforcement)
                };
                let frame = frame
                    .when_full(rules::on_full(limit), place.moves, place.is_slow)
                    .of_level(at.level > 0)
                    .escalating(limit.escalate.is_some(), limit.bans_by_syns())
                    .counting_by_cpu(
                        limit.escalate.is_none() && limit.cluster != Some(ClusterMode::Keys),
                    );
                let source = RuleSource {
                    algorithm: limit.rates.algorithm,
                    unit: limit.unit,
                    rate,
                    burst,
                    largest: self.groups.largest_of(limit.rates.algorithm),
                    frame,
                };
                if enforcement == Enforcement::Fair {
                    let keys = if at.level > 0 { &mut wider } else { &mut fair };
                    keys.push((at, source));
                    continue;
                }
                states |= 1 << position;
                let span = if limit.concurrent.is_some() {
                    self.rows.len()
                } else {
                    (first + of_connections) as usize
                };
                let opens_key = u8::from(opens && part == 0);
                let is_last = closes && Some(part) == last;
                self.add(
                    at,
                    span,
                    source,
                    (opens_key, if is_last { states } else { 0 }),
                );
            }
        }
        fair.sort_unstable_by_key(|(at, _)| *at);
        let (ordinary, fair_rules) = (self.rows.len() as u32 - first, fair.len());
        for (nth, (at, source)) in (0u16..).zip(fair) {
            // Where nothing else counts the packet for its key.
            let is_alone = ordinary == of_connections && fair_rules == 1;
            let closes_key = if is_alone {
                1 << source.frame.position
            } else {
                0
            };
            let frame = Rule {
                ring: nth,
                ..source.frame
            };
            let source = RuleSource { frame, ..source };
            self.add(
                at,
                (first + of_connections) as usize,
                source,
                (1, closes_key),
            );
        }
        let count = self.rows.len() as u32 - first;
        if fair_rules > MOST_FAIR as usize {
            return Err(CompileError::TooManyFair {
                limits: fair_rules,
                packet: packet(),
            });
        }
        if count > MAX_RULES {
            return Err(CompileError::TooManyRules {
                rules: count as usize,
                packet: packet(),
            });
        }
        let bits = if fair_rules > 0 { RuleSpan::FAIR } else { 0 };
        let span = RuleSpan {
            first,
            count: count | bits,
        };
        if of_connections > MOST_KEYS as u32 {
            return Err(CompileError::TooManyConcurrent {
                limits: of_connections as usize,
                packet: packet(),
            });
        }
        // Behind the span: the program reads them only while the row of their source names them.
        wider.sort_unstable_by_key(|(at, _)| *at);
        for (at, source) in wider {
            self.add(at, (first + of_connections) as usize, source, (1, 0));
        }
        self.most = self.most.max(ordinary - of_connections);
        self.known.insert(applying.to_vec(), span);
        Ok(span)
    }

    /// Adds a rule, whose passed packets are counted in the row of `span`. `key`: its `opens_key` and `closes_key`.
    fn add(&mut self, at: LimitAt, span: usize, source: RuleSource, key: (u8, u8)) {
        let frame = Rule {
            counter: counter_row(self.rows.len()),
            opens_key: key.0,
            closes_key: key.1,
            ..source.frame
        };
        self.rows.push(RuleSource { frame, ..source });
        self.catalogue.push(CountedRule {
            at,
            span: counter_row(span),
        });
    }

    /// (rows, the catalogue of their counters, the most rules of a span).
    pub fn finish(self) -> Result<(Vec<RuleSource>, Vec<CountedRule>, u32), CompileError> {
        for (row, counted) in self.rows.iter().zip(&self.catalogue) {
            let rule = row.rule(Multiplier::ONE, self.scale);
            if !rule.any_limiter().is_representable() {
                let limit = self.limits.iter().find(|(at, _)| *at == counted.at);
                let limit = limit
                    .map(|(_, limit)| limit.name.clone())
                    .unwrap_or_default();
                return Err(CompileError::WindowTooShort {
                    limit,
                    algorithm: row.algorithm,
                });
            }
        }
        Ok((self.rows, self.catalogue, self.most))
    }
}

/// Ports, grouped into kinds by the limits that name them.
pub struct PortKinds {
    of_ports: BTreeMap<u16, usize>,
    /// The limits that name the ports of each kind, and one of these ports.
    kinds: Vec<(Vec<usize>, u16)>,
}

impl PortKinds {
    pub fn of(limits: &[(LimitAt, &Limit)], direction: Direction) -> Self {
        let mut named: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (nth, (_, limit)) in limits
            .iter()
            .enumerate()
            .filter(|(_, (_, limit))| limit.direction == direction)
        {
            for port in limit.ports.iter().flat_map(|ports| ports.iter()) {
                named.entry(port).or_default().push(nth);
            }
        }
        let mut numbers: HashMap<Vec<usize>, usize> = HashMap::new();
        let mut kinds = Vec::new();
        let mut kind_of = |port: u16, limits: Vec<usize>| {
            *numbers.entry(limits).or_insert_with_key(|limits| {
                kinds.push((limits.clone(), port));
                kinds.len() - 1
            })
        };
        let of_ports = named
            .into_iter()
            .map(|(port, limits)| (port, kind_of(port, limits)))
            .collect();
        Self { of_ports, kinds }
    }

    /// The number of kinds, without that of ports that no limit names.
    pub fn count(&self) -> usize {
        self.kinds.len()
    }

    /// The kind of a port that some limit names.
    pub fn of_port(&self, port: u16) -> Option<usize> {
        self.of_ports.get(&port).copied()
    }

    /// A row for each port: `elsewhere`, or that of its kind. Empty if no limit has ports.
    pub fn rows(&self, elsewhere: PortSpans, row: impl Fn(usize) -> PortSpans) -> Vec<PortSpans> {
        if self.kinds.is_empty() {
            return Vec::new();
        }
        let mut rows = vec![elsewhere; 1 << 16];
        for (port, kind) in &self.of_ports {
            rows[usize::from(*port)] = row(*kind);
        }
        rows
    }
}
