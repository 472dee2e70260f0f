//! IPv4 and IPv6 headers, fragments and extension headers.

use super::transport::{self, Segment};
use super::{Address, Bytes, Depth, FURTHEST, Packet, Unparsed};

/// Extension headers that are looked through. A longer chain hides the protocol.
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
    let protocol = u16::from(third.to_ne_bytes()[1]);
    let transport_offset = offset + header;
    let fragment = u32::from_be(second) & (MORE_FRAGMENTS | FRAGMENT_OFFSET);
    if fragment != 0 {
        // The length that the header tells: what follows in the frame is padding.
        let payload = (u32::from_be(first) as usize & 0xffff).saturating_sub(header);
        check_fragment(fragment & FRAGMENT_OFFSET, protocol, payload, depth)?;
    }
    let segment = if fragment & FRAGMENT_OFFSET != 0 {
        transport::portless(protocol)
    } else {
        transport::segment(bytes, transport_offset, protocol, depth)?
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

/// The flag and the offset of a fragment, in units of eight bytes, in an IPv4 header's second word.
const MORE_FRAGMENTS: u32 = 0x2000;
const FRAGMENT_OFFSET: u32 = 0x1fff;

/// Refuses a fragment that hides what limits go by: a first one that ends within its transport header, or a later one that
/// would overwrite the flags of a TCP header. The offset is in units of eight bytes, `payload` what the fragment carries.
///
/// No link needs such fragments: each carries 68 bytes of IPv4, or 1,280 of IPv6.
#[inline(always)]
fn check_fragment(offset: u32, protocol: u16, payload: usize, depth: Depth) -> Result<(), Unparsed> {
    match offset {
        // Of a fragment that others follow, hosts keep whole units only.
        0 if payload & !7 < transport::least(protocol, depth) => Err(Unparsed::TinyFragment),
        1 if protocol == transport::TCP => Err(Unparsed::OverlappingFragment),
        _ => Ok(()),
    }
}

#[inline(always)]
pub(super) fn ipv6(bytes: &(impl Bytes + ?Sized), offset: usize, depth: Depth) -> Result<Packet, Unparsed> {
    let [first, source_hi, source_lo, destination_hi, destination_lo] =
        bytes.u64s::<5>(offset).ok_or(Unparsed::TruncatedAddress)?;
    let [version, _, _, _, length_hi, length_lo, next, hop_limit] = first.to_ne_bytes();
    if version >> 4 != 6 {
        return Err(Unparsed::BadVersion);
    }
    let source = Address { hi: source_hi, lo: source_lo };
    let destination = Address { hi: destination_hi, lo: destination_lo };

    let transport = if is_extension(next) {
        let transport = bytes.behind_extensions(next, offset + 40);
        if transport.is_fragment() {
            let end = offset + 40 + usize::from(u16::from_be_bytes([length_hi, length_lo]));
            let payload = end.checked_sub(transport.offset()).ok_or(Unparsed::TinyFragment)?;
            check_fragment(transport.fragment_offset(), transport.protocol(), payload, depth)?;
        }
        transport
    } else {
        Transport::new(u16::from(next), offset + 40)
    };
    let (protocol, transport_offset) = (transport.protocol(), bytes.within(transport.offset()));
    let mut segment = match transport_offset {
        0 => transport::portless(protocol),
        at => transport::segment(bytes, at, protocol, depth)?,
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
    /// There is a header, and extension headers before it that are not followed to their end.
    const HIDDEN: Self = Self::new(transport::HIDDEN, 0);
    /// A fragment that others follow, or that follows others.
    const FRAGMENT: u32 = 1 << 9;
    /// Where the fragment's offset begins, of which is only kept whether it is 0, 1 or more; and where the header's does.
    const FRAGMENT_OFFSET: u32 = 10;
    const OFFSET: u32 = 12;

    #[inline(always)]
    const fn new(protocol: u16, offset: usize) -> Self {
        Self((offset as u32) << Self::OFFSET | protocol as u32)
    }

    /// The same in a first fragment.
    #[inline(always)]
    const fn of_first_fragment(self, is_first: bool) -> Self {
        if is_first { Self(self.0 | Self::FRAGMENT) } else { self }
    }

    /// What follows the header of a later fragment, at `offset` in units of eight bytes.
    #[inline(always)]
    const fn of_later_fragment(next: u8, offset: u16) -> Self {
        // More extension headers may have been in the first.
        let protocol = if is_extension(next) { transport::HIDDEN } else { next as u16 };
        let offset = if offset > 1 { 2 } else { 1 };
        Self(Self::new(protocol, 0).0 | Self::FRAGMENT | offset << Self::FRAGMENT_OFFSET)
    }

    /// The transport protocol's number, or [`transport::HIDDEN`].
    #[inline(always)]
    const fn protocol(self) -> u16 {
        (self.0 & 0x1ff) as u16
    }

    /// Where its header begins; 0 if there is none to be read.
    #[inline(always)]
    const fn offset(self) -> usize {
        (self.0 >> Self::OFFSET) as usize
    }

    #[inline(always)]
    const fn is_fragment(self) -> bool {
        self.0 & Self::FRAGMENT != 0
    }

    /// 0 in a first fragment, 1 in one eight bytes on, 2 in any other.
    #[inline(always)]
    const fn fragment_offset(self) -> u32 {
        self.0 >> Self::FRAGMENT_OFFSET & 3
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
    let mut is_first_fragment = false;
    for _ in 0..=MAX_EXTENSIONS {
        match next {
            // Hop-by-hop, routing, destination options, mobility, host identity, shim6: length in units of eight bytes.
            0 | 43 | 60 | 135 | 139 | 140 => {
                let Some((following, length)) = bytes.u16(offset).map(halves) else { return Transport::HIDDEN };
                next = following;
                offset += (usize::from(length) + 1) * 8;
            }
            // Authentication: in units of four, less two.
            51 => {
                let Some((following, length)) = bytes.u16(offset).map(halves) else { return Transport::HIDDEN };
                next = following;
                offset += (usize::from(length) + 2) * 4;
            }
            44 => {
                let (Some((following, _)), Some(fragment)) = (bytes.u16(offset).map(halves), bytes.u16(offset + 2))
                else {
                    return Transport::HIDDEN;
                };
                next = following;
                offset += 8;
                if fragment & 0xfff8 != 0 {
                    return Transport::of_later_fragment(next, fragment >> 3);
                }
                is_first_fragment |= fragment & 1 != 0;
            }
            _ => return Transport::new(u16::from(next), offset).of_first_fragment(is_first_fragment),
        }
        if offset > LAST_HEADER {
            return Transport::HIDDEN;
        }
        offset = bytes.forget(offset);
    }
    Transport::HIDDEN
}

/// The first and the second byte of two.
#[inline(always)]
const fn halves(word: u16) -> (u8, u8) {
    ((word >> 8) as u8, word as u8)
}

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
