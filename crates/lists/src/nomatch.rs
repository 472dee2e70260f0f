//! Exceptions within a set: `nomatch` of ipset(8).

use config::PrefixKey;

/// The most prefixes of all lists together.
pub const MOST_PREFIXES: usize = 4_000_000;

/// The prefixes of a set without its exceptions. Of all entries around an address, the longest decides. It ends early where
/// more than [`MOST_PREFIXES`] are left.
pub fn without(
    mut prefixes: Vec<PrefixKey>,
    mut exceptions: Vec<PrefixKey>,
    left: &mut Vec<PrefixKey>,
) {
    prefixes.sort_unstable();
    prefixes.dedup();
    exceptions.sort_unstable();
    exceptions.dedup();
    let (ipv4, ipv6): (Vec<_>, Vec<_>) = exceptions.into_iter().partition(PrefixKey::is_ipv4);
    for prefix in prefixes {
        let exceptions = if prefix.is_ipv4() { &ipv4 } else { &ipv6 };
        let last =
            u128::from_be_bytes(prefix.address) | u128::MAX.checked_shr(prefix.length).unwrap_or(0);
        // Before it are the wider ones that begin at its address: they do not apply to a longer entry.
        let from = exceptions.partition_point(|exception| *exception < prefix);
        let inside = &exceptions[from..];
        let to = inside.partition_point(|exception| u128::from_be_bytes(exception.address) <= last);
        carve(prefix, &inside[..to], left);
        if left.len() > MOST_PREFIXES {
            return;
        }
    }
}

/// Adds what is left of a prefix without exceptions inside it, which are in order.
fn carve(prefix: PrefixKey, exceptions: &[PrefixKey], left: &mut Vec<PrefixKey>) {
    if left.len() > MOST_PREFIXES {
        // The caller reports that there are too many.
        return;
    }
    let Some(first) = exceptions.first() else {
        left.push(prefix);
        return;
    };
    if *first == prefix {
        return;
    }
    let length = prefix.length + 1;
    let middle = u128::from_be_bytes(prefix.address) | 1 << (128 - length);
    let upper = PrefixKey {
        address: middle.to_be_bytes(),
        length,
    };
    let split = exceptions.partition_point(|exception| exception.address < upper.address);
    carve(PrefixKey { length, ..prefix }, &exceptions[..split], left);
    carve(upper, &exceptions[split..], left);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A prefix of the IPv4 addresses 0.0.0.0 to 0.0.0.255.
    fn prefix() -> impl Strategy<Value = PrefixKey> {
        (0u8..=255, 120u32..=128).prop_map(|(low, length)| {
            let mut address = PrefixKey::IPV4.address;
            address[15] = low;
            PrefixKey {
                address,
                length: 128,
            }
            .cut(length)
        })
    }

    proptest! {
        #[test]
        fn the_longest_entry_around_an_address_decides(
            prefixes in prop::collection::vec(prefix(), 0..12), exceptions in prop::collection::vec(prefix(), 0..12),
        ) {
            let mut left = Vec::new();
            without(prefixes.clone(), exceptions.clone(), &mut left);
            for low in 0..=255 {
                let mut address = PrefixKey::IPV4.address;
                address[15] = low;
                let whole = PrefixKey { address, length: 128 };
                let longest = |all: &[PrefixKey]| {
                    all.iter().filter(|one| whole.cut(one.length) == **one).map(|one| one.length).max()
                };
                let is_matched = longest(&prefixes) > longest(&exceptions);
                prop_assert_eq!(longest(&left).is_some(), is_matched, "{}", low);
            }
        }
    }
}
