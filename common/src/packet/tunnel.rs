//! Headers inside of a tunnel, which each packet of a segmented buffer repeats in addition to the outer headers.

use super::link::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, is_tag};
use super::{Bytes, FURTHEST, Packet, Protocol};

const TCP: u8 = 6;
const UDP: u8 = 17;
const IPV4: u8 = 4;
const IPV6: u8 = 41;
const GRE: u8 = 47;
/// The type of a whole Ethernet frame in GRE and Geneve.
const ETHERNET: u16 = 0x6558;
/// VXLAN's port, and the one that Linux used before its assignment.
const VXLAN: [u16; 2] = [4789, 8472];
const GENEVE: u16 = 6081;

/// The length of all headers before the innermost payload, in bytes. `None` if the packet is not IP in IP, GRE, VXLAN
/// or Geneve, or its inner headers cannot be read.
///
/// `transport` is the offset of the outer transport header, `protocol` its number.
#[inline(always)]
fn tunnel_headers(bytes: &(impl Bytes + ?Sized), protocol: u8, transport: usize) -> Option<u32> {
    let (ethertype, offset) = match protocol {
        IPV4 => (ETHERTYPE_IPV4, transport),
        IPV6 => (ETHERTYPE_IPV6, transport),
        GRE => {
            let flags = bytes.u16(transport)?;
            // Checksum, key and sequence number (RFC 2890).
            let options = (flags >> 15 & 1) + (flags >> 13 & 1) + (flags >> 12 & 1);
            (
                bytes.u16(transport + 2)?,
                transport + 4 + 4 * usize::from(options),
            )
        }
        UDP => match bytes.u16(transport + 2)? {
            port if port == VXLAN[0] || port == VXLAN[1] => (ETHERNET, transport + 8 + 8),
            GENEVE => {
                let options = usize::from(bytes.u16(transport + 8)? >> 8 & 0x3f);
                (bytes.u16(transport + 10)?, transport + 8 + 8 + 4 * options)
            }
            _ => return None,
        },
        _ => return None,
    };
    let mut offset = inside(bytes, offset)?;
    let mut ethertype = ethertype;
    if ethertype == ETHERNET {
        ethertype = bytes.u16(offset + 12)?;
        offset += 14;
        if is_tag(ethertype) {
            ethertype = bytes.u16(offset + 2)?;
            offset += 4;
        }
        offset = inside(bytes, offset)?;
    }
    let (protocol, transport) = match ethertype {
        ETHERTYPE_IPV4 => (
            bytes.u16(offset + 8)? as u8,
            offset + usize::from(bytes.u16(offset)? >> 8 & 0xf) * 4,
        ),
        ETHERTYPE_IPV6 => ((bytes.u16(offset + 6)? >> 8) as u8, offset + 40),
        _ => return None,
    };
    let transport = inside(bytes, transport)?;
    let length = match protocol {
        TCP => usize::from(bytes.u16(transport + 12)? >> 12) * 4,
        UDP => 8,
        _ => return None,
    };
    Some((transport + length) as u32)
}

/// The offset, unknown to the verifier, if a header can start there.
#[inline(always)]
fn inside(bytes: &(impl Bytes + ?Sized), offset: usize) -> Option<usize> {
    if offset > FURTHEST - 64 {
        None
    } else {
        Some(bytes.forget(offset))
    }
}

/// The offsets and types of a packet's headers as one number, for functions of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Layers(u32);

impl Layers {
    const TRANSPORT: u32 = 11;
    const PROTOCOL: u32 = 22;
    const IS_IPV4: u32 = 25;

    #[inline(always)]
    pub(super) const fn of(packet: &Packet) -> Self {
        Self(
            packet.network_offset as u32
                | (packet.transport_offset as u32) << Self::TRANSPORT
                | (packet.protocol as u32) << Self::PROTOCOL
                | (packet.is_ipv4 as u32) << Self::IS_IPV4,
        )
    }

    /// The number.
    #[inline(always)]
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// From the number of [`Layers::to_bits`].
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    #[inline(always)]
    const fn network(self) -> usize {
        self.0 as usize & FURTHEST
    }

    #[inline(always)]
    const fn transport(self) -> usize {
        (self.0 >> Self::TRANSPORT) as usize & FURTHEST
    }

