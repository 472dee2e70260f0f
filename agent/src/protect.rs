//! Addresses that are exempt unless the config disables it: the operator, the default gateways, the cluster's store.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, ToSocketAddrs};

pub use api::status::Protected;
use redis::{ConnectionAddr, IntoConnectionInfo};

use config::policy::{Config, Prefix, Shield};
use config::ssh;
use datapath::compile::PrefixKey;

/// The most gateways that are exempt: any neighbour may announce itself as one.
const MOST_GATEWAYS: usize = 16;
/// The most addresses of a store's name.
const MOST_OF_NAME: usize = 16;
const SSH: &str = "an SSH session that started the agent or sent it a command";
const STORE: &str = "the cluster's store";
const GATEWAY: &str = "a default gateway";

/// What `protect` has found on this host, but for SSH sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    gateways: BTreeSet<IpAddr>,
    /// The addresses of names of stores, as they were resolved last.
    names: BTreeMap<String, BTreeSet<IpAddr>>,
}

impl Found {
    /// With the gateways that the host has now. Those of before stay if they cannot be read.
    #[must_use]
    pub fn with_gateways(mut self) -> Self {
        match datapath::default_gateways() {
            Ok(gateways) => self.gateways = gateways.into_iter().take(MOST_GATEWAYS).collect(),
            Err(error) => tracing::warn!("reading the default routes failed: {error}"),
        }
        self
    }

    /// With these names, which [`resolve`] returned.
    #[must_use]
    pub fn with_names(mut self, names: BTreeMap<String, BTreeSet<IpAddr>>) -> Self {
        self.names.extend(names);
        self
    }
}

/// The addresses of the names of a config's stores; without those that cannot be resolved now. It may take many seconds, so
/// that nothing may wait for it.
#[must_use]
pub fn resolve(config: &Config) -> BTreeMap<String, BTreeSet<IpAddr>> {
    if !config.agent.protect.0.contains(&Shield::Store) {
        return BTreeMap::new();
    }
    let names = store_hosts(config)
        .into_iter()
        .filter(|host| host.parse::<IpAddr>().is_err());
    names
        .filter_map(|host| {
            let addresses = (host.as_str(), 0).to_socket_addrs().ok()?;
            let addresses = addresses.map(|address| address.ip()).take(MOST_OF_NAME);
            let addresses = addresses.collect();
            Some((host, addresses))
        })
        .collect()
}

/// The exempt addresses of a config where no agent runs.
#[must_use]
pub fn now(config: &Config) -> Vec<Protected> {
    let found = Found::default().with_gateways().with_names(resolve(config));
    of(config, &BTreeSet::new(), &found)
}

/// The exempt addresses of a config; `operators` are the SSH sessions from which commands came.
#[must_use]
pub fn of(config: &Config, operators: &BTreeSet<IpAddr>, found: &Found) -> Vec<Protected> {
    // The first reason of an address counts. An address that is only a gateway's is exempt up to a limit.
    let mut all: BTreeMap<IpAddr, &str> = BTreeMap::new();
    let sessions = ssh::client();
    let sessions = sessions.iter().chain(operators).copied();
    let gateways = found.gateways.iter().copied();
    let reasons: [(Shield, Vec<IpAddr>, &str); 3] = [
        (Shield::Ssh, sessions.collect(), SSH),
        (
            Shield::Store,
            stores(config, found).into_iter().collect(),
            STORE,
        ),
        (Shield::Gateways, gateways.collect(), GATEWAY),
    ];
    for (shield, addresses, why) in reasons {
        if config.agent.protect.0.contains(&shield) {
            for address in addresses {
                all.entry(canonical(address)).or_insert(why);
            }
        }
    }
    all.into_iter()
        .map(|(address, why)| Protected {
            address,
            why: why.to_owned(),
        })
        .collect()
}

/// The most prefixes of `never_limit` that are listed; longer lists are only counted.
const MOST_NAMED: usize = 20;

/// The exempt addresses with their reasons: a line for `never_limit` and for every detected address.
#[must_use]
pub fn exempt(never_limit: &[Prefix], protected: &[Protected]) -> Vec<String> {
    let named = never_limit
        .iter()
        .take(MOST_NAMED)
        .map(|prefix| PrefixKey::from(prefix).to_string());
    let named = named.collect::<Vec<_>>().join(", ");
    let others = match never_limit.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        count => format!(" and {count} others"),
    };
    let configured = (!named.is_empty()).then(|| format!("exempt: {named}{others} (never_limit)"));
    let protected = protected
        .iter()
        .map(|one| format!("exempt: {} ({})", one.address, one.why));
    configured.into_iter().chain(protected).collect()
}

/// The config with the detected addresses added to the exempt ones; those that are gateways only are marked as such.
#[must_use]
pub fn applied(mut config: Config, protected: &[Protected]) -> Config {
    let address = |one: &Protected| Prefix::of_address(one.address);
    let agent = &mut config.agent;
    let gateways = protected
        .iter()
        .filter(|one| one.why == GATEWAY)
        .map(address);
    agent.gateways = gateways
        .filter(|gateway| !agent.never_limit.iter().any(|never| never.covers(gateway)))
        .collect();
    agent.never_limit.extend(protected.iter().map(address));
    config
}

