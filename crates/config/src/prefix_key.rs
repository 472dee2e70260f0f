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
    pub const IPV4: Self = Self {
        address: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0],
        length: 96,
    };

    /// Whether it contains only IPv4 addresses.
    #[must_use]
    pub fn is_ipv4(&self) -> bool {
        self.length >= Self::IPV4.length && self.cut(Self::IPV4.length) == Self::IPV4
    }

    /// Whether it is an IPv6 prefix that contains the IPv4-mapped addresses, and so every IPv4 address.
    #[must_use]
    pub fn covers_ipv4(&self) -> bool {
        self.length < Self::IPV4.length && Self::IPV4.cut(self.length).address == self.address
    }

    /// Why it cannot be banned: it would ban every IPv4 address beside the IPv6 ones.
    #[must_use]
    pub fn ban_obstacle(&self) -> Option<String> {
        self.covers_ipv4().then(|| {
            format!(
                "invalid prefix {self}: it contains the IPv6 forms of all IPv4 addresses; ban 2000::/3, the public IPv6 addresses, \
                 or 0.0.0.0/0"
            )
        })
    }

    /// Whether it is more likely a mistake than a ban: wider than /8, or /16 for IPv6, or with every IPv4 address.
    #[must_use]
    pub fn is_wide(&self) -> bool {
        let widest = if self.is_ipv4() {
            Self::IPV4.length + 8
        } else {
            16
        };
        self.length < widest || self.covers_ipv4()
    }

    /// The address and the length of its own version.
    fn parts(&self) -> (IpAddr, u32) {
        let address = Ipv6Addr::from(self.address);
        match address
            .to_ipv4_mapped()
            .filter(|_| self.length >= Self::IPV4.length)
        {
            Some(address) => (address.into(), self.length - Self::IPV4.length),
            None => (address.into(), self.length),
        }
    }

    /// The prefix of this length that contains it; `length` must not exceed its own.
    #[must_use]
    pub fn cut(&self, length: u32) -> Self {
        let mask = u128::MAX.checked_shl(128 - length.min(128)).unwrap_or(0);
        Self {
            address: (u128::from_be_bytes(self.address) & mask).to_be_bytes(),
            length,
        }
    }
}

impl From<IpNet> for PrefixKey {
    fn from(net: IpNet) -> Self {
        let above = if net.network().is_ipv4() {
            Self::IPV4.length
        } else {
            0
        };
        Self {
            address: mapped(net.network()),
            length: above + u32::from(net.prefix_len()),
        }
    }
}

impl From<&Prefix> for PrefixKey {
    fn from(prefix: &Prefix) -> Self {
        Self {
            address: prefix.mapped_address(),
            length: prefix.mapped_length(),
        }
    }
}

impl From<&PrefixKey> for Prefix {
    fn from(prefix: &PrefixKey) -> Self {
        let (address, length) = prefix.parts();
        let net = IpNet::new(address, length as u8);
        net.map_or_else(|_| Self::of_address(address), Self::from)
    }
}

impl fmt::Display for PrefixKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, length) = self.parts();
        let whole = if address.is_ipv4() { 32 } else { 128 };
        if length == whole {
            write!(formatter, "{address}")
        } else {
            write!(formatter, "{address}/{length}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_prefixes_are_those_with_half_the_internet_or_all_of_ipv4() {
        let key = |text: &str| PrefixKey::from(text.parse::<IpNet>().unwrap());
        for narrow in [
            "10.0.0.0/8",
            "192.0.2.1/32",
            "2000::/16",
            "2001:db8::/32",
            "::1/128",
            "::ffff:10.0.0.0/104",
        ] {
            assert!(!key(narrow).is_wide(), "{narrow}");
        }
        for wide in [
            "0.0.0.0/0",
            "10.0.0.0/7",
            "2000::/3",
            "::/0",
            "::/16",
            "::/20",
            "::/80",
            "::ffff:0:0/96",
        ] {
            assert!(key(wide).is_wide(), "{wide}");
        }
        assert!(
            key("::/20").covers_ipv4()
                && !key("2000::/3").covers_ipv4()
                && !key("0.0.0.0/0").covers_ipv4()
        );
    }
}
