//! Ban lists that refuse the host's own network: addresses that this host needs, and which lists contain them.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use config::policy::{Config, Prefix};
use config::{PrefixKey, human};
use ipnet::IpNet;
use lists::{Listed, find};

use crate::host_network::{connected, resolvers};
use crate::protect::Detected;

/// The most addresses of a warning.
const MOST_NAMED: usize = 8;

/// A network or an address that this host needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Needed {
    prefix: PrefixKey,
    what: String,
}

/// The networks and addresses that this host needs.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnNetwork {
    needed: BTreeSet<Needed>,
}

impl OwnNetwork {
    /// Reads this host's interfaces, routes, and the resolvers of files. What cannot be read is left out.
    pub fn of_host(resolv_conf: &[PathBuf]) -> Self {
        let connected = connected().into_iter().filter(|one| !one.is_loopback);
        let gateways = datapath::default_gateways().unwrap_or_default();
        Self::of(
            connected.map(|one| (one.interface, one.net)),
            &gateways,
            &resolvers(resolv_conf),
        )
    }

    fn of(
        connected: impl IntoIterator<Item = (String, IpNet)>,
        gateways: &[IpAddr],
        resolvers: &[IpAddr],
    ) -> Self {
        let mut needed = BTreeSet::new();
        let mut add = |prefix: IpNet, what: String| {
            let prefix = PrefixKey::from(prefix.trunc());
            needed.insert(Needed { prefix, what });
        };
        for (interface, net) in connected {
            add(net, format!("the network of {interface}"));
            add(net.addr().into(), format!("an address of {interface}"));
        }
        for gateway in gateways {
            add((*gateway).into(), "a default gateway".to_owned());
        }
        for resolver in resolvers {
            add((*resolver).into(), "a resolver".to_owned());
        }
        let unspecified = IpAddr::from([0, 0, 0, 0]);
        add(unspecified.into(), "the source of DHCP requests".to_owned());
        Self { needed }
    }

    /// The warning about a list that contains some of them, unless they are exempt or excepted from lists.
    pub fn warning(
        &self,
        list: &str,
        prefixes: &[Listed],
        exempt: &[Prefix],
        exceptions: &BTreeSet<PrefixKey>,
    ) -> Option<String> {
        let is_exempt = |needed: &Needed| {
            exempt
                .iter()
                .map(PrefixKey::from)
                .chain(exceptions.iter().copied())
                .any(|prefix| contains(&prefix, &needed.prefix))
        };
        let refused: Vec<(&Needed, PrefixKey)> = self
            .needed
            .iter()
            .filter(|needed| !is_exempt(needed))
            .filter_map(|needed| Some((needed, find(prefixes, &needed.prefix)?.prefix())))
            .collect();
        // An address of a network that is named says no more.
        let is_within = |one: &Needed| {
            one.what.starts_with("an address of")
                && refused.iter().any(|(other, _)| {
                    other.prefix != one.prefix && contains(&other.prefix, &one.prefix)
                })
        };
        let named: Vec<_> = refused
            .iter()
            .filter(|(needed, _)| !is_within(needed))
            .collect();
        let texts = named.iter().map(|(needed, by)| {
            let (prefix, what) = (needed.prefix, &needed.what);
            if *by == prefix {
                format!("{prefix} ({what})")
            } else {
                format!("{prefix} ({what}) by {by}")
            }
        });
        let texts = human::listed(texts, MOST_NAMED);
        (!named.is_empty()).then(|| {
            format!(
                "ban list {list:?} refuses addresses that this host requires: {texts}; exempt it with [agent] never_limit, or leave it \
                 out of the list"
            )
        })
    }
}