/// IPv4-mapped addresses as IPv4.
fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// The addresses of the cluster's stores.
fn stores(config: &Config, found: &Found) -> BTreeSet<IpAddr> {
    let mut addresses = BTreeSet::<IpAddr>::new();
    for host in store_hosts(config) {
        match host.parse() {
            Ok(address) => _ = addresses.insert(address),
            Err(_) => addresses.extend(found.names.get(&host).into_iter().flatten()),
        }
    }
    addresses.retain(|address| !address.is_loopback());
    addresses
}

/// The hosts that the config names as stores or Sentinels.
fn store_hosts(config: &Config) -> Vec<String> {
    let urls = config.cluster.iter().flat_map(|cluster| &cluster.store);
    let addresses =
        urls.filter_map(|url| Some(url.reveal().into_connection_info().ok()?.addr().clone()));
    addresses
        .filter_map(|address| match address {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => Some(host),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exempt_addresses_are_named_with_their_reason_and_a_long_list_is_counted() {
        let gateway = Protected {
            address: IpAddr::from([192, 0, 2, 1]),
            why: GATEWAY.to_owned(),
        };
        let prefixes = |texts: &[&str]| -> Vec<Prefix> {
            texts
                .iter()
                .map(|text| config::prefix::parse(text).unwrap_or_else(|_| panic!("{text}")))
                .collect()
        };
        let never_limit = prefixes(&["198.51.100.0/24", "2001:db8::1"]);
        assert_eq!(
            exempt(&never_limit, &[gateway]),
            [
                "exempt: 198.51.100.0/24, 2001:db8::1 (never_limit)",
                "exempt: 192.0.2.1 (a default gateway)"
            ]
        );
        let many: Vec<Prefix> = (0..50)
            .map(|nth| Prefix::of_address(IpAddr::from([10, 0, 0, nth])))
            .collect();
        assert!(exempt(&many, &[])[0].ends_with("10.0.0.19 and 30 others (never_limit)"));
        assert!(exempt(&[], &[]).is_empty());
    }

    #[test]
    fn a_gateway_is_exempt_without_limit_if_the_file_or_a_session_has_its_address() {
        let config = |never_limit: &str| {
            let text = format!(
                "[agent]\ninterfaces = [\"eth0\"]\nnever_limit = [{never_limit}]\n[[limit]]\nname = \"p\"\nrate = \"1/s\"\n"
            );
            config::parse(std::path::Path::new("limits.toml"), &text)
                .unwrap()
                .config
        };
        let address = IpAddr::from([192, 0, 2, 1]);
        let found = Found {
            gateways: BTreeSet::from([address]),
            ..Found::default()
        };
        for (never_limit, operators, why, gateways) in [
            (
                "",
                BTreeSet::new(),
                GATEWAY,
                vec![Prefix::of_address(address)],
            ),
            ("", BTreeSet::from([address]), SSH, vec![]),
            ("\"192.0.2.0/24\"", BTreeSet::new(), GATEWAY, vec![]),
        ] {
            let config = config(never_limit);
            let protected = of(&config, &operators, &found);
            let of_address = protected.iter().find(|one| one.address == address);
            assert_eq!(of_address.unwrap().why, why);
            let agent = applied(config, &protected).agent;
            assert_eq!(agent.gateways, gateways, "{never_limit}");
            assert!(agent.never_limit.iter().any(|one| one.contains(address)));
        }
    }

    #[test]
    fn a_store_has_the_addresses_of_its_own_name_and_keeps_them_while_it_cannot_be_resolved() {
        let text = "[agent]\ninterfaces = [\"eth0\"]\n[cluster]\nstore = [\"redis://a.invalid:6379\", \"redis://192.0.2.7:6379\"]\n[[limit]]\nname = \"p\"\n\
                    rate = \"1/s\"\ncluster = true\n";
        let config = config::parse(std::path::Path::new("limits.toml"), text)
            .unwrap()
            .config;
        let addresses = |found: &Found| {
            of(&config, &BTreeSet::new(), found)
                .into_iter()
                .map(|one| one.address.to_string())
                .filter(|address| address.starts_with("192.0.2.") || address.starts_with("198."))
                .collect::<Vec<_>>()
        };
        let named = |host: &str, last: u8| {
            BTreeMap::from([(
                host.to_owned(),
                BTreeSet::from([[198, 51, 100, last].into()]),
            )])
        };
        let found = Found::default().with_names(named("b.invalid", 9));
        assert_eq!(addresses(&found), ["192.0.2.7"]);
        let found = found.with_names(named("a.invalid", 1));
        assert_eq!(addresses(&found), ["192.0.2.7", "198.51.100.1"]);
        // Another name, or none, changes nothing.
        let found = found
            .with_names(named("b.invalid", 8))
            .with_names(BTreeMap::new());
        assert_eq!(addresses(&found), ["192.0.2.7", "198.51.100.1"]);
        let found = found.with_names(named("a.invalid", 2));
        assert_eq!(addresses(&found), ["192.0.2.7", "198.51.100.2"]);
    }
}
