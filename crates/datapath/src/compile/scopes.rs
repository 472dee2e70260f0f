//! `sources` and `interfaces` of limits.
//!
//! Sources in the same lists share a number, and so do interfaces. The kernel program finds both and takes the rules
//! from a row for the pair. Without `sources` and `interfaces`, a policy has no rows, and its program skips the
//! look-up.

use std::collections::{BTreeSet, HashMap};

use common::packet::Direction;
use common::scope::{ScopeSpans, Scoping};
use common::settings::PortSpans;
use config::PrefixKey;
use config::policy::{Config, InterfacePattern, LimitSources};

use super::error::CompileError;
use super::spans::PairSpans;

/// The most rows: 8 MiB.
const MOST_ROWS: usize = 1 << 17;
/// The most lists with patterns: a name may match any combination of them.
const MOST_PATTERN_LISTS: usize = 6;

/// Lists by their index among those of all limits.
type Lists = BTreeSet<usize>;

/// The lists of one direction's limits.
#[derive(Debug, Default)]
pub struct Scopes {
    source_lists: Vec<SourceList>,
    /// The lists of each limit, by its index in the config.
    of_limits: Vec<(Option<usize>, Option<usize>)>,
    /// The lists of each source number; the first is that of sources outside every prefix.
    sources: Vec<Lists>,
    numbers: HashMap<Lists, usize>,
    interfaces: InterfaceNumbers,
}

/// The prefixes of a list, and whether sources outside all of them are in it.
#[derive(Debug)]
struct SourceList {
    written: LimitSources,
    prefixes: HashMap<PrefixKey, bool>,
    lengths: BTreeSet<u32>,
    others: bool,
}

/// The numbers of interfaces by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceNumbers {
    lists: Vec<Vec<InterfacePattern>>,
    /// The lists of each number; the first number is in none.
    numbers: Vec<Lists>,
}

impl InterfaceNumbers {
    /// The number of an interface with these names: by the first that a limit has.
    #[must_use]
    pub fn of<'n>(&self, names: impl Iterator<Item = &'n str> + Clone) -> u32 {
        let is_named = |name: &str, pattern: &InterfacePattern| {
            pattern.matches(name) && pattern.matches_any(names.clone())
        };
        let lists = names
            .clone()
            .map(|name| self.lists_with(|pattern| is_named(name, pattern)))
            .find(|lists| !lists.is_empty())
            .unwrap_or_default();
        self.numbers
            .iter()
            .position(|known| *known == lists)
            .unwrap_or(0) as u32
    }

    /// Whether a limit has `interfaces`.
    #[must_use]
    pub fn are_in_use(&self) -> bool {
        self.numbers.len() > 1
    }

    fn lists_of(&self, name: &str) -> Lists {
        self.lists_with(|pattern| pattern.matches(name))
    }

    /// The lists with such a pattern.
    fn lists_with(&self, is_named: impl Fn(&InterfacePattern) -> bool) -> Lists {
        self.lists
            .iter()
            .enumerate()
            .filter(|(_, list)| list.iter().any(&is_named))
            .map(|(nth, _)| nth)
            .collect()
    }

    /// Numbers every combination of lists that a configured interface can be in.
    fn enumerate(&mut self, held: &[InterfacePattern]) -> Result<(), CompileError> {
        self.numbers = vec![Lists::new()];
        let is_pattern = |nth: &usize| self.lists[*nth].iter().any(InterfacePattern::is_pattern);
        let with_patterns: Vec<usize> = (0..self.lists.len()).filter(is_pattern).collect();
        // If the agent's interfaces have no patterns, these are all names that can match.
        if held.iter().any(InterfacePattern::is_pattern) {
            if with_patterns.len() > MOST_PATTERN_LISTS {
                return Err(CompileError::TooManyPatterns {
                    lists: with_patterns.len(),
                });
            }
            for nth in with_patterns {
                let with: Vec<Lists> = self
                    .numbers
                    .iter()
                    .map(|lists| lists | &Lists::from([nth]))
                    .collect();
                self.numbers.extend(with);
            }
        }
        for name in self
            .lists
            .iter()
            .flatten()
            .chain(held)
            .filter(|name| !name.is_pattern())
        {
            let lists = self.lists_of(&name.to_string());
            if !self.numbers.contains(&lists) {
                self.numbers.push(lists);
            }
        }
        Ok(())
    }
}

impl SourceList {
    fn new(written: &LimitSources) -> Self {
        let prefixes: HashMap<PrefixKey, bool> = written
            .all()
            .map(|it| (PrefixKey::from(&it.prefix), !it.is_excluded))
            .collect();
        let lengths = prefixes.keys().map(|prefix| prefix.length).collect();
        Self {
            written: written.clone(),
            prefixes,
            lengths,
            others: written.includes_others(),
        }
    }

    /// Whether sources whose longest known prefix is `prefix` are in the list.
    fn has(&self, prefix: &PrefixKey) -> bool {
        let within_family = if prefix.is_ipv4() {
            PrefixKey::IPV4.length
        } else {
            0
        };
        let around = self.lengths.range(within_family..=prefix.length).rev();
        around
            .filter_map(|length| self.prefixes.get(&prefix.cut(*length)))
            .next()
            .copied()
            .unwrap_or(self.others)
    }
}

