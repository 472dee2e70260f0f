//! The table's part in the exchange of consumption between hosts.

use std::net::{Ipv4Addr, Ipv6Addr};

use cluster::{BusySource, Elsewhere};
use common::key::Key;
use common::packet::Address;
use common::rule::Rule;
use datapath::LoadError;
use datapath::compile::Group;

use super::{Reader, allowance};
use crate::stats::samples;

/// A number for a key: the address of IPv4, and the first 64 bits of an IPv6 prefix, which never start with 32 zeros.
fn number_of(key: &Key) -> u64 {
    let address = Ipv6Addr::from(
        Address {
            hi: key.hi,
            lo: key.lo,
        }
        .octets(),
    );
    address
        .to_ipv4_mapped()
        .map_or((u128::from(address) >> 64) as u64, |address| {
            u32::from(address).into()
        })
}

fn key_of(number: u64, group: u32) -> Key {
    let address = match u32::try_from(number) {
        Ok(address) => Ipv4Addr::from(address).to_ipv6_mapped(),
        Err(_) => Ipv6Addr::from(u128::from(number) << 64),
    };
    let Address { hi, lo } = Address::from_ipv6(address.octets());
    Key {
        hi,
        lo,
        extra: 0,
        group,
    }
}

impl Reader<'_> {
    /// A limit's index in the config, its group and its rule.
    fn rule_of(&self, limit: &str) -> Option<(usize, u32, Rule)> {
        let nth = self
            .config
            .limits
            .iter()
            .position(|known| known.name == limit)?;
        let of_limit = |(group, states): (usize, &Group)| {
            let (_, rule) = states.states.iter().find(|(of, _)| of.limit == nth)?;
            Some((nth, group as u32, *rule))
        };
        self.groups().iter().enumerate().find_map(of_limit)
    }

    /// The sampled sources of a limit.
    ///
    /// # Errors
    ///
    /// When a map cannot be read.
    pub fn busy_sources(&self, limit: &str) -> Result<Vec<BusySource>, LoadError> {
        let (Some((nth, group, rule)), (_, now)) = (self.rule_of(limit), self.now()) else {
            return Ok(Vec::new());
        };
        let (table, spans) = (self.sources()?, self.spans());
        let mut sources = Vec::new();
        for (key, samples) in samples::by_key(self.ingress.samples()?) {
            if key.group != group {
                continue;
            }
            let counts = self.counts(&key, &samples, &spans)?;
            let Some(counts) = counts.iter().find(|counts| counts.limit == nth) else {
                continue;
            };
            let (left, _) = allowance(table, &rule, table.find(&key).as_ref(), now);
            sources.push(BusySource {
                number: number_of(&key),
                passed: counts.passed,
                refused: counts.refused + counts.would_refuse,
                used: rule.token_bucket().burst.saturating_sub(left),
            });
        }
        Ok(sources)
    }

    /// Charges sources of a limit for units that other hosts passed; negative units are returned.
    ///
    /// # Errors
    ///
    /// When the table cannot be mapped.
    pub fn charge_beyond(&self, limit: &str, charges: &[Elsewhere]) -> Result<(), LoadError> {
        let (Some((_, group, rule)), (nanoseconds, now)) = (self.rule_of(limit), self.now()) else {
            return Ok(());
        };
        let (table, scale) = (self.sources()?, self.ingress.settings().scale);
        for Elsewhere { source, units, ago } in charges {
            let since = scale.ticks(nanoseconds.saturating_sub(*ago));
            table.charge_beyond(&key_of(*source, group), &rule, (since, now), *units);
        }
        Ok(())
    }
}
