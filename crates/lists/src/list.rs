//! The prefixes of one list, each with the time since which the list has it.

use config::PrefixKey;

/// A prefix of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    address: [u8; 16],
    length: u8,
    /// Seconds since 1970.
    pub since: u32,
}

impl Listed {
    /// A prefix that has been in the list `since` these seconds since 1970.
    #[must_use]
    pub const fn new(prefix: PrefixKey, since: u32) -> Self {
        Self {
            address: prefix.address,
            length: prefix.length as u8,
            since,
        }
    }

    /// The prefix.
    #[must_use]
    pub const fn prefix(&self) -> PrefixKey {
        PrefixKey {
            address: self.address,
            length: self.length as u32,
        }
    }
}

/// The new content of a list, in order: prefixes that stay keep their time, the others have `now`.
#[must_use]
pub fn dated(prefixes: &[PrefixKey], before: &[Listed], now: u32) -> Vec<Listed> {
    let mut before = before.iter().peekable();
    let dated = prefixes.iter().map(|prefix| {
        while before.next_if(|old| old.prefix() < *prefix).is_some() {}
        let since = before
            .peek()
            .filter(|old| old.prefix() == *prefix)
            .map_or(now, |old| old.since);
        Listed::new(*prefix, since)
    });
    dated.collect()
}

/// The longest prefix of a list, which is in order, that contains `inner`.
#[must_use]
pub fn find<'l>(list: &'l [Listed], inner: &PrefixKey) -> Option<&'l Listed> {
    // No IPv6 prefix contains an IPv4 address.
    let shortest = if inner.is_ipv4() {
        PrefixKey::IPV4.length
    } else {
        1
    };
    (shortest..=inner.length).rev().find_map(|length| {
        let prefix = inner.cut(length);
        list.binary_search_by(|listed| listed.prefix().cmp(&prefix))
            .ok()
            .map(|nth| &list[nth])
    })
}

/// Whether a list lost more than half of its prefixes.
#[must_use]
pub const fn shrinks_too_much(before: usize, after: usize) -> bool {
    after < before - before / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> PrefixKey {
        PrefixKey::from(&config::prefix::parse(text).unwrap_or_else(|_| panic!("{text}")))
    }

    #[test]
    fn a_prefix_that_stays_keeps_its_time() {
        let keys = |texts: &[&str]| -> Vec<PrefixKey> {
            let mut keys: Vec<_> = texts.iter().map(|text| key(text)).collect();
            keys.sort_unstable();
            keys
        };
        let first = dated(
            &keys(&["192.0.2.1", "192.0.2.3", "2001:db8::/32"]),
            &[],
            100,
        );
        let second = dated(
            &keys(&["192.0.2.0/24", "192.0.2.2", "192.0.2.3", "2001:db8::/32"]),
            &first,
            200,
        );
        let times: Vec<_> = second
            .iter()
            .map(|listed| (listed.prefix().to_string(), listed.since))
            .collect();
        let times: Vec<_> = times
            .iter()
            .map(|(prefix, since)| (prefix.as_str(), *since))
            .collect();
        assert_eq!(
            times,
            [
                ("192.0.2.0/24", 200),
                ("192.0.2.2", 200),
                ("192.0.2.3", 100),
                ("2001:db8::/32", 100)
            ]
        );
        assert_eq!(find(&second, &key("192.0.2.3")).unwrap().since, 100);
        assert_eq!(
            find(&second, &key("192.0.2.4")).unwrap().prefix(),
            key("192.0.2.0/24")
        );
        assert_eq!(find(&second, &key("192.0.2.0/23")), None);
        assert_eq!(
            find(&second, &key("2001:db8::7")).unwrap().prefix(),
            key("2001:db8::/32")
        );
    }

    #[test]
    fn a_list_may_lose_half_of_its_prefixes() {
        for (before, after, expected) in [
            (0, 0, false),
            (1, 0, true),
            (1, 1, false),
            (10, 5, false),
            (10, 4, true),
            (11, 6, false),
            (11, 5, true),
            (5, 50, false),
        ] {
            assert_eq!(
                shrinks_too_much(before, after),
                expected,
                "{before} to {after}"
            );
        }
    }
}
