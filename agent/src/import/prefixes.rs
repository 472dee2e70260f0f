//! Addresses, prefixes and ranges of sets.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Subnets, Ipv6Subnets};

/// Appends the prefixes of an address, a prefix or a range `FIRST-LAST`; `false` if the text is none of them.
///
/// Bits beyond a prefix's length are cleared.
pub fn append(text: &str, prefixes: &mut Vec<IpNet>) -> bool {
    if let Ok(address) = text.parse::<IpAddr>() {
        prefixes.push(address.into());
    } else if let Ok(prefix) = text.parse::<IpNet>() {
        prefixes.push(prefix.trunc());
    } else if let Some((first, last)) = text.split_once('-') {
        return append_range(first.trim(), last.trim(), prefixes);
    } else {
        return false;
    }
    true
}

/// The same for a range.
pub fn append_range(first: &str, last: &str, prefixes: &mut Vec<IpNet>) -> bool {
    match (first.parse(), last.parse()) {
        (Ok(IpAddr::V4(first)), Ok(IpAddr::V4(last))) if first <= last => {
            prefixes.extend(Ipv4Subnets::new(first, last, 0).map(IpNet::V4));
        }
        (Ok(IpAddr::V6(first)), Ok(IpAddr::V6(last))) if first <= last => {
            prefixes.extend(Ipv6Subnets::new(first, last, 0).map(IpNet::V6));
        }
        _ => return false,
    }
    true
}

/// An address without its length, a prefix with it.
pub fn short(prefix: &IpNet) -> String {
    if prefix.prefix_len() == prefix.max_prefix_len() {
        prefix.addr().to_string()
    } else {
        prefix.to_string()
    }
}

/// Whether a ban list may contain it: not wider than /8, or /16 for IPv6.
pub fn is_narrow(prefix: &IpNet) -> bool {
    prefix.prefix_len() >= if prefix.addr().is_ipv4() { 8 } else { 16 }
}
