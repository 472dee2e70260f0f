//! A policy as the kernel wants it, and the catalogue that leads back from its rows to what the operator wrote.

use common::counters::BYPASS_ROWS;
use common::rule::Rule;
use common::settings::{PortSpans, PrefixEntry, Settings};

/// Everything a program is loaded with. Which keys, seeds and clocks it runs on is up to the datapath.
#[derive(Clone, Debug)]
pub struct Image {
    /// The constants; the datapath fills in the seed and what it knows of the kernel.
    pub settings: Settings,
    /// Rows of rules, those of every multiplier.
    pub rules: Vec<Rule>,
    /// A row for every port, or none at all if no limit is for certain ports.
    pub ports: Vec<PortSpans>,
    /// Classes and addresses that are never limited.
    pub prefixes: Vec<(PrefixKey, PrefixEntry)>,
    /// What the counters from [`BYPASS_ROWS`] on stand for, in order.
    pub catalogue: Vec<CountedRule>,
    /// What the groups of the table's keys stand for, by number.
    pub groups: Vec<Group>,
}

impl Image {
    /// Rows of counters.
    #[must_use]
    pub fn counters(&self) -> u32 {
        BYPASS_ROWS + self.catalogue.len() as u32
    }
}

/// A prefix as the kernel's trie wants it: bits of the IPv4-mapped or IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrefixKey {
    /// Network byte order.
    pub address: [u8; 16],
    /// 0 to 128; 96 more than an IPv4 prefix's own length.
    pub length: u32,
}

/// One row of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedRule {
    /// The limit, by its place in the config.
    pub limit: usize,
    /// The row of the first rule of the same span, where passed packets are counted.
    pub span: u32,
}

/// The limits that share a slot of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// What the keys of this group are masked with, as a rule that has this group.
    pub key: Rule,
    /// Each state of the slot: (the limit's place in the config, the rule for sources of the default class).
    pub states: Vec<(usize, Rule)>,
}
