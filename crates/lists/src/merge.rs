//! The prefixes that several lists and their exceptions come to.

use std::collections::{BTreeSet, HashSet};

use common::prefix::build::Prefix;
use config::PrefixKey;

use crate::list::Listed;

/// Merges lists, numbered from 1 in this order. Each address belongs to the first list that contains it, and to none
/// (number 0) within an exception. Prefixes that change nothing are left out.
#[must_use]
pub fn merge(lists: &[&[Listed]], exceptions: &[PrefixKey]) -> Vec<(Prefix, u32)> {
    let excepted: HashSet<PrefixKey> = exceptions.iter().copied().collect();
    let lengths: BTreeSet<u32> = exceptions.iter().map(|prefix| prefix.length).collect();
    let is_excepted = |prefix: &PrefixKey| {
        lengths.range(..=prefix.length).any(|length| {
            let around = prefix.cut(*length);
            around.is_ipv4() == prefix.is_ipv4() && excepted.contains(&around)
        })
    };
    let mut all: Vec<(PrefixKey, u32)> =
        Vec::with_capacity(lists.iter().map(|list| list.len()).sum());
    for (list, number) in lists.iter().zip(1u32..) {
        let prefixes = list.iter().map(Listed::prefix);
        all.extend(
            prefixes
                .filter(|prefix| lengths.is_empty() || !is_excepted(prefix))
                .map(|prefix| (prefix, number)),
        );
    }
    all.extend(excepted.iter().map(|prefix| (*prefix, 0)));
    all.sort_unstable();
    all.dedup_by_key(|(prefix, _)| *prefix);
    // IPv6 prefixes contain no IPv4 addresses, whatever their length.
    let (ipv4, ipv6): (Vec<_>, Vec<_>) = all.into_iter().partition(|(prefix, _)| prefix.is_ipv4());
    let mut merged = Vec::with_capacity(ipv4.len() + ipv6.len());
    sweep(ipv4, &mut merged);
    sweep(ipv6, &mut merged);
    merged
}

/// Adds the prefixes of one version, which are in order, so that each precedes those inside it.
fn sweep(prefixes: Vec<(PrefixKey, u32)>, merged: &mut Vec<(Prefix, u32)>) {
    // The last address and the list of each prefix around the current one.
    let mut open: Vec<(u128, u32)> = Vec::new();
    for (key, list) in prefixes {
        let prefix = Prefix {
            address: u128::from_be_bytes(key.address),
            length: key.length,
        };
        let last = prefix.address | u128::MAX.checked_shr(prefix.length).unwrap_or(0);
        while open.pop_if(|(last, _)| *last < prefix.address).is_some() {}
        let around = open.last().map_or(0, |(_, list)| *list);
        let list = if list == 0 || around == 0 {
            list
        } else {
            list.min(around)
        };
        if list != around {
            merged.push((prefix, list));
        }
        open.push((last, list));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAPPED: u128 = 0xffff_0000_0000;

    fn prefix() -> impl Strategy<Value = PrefixKey> {
        let key = |address: u128, length: u32| {
            PrefixKey {
                address: address.to_be_bytes(),
                length,
            }
            .cut(length)
        };
        let ipv4 = (0u32..512, 118u32..=128)
            .prop_map(move |(address, length)| key(MAPPED | u128::from(address), length));
        let ipv6 = (0u128..64, 120u32..=128)
            .prop_map(move |(address, length)| key(1 << 100 | address, length));
        let around = (1u32..90).prop_map(move |length| key(0, length));
        prop_oneof![6 => ipv4, 3 => ipv6, 1 => around]
    }

    fn list() -> impl Strategy<Value = Vec<Listed>> {
        let prefixes = prop::collection::btree_set(prefix(), 0..20);
        prefixes.prop_map(|prefixes| {
            prefixes
                .into_iter()
                .map(|prefix| Listed::new(prefix, 0))
                .collect()
        })
    }

    fn contains(prefix: &PrefixKey, address: u128) -> bool {
        let whole = PrefixKey {
            address: address.to_be_bytes(),
            length: 128,
        };
        whole.cut(prefix.length) == *prefix && whole.is_ipv4() == prefix.is_ipv4()
    }

    proptest! {
        #[test]
        fn an_address_belongs_to_the_first_list_that_contains_it_unless_it_is_excepted(
            lists in prop::collection::vec(list(), 0..4), exceptions in prop::collection::vec(prefix(), 0..4),
        ) {
            let slices: Vec<&[Listed]> = lists.iter().map(Vec::as_slice).collect();
            let merged = merge(&slices, &exceptions);
            let addresses = (0..520).map(|low| MAPPED + low).chain((0..70).map(|low| 1 << 100 | low)).chain([0, 1 << 64]);
            for address in addresses {
                let is_excepted = exceptions.iter().any(|prefix| contains(prefix, address));
                let has = |list: &&Vec<Listed>| list.iter().any(|listed| contains(&listed.prefix(), address));
                let first = lists.iter().position(|list| has(&list)).map_or(0, |nth| nth as u32 + 1);
                let expected = if is_excepted { 0 } else { first };
                let key = |prefix: &Prefix| PrefixKey { address: prefix.address.to_be_bytes(), length: prefix.length };
                let around = merged.iter().filter(|(prefix, _)| contains(&key(prefix), address));
                let found = around.max_by_key(|(prefix, _)| prefix.length).map_or(0, |(_, list)| *list);
                prop_assert_eq!(found, expected, "{}", std::net::Ipv6Addr::from(address));
            }
            let distinct: HashSet<_> = merged.iter().map(|(prefix, _)| (prefix.address, prefix.length)).collect();
            prop_assert_eq!(distinct.len(), merged.len());
        }
    }
}
