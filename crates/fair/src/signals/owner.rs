//! The listener to which a connection belongs: the kernel finds it by local address, port and device.

use std::net::IpAddr;

use netlink_packet_sock_diag::inet::SocketId;

/// The local end of a listener or of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Local {
    /// Of IPv4, if it is mapped to IPv6.
    pub address: IpAddr,
    pub port: u16,
    /// The device to which it is bound, or 0. Connections take that of their listener.
    pub device: u32,
    /// Whether an unspecified address of IPv6 stands for those of IPv6 only.
    pub is_v6_only: bool,
}

impl Local {
    pub fn new(id: &SocketId, is_v6_only: bool) -> Self {
        Self {
            address: id.source_address.to_canonical(),
            port: id.source_port,
            device: id.interface_id,
            is_v6_only,
        }
    }

    /// The rank of this listener among those that a connection fits: an address is before a device, and an unspecified
    /// address of the connection's family before one of IPv6.
    fn rank(&self, connection: &Self) -> Option<u8> {
        if self.port != connection.port {
            return None;
        }
        let device = match self.device {
            0 => 0,
            device if device == connection.device => 2,
            _ => return None,
        };
        let is_same_family = self.address.is_ipv4() == connection.address.is_ipv4();
        let address = if self.address == connection.address {
            4
        } else if !self.address.is_unspecified() {
            return None;
        } else if is_same_family {
            1
        } else if self.address.is_ipv6() && !self.is_v6_only {
            0
        } else {
            return None;
        };
        Some(address + device)
    }
}

/// The listener to which a connection belongs, by its place: several, if they have the same address and port
/// (`SO_REUSEPORT`), of which one is it.
pub(super) fn owners(listeners: &[Local], connection: &Local) -> Vec<usize> {
    let rank = |listener: &Local| listener.rank(connection);
    let Some(best) = listeners.iter().filter_map(rank).max() else {
        return Vec::new();
    };
    let places = listeners.iter().enumerate();
    places
        .filter(|(_, listener)| rank(listener) == Some(best))
        .map(|(place, _)| place)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(address: &str) -> Local {
        Local {
            address: address.parse::<IpAddr>().unwrap().to_canonical(),
            port: 80,
            device: 0,
            is_v6_only: false,
        }
    }

    fn of(listeners: &[Local], connection: &str) -> Vec<usize> {
        owners(listeners, &local(connection))
    }

    #[test]
    fn a_connection_belongs_to_the_listener_of_its_address() {
        let listeners = ["10.0.0.1", "10.0.0.2", "0.0.0.0", "::", "2001:db8::1"].map(local);
        assert_eq!(of(&listeners, "10.0.0.1"), [0]);
        assert_eq!(of(&listeners, "10.0.0.3"), [2]);
        assert_eq!(of(&listeners, "::ffff:10.0.0.2"), [1]);
        assert_eq!(of(&listeners, "2001:db8::1"), [4]);
        assert_eq!(of(&listeners, "2001:db8::2"), [3]);
        assert_eq!(of(&listeners[..2], "10.0.0.3"), [0_usize; 0]);
    }

    #[test]
    fn a_listener_for_all_addresses_takes_those_of_ipv4_unless_it_is_for_ipv6_only() {
        let mut all = local("::");
        assert_eq!(of(&[all], "::ffff:10.0.0.1"), [0]);
        all.is_v6_only = true;
        assert_eq!(of(&[all], "::ffff:10.0.0.1"), [0_usize; 0]);
        assert_eq!(of(&[local("0.0.0.0")], "2001:db8::1"), [0_usize; 0]);
    }

    #[test]
    fn listeners_of_one_address_share_its_connections() {
        let listeners = ["0.0.0.0", "0.0.0.0", "10.0.0.1"].map(local);
        assert_eq!(of(&listeners, "10.0.0.1"), [2]);
        assert_eq!(of(&listeners, "10.0.0.2"), [0, 1]);
    }

    #[test]
    fn a_listener_of_a_device_has_the_connections_of_that_device_only() {
        let bound = Local {
            device: 7,
            ..local("0.0.0.0")
        };
        let listeners = [local("0.0.0.0"), bound];
        let inside = Local {
            device: 7,
            ..local("10.0.0.1")
        };
        assert_eq!(owners(&listeners, &inside), [1]);
        assert_eq!(of(&listeners, "10.0.0.1"), [0]);
    }
}
