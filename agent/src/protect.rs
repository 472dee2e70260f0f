//! Addresses that are exempt unless the config disables it: the operator, the default gateways, the cluster's store.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, ToSocketAddrs};

pub use api::status::Protected;
use redis::{ConnectionAddr, IntoConnectionInfo};

use config::policy::{Config, Prefix, Shield};
use config::ssh;
use datapath::compile::PrefixKey;

/// Why a store's address is exempt.
const STORE: &str = "the cluster's store";

/// The exempt addresses of a config; `operators` are the SSH sessions from which commands came. A store whose name cannot be
/// resolved keeps its addresses of `before`.
#[must_use]
pub fn of(config: &Config, operators: &BTreeSet<IpAddr>, before: &[Protected]) -> Vec<Protected> {
    let mut all: BTreeMap<IpAddr, &str> = BTreeMap::new();
    for shield in &config.agent.protect.0 {
        match shield {
            Shield::Ssh => all.extend(ssh::client().iter().chain(operators).map(|address| {
                (
                    *address,
                    "an SSH session that started the agent or sent it a command",
                )
            })),
            // A host whose routes cannot be read has no gateways to exempt.
            Shield::Gateways => {
                all.extend(
                    datapath::default_gateways()
                        .unwrap_or_default()
                        .into_iter()
                        .map(|address| (address, "a default gateway")),
                );
            }
            Shield::Store => {
                all.extend(
                    stores(config, before)
                        .into_iter()
                        .map(|address| (address, STORE)),
                );
            }
        }
    }
    all.into_iter()
        .map(|(address, why)| Protected {
            address: canonical(address),
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

/// The config with the detected addresses added to the exempt ones.
#[must_use]
pub fn applied(mut config: Config, protected: &[Protected]) -> Config {
    let more = protected
        .iter()
        .map(|protected| Prefix::of_address(protected.address));
    config.agent.never_limit.extend(more);
    config
}

/// IPv4-mapped addresses as IPv4.
fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// The addresses of the cluster's stores: those that can be resolved now, and those of `before` if one cannot.
fn stores(config: &Config, before: &[Protected]) -> BTreeSet<IpAddr> {
    let mut addresses = BTreeSet::new();
    for host in store_hosts(config) {
        match (host.as_str(), 0).to_socket_addrs() {
            Ok(resolved) => addresses.extend(resolved.map(|address| address.ip())),
            Err(_) => addresses.extend(
                before
                    .iter()
                    .filter(|one| one.why == STORE)
                    .map(|one| one.address),
            ),
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
            why: "a default gateway".to_owned(),
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
}
