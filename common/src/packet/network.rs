//! IPv4 and IPv6 headers, fragments and extension headers.

use super::transport::{self, Segment};
use super::{Address, Bytes, Depth, FURTHEST, Packet, Unparsed};

/// Extension headers that are looked through. A longer chain leaves a packet without ports.
pub const MAX_EXTENSIONS: usize = 8;

/// No header begins further in than this: eight extension headers of some length.
const LAST_HEADER: usize = 1024;
const _: () = assert!(LAST_HEADER <= FURTHEST);

/// Neighbour discovery: router and neighbour solicitations and advertisements, redirects (RFC 4861).
const NEIGHBOUR_DISCOVERY: core::ops::RangeInclusive<u8> = 133..=137;

#[inline(always)]
pub(super) fn ipv4(bytes: &(impl Bytes + ?Sized), offset: usize, depth: Depth) -> Result<Packet, Unparsed> {
    let [first, second, third, source, destination] = bytes.u32s::<5>(offset).ok_or(Unparsed::TruncatedAddress)?;
    let version = first.to_ne_bytes()[0];
    let header = usize::from(version & 0xf) * 4;
    if version >> 4 != 4 || header < 20 {
        return Err(Unparsed::BadVersion);
    }
    let protocol = third.to_ne_bytes()[1];
    let is_later_fragment = u32::from_be(second) & 0x1fff != 0;
    let transport_offset = offset + header;
    let segment = if is_later_fragment {
        transport::portless(protocol)
    } else {
        transport::segment(bytes, transport_offset, protocol, depth)
    };
    Ok(packet(
        Address::from_ipv4_memory(source),
        Address::from_ipv4_memory(destination),
        true,
        offset,
        transport_offset,
        segment,
    ))
}

#[inline(always)]
pub(super) fn ipv6(bytes: &(impl Bytes + ?Sized), offset: usize, depth: Depth) -> Result<Packet, Unparsed> {
    let [first, source_hi, source_lo, destination_hi, destination_lo] =
        bytes.u64s::<5>(offset).ok_or(Unparsed::TruncatedAddress)?;
    let [version, .., next, hop_limit] = first.to_ne_bytes();
    if version >> 4 != 6 {
        return Err(Unparsed::BadVersion);
    }
    let source = Address { hi: source_hi, lo: source_lo };
    let destination = Address { hi: destination_hi, lo: destination_lo };

    let transport =
        if is_extension(next) { bytes.behind_extensions(next, offset + 40) } else { Transport::new(next, offset + 40) };
    let (protocol, transport_offset) = (transport.protocol(), bytes.within(transport.offset()));
    let mut segment = match transport_offset {
        0 => transport::portless(protocol),
        at => transport::segment(bytes, at, protocol, depth),
    };
    // A hop limit of 255 cannot have come through a router, so only a neighbour can send these.
    if protocol == transport::ICMPV6
        && hop_limit == 255
        && transport_offset != 0
        && bytes.u16(transport_offset).is_some_and(|word| NEIGHBOUR_DISCOVERY.contains(&halves(word).0))
    {
        segment.is_essential = true;
    }
    Ok(packet(source, destination, false, offset, transport_offset, segment))
}

/// What a packet carries, and where: one number, for functions that return numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Transport(u32);

impl Transport {
    /// There is no header to be read.
    const UNKNOWN: Self = Self::new(NONE, 0);

    #[inline(always)]
    const fn new(protocol: u8, offset: usize) -> Self {
        Self((offset as u32) << 8 | protocol as u32)
    }

    /// The transport protocol's number.
    #[inline(always)]
    const fn protocol(self) -> u8 {
        self.0 as u8
    }

    /// Where its header begins; 0 if there is none to be read.
    #[inline(always)]
    const fn offset(self) -> usize {
        (self.0 >> 8) as usize
    }

    /// As one number.
    #[inline(always)]
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// What [`Transport::to_bits`] was given.
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }
}

/// Whether `next` is an extension header that is looked through.
#[inline(always)]
const fn is_extension(next: u8) -> bool {
    matches!(next, 0 | 43 | 44 | 51 | 60 | 135 | 139 | 140)
}

/// What comes behind the extension header `next` at `offset`, and those after it.
#[inline(always)]
pub fn behind_extensions(bytes: &(impl Bytes + ?Sized), mut next: u8, mut offset: usize) -> Transport {
    for _ in 0..=MAX_EXTENSIONS {
        match next {
            // Hop-by-hop, routing, destination options, mobility, host identity, shim6: length in units of eight bytes.
            0 | 43 | 60 | 135 | 139 | 140 => {
                let Some((following, length)) = bytes.u16(offset).map(halves) else { return Transport::UNKNOWN };
                next = following;
                offset += (usize::from(length) + 1) * 8;
            }
            // Authentication: in units of four, less two.
            51 => {
                let Some((following, length)) = bytes.u16(offset).map(halves) else { return Transport::UNKNOWN };
                next = following;
                offset += (usize::from(length) + 2) * 4;
            }
            44 => {
                let (Some((following, _)), Some(fragment)) = (bytes.u16(offset).map(halves), bytes.u16(offset + 2))
                else {
                    return Transport::UNKNOWN;
                };
                next = following;
                offset += 8;
                if fragment & 0xfff8 != 0 {
                    // What follows is the middle of something, unless more extension headers were in the first.
                    return Transport::new(next, 0);
                }
            }
            _ => return Transport::new(next, offset),
        }
        if offset > LAST_HEADER {
            return Transport::UNKNOWN;
        }
        offset = bytes.forget(offset);
    }
    Transport::UNKNOWN
}

/// The first and the second byte of two.
#[inline(always)]
const fn halves(word: u16) -> (u8, u8) {
    ((word >> 8) as u8, word as u8)
}

/// No next header: a protocol number that is none of those that limits tell apart.
const NONE: u8 = 59;

#[inline(always)]
fn packet(
    source: Address,
    destination: Address,
    is_ipv4: bool,
    network: usize,
    transport: usize,
    segment: Segment,
) -> Packet {
    Packet {
        source,
        destination,
        is_ipv4,
        protocol: segment.protocol,
        ports: segment.ports,
        has_ports: segment.has_ports,
        kind: segment.kind,
        is_essential: segment.is_essential,
        network_offset: network as u16,
        transport_offset: transport as u16,
    }
}
