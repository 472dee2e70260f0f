//! The addresses of this host's interfaces, and its resolvers.

use std::net::IpAddr;
use std::path::PathBuf;

use host::read::read_text;
use ipnet::IpNet;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

/// The largest file with resolvers, in bytes.
const LONGEST_RESOLV_CONF: u64 = 1 << 20;

/// An address of an interface that is up, with its network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connected {
    pub interface: String,
    pub net: IpNet,
    pub is_loopback: bool,
}

/// The addresses of interfaces that are up; none if they cannot be read.
#[must_use]
pub fn connected() -> Vec<Connected> {
    let mut all = Vec::new();
    for interface in getifaddrs().into_iter().flatten() {
        let ip = |storage: Option<nix::sys::socket::SockaddrStorage>| -> Option<IpAddr> {
            let storage = storage?;
            let v4 = storage.as_sockaddr_in().map(|address| address.ip().into());
            v4.or_else(|| storage.as_sockaddr_in6().map(|address| address.ip().into()))
        };
        if let (true, Some(address)) = (
            interface.flags.contains(InterfaceFlags::IFF_UP),
            ip(interface.address),
        ) {
            let length = ip(interface.netmask).and_then(|mask| ipnet::ip_mask_to_prefix(mask).ok());
            let net = length.and_then(|length| IpNet::new(address, length).ok());
            all.push(Connected {
                interface: interface.interface_name,
                net: net.unwrap_or_else(|| address.into()),
                is_loopback: interface.flags.contains(InterfaceFlags::IFF_LOOPBACK),
            });
        }
    }
    all
}

/// The name servers of files in the format of resolv.conf(5), except those on loopback. Files that cannot be read have none.
#[must_use]
pub fn resolvers(files: &[PathBuf]) -> Vec<IpAddr> {
    files
        .iter()
        .filter_map(|file| read_text(file, LONGEST_RESOLV_CONF).ok())
        .flat_map(|text| nameservers(&text))
        .filter(|address| is_elsewhere(*address))
        .collect()
}

/// Whether an address is neither of loopback nor unspecified.
#[must_use]
pub fn is_elsewhere(address: IpAddr) -> bool {
    let address = address.to_canonical();
    !address.is_loopback() && !address.is_unspecified()
}

/// Whether an address is valid on one link only, so that other hosts have it, too.
#[must_use]
pub fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// The resolvers of a resolv.conf(5).
fn nameservers(text: &str) -> Vec<IpAddr> {
    let address = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let name = words.next().filter(|word| *word == "nameserver");
        let address = name.and_then(|_| words.next())?;
        // `fe80::1%eth0`.
        address.split('%').next()?.parse().ok()
    };
    text.lines().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolvers_are_read_from_resolv_conf_except_those_on_loopback() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("resolv.conf");
        let text = "# test\nnameserver 192.0.2.53\nnameserver fe80::1%eth0\nsearch example\nnameserver 127.0.0.53\n\
                    nameserver ::1\nnameserver 0.0.0.0\nnameserver ::ffff:127.0.0.1\nnameserver\n";
        std::fs::write(&file, text).unwrap();
        let expected = ["192.0.2.53", "fe80::1"].map(|address| address.parse::<IpAddr>().unwrap());
        assert_eq!(resolvers(&[folder.path().join("none"), file]), expected);
    }
}