impl Scopes {
    /// The lists of a config's limits in one direction.
    ///
    /// # Errors
    ///
    /// When there are too many lists with patterns.
    pub fn of(config: &Config, direction: Direction) -> Result<Self, CompileError> {
        let mut scopes = Self::default();
        for limit in &config.limits {
            let is_own = limit.direction == direction;
            let sources = limit.sources.as_ref().filter(|_| is_own).map(|written| {
                let known = scopes
                    .source_lists
                    .iter()
                    .position(|list| list.written == *written);
                known.unwrap_or_else(|| {
                    scopes.source_lists.push(SourceList::new(written));
                    scopes.source_lists.len() - 1
                })
            });
            let interfaces = limit.interfaces.as_ref().filter(|_| is_own).map(|written| {
                let lists = &mut scopes.interfaces.lists;
                lists
                    .iter()
                    .position(|list| list[..] == written[..])
                    .unwrap_or_else(|| {
                        lists.push(written.to_vec());
                        lists.len() - 1
                    })
            });
            scopes.of_limits.push((sources, interfaces));
        }
        let others = scopes
            .source_lists
            .iter()
            .enumerate()
            .filter(|(_, list)| list.others)
            .map(|(nth, _)| nth);
        let others = others.collect();
        scopes.source_number(others);
        scopes.interfaces.enumerate(&config.agent.interfaces)?;
        Ok(scopes)
    }

    /// Whether a limit has `sources` or `interfaces`.
    pub fn are_in_use(&self) -> bool {
        self.have_sources() || self.interfaces.are_in_use()
    }

    /// Whether a limit has `sources`.
    pub fn have_sources(&self) -> bool {
        !self.source_lists.is_empty()
    }

    /// Every prefix of a list.
    pub fn prefixes(&self) -> impl Iterator<Item = PrefixKey> + '_ {
        self.source_lists
            .iter()
            .flat_map(|list| list.prefixes.keys().copied())
    }

    /// The number of sources whose longest known prefix is `prefix`.
    pub fn number_of(&mut self, prefix: &PrefixKey) -> u32 {
        let lists = self
            .source_lists
            .iter()
            .enumerate()
            .filter(|(_, list)| list.has(prefix))
            .map(|(nth, _)| nth);
        let lists = lists.collect();
        self.source_number(lists) as u32
    }

    fn source_number(&mut self, lists: Lists) -> usize {
        let next = self.sources.len();
        let number = *self.numbers.entry(lists.clone()).or_insert(next);
        if number == next {
            self.sources.push(lists);
        }
        number
    }

    /// The count of source numbers; final once every prefix has one.
    pub fn source_numbers(&self) -> u32 {
        self.sources.len() as u32
    }

    pub fn interfaces(&self) -> &InterfaceNumbers {
        &self.interfaces
    }

    /// The constants by which the kernel program computes the row of a packet.
    ///
    /// # Errors
    ///
    /// When there are more than [`MOST_ROWS`].
    pub fn scoping(&self, rows: usize) -> Result<Scoping, CompileError> {
        let all = self.sources.len() * self.interfaces.numbers.len() * rows;
        if self.are_in_use() && all > MOST_ROWS {
            return Err(CompileError::TooManyScopes { rows: all });
        }
        Ok(Scoping {
            source_bits: bits(self.source_numbers()),
            interfaces: self.interfaces.numbers.len() as u32,
            rows: rows as u32,
        })
    }

    /// Every pair of source and interface number, in the order of the kernel's rows.
    pub fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let interfaces = self.interfaces.numbers.len();
        (0..self.sources.len())
            .flat_map(move |source| (0..interfaces).map(move |interface| (source, interface)))
    }

    /// Whether a limit applies to sources and interfaces of these numbers.
    pub fn applies(&self, limit: usize, (source, interface): (usize, usize)) -> bool {
        let (sources, interfaces) = self.of_limits[limit];
        sources.is_none_or(|list| self.sources[source].contains(&list))
            && interfaces.is_none_or(|list| self.interfaces.numbers[interface].contains(&list))
    }

    /// For each source number, the limits that apply on some interface.
    pub fn limits_of_sources(&self) -> Vec<BTreeSet<usize>> {
        let applies =
            |lists: &Lists, of: &Option<usize>| of.is_none_or(|list| lists.contains(&list));
        let of_number = |lists: &Lists| {
            let all = self.of_limits.iter().enumerate();
            all.filter(|(_, (sources, _))| applies(lists, sources))
                .map(|(nth, _)| nth)
                .collect()
        };
        self.sources.iter().map(of_number).collect()
    }
}

/// The bits that numbers below `count` take.
pub const fn bits(count: u32) -> u32 {
    u32::BITS - count.saturating_sub(1).leading_zeros()
}

/// The rows of the kernel's map.
pub fn rows(pairs: &[PairSpans]) -> Vec<ScopeSpans> {
    let pack = |spans: &mut dyn Iterator<Item = u32>| {
        let mut row = ScopeSpans::default();
        row.packed
            .iter_mut()
            .zip(spans)
            .for_each(|(place, packed)| *place = packed);
        row
    };
    let of_pair = |pair: &PairSpans| {
        let elsewhere = pack(&mut pair.elsewhere.iter().map(|span| PortSpans::pack(*span)));
        let of_ports = pair
            .of_ports
            .iter()
            .map(|spans| pack(&mut spans.packed.iter().copied()));
        std::iter::once(elsewhere)
            .chain(of_ports)
            .collect::<Vec<_>>()
    };
    pairs.iter().flat_map(of_pair).collect()
}

#[cfg(test)]
mod tests;
