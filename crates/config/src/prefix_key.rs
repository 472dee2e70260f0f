//! Prefixes in the kernel tables' format.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;

use crate::policy::Prefix;
use crate::prefix::mapped;

/// A prefix in the kernel's trie of bans: the leading bits of the IPv4-mapped or IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PrefixKey {
    /// Network byte order.
    pub address: [u8; 16],
    /// 0 to 128; 96 more than an IPv4 prefix's own length.
    pub length: u32,
}

impl PrefixKey {
    /// All IPv4 addresses.
    pub const IPV4: Self = Self { address: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0], length: 96 };

    /// Whether it contains only IPv4 addresses.
    #[must_use]
    pub fn is_ipv4(&self) -> bool {
        self.length >= Self::IPV4.length && self.cut(Self::IPV4.length) == Self::IPV4
    }

    /// The prefix of this length that contains it; `length` must not exceed its own.
    #[must_use]
    pub fn cut(&self, length: u32) -> Self {
        let mask = u128::MAX.checked_shl(128 - length.min(128)).unwrap_or(0);
        Self { address: (u128::from_be_bytes(self.address) & mask).to_be_bytes(), length }
    }
}

impl From<IpNet> for PrefixKey {
    fn from(net: IpNet) -> Self {
        let above = if net.network().is_ipv4() { Self::IPV4.length } else { 0 };
        Self { address: mapped(net.network()), length: above + u32::from(net.prefix_len()) }
    }
}

impl From<&Prefix> for PrefixKey {
    fn from(prefix: &Prefix) -> Self {
        Self { address: prefix.mapped_address(), length: prefix.mapped_length() }
    }
}

impl fmt::Display for PrefixKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = Ipv6Addr::from(self.address);
        let (address, whole, length): (IpAddr, _, _) = match address.to_ipv4_mapped().filter(|_| self.length >= 96) {
            Some(address) => (address.into(), 32, self.length - 96),
            None => (address.into(), 128, self.length),
        };
        if length == whole { write!(formatter, "{address}") } else { write!(formatter, "{address}/{length}") }
    }
}
