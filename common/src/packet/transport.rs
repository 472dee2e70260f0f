//! TCP, UDP and ICMP: ports, and the events that packets start.

use super::request::is_query;
use super::{Bytes, Depth, Kind, Ports, Protocol, Unparsed};

pub(super) const ICMPV6: u16 = 58;
pub(super) const TCP: u16 = 6;
const ICMP: u16 = 1;
const UDP: u16 = 17;
/// The port of DNS.
const DNS: u16 = 53;
/// Extension headers hide the protocol. Protocol numbers have eight bits, so no packet has this one.
pub(super) const HIDDEN: u16 = 256;

/// The bytes of a first fragment's payload that limits require: the TCP or UDP header; where requests are counted, the
/// longest TCP header and the first bytes of a request, or the header of a DNS query.
#[inline(always)]
pub(super) const fn least(protocol: u16, depth: Depth) -> usize {
    match protocol {
        TCP if depth as u8 >= Depth::Requests as u8 => 60 + 4,
        TCP => 20,
        UDP if depth as u8 >= Depth::Requests as u8 => 8 + 12,
        UDP | ICMP | ICMPV6 => 8,
        _ => 0,
    }
}

/// The parsed transport header.
///
/// Too large for registers: as one number it would be packed and unpacked for each packet.
#[derive(Clone, Copy)]
#[repr(align(32))]
pub(super) struct Segment {
    pub protocol: Protocol,
    pub ports: Ports,
    pub has_ports: bool,
    pub kind: Kind,
    pub is_essential: bool,
}

/// A segment of which only the protocol is known.
#[inline(always)]
pub(super) fn portless(protocol: u16) -> Segment {
    let protocol = match protocol {
        TCP => Protocol::Tcp,
        UDP => Protocol::Udp,
        ICMP | ICMPV6 => Protocol::Icmp,
        HIDDEN => Protocol::Hidden,
        _ => Protocol::Other,
    };
    Segment {
        protocol,
        ports: Ports::NONE,
        has_ports: false,
        kind: Kind::Plain,
        is_essential: false,
    }
}

/// Parses the segment at `offset`. `begins_request` receives the offset of a TCP payload, and whether it is to port 53.
///
/// A header that is not readable is one that the host's stack drops, or in a further buffer of the frame: passing it
/// without ports and flags would bypass every limit that uses them.
#[inline(always)]
pub(super) fn segment(
    bytes: &(impl Bytes + ?Sized),
    offset: usize,
    protocol: u16,
    depth: Depth,
    begins_request: impl FnOnce(usize, bool) -> bool,
) -> Result<Segment, Unparsed> {
    let mut segment = portless(protocol);
    let is_udp = segment.protocol == Protocol::Udp;
    // DHCP must be detected at any depth.
    if !is_udp && (segment.protocol != Protocol::Tcp || depth < Depth::Ports) {
        return Ok(segment);
    }
    let raw = bytes.u32(offset).ok_or(Unparsed::TruncatedTransport)?;
    let raw = u32::from_be(raw);
    let ports = Ports {
        source: (raw >> 16) as u16,
        destination: raw as u16,
    };
    segment.ports = ports;
    segment.has_ports = true;
    if is_udp {
        segment.is_essential = is_dhcp(ports);
        if depth >= Depth::Requests && is_udp_query(bytes, offset + 8, ports) {
            segment.kind = Kind::Request;
        }
    } else {
        let flags = bytes.u16(offset + 12).ok_or(Unparsed::TruncatedTransport)?;
        const SYN: u16 = 0x02;
        const ACK: u16 = 0x10;
        const URGENT: u16 = 0x20;
        if flags & (SYN | ACK) == SYN {
            segment.kind = Kind::Connection;
        } else if depth >= Depth::Requests {
            let payload = bytes.within(offset + usize::from(flags >> 12) * 4);
            // Hosts take an urgent byte out of the stream, so that a request may begin behind it.
            if flags & URGENT != 0 || begins_request(payload, ports.destination == DNS) {
                segment.kind = Kind::Request;
            }
        }
    }
    Ok(segment)
}

/// DHCP and DHCPv6 between a client's port and a server's, in both directions. Traffic between these two ports is not
/// limited per source, so no other pair is accepted: only DHCP clients and servers use them.
#[inline(always)]
fn is_dhcp(ports: Ports) -> bool {
    matches!(
        (ports.source, ports.destination),
        (67, 67 | 68) | (68, 67) | (546, 547) | (547, 546 | 547)
    )
}

/// A DNS message over UDP that is not a response, whatever its operation and number of questions (RFC 1035, 4.1.1).
#[inline(always)]
fn is_udp_query(bytes: &(impl Bytes + ?Sized), payload: usize, ports: Ports) -> bool {
    ports.destination == DNS && bytes.u16(payload + 2).is_some_and(is_query)
}
