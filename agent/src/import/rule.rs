//! Rules as all formats have them, before they become limits.

use std::collections::BTreeMap;
use std::rc::Rc;

use ipnet::IpNet;

/// Chains, their rules, and the sets that rules name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    pub chains: Vec<Chain>,
    /// By the key that [`Sources::Set`] has.
    pub sets: BTreeMap<String, Set>,
    /// Rules of all chains.
    pub rules: usize,
}

/// The most rules, chains and sets together.
pub const MOST_RULES: usize = 500_000;

impl Ruleset {
    /// Whether it has more than [`MOST_RULES`].
    pub fn is_too_large(&self) -> bool {
        self.rules + self.chains.len() + self.sets.len() > MOST_RULES
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The family and table of a jump's target.
    pub table: String,
    pub name: String,
    pub hook: Hook,
    /// Chains with hooks see a packet in this order.
    pub order: i64,
    pub rules: Vec<Rule>,
}

/// Where a chain gets its packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hook {
    /// From jumps.
    None,
    /// Incoming packets, of one interface where it is named.
    Incoming(Option<String>),
    /// The same, of one interface that the input does not name.
    IncomingUnnamed,
    /// Other packets; the reason why Weir does not limit them there.
    Other(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The rule in its own words, or its place.
    pub origin: String,
    pub conditions: Conditions,
    pub limit: Option<Limit>,
    pub verdict: Verdict,
}

/// The packets of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    pub family: Option<Family>,
    pub protocol: Option<Protocol>,
    /// Local ports.
    pub ports: Option<Vec<(u16, u16)>>,
    pub sources: Option<Sources>,
    pub interfaces: Option<Vec<String>>,
    pub connection: Connection,
    /// Conditions that Weir does not have.
    pub others: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Tcp,
    Udp,
    Icmp,
}

