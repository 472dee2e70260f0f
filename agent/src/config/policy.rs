//! A config that has been validated: what is invalid cannot be written down in these types.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use super::policy_group::Group;

pub use common::limiter::Rate;
pub use common::packet::Direction;

pub use super::cluster::{Cluster, StoreUrl};
pub use super::decide::{Decide, Endpoint};
pub use super::request::RequestCost;
pub use super::request_key::{EntryValue, KeyEntry};
pub use super::request_limit::{Escalate, RequestEnforcement, RequestLimit, RequestUnit};
pub use super::words::{Algorithm, Attach, Key, Mode, OnExit, OnFull, ProtocolFilter, Shield, Unit, WhenStoreIsDown};

/// Where maps and links are pinned unless said otherwise.
pub const DEFAULT_PINS: &str = "/sys/fs/bpf/weir";

/// Where the agent keeps what has to survive a reboot unless said otherwise.
pub const DEFAULT_STATE: &str = "/var/lib/weir";

/// Sources that the table has room for where the config does not say, unless logs would take too much memory.
pub const DEFAULT_SOURCES: u32 = 1_000_000;

/// The most sources the table can be made for: 512 MiB with one limit.
pub const MOST_SOURCES: u32 = 1 << 24;

/// Everything of a limits.toml.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `[agent]`.
    pub agent: AgentConfig,
    /// `[[class]]`, in the file's order.
    pub classes: Vec<Class>,
    /// `[[limit]]` on packets, in the file's order.
    pub limits: Vec<Limit>,
    /// `[decide]`, with the limits on requests.
    pub decide: Decide,
    /// `[[group]]`, in the file's order: the first that matches a process has it.
    pub groups: Vec<Group>,
    /// `[cluster]`, if some limit is of many hosts.
    pub cluster: Option<Cluster>,
}

/// `[agent]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentConfig {
    /// Names, or patterns with `*`.
    pub interfaces: Vec<InterfacePattern>,
    /// Where to hook in.
    pub attach: Attach,
    /// Whether to throttle.
    pub mode: Mode,
    /// What becomes of the limits when the agent ends.
    pub on_exit: OnExit,
    /// The control socket.
    pub control: PathBuf,
    /// Where metrics are given out, if they are.
    pub metrics: Option<SocketAddr>,
    /// The directory of pins, in a BPF file system.
    pub pins: PathBuf,
    /// The directory of files that survive a reboot.
    pub state_dir: PathBuf,
    /// The cgroup that the groups' own lie in, below the root of each hierarchy.
    pub cgroup: String,
    /// Capacity of the table of sources, if the operator wrote it.
    pub max_sources: Option<u32>,
    /// Never throttled.
    pub never_limit: Vec<Prefix>,
    /// Who else is never throttled, so that nobody is locked out.
    pub protect: Vec<Shield>,
    /// Whether the config is read again when its file changes.
    pub watch: bool,
    /// Whether a config that limits nothing is valid.
    pub allow_empty: bool,
}

/// A name of an interface, or a pattern of names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InterfacePattern(pub(super) String);

impl InterfacePattern {
    /// Whether `name` is meant. `*` stands for any characters, `?` for one.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        glob_match::glob_match(&self.0, name)
    }
}

impl fmt::Display for InterfacePattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// A prefix without host bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix(pub(super) ipnet::IpNet);

impl Prefix {
    /// The prefix that is one address.
    #[must_use]
    pub fn of_address(address: IpAddr) -> Self {
        Self(address.into())
    }

    /// The address as 16 bytes, IPv4 as IPv4-mapped IPv6.
    #[must_use]
    pub fn mapped_address(&self) -> [u8; 16] {
        crate::stats::mapped(self.0.network())
    }

    /// The length in bits of the mapped address.
    #[must_use]
    pub fn mapped_length(&self) -> u32 {
        u32::from(self.0.prefix_len()) + if self.0.network().is_ipv4() { 96 } else { 0 }
    }

    /// Whether it holds the address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }

    /// The address, without the length.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.0.addr()
    }

    /// The network that a host of IPv6 has to itself, of one address; `None` for IPv4.
    #[must_use]
    pub fn network_of_host(&self) -> Option<Self> {
        let network = ipnet::IpNet::new(self.0.addr(), 64).ok()?.trunc();
        self.0.addr().is_ipv6().then_some(Self(network))
    }

    /// Whether it has more addresses than a prefix of `ipv4` bits, or of `ipv6` bits.
    #[must_use]
    pub fn is_wider_than(&self, ipv4: u8, ipv6: u8) -> bool {
        self.0.prefix_len() < if self.0.addr().is_ipv4() { ipv4 } else { ipv6 }
    }

    /// Whether it holds all of the other.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.0.contains(&other.0)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// `[[class]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Unique.
    pub name: String,
    /// Its prefixes, at least one.
    pub sources: Vec<Prefix>,
    /// What it gets.
    pub service: Service,
}

/// What a class gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// So many times every limit.
    Multiplier(Multiplier),
    /// No limit at all.
    Unlimited,
}

/// A factor above 0, exact: numerator and denominator without a common factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Multiplier {
    numerator: u64,
    denominator: u64,
}

impl Multiplier {
    /// Once.
    pub const ONE: Self = Self { numerator: 1, denominator: 1 };

