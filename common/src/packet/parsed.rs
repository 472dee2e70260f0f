//! Parsed packets: the fields that limits use.

use super::Address;
use crate::essential::Essential;

/// The direction of a packet, seen from this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// To this host.
    Ingress,
    /// From it.
    Egress,
}

/// The first header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// An Ethernet header, with or without VLAN tags.
    Ethernet,
    /// The IP header itself, as on tun and WireGuard devices.
    RawIp,
}

/// How far the policy in effect requires packets to be parsed. Deeper takes more loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// Address and protocol; ports only to detect essential traffic.
    Addresses = 0,
    /// Ports, and TCP's flags.
    Ports = 1,
    /// Whether the payload starts with a request.
    Requests = 2,
}

impl Depth {
    /// From the program's constant; unknown values are the deepest.
    #[inline(always)]
    #[must_use]
    pub const fn from_setting(setting: u32) -> Self {
        match setting {
            0 => Self::Addresses,
            1 => Self::Ports,
            _ => Self::Requests,
        }
    }
}

/// The protocols that limits distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP and ICMPv6.
    Icmp,
    /// Any other protocol.
    Other,
    /// Unknown: extension headers hide the protocol. The limits of all protocols apply.
    Hidden,
}

/// The event that a packet starts.
///
/// By design: a SYN with data (TCP Fast Open) is a connection and not also a request. A second request in one segment
/// (pipelining) is not counted, nor is one that does not start a segment. A retransmission is counted again, since
/// there is no state per flow. A DNS response is not a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// None.
    Plain,
    /// A TCP connection: SYN without ACK.
    Connection,
    /// An HTTP/1.x request line or a DNS query at the start of a payload: [`super::begins_request`].
    Request,
}

/// A parsed packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The sender's address.
    pub source: Address,
    /// The receiver's address.
    pub destination: Address,
    /// Whether the addresses are IPv4.
    pub is_ipv4: bool,
    /// The transport protocol.
    pub protocol: Protocol,
    /// Source and destination port; 0 if unknown. See [`Packet::ports`].
    pub(crate) ports: Ports,
    /// Whether the ports are known. Not an `Option`, since the kernel's verifier treats the content of `None` as read.
    pub(crate) has_ports: bool,
    /// The event that it starts.
    pub kind: Kind,
    /// Whether the host has no network without it: neighbour discovery and DHCP.
    pub is_essential: bool,
    /// The offset of the IP header.
    pub network_offset: u16,
    /// The offset of the transport header; 0 if there is none.
    pub transport_offset: u16,
}

/// Ports in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// The sender's.
    pub source: u16,
    /// The receiver's.
    pub destination: u16,
}

impl Ports {
    pub(super) const NONE: Self = Self {
        source: 0,
        destination: 0,
    };
}

impl Packet {
    /// The port on this host, if known.
    #[inline(always)]
    #[must_use]
    pub fn local_port(&self, direction: Direction) -> Option<u16> {
        self.has_ports.then(|| self.local_port_or_0(direction))
    }

    /// The port on this host; 0 if unknown.
    #[inline(always)]
    #[must_use]
    pub const fn local_port_or_0(&self, direction: Direction) -> u16 {
        match direction {
            Direction::Ingress => self.ports.destination,
            Direction::Egress => self.ports.source,
        }
    }

    /// Writes addresses and ports in network byte order, as the kernel looks up a socket by them; returns the number of words.
    #[inline(always)]
    pub fn write_tuple<const N: usize>(&self, words: &mut [u32; N]) -> u32 {
        const { assert!(N >= 9) };
        let ports =
            (u32::from(self.ports.source) << 16 | u32::from(self.ports.destination)).to_be();
        if self.is_ipv4 {
            words[0] = self.source.ipv4_memory();
            words[1] = self.destination.ipv4_memory();
            words[2] = ports;
            return 3;
        }
        for (first, address) in [(0, self.source), (4, self.destination)] {
            words[first] = address.hi as u32;
            words[first + 1] = (address.hi >> 32) as u32;
            words[first + 2] = address.lo as u32;
            words[first + 3] = (address.lo >> 32) as u32;
        }
        words[8] = ports;
        9
    }

    /// Whether the ports are known.
    #[inline(always)]
    #[must_use]
    pub const fn has_ports(&self) -> bool {
        self.has_ports
    }

    /// Source and destination port, if known.
    #[must_use]
    pub fn ports(&self) -> Option<Ports> {
        self.has_ports.then_some(self.ports)
    }

    /// The kind of essential traffic, if it is essential.
    #[inline(always)]
    #[must_use]
    pub const fn essential(&self) -> Option<Essential> {
        match self.protocol {
            _ if !self.is_essential => None,
            Protocol::Udp => Some(Essential::Dhcp),
            _ => Some(Essential::NeighbourDiscovery),
        }
    }

    /// The local address: this host's, unless the packet is forwarded or addressed to another host.
    #[inline(always)]
    #[must_use]
    pub const fn own(&self, direction: Direction) -> Address {
        match direction {
            Direction::Ingress => self.destination,
            Direction::Egress => self.source,
        }
    }

    /// The remote address.
    #[inline(always)]
    #[must_use]
    pub const fn other(&self, direction: Direction) -> Address {
        match direction {
            Direction::Ingress => self.source,
            Direction::Egress => self.destination,
        }
    }
}
