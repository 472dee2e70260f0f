//! A policy as the kernel wants it, and the catalogue that leads back from its rows to what the operator wrote.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use super::layout::Layout;
use crate::config::policy::Prefix;
use common::counters::BYPASS_ROWS;
use common::prefix::Line;
use common::rule::Rule;
use common::settings::{Mark, PortSpans, Settings};

/// Everything a program is loaded with. Which keys, seeds and clocks it runs on is up to the datapath.
#[derive(Clone, Debug)]
pub struct Image {
    /// The constants; the datapath fills in the seed and what it knows of the kernel.
    pub settings: Settings,
    /// How many sources the table is made for.
    pub max_sources: u32,
    /// Rows of rules, those of every multiplier.
    pub rules: Vec<Rule>,
    /// How each rule marks, for the rows of one multiplier.
    pub marks: Vec<Mark>,
    /// A row for every port, or none at all if no limit is for certain ports.
    pub ports: Vec<PortSpans>,
    /// The trees of classes and addresses that are never limited, whose roots are in the settings.
    pub prefixes: Vec<Line>,
    /// What the counters from [`BYPASS_ROWS`] on stand for, in order.
    pub catalogue: Vec<CountedRule>,
    /// What the groups of the table's keys stand for, by number.
    pub groups: Vec<Group>,
    /// What each word of the table means.
    pub layout: Layout,
}

impl Image {
    /// Rows of counters.
    #[must_use]
    pub fn counters(&self) -> u32 {
        BYPASS_ROWS + self.catalogue.len() as u32
    }
}

/// A prefix as the kernel's trie of bans wants it: bits of the IPv4-mapped or IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrefixKey {
    /// Network byte order.
    pub address: [u8; 16],
    /// 0 to 128; 96 more than an IPv4 prefix's own length.
    pub length: u32,
}

impl PrefixKey {
    /// The prefix of this length that holds it; `length` is no longer than its own.
    #[must_use]
    pub fn cut(&self, length: u32) -> Self {
        let mask = u128::MAX.checked_shl(128 - length.min(128)).unwrap_or(0);
        Self { address: (u128::from_be_bytes(self.address) & mask).to_be_bytes(), length }
    }
}

impl From<&Prefix> for PrefixKey {
    fn from(prefix: &Prefix) -> Self {
        Self { address: prefix.mapped_address(), length: prefix.mapped_length() }
    }
}

/// One row of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedRule {
    /// The limit, by its place in the config.
    pub limit: usize,
    /// The row of the first rule of the same span, where passed packets are counted.
    pub span: u32,
}

impl fmt::Display for PrefixKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = Ipv6Addr::from(self.address);
        let (address, whole, length): (IpAddr, _, _) = match address.to_ipv4_mapped().filter(|_| self.length >= 96) {
            Some(address) => (address.into(), 32, self.length - 96),
            None => (address.into(), 128, self.length),
        };
        if length == whole { write!(formatter, "{address}") } else { write!(formatter, "{address}/{length}") }
    }
}

/// The limits that share a slot of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// What the keys of this group are masked with, as a rule that has this group.
    pub key: Rule,
    /// Each state of the slot: (the limit's place in the config, the rule for sources of the default class).
    pub states: Vec<(usize, Rule)>,
}

impl Group {
    /// The rule of each state.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.states.iter().map(|(_, rule)| rule)
    }
}
