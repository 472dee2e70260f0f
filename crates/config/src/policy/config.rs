//! A validated limits.toml.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    AgentConfig, BanList, Class, Cluster, CrowdSec, Decide, FleetRules, Geo, Limit, Multiplier,
    Notify, Prefix, Service,
};
use crate::PrefixKey;
use crate::escalate::Escalate;
use crate::group::Group;

/// A validated limits.toml.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub agent: AgentConfig,
    /// `[geo]`.
    pub geo: Geo,
    /// `[[class]]`, in the file's order.
    pub classes: Vec<Class>,
    /// `[[ban_list]]`, in the file's order.
    pub ban_lists: Vec<BanList>,
    /// `[[limit]]` on packets, in the file's order.
    pub limits: Vec<Limit>,
    /// `[decide]`, with the limits on requests.
    pub decide: Decide,
    /// `[[group]]`, in the file's order: a process belongs to the first that matches.
    pub groups: Vec<Group>,
    /// `[cluster]`, if a limit has `cluster`.
    pub cluster: Option<Cluster>,
    /// `[[notify]]`, in the file's order.
    pub notify: Vec<Notify>,
    /// `[crowdsec]`.
    pub crowdsec: Option<CrowdSec>,
    /// `[fleet]`.
    pub fleet: Option<FleetRules>,
}

impl Config {
    /// Whether sources prove their address by the kernel's SYN cookies, for one limit at least.
    #[must_use]
    pub fn proves_by_cookies(&self) -> bool {
        self.limits.iter().any(Limit::proves_by_cookies)
    }

    /// The limits on packets that ban sources, by their indexes.
    pub fn bans(&self) -> impl Iterator<Item = (usize, Escalate)> + '_ {
        let limits = self.limits.iter().enumerate();
        let refusing = limits.filter(|(_, limit)| limit.refuses());
        refusing.filter_map(|(nth, limit)| Some((nth, limit.escalate?)))
    }

    /// The distinct multipliers of the classes; the first is 1, that of the default class.
    #[must_use]
    pub fn multipliers(&self) -> Vec<Multiplier> {
        let mut multipliers = vec![Multiplier::ONE];
        let of_classes = self.classes.iter().map(Class::service);
        let of_prefixes = if self.agent.multiplied.is_empty() {
            Vec::new()
        } else {
            self.services()
        };
        for service in of_classes.chain(of_prefixes.iter().map(|found| found.service)) {
            if let Service::Multiplier(multiplier) = service
                && !multipliers.contains(&multiplier)
            {
                multipliers.push(multiplier);
            }
        }
        multipliers
    }

    /// The service of each prefix, by its class and by `weir allow --times`: the longest prefix around a source
    /// decides. A source in none of them is in the class `default`.
    #[must_use]
    pub fn services(&self) -> Vec<PrefixService> {
        let numbered = (1..).zip(&self.classes);
        let of_classes: Vec<PrefixService> = numbered
            .flat_map(|(class, read)| {
                let service = read.service();
                let prefixes = read.sources.iter();
                prefixes.map(move |prefix| PrefixService {
                    prefix: *prefix,
                    class,
                    service,
                })
            })
            .collect();
        if self.agent.multiplied.is_empty() {
            return of_classes;
        }
        let classes = Longest::new(of_classes.iter().map(|one| (&one.prefix, *one)));
        let multiplied = Longest::new(
            self.agent
                .multiplied
                .iter()
                .map(|(prefix, by)| (prefix, *by)),
        );
        let prefixes: BTreeSet<PrefixKey> = (classes.0.keys().chain(multiplied.0.keys()))
            .copied()
            .collect();
        let service = |key: PrefixKey| {
            let (class, service) = classes
                .around(&key)
                .map_or((0, Service::Multiplier(Multiplier::ONE)), |of| {
                    (of.class, of.service)
                });
            let service = match (service, multiplied.around(&key)) {
                (Service::Multiplier(own), Some(by)) => Service::Multiplier(own.times(by)),
                (service, _) => service,
            };
            PrefixService {
                prefix: Prefix::from(&key),
                class,
                service,
            }
        };
        prefixes.into_iter().map(service).collect()
    }
}

/// The service of a prefix's sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixService {
    pub prefix: Prefix,
    /// The number of their class; 0 is `default`.
    pub class: u32,
    pub service: Service,
}

/// Values of prefixes, and the lengths that occur.
struct Longest<T>(BTreeMap<PrefixKey, T>, BTreeSet<u32>);

impl<T: Copy> Longest<T> {
    fn new<'p>(values: impl Iterator<Item = (&'p Prefix, T)>) -> Self {
        let values: BTreeMap<_, _> = values
            .map(|(prefix, value)| (PrefixKey::from(prefix), value))
            .collect();
        let lengths = values.keys().map(|key| key.length).collect();
        Self(values, lengths)
    }

    /// The value of the longest prefix that contains this one. An IPv6 prefix contains no IPv4 address.
    fn around(&self, key: &PrefixKey) -> Option<T> {
        let least = if key.is_ipv4() {
            PrefixKey::IPV4.length
        } else {
            0
        };
        let lengths = self.1.range(least..=key.length).rev();
        lengths
            .filter_map(|length| self.0.get(&key.cut(*length)))
            .next()
            .copied()
    }
}
