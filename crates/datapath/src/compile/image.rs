//! The contents of the kernel's maps for one direction, and the catalogue that maps rows back to limits.

use std::collections::BTreeSet;

use common::counters::BYPASS_ROWS;
use common::packet::Address;
use common::prefix::{Line, PrefixEntry, Roots};
use common::rule::Rule;
use common::scope::ScopeSpans;
use common::settings::{Mark, PortSpans, Settings};

use config::policy::Multiplier;

use super::at::LimitAt;
use super::catalogue::CountedRule;
use super::group::Group;
use super::layout::Layout;
use super::scopes::InterfaceNumbers;

/// The constants and map contents of a program, except for its seed.
#[derive(Clone, Debug)]
pub struct Image {
    /// The constants; the datapath adds the seed and the kernel's features.
    pub settings: Settings,
    /// The table's capacity in sources.
    pub max_sources: u32,
    /// Rows of rules, for each multiplier in turn.
    pub rules: Vec<Rule>,
    /// The mark of each rule, for the rows of one multiplier.
    pub marks: Vec<Mark>,
    /// A row for every port; empty if no limit has ports.
    pub ports: Vec<PortSpans>,
    /// The spans of each pair of sources and interfaces; empty if no limit has sources or interfaces.
    pub scopes: Vec<ScopeSpans>,
    /// The interface numbers in these rows.
    pub interfaces: InterfaceNumbers,
    /// For each source number, the limits that apply on some interface, as indices into the config.
    pub limits_of_sources: Vec<BTreeSet<usize>>,
    /// The search trees over prefixes of classes, of limits' sources and of exempt addresses, and over those of networks.
    pub prefixes: Vec<Line>,
    /// Their roots.
    pub roots: Roots,
    /// The rule of each row of counters from [`BYPASS_ROWS`] on.
    pub catalogue: Vec<CountedRule>,
    /// The groups of keys, by number.
    pub groups: Vec<Group>,
    /// The layout of the table's slots.
    pub layout: Layout,
    /// The largest multiplier that sliding logs have places for: larger ones count as this one there.
    pub logs: Multiplier,
    /// A hash of what determines which open connections are counted, and under which keys; 0 if none are.
    pub connections: u64,
}

impl Image {
    /// The entry of the longest prefix that contains an address.
    #[must_use]
    pub fn entry(&self, address: Address) -> PrefixEntry {
        self.roots
            .prefixes
            .look_up(self.prefixes.as_slice(), address)
    }

    /// The network of an address ([`common::network`]), if a limit of this direction requires it; 0 if it is in none.
    #[must_use]
    pub fn network(&self, address: Address) -> u32 {
        self.roots
            .networks
            .look_up(self.prefixes.as_slice(), address)
            .network()
    }

    /// The first row of rules for the multiplier of an entry.
    #[must_use]
    pub fn rules_of(&self, entry: PrefixEntry) -> u32 {
        self.settings.scoping.multiplier(entry.source_index()) * self.settings.rules_per_multiplier
    }

    /// Whether a limit applies to sources with this entry, on some interface.
    #[must_use]
    pub fn applies(&self, limit: usize, entry: PrefixEntry) -> bool {
        let number = self.settings.scoping.source(entry.source_index());
        self.limits_of_sources
            .get(number as usize)
            .is_some_and(|limits| limits.contains(&limit))
    }

    /// The limit of a row of rules, as its index in the config.
    #[must_use]
    pub fn limit_of_row(&self, row: usize) -> Option<usize> {
        Some(self.at_of_row(row)?.limit)
    }

    /// The same at its key.
    #[must_use]
    pub fn at_of_row(&self, row: usize) -> Option<LimitAt> {
        let row = row.checked_rem(self.catalogue.len())?;
        Some(self.catalogue.get(row)?.at)
    }

    /// Whether `next` differs at most in what each [`common::bank::Bank`] has a copy of: rules, prefixes and their roots.
    #[must_use]
    pub fn differs_in_bank_only(&self, next: &Self) -> bool {
        let Self {
            settings,
            max_sources,
            rules: _,
            marks,
            ports,
            scopes,
            interfaces,
            limits_of_sources,
            ..
        } = self;
        let Self {
            prefixes: _,
            roots: _,
            catalogue,
            groups: _,
            layout,
            connections,
            ..
        } = self;
        *settings == next.settings
            && *max_sources == next.max_sources
            && *marks == next.marks
            && *ports == next.ports
            && *scopes == next.scopes
            && *interfaces == next.interfaces
            && *limits_of_sources == next.limits_of_sources
            && *catalogue == next.catalogue
            && *layout == next.layout
            && *connections == next.connections
    }

    /// The number of rows of counters.
    #[must_use]
    pub fn counters(&self) -> u32 {
        BYPASS_ROWS + self.catalogue.len() as u32
    }
}