/// The warnings about a config's lists, with the content of each.
pub(super) fn warnings<'l>(
    config: &Config,
    detected: &[Detected],
    lists: impl Iterator<Item = (&'l str, &'l [PrefixKey])>,
) -> Vec<String> {
    let own = OwnNetwork::of_host(&config.agent.resolv_conf);
    let detected = detected.iter().map(|one| Prefix::of_address(one.address));
    let never_limit = config.agent.never_limit.iter().copied();
    let exempt: Vec<Prefix> = never_limit.chain(detected).collect();
    let state = host::StateDirectory::at(&config.agent.state_dir);
    let exceptions = lists::read_exceptions(&state).unwrap_or_default();
    let exceptions = exceptions.into_iter().collect();
    lists
        .filter_map(|(name, prefixes)| {
            let listed = lists::dated(prefixes, &[], 0);
            own.warning(name, &listed, &exempt, &exceptions)
        })
        .collect()
}

/// Whether a prefix contains another one of the same version.
pub(super) fn contains(prefix: &PrefixKey, inner: &PrefixKey) -> bool {
    prefix.length <= inner.length
        && prefix.is_ipv4() == inner.is_ipv4()
        && inner.cut(prefix.length) == *prefix
}

#[cfg(test)]
mod tests {
    use config::prefix;

    use super::*;

    fn key(text: &str) -> PrefixKey {
        let parsed = prefix::parse(text).unwrap_or_else(|_| panic!("{text}"));
        PrefixKey::from(&parsed)
    }

    fn listed(texts: &[&str]) -> Vec<Listed> {
        let mut keys: Vec<PrefixKey> = texts.iter().map(|text| key(text)).collect();
        keys.sort_unstable();
        lists::dated(&keys, &[], 0)
    }

    fn own() -> OwnNetwork {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let connected = [
            ("eth0".to_owned(), net("10.201.0.7/16")),
            ("eth1".to_owned(), net("2001:db8:7::7/64")),
        ];
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        OwnNetwork::of(
            connected,
            &[address("10.201.0.1")],
            &[address("10.201.0.53")],
        )
    }

    #[test]
    fn a_list_with_the_hosts_network_is_reported_with_what_it_refuses() {
        let bogons = listed(&["0.0.0.0/8", "10.0.0.0/8", "127.0.0.0/8", "192.0.2.0/24"]);
        let warning = own()
            .warning("bogons", &bogons, &[], &BTreeSet::new())
            .unwrap();
        for part in [
            "\"bogons\"",
            "0.0.0.0 (the source of DHCP requests) by 0.0.0.0/8",
            "10.201.0.0/16 (the network of eth0) by 10.0.0.0/8",
            "10.201.0.1 (a default gateway)",
            "10.201.0.53 (a resolver)",
        ] {
            assert!(warning.contains(part), "{part} in {warning}");
        }
        assert!(!warning.contains("eth1") && !warning.contains("10.201.0.7"));
        let part = own()
            .warning("a", &listed(&["10.201.0.0/24"]), &[], &BTreeSet::new())
            .unwrap();
        assert!(
            part.contains("10.201.0.7 (an address of eth0) by 10.201.0.0/24"),
            "{part}"
        );
        let six = own()
            .warning("a", &listed(&["2001:db8::/32"]), &[], &BTreeSet::new())
            .unwrap();
        assert!(
            six.contains("2001:db8:7::/64 (the network of eth1)"),
            "{six}"
        );
    }

    #[test]
    fn exempt_and_excepted_networks_are_not_reported() {
        let bogons = listed(&["10.0.0.0/8"]);
        let exempt = [prefix::parse("10.201.0.0/16").unwrap_or_else(|_| panic!())];
        let none = BTreeSet::new();
        assert_eq!(own().warning("a", &bogons, &exempt, &none), None);
        let excepted = BTreeSet::from([key("10.201.0.0/16")]);
        assert_eq!(own().warning("a", &bogons, &[], &excepted), None);
        assert_eq!(
            own().warning("a", &listed(&["192.0.2.0/24", "10.9.0.0/16"]), &[], &none),
            None
        );
    }
}