    /// The factor in steps of a millionth, rounded; `None` outside a millionth to a million.
    #[must_use]
    pub fn new(factor: f64) -> Option<Self> {
        const STEPS: u64 = 1_000_000;
        let steps = (factor * STEPS as f64).round();
        if !(1.0..=(STEPS * STEPS) as f64).contains(&steps) {
            return None;
        }
        let steps = steps as u64;
        let common = greatest_common_divisor(steps, STEPS);
        Some(Self { numerator: steps / common, denominator: STEPS / common })
    }

    /// As a number.
    #[must_use]
    pub fn factor(self) -> f64 {
        self.numerator as f64 / self.denominator as f64
    }

    /// `rate` so many times, exactly.
    #[must_use]
    pub fn rate(self, rate: Rate) -> Rate {
        // Count × numerator over period × denominator, reduced; rates and factors are bounded such that both fit.
        let count = u128::from(rate.count) * u128::from(self.numerator);
        let period = u128::from(rate.per_nanoseconds) * u128::from(self.denominator);
        let common = greatest_common_divisor_wide(count, period);
        let (mut count, mut period) = (count / common, period / common);
        while count > u128::from(u64::MAX) || period > u128::from(u64::MAX) {
            count /= 2;
            period = period.div_ceil(2);
        }
        Rate { count: (count as u64).max(1), per_nanoseconds: period as u64 }
    }

    /// `units` so many times, rounded down.
    #[must_use]
    pub fn units(self, units: u64) -> u64 {
        let scaled = u128::from(units) * u128::from(self.numerator) / u128::from(self.denominator);
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

fn greatest_common_divisor_wide(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { greatest_common_divisor_wide(b, a % b) }
}

/// `[[limit]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Unique.
    pub name: String,
    /// Which way.
    pub direction: Direction,
    /// Which packets.
    pub protocol: ProtocolFilter,
    /// Which local ports; `None`: every packet, those without ports too.
    pub ports: Option<PortSet>,
    /// By what.
    pub key: Key,
    /// Sources in one IPv4 prefix of this length share a key.
    pub ipv4_prefix: u8,
    /// Likewise for IPv6.
    pub ipv6_prefix: u8,
    /// What is counted.
    pub unit: Unit,
    /// How.
    pub algorithm: Algorithm,
    /// How many in what time.
    pub rate: Rate,
    /// As the operator wrote it.
    pub rate_text: String,
    /// At once, in units; for windows and logs the rate's count.
    pub burst: u64,
    /// What lies above.
    pub throttle: Throttle,
    /// What is done to what is refused.
    pub action: Action,
    /// When the table is full.
    pub on_full: OnFull,
    /// Further rates on the same key.
    pub tiers: Vec<Tier>,
    /// Whether all hosts of the cluster keep it together.
    pub cluster: bool,
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

    /// What it counts by, as an operator writes it.
    #[must_use]
    pub fn key_name(&self) -> String {
        match (self.key, self.direction) {
            (Key::Source, Direction::Egress) => "destination".to_owned(),
            (key, _) => key.to_string(),
        }
    }

    /// All rates as the operator wrote them.
    #[must_use]
    pub fn rate_text(&self) -> String {
        std::iter::once(self.rate_text.as_str())
            .chain(self.tiers.iter().map(|tier| tier.text.as_str()))
            .collect::<Vec<_>>()
            .join(", ")
    }
}

/// A further rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier {
    /// How many in what time.
    pub rate: Rate,
    /// At once, in units.
    pub burst: u64,
    /// As the operator wrote it.
    pub text: String,
}

/// What lies above the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Throttle {
    /// Nothing passes.
    Hard,
    /// Up to so many times the limit passes, counted apart.
    Soft(Multiplier),
    /// Up to so many times the limit passes while the host has room.
    Elastic(Multiplier),
}

impl Throttle {
    /// Whether it depends on the host.
    #[must_use]
    pub const fn is_elastic(self) -> bool {
        matches!(self, Self::Elastic(_))
    }
}

/// What is done to what is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Dropped.
    Drop,
    /// Counted only.
    Observe,
    /// Answered.
    Reject,
    /// Passed on, marked.
    Mark(Mark),
    /// Delayed.
    Shape,
}

/// How a packet is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The packet's mark inside this host, if it is to be set.
    pub mark: Option<u32>,
    /// Its code point on the wire, if it is to be changed.
    pub dscp: Option<u8>,
}

impl Mark {
    /// The mark 1, and the code point of lower effort, CS1 (RFC 3662).
    pub const DEFAULT: Self = Self { mark: Some(1), dscp: Some(8) };
}

/// Ports, as ranges that neither touch nor overlap.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortSet(Vec<(u16, u16)>);

impl PortSet {
    /// From ranges in any order.
    #[must_use]
    pub fn new(mut ranges: Vec<(u16, u16)>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<(u16, u16)> = Vec::new();
        for (first, last) in ranges {
            match merged.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }

    /// Whether the port is one of them.
    #[must_use]
    pub fn contains(&self, port: u16) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&port))
    }

    /// Each port or range, as limits.toml has it.
    #[must_use]
    pub fn texts(&self) -> Vec<String> {
        let text = |(first, last): &(u16, u16)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        self.0.iter().map(text).collect()
    }

    /// Every port.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.0.iter().flat_map(|(first, last)| *first..=*last)
    }
}
