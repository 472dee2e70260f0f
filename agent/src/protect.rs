//! Addresses that are exempt unless the config disables it: the operator, the cluster's store, the default gateways, resolvers,
//! and the host itself.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, ToSocketAddrs};

pub use api::status::Protected;
use redis::{ConnectionAddr, IntoConnectionInfo};

use config::policy::{Config, FleetRules, Prefix, RulesStore, Shield, StoreUrl};
use config::{human, ssh};
use datapath::compile::PrefixKey;

use crate::host_network::{self, is_elsewhere, is_link_local};

/// The most gateways that are exempt: any neighbour may announce itself as one.
const MOST_GATEWAYS: usize = 16;
/// The most resolvers: some servers of DHCP and announcements of routers add to them.
const MOST_RESOLVERS: usize = 16;
/// The most addresses of a store's name.
const MOST_OF_NAME: usize = 16;
/// The most addresses of this host: each is an entry in the tree of prefixes.
const MOST_OWN: usize = 256;
const SSH: &str = "an SSH session that started the agent or sent it a command";
const STORE: &str = "the cluster's store";
const RULES_STORE: &str = "the store of the fleet's rules";
const GATEWAY: &str = "a default gateway";
const RESOLVER: &str = "a resolver";

/// An address that `protect` exempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detected {
    pub address: IpAddr,
    pub shield: Shield,
    /// The reason as text.
    pub why: String,
}

/// How far a detected address is exempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exemption {
    /// From bans and limits.
    Full,
    /// From bans, and from limits on packets up to an allowance: others can forge the address.
    WithinAllowance,
    /// From bans: packets that come from outside in the name of this host are forged.
    FromBans,
}

impl Detected {
    #[must_use]
    pub const fn exemption(&self) -> Exemption {
        match self.shield {
            Shield::Ssh | Shield::Store => Exemption::Full,
            Shield::Gateways | Shield::Resolvers => Exemption::WithinAllowance,
            Shield::Addresses => Exemption::FromBans,
        }
    }
}

impl From<&Detected> for Protected {
    fn from(detected: &Detected) -> Self {
        Self {
            address: detected.address,
            why: detected.why.clone(),
        }
    }
}

/// The addresses with exemptions from limits, and those with exemptions from bans only.
#[must_use]
pub fn by_exemption(detected: &[Detected]) -> (Vec<Protected>, Vec<Protected>) {
    let (from_bans, others): (Vec<&Detected>, Vec<&Detected>) = detected
        .iter()
        .partition(|one| one.exemption() == Exemption::FromBans);
    let documents = |some: Vec<&Detected>| some.into_iter().map(Protected::from).collect();
    (documents(others), documents(from_bans))
}

/// What `protect` has found on this host, but for SSH sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    gateways: BTreeSet<IpAddr>,
    resolvers: BTreeSet<IpAddr>,
    /// The host's own addresses, each with its interface.
    own: BTreeMap<IpAddr, String>,
    /// The addresses of names of stores, as they were resolved last.
    names: BTreeMap<String, BTreeSet<IpAddr>>,
}

impl Found {
    /// With all that the host has now, except names.
    #[must_use]
    pub fn read_again(self, config: &Config) -> Self {
        self.with_gateways()
            .with_own_addresses()
            .with_resolvers(config)
    }

    /// With the gateways that the host has now. Those of before stay if they cannot be read.
    #[must_use]
    pub fn with_gateways(mut self) -> Self {
        match datapath::default_gateways() {
            Ok(gateways) => self.gateways = gateways.into_iter().take(MOST_GATEWAYS).collect(),
            Err(error) => tracing::warn!("reading the default routes failed: {error}"),
        }
        self
    }

    /// With the resolvers in the files of a config.
    #[must_use]
    pub fn with_resolvers(mut self, config: &Config) -> Self {
        let resolvers = host_network::resolvers(&config.agent.resolv_conf);
        self.resolvers = resolvers.into_iter().take(MOST_RESOLVERS).collect();
        self
    }

