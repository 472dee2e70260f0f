//! Names of this host's interfaces.

use std::{fs, io};

/// The names of this host's interfaces.
#[must_use]
pub fn names() -> Vec<String> {
    let mut names: Vec<String> = nix::net::if_::if_nameindex()
        .map(|list| {
            list.iter()
                .map(|interface| interface.name().to_string_lossy().into_owned())
                .collect()
        })
        .unwrap_or_default();
    names.sort();
    names
}

/// The interfaces of the default routes.
///
/// # Errors
///
/// When the routing table cannot be read, or has no default route.
pub fn default_route_interfaces() -> io::Result<Vec<String>> {
    // Destination and mask of an IPv4 default route are both 0; IPv6's is ::/0 and its last column the interface.
    let ipv4 = fs::read_to_string("/proc/net/route")?;
    let ipv6 = fs::read_to_string("/proc/net/ipv6_route").unwrap_or_default();
    let mut names: Vec<String> = ipv4
        .lines()
        .filter_map(|line| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            matches!(columns.get(1..8)?, ["00000000", .., "00000000"])
                .then(|| columns[0].to_owned())
        })
        .chain(ipv6.lines().filter_map(|line| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            let is_default =
                columns.first()?.bytes().all(|digit| digit == b'0') && *columns.get(1)? == "00";
            columns
                .last()
                .filter(|name| is_default && **name != "lo")
                .map(|name| (*name).to_owned())
        }))
        .collect();
    names.sort();
    names.dedup();
    if names.is_empty() {
        return Err(io::Error::other(
            "this host has no default route: name the interfaces in a config",
        ));
    }
    Ok(names)
}
