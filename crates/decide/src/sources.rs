//! The class of a client's address, found as the kernel programs find it.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use config::policy::{Config, Multiplier, Prefix, Service};
use config::prefix::mapped;

/// The class of an address, or that it is exempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceClass {
    /// An exempt address: no limit applies.
    NeverLimited,
    /// An address in an unlimited class.
    Unlimited,
    /// A multiplier of every limit: an index into [`Sources::multipliers`].
    Multiplier(usize),
}

/// Prefixes by length, the longest first.
#[derive(Debug)]
struct Prefixes<T> {
    lengths: BTreeSet<std::cmp::Reverse<u32>>,
    content: HashMap<(u32, u128), T>,
}

impl<T: Copy> Prefixes<T> {
    fn new(entries: impl Iterator<Item = (Prefix, T)>) -> Self {
        let mut prefixes = Self {
            lengths: BTreeSet::new(),
            content: HashMap::new(),
        };
        for (prefix, value) in entries {
            let length = prefix.mapped_length();
            prefixes.lengths.insert(std::cmp::Reverse(length));
            prefixes.content.insert(
                (length, u128::from_be_bytes(prefix.mapped_address())),
                value,
            );
        }
        prefixes
    }

    fn longest(&self, address: IpAddr) -> Option<T> {
        let address = u128::from_be_bytes(mapped(address));
        self.lengths.iter().find_map(|std::cmp::Reverse(length)| {
            let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
            self.content.get(&(*length, address & mask)).copied()
        })
    }
}

/// The classes of a policy.
#[derive(Debug)]
pub struct Sources {
    multipliers: Vec<Multiplier>,
    classes: Prefixes<SourceClass>,
    never_limit: Prefixes<()>,
}

impl Sources {
    /// The classes that limits on requests look up; none without such limits.
    pub fn of(config: &Config) -> Self {
        let multipliers = config.multipliers();
        let config = Some(config).filter(|config| !config.decide.limits.is_empty());
        let services = config.map(Config::services).unwrap_or_default();
        let classes = services.into_iter().map(|found| {
            let service = match found.service {
                Service::Unlimited => SourceClass::Unlimited,
                Service::Multiplier(multiplier) => {
                    let known = multipliers.iter().position(|known| *known == multiplier);
                    SourceClass::Multiplier(known.unwrap_or(0))
                }
            };
            (found.prefix, service)
        });
        let never_limit = config
            .into_iter()
            .flat_map(|config| &config.agent.never_limit)
            .map(|prefix| (*prefix, ()));
        Self {
            classes: Prefixes::new(classes),
            never_limit: Prefixes::new(never_limit),
            multipliers,
        }
    }

    /// The distinct multipliers; the first is 1, that of the default class.
    pub fn multipliers(&self) -> &[Multiplier] {
        &self.multipliers
    }

    pub fn source_class(&self, source: Option<IpAddr>) -> SourceClass {
        let Some(source) = source else {
            return SourceClass::Multiplier(0);
        };
        if self.never_limit.longest(source).is_some() {
            return SourceClass::NeverLimited;
        }
        self.classes
            .longest(source)
            .unwrap_or(SourceClass::Multiplier(0))
    }
}
