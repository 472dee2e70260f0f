//! Sets of addresses as ranges.

use config::PrefixKey;
use config::policy::Prefix;

/// The first and the last address of a prefix, IPv4 as IPv4-mapped.
pub fn range(prefix: &Prefix) -> (u128, u128) {
    let PrefixKey { address, length } = PrefixKey::from(prefix);
    let first = u128::from_be_bytes(address);
    (first, first | u128::MAX.checked_shr(length).unwrap_or(0))
}

/// Addresses of one version: ranges in order that neither overlap nor touch.
#[derive(Debug, Default)]
struct Ranges(Vec<(u128, u128)>);

impl Ranges {
    fn add(&mut self, more: impl Iterator<Item = (u128, u128)>) {
        let mut all = std::mem::take(&mut self.0);
        all.extend(more);
        all.sort_unstable();
        for (first, last) in all {
            match self.0.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => self.0.push((first, last)),
            }
        }
    }

    /// The first range that does not end before an address.
    fn at(&self, address: u128) -> Option<(u128, u128)> {
        self.0
            .get(self.0.partition_point(|(_, last)| *last < address))
            .copied()
    }
}

/// A set of addresses. IPv6 prefixes contain no IPv4 address.
#[derive(Debug, Default)]
pub struct Addresses {
    ipv4: Ranges,
    ipv6: Ranges,
}

impl Addresses {
    pub fn add(&mut self, prefixes: &[Prefix]) {
        let of = |is_ipv4: bool| {
            prefixes
                .iter()
                .filter(move |it| it.address().is_ipv4() == is_ipv4)
                .map(range)
        };
        self.ipv4.add(of(true));
        self.ipv6.add(of(false));
    }

    /// Whether it contains all addresses of a prefix.
    pub fn contains(&self, prefix: &Prefix) -> bool {
        let (first, last) = range(prefix);
        self.of(prefix)
            .at(first)
            .is_some_and(|(start, end)| start <= first && last <= end)
    }

    /// Whether it contains some address of a prefix.
    pub fn overlaps(&self, prefix: &Prefix) -> bool {
        let (first, last) = range(prefix);
        self.of(prefix)
            .at(first)
            .is_some_and(|(start, _)| start <= last)
    }

    fn of(&self, prefix: &Prefix) -> &Ranges {
        if prefix.address().is_ipv4() {
            &self.ipv4
        } else {
            &self.ipv6
        }
    }
}
