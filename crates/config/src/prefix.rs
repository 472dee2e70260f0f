//! Addresses and prefixes as written in a config.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::report::Wrong;

/// The most keys of one limit that are listed of a prefix.
pub const MOST_KEYS: u32 = 65_536;

/// A prefix without host bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix(pub(super) IpNet);

impl Prefix {
    /// The prefix of a single address.
    #[must_use]
    pub fn of_address(address: IpAddr) -> Self {
        Self(address.into())
    }

    /// The address as 16 bytes, IPv4 as IPv4-mapped IPv6.
    #[must_use]
    pub fn mapped_address(&self) -> [u8; 16] {
        mapped(self.0.network())
    }

    /// The length in bits of the mapped address.
    #[must_use]
    pub fn mapped_length(&self) -> u32 {
        u32::from(self.0.prefix_len()) + if self.0.network().is_ipv4() { 96 } else { 0 }
    }

    /// Whether all of its addresses are those of loopback.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        let (first, last) = (self.0.network(), self.0.broadcast());
        first.is_loopback() && last.is_loopback()
    }

    /// An address of each key in the prefix, where a key is an address's first bits: `ipv4` of IPv4, `ipv6` of IPv6. One
    /// that is longer than keys has the key that contains it.
    ///
    /// # Errors
    ///
    /// Their number, if it is above [`MOST_KEYS`]; saturated.
    pub fn keys(&self, ipv4: u8, ipv6: u8) -> Result<impl Iterator<Item = IpAddr> + use<>, u128> {
        let length = if self.0.network().is_ipv4() {
            96 + u32::from(ipv4)
        } else {
            u32::from(ipv6)
        };
        let count = 1_u128
            .checked_shl(length.saturating_sub(self.mapped_length()))
            .unwrap_or(u128::MAX);
        let first = u128::from_be_bytes(self.mapped_address());
        let is_ipv4 = self.0.network().is_ipv4();
        let address = move |nth: u32| {
            let step = u128::from(nth).checked_shl(128 - length).unwrap_or(0);
            let address = IpAddr::from((first | step).to_be_bytes());
            if is_ipv4 {
                address.to_canonical()
            } else {
                address
            }
        };
        match u32::try_from(count) {
            Ok(count) if count <= MOST_KEYS => Ok((0..count).map(address)),
            _ => Err(count),
        }
    }

    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }

    /// The address, without the length.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.0.addr()
    }

    /// The /64 of a single IPv6 address; `None` for IPv4.
    #[must_use]
    pub fn network_of_host(&self) -> Option<Self> {
        let network = IpNet::new(self.0.addr(), 64).ok()?.trunc();
        self.0.addr().is_ipv6().then_some(Self(network))
    }

    /// The text for people: a single address has no length.
    #[must_use]
    pub fn short(&self) -> String {
        if self.0.prefix_len() == self.0.max_prefix_len() {
            self.0.addr().to_string()
        } else {
            self.to_string()
        }
    }

    /// Whether it contains all of the other.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.0.contains(&other.0)
    }
}

impl From<IpNet> for Prefix {
    fn from(net: IpNet) -> Self {
        Self(net.trunc())
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// An address as 16 bytes, IPv4 as IPv4-mapped.
#[must_use]
pub fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Parses an address or a prefix without host bits.
///
/// # Errors
///
/// When the text is invalid; the error suggests a correction.
pub fn parse(text: &str) -> Result<Prefix, Wrong> {
    let wrong = |message: String, help: String| Wrong { message, help };
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(Prefix(address.to_canonical().into()));
    }
    let net: IpNet = text.parse().map_err(|_| {
        wrong(
            format!("{text:?} is neither an address nor a prefix"),
            "write \"192.0.2.10\" or \"2001:db8::/32\"".to_owned(),
        )
    })?;
    if net.trunc() != net {
        return Err(wrong(
            format!("{text:?} has bits set beyond its length"),
            format!("write \"{}\" or \"{}\"", net.trunc(), net.addr()),
        ));
    }
    Ok(Prefix(canonical(net)))
}

/// The IPv4 form of a prefix of IPv4-mapped addresses (RFC 4291, 2.5.5.2), except for that of all of them.
fn canonical(net: IpNet) -> IpNet {
    const MAPPED: u8 = 96;
    let length = net
        .prefix_len()
        .checked_sub(MAPPED)
        .filter(|length| *length > 0);
    match (net.addr().to_canonical(), length) {
        (IpAddr::V4(address), Some(length)) if net.addr().is_ipv6() => {
            IpNet::new(address.into(), length).unwrap_or(net)
        }
        _ => net,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_a_prefix_are_those_of_its_addresses() {
        let keys = |prefix: &str, ipv4, ipv6| -> Result<Vec<String>, u128> {
            let prefix = parse(prefix).unwrap_or_else(|_| panic!("{prefix}"));
            let keys = prefix.keys(ipv4, ipv6)?;
            Ok(keys.map(|address| address.to_string()).collect())
        };
        let some = |texts: &[&str]| Ok(texts.iter().map(|text| (*text).to_owned()).collect());
        for (prefix, expected) in [
            ("192.0.2.9", some(&["192.0.2.9"])),
            ("192.0.2.8/31", some(&["192.0.2.8", "192.0.2.9"])),
            ("2001:db8::1", some(&["2001:db8::1"])),
            (
                "2001:db8:0:fe::/63",
                some(&["2001:db8:0:fe::", "2001:db8:0:ff::"]),
            ),
            ("10.0.0.0/15", Err(1 << 17)),
            ("::/0", Err(1 << 64)),
            ("0.0.0.0/0", Err(1 << 32)),
        ] {
            assert_eq!(keys(prefix, 32, 64), expected, "{prefix}");
        }
        assert_eq!(keys("10.0.0.0/16", 32, 64).unwrap().len(), 65_536);
        assert_eq!(keys("192.0.2.0/25", 24, 64), some(&["192.0.2.0"]));
        assert_eq!(
            keys("192.0.2.0/23", 24, 64),
            some(&["192.0.2.0", "192.0.3.0"])
        );
        assert_eq!(keys("::/0", 32, 128), Err(u128::MAX));
        assert_eq!(keys("::/0", 32, 0), some(&["::"]));
    }

    #[test]
    fn an_ipv4_mapped_address_is_the_ipv4_address() {
        for (text, expected) in [
            ("::ffff:192.0.2.9", "192.0.2.9/32"),
            ("::ffff:192.0.2.0/120", "192.0.2.0/24"),
            ("::ffff:0:0/96", "::ffff:0.0.0.0/96"),
            ("2001:db8::1", "2001:db8::1/128"),
            ("192.0.2.0/24", "192.0.2.0/24"),
        ] {
            let parsed = parse(text).unwrap_or_else(|_| panic!("{text}"));
            assert_eq!(parsed.to_string(), expected, "{text}");
        }
    }
}
