//! Keys as text.

use std::net::Ipv6Addr;

use common::key::Key;
use common::network;
use common::packet::Address;
use common::rule::{KeyKind, Rule};
use config::policy::{self, Config};
use datapath::compile::PrefixKey;

/// A key of a rule, with what it counts: `class partner`, `interface eth0`, `AS64500`, `192.0.2.0/24 port 53`.
pub(crate) fn key_text(
    config: &Config,
    key: &Key,
    rule: &Rule,
    interface: impl FnOnce(u32) -> String,
) -> String {
    match rule.key {
        kind if kind == KeyKind::Class as u8 => {
            format!("class {}", policy::class_name(&config.classes, key.extra))
        }
        kind if kind == KeyKind::Interface as u8 => format!("interface {}", interface(key.extra)),
        kind if kind == KeyKind::Network as u8 && key.extra != 0 => {
            format!("AS{}", network::to_asn(key.extra))
        }
        kind if kind == KeyKind::All as u8 => policy::Key::All.to_string(),
        kind if kind == KeyKind::AddressPort as u8 => {
            format!("{} port {}", prefix_of(key, rule), key.extra)
        }
        _ => prefix_of(key, rule).to_string(),
    }
}

/// The prefix of a key: with the limit's length if that is shorter than the address.
pub(crate) fn prefix_of(key: &Key, rule: &Rule) -> PrefixKey {
    let address = Address {
        hi: key.hi,
        lo: key.lo,
    }
    .octets();
    let length = match Ipv6Addr::from(address).to_ipv4_mapped() {
        Some(_) => PrefixKey::IPV4.length + rule.mask_ipv4.count_ones(),
        None => rule.mask_hi.count_ones() + rule.mask_lo.count_ones(),
    };
    PrefixKey { address, length }
}
