//! Classes, exempt addresses and limits' sources as one set of prefixes; the longest match decides.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use common::prefix::build::{Prefix, PrefixTree, build_after, build_filtered};
use common::prefix::{Line, MAX_CLASSES, PrefixEntry, PrefixRoots};
use config::PrefixKey;
use config::policy::{self, Config, Multiplier, Networks, PrefixService, Service};

use super::error::CompileError;
use super::scopes::{Scopes, bits};

/// The distinct multipliers of a policy; the first is 1, that of the default class.
pub struct Multipliers(Vec<Multiplier>);

impl Multipliers {
    pub fn of(config: &Config) -> Self {
        Self(config.multipliers())
    }

    pub fn multipliers(&self) -> impl Iterator<Item = Multiplier> + '_ {
        self.0.iter().copied()
    }

    pub fn are_needed(&self, config: &Config) -> bool {
        let agent = &config.agent;
        !config.classes.is_empty()
            || !agent.multiplied.is_empty()
            || agent.never_banned().next().is_some()
    }

    /// The search tree over all prefixes, behind its filter; empty where [`common::settings::Settings::prefixes_in_use`] is 0.
    ///
    /// # Errors
    ///
    /// When there are more classes, or multipliers and sets of sources, than an entry can number.
    pub fn tree(&self, config: &Config, scopes: &mut Scopes) -> Result<PrefixTree, CompileError> {
        if config.classes.len() > MAX_CLASSES as usize {
            return Err(CompileError::TooManyClasses {
                classes: config.classes.len(),
            });
        }
        if !self.are_needed(config) && !scopes.have_sources() {
            return Ok(PrefixTree::default());
        }
        let entries = self.scoped(self.entries(config), scopes)?;
        let entries: Vec<_> = entries
            .into_iter()
            .map(|(key, entry)| (tree_prefix(key), entry))
            .collect();
        Ok(build_filtered(&entries))
    }

    /// The entries with their source numbers, and entries for the prefixes in limits' sources.
    fn scoped(
        &self,
        entries: Vec<(PrefixKey, PrefixEntry)>,
        scopes: &mut Scopes,
    ) -> Result<Vec<(PrefixKey, PrefixEntry)>, CompileError> {
        if !scopes.have_sources() {
            return Ok(entries);
        }
        let known: HashMap<PrefixKey, PrefixEntry> = entries.into_iter().collect();
        let known_lengths = lengths(known.keys());
        // IPv6 prefixes in a list contain no IPv4 address, whatever their length.
        let all: BTreeSet<PrefixKey> = known
            .keys()
            .copied()
            .chain(scopes.prefixes())
            .chain([PrefixKey::IPV4])
            .collect();
        let numbered: Vec<(PrefixKey, u32)> = all
            .into_iter()
            .map(|key| (key, scopes.number_of(&key)))
            .collect();
        let source_bits = bits(scopes.source_numbers());
        if source_bits + bits(self.0.len() as u32) > bits(MAX_CLASSES + 1) {
            let (sources, multipliers) = (scopes.source_numbers(), self.0.len());
            return Err(CompileError::TooManySources {
                sources,
                multipliers,
            });
        }
        let entry = |(key, number): (PrefixKey, u32)| {
            let around = known_lengths.range(..=key.length).rev();
            let around = around
                .filter_map(|length| known.get(&key.cut(*length)))
                .next()
                .copied()
                .unwrap_or_default();
            (
                key,
                around.with_source_index(around.source_index() << source_bits | number),
            )
        };
        Ok(numbered.into_iter().map(entry).collect())
    }

    /// The entry of each prefix. A prefix that has more for a while keeps its class. A class's prefix inside an exempt one has the class, and is exempt.
    fn entries(&self, config: &Config) -> Vec<(PrefixKey, PrefixEntry)> {
        let mut of_classes: Vec<(PrefixKey, PrefixEntry)> = Vec::new();
        for PrefixService {
            prefix,
            class,
            service,
        } in config.services()
        {
            let entry = match service {
                Service::Unlimited => PrefixEntry::new(class, 0).with(PrefixEntry::UNLIMITED),
                Service::Multiplier(multiplier) => {
                    let known = self.0.iter().position(|known| *known == multiplier);
                    PrefixEntry::new(class, known.unwrap_or(0) as u32)
                }
            };
            of_classes.push((PrefixKey::from(&prefix), entry));
        }
        // Of a prefix in several classes, the last one stays. Sorted and not hashed, since there may be many.
        of_classes.reverse();
        of_classes.sort_by_key(|(prefix, _)| *prefix);
        of_classes.dedup_by_key(|(prefix, _)| *prefix);
        let exempt = exemptions(config);
        if exempt.is_empty() {
            return of_classes;
        }
        let class_of = |prefix: &PrefixKey| {
            let found = of_classes.binary_search_by_key(prefix, |(prefix, _)| *prefix);
            found.ok().map(|place| of_classes[place].1)
        };
        let class_lengths = lengths(of_classes.iter().map(|(prefix, _)| prefix));
        let exempt_lengths = lengths(exempt.keys());
        // The class of an exempt prefix is that of the longest class prefix that contains it.
        let around = |prefix: &PrefixKey| {
            let outer = class_lengths
                .range(..=prefix.length)
                .rev()
                .find_map(|length| class_of(&prefix.cut(*length)));
            (*prefix, outer.unwrap_or_default())
        };
        let mut entries = of_classes.clone();
        entries.extend(
            exempt
                .keys()
                .filter(|prefix| class_of(prefix).is_none())
                .map(around),
        );
        for (prefix, entry) in &mut entries {
            let around = exempt_lengths
                .range(..=prefix.length)
                .filter_map(|length| exempt.get(&prefix.cut(*length)));
            // The widest one of all that contain the prefix. A class without limits leaves nothing to limit.
            let Some(widest) = around.min() else {
                continue;
            };
            *entry = entry.with(if entry.exemption() == 0 {
                *widest
            } else {
                PrefixEntry::NEVER_LIMIT
            });
        }
        entries
    }
}