/// Packets by their connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Connection {
    #[default]
    Any,
    /// TCP: SYN without ACK.
    Syn,
    /// The state NEW of connection tracking.
    New,
    /// Only ESTABLISHED and RELATED.
    Established,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sources {
    Prefixes(Rc<[IpNet]>),
    /// The key of a set.
    Set(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    pub name: Option<String>,
    /// Units in `seconds`.
    pub count: u64,
    pub seconds: u64,
    /// Units that pass at once after a pause.
    pub burst: u64,
    pub unit: Unit,
    pub key: Key,
    /// Whether the rule is about packets above the limit, or below it.
    pub is_over: bool,
    /// When the other limiter forgets a source.
    pub forgets: Option<Forgets>,
    /// The most sources.
    pub size: Option<u64>,
    /// Whether the kernel rounds the rate, and `count` is above it.
    pub is_rounded_up: bool,
    /// Whether packets of sources beyond `size` pass.
    pub is_open_when_full: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Packets,
    /// Bytes of IP packets.
    Bytes,
    /// Connections that are open at one time, of which there are `count`.
    Open,
}

impl Limit {
    /// A limit on so many open connections.
    pub const fn on_open(count: u64, key: Key, is_over: bool) -> Self {
        Self {
            name: None,
            count,
            seconds: 1,
            burst: count,
            unit: Unit::Open,
            key,
            is_over,
            forgets: None,
            size: None,
            is_rounded_up: false,
            is_open_when_full: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// All packets of the rule together.
    All,
    /// Each source, or prefix of this length; with or without the local port.
    Source { prefix: Option<u8>, has_port: bool },
}

/// When a source's state is removed, so that it has the whole burst again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgets {
    /// After milliseconds without a packet.
    Idle(u64),
    /// Milliseconds after its first packet.
    Always(u64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The next rule decides.
    Continue,
    Drop,
    Reject,
    Accept,
    Return,
    Mark(u32),
    Jump(String),
    Goto(String),
    /// It may accept packets.
    Other(String),
}

/// Addresses and prefixes by a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    pub name: String,
    pub origin: String,
    pub prefixes: Vec<IpNet>,
    /// Those that expire.
    pub temporary: Vec<IpNet>,
    /// Those that do not belong to the set, though a prefix of it contains them.
    pub exceptions: Vec<IpNet>,
    /// Elements that are not sources.
    pub invalid: u64,
    /// Why it is no set of sources.
    pub unusable: Option<String>,
}

impl Conditions {
    /// A condition that Weir does not have.
    pub fn other(&mut self, what: impl Into<String>) {
        let what = what.into();
        if self.others.len() < 8 && !self.others.contains(&what) {
            self.others.push(what);
        }
    }

    /// Adds the condition on the family; `false` if no packet has both.
    pub fn restrict_family(&mut self, family: Family) -> bool {
        let before = self.family.replace(family);
        before.is_none_or(|before| before == family)
    }

    /// Adds the condition on the protocol; `false` if no packet has both.
    pub fn restrict_protocol(&mut self, protocol: Protocol) -> bool {
        let before = self.protocol.replace(protocol);
        before.is_none_or(|before| before == protocol)
    }

    /// Whether it is about loopback alone, which Weir does not limit.
    pub fn is_loopback(&self) -> bool {
        self.interfaces
            .as_ref()
            .is_some_and(|names| names.iter().all(|name| name == "lo"))
    }

    /// Whether it has no conditions but on the source's address.
    pub fn is_by_source_alone(&self) -> bool {
        let Self {
            family: _,
            protocol,
            ports,
            sources,
            interfaces,
            connection,
            others,
        } = self;
        sources.is_some()
            && protocol.is_none()
            && ports.is_none()
            && interfaces.is_none()
            && *connection == Connection::Any
            && others.is_empty()
    }

    /// Whether all packets of the other have these conditions, sources apart.
    pub fn covers(&self, other: &Self) -> bool {
        let is_in = |range: &(u16, u16)| {
            let of = self.ports.iter().flatten();
            of.clone()
                .any(|(first, last)| *first <= range.0 && range.1 <= *last)
        };
        let ports = self.ports.is_none()
            || other
                .ports
                .as_ref()
                .is_some_and(|ports| ports.iter().all(is_in));
        (self.family.is_none() || self.family == other.family)
            && (self.protocol.is_none() || self.protocol == other.protocol)
            && ports
            && (self.interfaces.is_none() || self.interfaces == other.interfaces)
            && (self.connection == Connection::Any || self.connection == other.connection)
            && self.others.is_empty()
    }

    /// Both conditions together; `None` if no packet has both.
    pub fn and(&self, inner: &Self) -> Option<Self> {
        let mut both = inner.clone();
        if let Some(family) = self.family
            && !both.restrict_family(family)
        {
            return None;
        }
        if let Some(protocol) = self.protocol
            && !both.restrict_protocol(protocol)
        {
            return None;
        }
        both.ports = match (&self.ports, both.ports) {
            (Some(outer), Some(inner)) => Some(common_ranges(outer, &inner))
                .filter(|common| !common.is_empty())?
                .into(),
            (outer, inner) => inner.or_else(|| outer.clone()),
        };
        both.interfaces = match (&self.interfaces, both.interfaces) {
            (Some(outer), Some(inner)) if *outer != inner => {
                if outer.iter().chain(&inner).any(|name| name.contains('*')) {
                    both.others
                        .push("two conditions on the interface".to_owned());
                }
                let common: Vec<String> = inner
                    .iter()
                    .filter(|name| outer.contains(name))
                    .cloned()
                    .collect();
                if common.is_empty() && both.others.is_empty() {
                    return None;
                }
                Some(if common.is_empty() { inner } else { common })
            }
            (outer, inner) => inner.or_else(|| outer.clone()),
        };
        both.connection = match (self.connection, both.connection) {
            (Connection::Any, inner) => inner,
            (outer, Connection::Any) => outer,
            (outer, inner) if outer == inner => outer,
            (Connection::Syn | Connection::New, Connection::Syn | Connection::New) => {
                Connection::Syn
            }
            _ => return None,
        };
        match (&self.sources, &both.sources) {
            (Some(_), Some(_)) => both.other("two conditions on the source"),
            (Some(outer), None) => both.sources = Some(outer.clone()),
            (None, _) => {}
        }
        self.others
            .iter()
            .for_each(|other| both.other(other.clone()));
        Some(both)
    }

    /// Whether a packet may have both, as far as is known.
    pub fn overlaps(&self, other: &Self) -> bool {
        let differ =
            |one: Option<u8>, two: Option<u8>| one.is_some() && two.is_some() && one != two;
        let family = |it: &Self| it.family.map(|family| family as u8);
        let protocol = |it: &Self| it.protocol.map(|protocol| protocol as u8);
        let ports = match (&self.ports, &other.ports) {
            (Some(one), Some(two)) => !common_ranges(one, two).is_empty(),
            _ => true,
        };
        let interfaces = match (&self.interfaces, &other.interfaces) {
            (Some(one), Some(two)) => {
                one.iter().any(|name| two.contains(name))
                    || one.iter().chain(two).any(|name| name.contains('*'))
            }
            _ => true,
        };
        !differ(family(self), family(other))
            && !differ(protocol(self), protocol(other))
            && ports
            && interfaces
    }
}

/// The ports in both.
fn common_ranges(one: &[(u16, u16)], two: &[(u16, u16)]) -> Vec<(u16, u16)> {
    let pairs = one
        .iter()
        .flat_map(|a| two.iter().map(move |b| (a.0.max(b.0), a.1.min(b.1))));
    pairs.filter(|(first, last)| first <= last).collect()
}
