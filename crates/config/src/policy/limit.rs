//! `[[limit]]` on packets.

use super::{
    ClusterMode, Direction, Escalate, InterfacePattern, Key, Level, LimitSources, Multiplier,
    OnFull, PortSet, ProtocolFilter, Prove, RateSpec, Unit,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The name, unique among all limits.
    pub name: String,
    pub direction: Direction,
    pub protocol: ProtocolFilter,
    /// The local ports; `None`: every packet, also those without ports.
    pub ports: Option<PortSet>,
    pub key: Key,
    /// Sources in one IPv4 prefix of this length share a key.
    pub ipv4_prefix: u8,
    /// The IPv6 prefix length, likewise.
    pub ipv6_prefix: u8,
    pub unit: Unit,
    /// With `concurrent`, that number is the count and the burst.
    pub rates: RateSpec,
    /// The most open connections of a key, instead of the rates.
    pub concurrent: Option<u64>,
    /// The same limit at wider keys, the narrowest first.
    pub levels: Vec<Level>,
    /// The action above the limit.
    pub throttle: Throttle,
    /// The action on refused packets.
    pub action: Action,
    /// The action on new keys while the table is full.
    pub on_full: OnFull,
    /// When to ban a source.
    pub escalate: Option<Escalate>,
    /// The mode in which the cluster's hosts share the limit; `None` without `cluster`.
    pub cluster: Option<ClusterMode>,
    /// When sources prove their address; `None` without `prove`.
    pub prove: Option<Prove>,
    /// The sources to which it applies, on egress the destinations; `None`: all.
    pub sources: Option<LimitSources>,
    /// The interfaces to which it applies; `None`: all of the agent's.
    pub interfaces: Option<Vec<InterfacePattern>>,
}

impl Prove {
    /// Whether sources prove their address by the kernel's SYN cookies, and not by resets.
    #[must_use]
    pub fn is_by_cookies(self) -> bool {
        self != Self::Reset
    }
}

impl Limit {
    /// `ingress` or `egress`.
    #[must_use]
    pub const fn direction_name(&self) -> &'static str {
        match self.direction {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        }
    }

    /// Whether sources prove their address before their connections are evaluated.
    #[must_use]
    pub fn proves(&self) -> bool {
        self.prove.is_some() && self.action != Action::Observe
    }

    /// Whether refused SYNs count towards a ban: those of a limit on connections, since nothing else is known of its sources.
    /// With cookies, only connections count whose source has proven its address.
    #[must_use]
    pub fn bans_by_syns(&self) -> bool {
        self.unit == Unit::Connections && !self.proves_by_cookies()
    }

    /// Whether they do by the kernel's SYN cookies.
    #[must_use]
    pub fn proves_by_cookies(&self) -> bool {
        self.proves() && self.prove.is_some_and(Prove::is_by_cookies)
    }

    /// Whether they do by resets.
    #[must_use]
    pub fn proves_by_resets(&self) -> bool {
        self.proves() && !self.prove.is_some_and(Prove::is_by_cookies)
    }

    /// The key as written in limits.toml.
    #[must_use]
    pub fn key_name(&self) -> String {
        match (self.key, self.direction) {
            (Key::Source, Direction::Egress) => "destination".to_owned(),
            (key, _) => key.to_string(),
        }
    }

    /// All rates as written in the config.
    #[must_use]
    pub fn rate_text(&self) -> String {
        self.rates.text()
    }
}

/// The action above the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Throttle {
    /// All packets above it are refused.
    Hard,
    /// Packets pass up to this multiple of the limit, and are counted separately.
    Soft(Multiplier),
    /// Packets pass up to this multiple of the limit while the host has spare CPU time.
    Elastic(Multiplier),
}

impl Throttle {
    /// Whether it depends on the host's load.
    #[must_use]
    pub const fn is_elastic(self) -> bool {
        matches!(self, Self::Elastic(_))
    }
}

/// The action on refused packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The packet is dropped.
    Drop,
    /// The packet is only counted.
    Observe,
    /// The packet is answered with a reset or an ICMP error.
    Reject,
    /// The packet passes with a mark.
    Mark(Mark),
    /// The packet is delayed.
    Shape,
}

/// The marks of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The packet's mark inside this host (`skb->mark`), if it is set.
    pub mark: Option<u32>,
    /// The code point on the wire, if it is changed.
    pub dscp: Option<u8>,
}

impl Mark {
    /// The mark 1, and the code point of lower effort, CS1 (RFC 3662).
    pub const DEFAULT: Self = Self {
        mark: Some(1),
        dscp: Some(8),
    };
}
