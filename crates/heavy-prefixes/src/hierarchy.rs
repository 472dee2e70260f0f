//! The prefixes around addresses, by bytes.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;

/// The prefix lengths of IPv4, from a source on.
pub const IPV4_LEVELS: [u8; 4] = [32, 24, 16, 8];
/// The prefix lengths of IPv6. A source is a /64, as in limits.
pub const IPV6_LEVELS: [u8; 7] = [64, 56, 48, 40, 32, 24, 16];

/// The bits before an IPv4 address in its IPv4-mapped form.
const MAPPED: u8 = 96;

/// A version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Four,
    Six,
}

impl Version {
    pub(crate) const ALL: [Self; 2] = [Self::Four, Self::Six];

    pub(crate) fn of(address: Ipv6Addr) -> Self {
        if address.to_ipv4_mapped().is_some() {
            Self::Four
        } else {
            Self::Six
        }
    }

    /// The prefix lengths, the longest first.
    pub(crate) const fn levels(self) -> &'static [u8] {
        match self {
            Self::Four => &IPV4_LEVELS,
            Self::Six => &IPV6_LEVELS,
        }
    }

    /// The first bits of an address, in as many as a prefix of this length has.
    pub(crate) fn mask(self, address: u128, length: u8) -> u128 {
        let length = if self == Self::Four {
            MAPPED + length
        } else {
            length
        };
        address & u128::MAX << (128 - u32::from(length))
    }

    /// A masked address as a prefix.
    pub(crate) fn prefix(self, address: u128, length: u8) -> IpNet {
        let address = Ipv6Addr::from(address);
        let address = match (self, address.to_ipv4_mapped()) {
            (Self::Four, Some(address)) => IpAddr::V4(address),
            _ => IpAddr::V6(address),
        };
        IpNet::new_assert(address, length)
    }
}