/// The exempt prefixes, each with the widest of its exemptions, which are numbered from the widest on.
fn exemptions(config: &Config) -> BTreeMap<PrefixKey, u32> {
    let agent = &config.agent;
    let kinds = [
        (&agent.never_banned_only, PrefixEntry::NEVER_BANNED),
        (&agent.within_allowance, PrefixEntry::WITHIN_ALLOWANCE),
        (&agent.never_limit, PrefixEntry::NEVER_LIMIT),
    ];
    let of_kind = |(prefixes, exemption): (&Vec<policy::Prefix>, u32)| {
        let exempt = prefixes.iter().map(PrefixKey::from);
        exempt.map(move |key| (key, exemption)).collect::<Vec<_>>()
    };
    kinds.into_iter().flat_map(of_kind).collect()
}

/// Adds the search trees over the prefixes of networks.
pub fn networks(lines: &mut Vec<Line>, networks: &Networks) -> PrefixRoots {
    let entry = |(prefix, network): &(policy::Prefix, u32)| {
        (
            tree_prefix(prefix.into()),
            PrefixEntry::of_network(*network),
        )
    };
    build_after(lines, &networks.iter().map(entry).collect::<Vec<_>>())
}

const fn tree_prefix(key: PrefixKey) -> Prefix {
    Prefix {
        address: u128::from_be_bytes(key.address),
        length: key.length,
    }
}

/// The distinct lengths.
fn lengths<'p>(prefixes: impl Iterator<Item = &'p PrefixKey>) -> BTreeSet<u32> {
    prefixes.map(|prefix| prefix.length).collect()
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::path::Path;

    use common::packet::Direction;

    use super::*;
    use crate::compile::compile;

    #[test]
    fn detected_addresses_are_exempt_as_far_as_their_kind_unless_something_else_exempts_them() {
        let text = "[agent]\ninterfaces = [\"lo\"]\nnever_limit = [\"192.0.2.0/24\"]\n\
                    [[class]]\nname = \"c\"\nsources = [\"198.51.100.0/24\"]\nunlimited = true\n\
                    [[limit]]\nname = \"a\"\nrate = \"1/s\"\n";
        let mut config = config::parse(Path::new("limits.toml"), text)
            .unwrap_or_else(|report| panic!("{report}"))
            .config;
        let gateways = [[192, 0, 2, 1], [198, 51, 100, 1], [203, 0, 113, 1]];
        let prefixes = |octets: &[[u8; 4]]| {
            octets
                .iter()
                .map(|one| policy::Prefix::of_address((*one).into()))
                .collect()
        };
        config.agent.within_allowance = prefixes(&gateways);
        let own = [
            [192, 0, 2, 9],
            [198, 51, 100, 9],
            [203, 0, 113, 1],
            [203, 0, 113, 9],
        ];
        config.agent.never_banned_only = prefixes(&own);
        let image = compile(&config, Direction::Ingress).unwrap();
        let exemption = |octets| {
            image
                .entry(common::packet::Address::from_ipv4(octets))
                .exemption()
        };
        assert_eq!(exemption([192, 0, 2, 1]), PrefixEntry::NEVER_LIMIT);
        assert_eq!(exemption([198, 51, 100, 1]), PrefixEntry::NEVER_LIMIT);
        assert_eq!(exemption([198, 51, 100, 2]), PrefixEntry::UNLIMITED);
        assert_eq!(exemption([203, 0, 113, 1]), PrefixEntry::WITHIN_ALLOWANCE);
        assert_eq!(exemption([192, 0, 2, 9]), PrefixEntry::NEVER_LIMIT);
        assert_eq!(exemption([198, 51, 100, 9]), PrefixEntry::NEVER_LIMIT);
        assert_eq!(exemption([203, 0, 113, 9]), PrefixEntry::NEVER_BANNED);
        assert_eq!(exemption([203, 0, 113, 2]), 0);
    }

    #[test]
    fn more_classes_than_an_entry_tells_apart_are_refused() {
        for classes in [MAX_CLASSES, MAX_CLASSES + 1] {
            let mut text =
                "[agent]\ninterfaces = [\"lo\"]\n[[limit]]\nname = \"a\"\nrate = \"1/s\"\n"
                    .to_owned();
            for class in 0..classes {
                let source = std::net::Ipv4Addr::from(0x0a00_0000 + class);
                let _ = write!(
                    text,
                    "[[class]]\nname = \"c{class}\"\nmultiplier = 2\nsources = [\"{source}\"]\n"
                );
            }
            let config = config::parse(Path::new("limits.toml"), &text)
                .unwrap_or_else(|report| panic!("{report}"))
                .config;
            let compiled = compile(&config, Direction::Ingress);
            if classes > MAX_CLASSES {
                assert_eq!(
                    compiled.unwrap_err(),
                    CompileError::TooManyClasses {
                        classes: classes as usize
                    }
                );
                continue;
            }
            let image = compiled.unwrap();
            let source = (0x0a00_0000 + classes - 1).to_be_bytes();
            let source = common::packet::Address::from_ipv4(source);
            assert_eq!(image.entry(source).class(), classes);
        }
    }
}