    /// With the addresses that the host has now.
    #[must_use]
    pub fn with_own_addresses(mut self) -> Self {
        let own = host_network::connected().into_iter();
        let own = own.map(|one| (one.net.addr(), one.interface));
        // Link-local ones come and go with each interface, and are only unique on its link.
        let own = own.filter(|(address, _)| is_elsewhere(*address) && !is_link_local(*address));
        self.own = own
            .collect::<BTreeMap<_, _>>()
            .into_iter()
            .take(MOST_OWN)
            .collect();
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
        .chain(rules_hosts(config))
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
pub fn now(config: &Config) -> Vec<Detected> {
    let found = Found::default()
        .read_again(config)
        .with_names(resolve(config));
    of(config, &BTreeSet::new(), &found)
}

/// The exempt addresses of a config; `operators` are the SSH sessions from which commands came.
#[must_use]
pub fn of(config: &Config, operators: &BTreeSet<IpAddr>, found: &Found) -> Vec<Detected> {
    let sessions = ssh::client();
    let sessions = sessions.iter().chain(operators).copied();
    let named = |addresses: Vec<IpAddr>, why: &str| -> Vec<(IpAddr, String)> {
        let addresses = addresses.into_iter();
        addresses.map(|address| (address, why.to_owned())).collect()
    };
    let own = found.own.iter();
    let own = own.map(|(address, interface)| (*address, format!("an address of {interface}")));
    // The first reason of an address counts: the widest exemption.
    let reasons: [(Shield, Vec<(IpAddr, String)>); 6] = [
        (Shield::Ssh, named(sessions.collect(), SSH)),
        (
            Shield::Store,
            named(addresses(store_hosts(config), found), STORE),
        ),
        (
            Shield::Store,
            named(addresses(rules_hosts(config), found), RULES_STORE),
        ),
        (
            Shield::Gateways,
            named(found.gateways.iter().copied().collect(), GATEWAY),
        ),
        (
            Shield::Resolvers,
            named(found.resolvers.iter().copied().collect(), RESOLVER),
        ),
        (Shield::Addresses, own.collect()),
    ];
    let mut all: BTreeMap<IpAddr, (Shield, String)> = BTreeMap::new();
    for (shield, addresses) in reasons {
        if config.agent.protect.0.contains(&shield) {
            for (address, why) in addresses {
                all.entry(canonical(address)).or_insert((shield, why));
            }
        }
    }
    let detected = |(address, (shield, why))| Detected {
        address,
        shield,
        why,
    };
    all.into_iter().map(detected).collect()
}

/// The most prefixes of `never_limit` that are listed; longer lists are only counted.
const MOST_NAMED: usize = 20;

/// The exempt addresses with their reasons: a line for `never_limit` and for every detected address with an exemption from limits.
#[must_use]
pub fn exempt(never_limit: &[Prefix], detected: &[Detected]) -> Vec<String> {
    let named = never_limit
        .iter()
        .map(|prefix| PrefixKey::from(prefix).to_string());
    let named = human::listed(named, MOST_NAMED);
    let configured = (!named.is_empty()).then(|| format!("exempt: {named} (never_limit)"));
    let detected = detected
        .iter()
        .filter(|one| one.exemption() != Exemption::FromBans)
        .map(|one| format!("exempt: {} ({})", one.address, one.why));
    configured.into_iter().chain(detected).collect()
}

/// The config with the detected addresses added to those of their exemption.
#[must_use]
pub fn applied(mut config: Config, detected: &[Detected]) -> Config {
    let agent = &mut config.agent;
    for one in detected {
        let kind = match one.exemption() {
            Exemption::Full => &mut agent.never_limit,
            Exemption::WithinAllowance => &mut agent.within_allowance,
            Exemption::FromBans => &mut agent.never_banned_only,
        };
        kind.push(Prefix::of_address(one.address));
    }
    config
}

/// IPv4-mapped addresses as IPv4.
fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// The addresses of hosts.
fn addresses(hosts: impl IntoIterator<Item = String>, found: &Found) -> Vec<IpAddr> {
    let mut addresses = BTreeSet::<IpAddr>::new();
    for host in hosts {
        match host.parse() {
            Ok(address) => _ = addresses.insert(address),
            Err(_) => addresses.extend(found.names.get(&host).into_iter().flatten()),
        }
    }
    addresses.retain(|address| !address.is_loopback());
    addresses.into_iter().collect()
}

/// The hosts that the config names as stores or Sentinels.
fn store_hosts(config: &Config) -> Vec<String> {
    let clusters = config.cluster.iter();
    let urls = clusters.flat_map(|cluster| {
        let of_zone = cluster.zone.iter().flat_map(|zone| &zone.store);
        cluster.store.iter().chain(of_zone)
    });
    urls.filter_map(redis_host).collect()
}

fn redis_host(url: &StoreUrl) -> Option<String> {
    match url.reveal().into_connection_info().ok()?.addr().clone() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => Some(host),
        _ => None,
    }
}

/// The hosts of the stores of the fleet's rules.
fn rules_hosts(config: &Config) -> impl Iterator<Item = String> {
    let streams = config.fleet.iter().flat_map(FleetRules::streams);
    streams.filter_map(|followed| match &followed.rules.store {
        RulesStore::Folder(_) => None,
        RulesStore::Http(url) | RulesStore::S3(url) => {
            let url: hyper::Uri = url.parse().ok()?;
            Some(url.host()?.trim_matches(['[', ']']).to_owned())
        }
        RulesStore::Redis(url) => redis_host(url),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exempt_addresses_are_named_with_their_reason_and_a_long_list_is_counted() {
        let gateway = Detected {
            address: IpAddr::from([192, 0, 2, 1]),
            shield: Shield::Gateways,
            why: GATEWAY.to_owned(),
        };
        let own = Detected {
            address: IpAddr::from([192, 0, 2, 9]),
            shield: Shield::Addresses,
            why: "an address of eth0".to_owned(),
        };
        let prefixes = |texts: &[&str]| -> Vec<Prefix> {
            texts
                .iter()
                .map(|text| config::prefix::parse(text).unwrap_or_else(|_| panic!("{text}")))
                .collect()
        };
        let never_limit = prefixes(&["198.51.100.0/24", "2001:db8::1"]);
        assert_eq!(
            exempt(&never_limit, &[gateway, own]),
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
    fn an_address_has_the_widest_exemption_of_its_kinds() {
        let text = "[agent]\ninterfaces = [\"eth0\"]\n[[limit]]\nname = \"p\"\nrate = \"1/s\"\n";
        let config = config::parse(std::path::Path::new("limits.toml"), text)
            .unwrap()
            .config;
        let address = |last: u8| IpAddr::from([192, 0, 2, last]);
        let found = Found {
            gateways: BTreeSet::from([address(1), address(2)]),
            resolvers: BTreeSet::from([address(1), address(3)]),
            own: BTreeMap::from([1, 3, 4].map(|last| (address(last), "eth0".to_owned()))),
            ..Found::default()
        };
        let detected = of(&config, &BTreeSet::from([address(2)]), &found);
        let of_net = detected
            .iter()
            .filter(|one| matches!(one.address, IpAddr::V4(address) if address.octets()[0] == 192));
        let reasons: Vec<(IpAddr, &str)> =
            of_net.map(|one| (one.address, one.why.as_str())).collect();
        assert_eq!(
            reasons,
            [
                (address(1), GATEWAY),
                (address(2), SSH),
                (address(3), RESOLVER),
                (address(4), "an address of eth0")
            ]
        );
        let agent = applied(config, &detected).agent;
        let has = |some: &[Prefix], last| some.contains(&Prefix::of_address(address(last)));
        for (last, exemption) in [
            (1, &agent.within_allowance),
            (2, &agent.never_limit),
            (3, &agent.within_allowance),
            (4, &agent.never_banned_only),
        ] {
            assert!(has(exemption, last), "{last}");
            let all: Vec<Prefix> = agent.never_banned().copied().collect();
            assert_eq!(
                all.iter().filter(|one| one.contains(address(last))).count(),
                1
            );
        }
    }

    #[test]
    fn the_store_of_rules_has_the_addresses_of_its_url() {
        let key = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";
        for (rules, expected) in [
            ("https://[2001:db8::7]:443/rules/web", &["2001:db8::7"][..]),
            ("redis://198.51.100.7:6379/web", &["198.51.100.7"]),
            ("file:///srv/rules/web", &[]),
        ] {
            let text = format!(
                "[agent]\ninterfaces = [\"eth0\"]\n[fleet]\nrules = {rules:?}\npublic_keys = [{key:?}]\n"
            );
            let loaded = config::parse(std::path::Path::new("limits.toml"), &text);
            let config = loaded.unwrap_or_else(|report| panic!("{report}")).config;
            let found = of(&config, &BTreeSet::new(), &Found::default());
            let stores = found.iter().filter(|one| one.shield == Shield::Store);
            let stores: Vec<String> = stores.map(|one| one.address.to_string()).collect();
            assert_eq!(stores, expected, "{rules}");
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
