//! Whom no limit may lock out unless the config insists: the operator, the way to the network, the cluster's store.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, ToSocketAddrs};

use redis::{ConnectionAddr, IntoConnectionInfo};
use serde::{Deserialize, Serialize};

use crate::config::policy::{Config, Prefix, Shield};
use crate::config::ssh;
use crate::datapath;

/// An address that is never throttled, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protected {
    /// Which.
    pub address: IpAddr,
    /// In words.
    pub why: String,
}

/// Who is protected under a config: `operators` are the SSH sessions that commands came from.
#[must_use]
pub fn of(config: &Config, operators: &BTreeSet<IpAddr>) -> Vec<Protected> {
    let mut all: BTreeMap<IpAddr, &str> = BTreeMap::new();
    for shield in &config.agent.protect {
        match shield {
            Shield::Ssh => all.extend(
                ssh::client()
                    .iter()
                    .chain(operators)
                    .map(|address| (*address, "an SSH session that the agent was started or told from")),
            ),
            // A host whose routes cannot be read has none that limits could cut.
            Shield::Gateways => {
                all.extend(
                    datapath::default_gateways()
                        .unwrap_or_default()
                        .into_iter()
                        .map(|address| (address, "a default gateway")),
                );
            }
            Shield::Store => all.extend(stores(config).into_iter().map(|address| (address, "the cluster's store"))),
        }
    }
    all.into_iter().map(|(address, why)| Protected { address: canonical(address), why: why.to_owned() }).collect()
}

/// The config with those who are protected among the never limited.
#[must_use]
pub fn applied(config: &Config, protected: &[Protected]) -> Config {
    let mut config = config.clone();
    let more = protected.iter().map(|protected| Prefix::of_address(protected.address));
    config.agent.never_limit.extend(more);
    config
}

/// IPv4 as IPv4, also where it came as IPv4-mapped.
fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// The addresses of the cluster's stores, as far as they can be resolved now.
fn stores(config: &Config) -> Vec<IpAddr> {
    let resolved = store_hosts(config).into_iter().filter_map(|host| (host.as_str(), 0).to_socket_addrs().ok());
    resolved.flatten().map(|address| address.ip()).filter(|address| !address.is_loopback()).collect()
}

/// The hosts that the config names as stores, or as those who know where they are.
fn store_hosts(config: &Config) -> Vec<String> {
    let urls = config.cluster.iter().flat_map(|cluster| &cluster.store);
    let addresses = urls.filter_map(|url| Some(url.reveal().into_connection_info().ok()?.addr().clone()));
    addresses
        .filter_map(|address| match address {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => Some(host),
            _ => None,
        })
        .collect()
}