    #[inline(always)]
    const fn is(self, protocol: Protocol) -> bool {
        self.0 >> Self::PROTOCOL & 7 == protocol as u32
    }

    #[inline(always)]
    const fn is_ipv4(self) -> bool {
        self.0 >> Self::IS_IPV4 & 1 != 0
    }
}

const _: () = assert!(
    FURTHEST < 1 << Layers::TRANSPORT,
    "an offset has as many bits"
);

/// The bytes before the payload of each packet in a buffer: link, network and transport header, and those of a packet
/// inside of a tunnel.
#[inline(always)]
pub fn headers(bytes: &(impl Bytes + ?Sized), layers: Layers) -> u32 {
    let transport = bytes.within(layers.transport());
    if layers.is(Protocol::Tcp) {
        return transport as u32 + u32::from(bytes.u16(transport + 12).unwrap_or(0) >> 12) * 4;
    }
    let network = bytes.within(layers.network());
    let number = if layers.is_ipv4() {
        bytes.u16(network + 8).unwrap_or(0)
    } else {
        bytes.u16(network + 6).unwrap_or(0) >> 8
    };
    match tunnel_headers(bytes, number as u8, transport) {
        Some(headers) => headers,
        None if layers.is(Protocol::Udp) => transport as u32 + 8,
        None => transport as u32,
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use crate::packet::build::Frame;
    use crate::packet::{Depth, Link, parse};

    const PAYLOAD: &[u8] = &[7; 100];
    const HOSTS: ([u8; 4], [u8; 4]) = ([192, 0, 2, 1], [192, 0, 2, 2]);

    fn inner() -> Vec<u8> {
        Frame::ethernet()
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
            .tcp(1, 2, 16, PAYLOAD)
            .build()
    }

    fn headers(frame: &[u8]) -> u32 {
        parse(frame, Link::Ethernet, Depth::Addresses)
            .unwrap()
            .headers(frame)
    }

    fn outer() -> Frame {
        Frame::ethernet().ipv4(HOSTS.0, HOSTS.1)
    }

    #[test]
    fn headers_end_where_the_innermost_payload_begins() {
        let vxlan = [&[8, 0, 0, 0, 0, 0, 1, 0][..], &inner()].concat();
        let tagged = Frame::ethernet()
            .vlan(5)
            .ipv6([1; 16], [2; 16])
            .udp(1, 2, PAYLOAD)
            .build();
        let geneve = [&[2, 0, 0x65, 0x58, 0, 0, 1, 0][..], &[0; 8], &tagged].concat();
        let gre = [&[0x20, 0, 8, 0, 0, 0, 0, 9][..], &inner()[14..]].concat();
        let bridged = [&[0, 0, 0x65, 0x58][..], &inner()].concat();
        let frames = [
            Frame::ethernet()
                .ipv4(HOSTS.0, HOSTS.1)
                .tcp(1, 2, 16, PAYLOAD)
                .build(),
            Frame::ethernet()
                .vlan(9)
                .ipv4_with_options(HOSTS.0, HOSTS.1, 3)
                .udp(1, 2, PAYLOAD)
                .build(),
            outer().udp(5, 4789, &vxlan).build(),
            Frame::ethernet()
                .ipv6([3; 16], [4; 16])
                .udp(5, 8472, &vxlan)
                .build(),
            outer().udp(5, 6081, &geneve).build(),
            outer().payload(47, &gre).build(),
            outer().payload(47, &bridged).build(),
            outer().payload(4, &inner()[14..]).build(),
            outer().payload(41, &tagged[18..]).build(),
        ];
        for (nth, frame) in frames.iter().enumerate() {
            assert_eq!(
                headers(frame) as usize,
                frame.len() - PAYLOAD.len(),
                "frame {nth}"
            );
        }
    }

    #[test]
    fn inner_headers_that_cannot_be_read_leave_the_outer_ones() {
        let vxlan = [&[8, 0, 0, 0, 0, 0, 1, 0][..], &inner()].concat();
        let whole = outer().udp(5, 4789, &vxlan).build();
        for length in 42..whole.len() - PAYLOAD.len() - 6 {
            assert_eq!(headers(&whole[..length]), 42, "{length}");
        }
        assert_eq!(
            headers(&outer().udp(5, 4790, &vxlan).build()),
            42,
            "another port"
        );
    }
}
