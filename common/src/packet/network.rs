//! IPv4 and IPv6 headers and fragments.

use super::extensions::{Transport, halves, is_extension};
use super::transport::{self, Segment};
use super::{Address, Depth, Packet, RareHeaders, Unparsed};

/// Neighbour discovery: router and neighbour solicitations and advertisements, redirects (RFC 4861).
const NEIGHBOUR_DISCOVERY: core::ops::RangeInclusive<u8> = 133..=137;

#[inline(always)]
pub(super) fn ipv4(
    bytes: &(impl RareHeaders + ?Sized),
    offset: usize,
    depth: Depth,
) -> Result<Packet, Unparsed> {
    let [first, second, third, source, destination] =
        bytes.u32s::<5>(offset).ok_or(Unparsed::TruncatedAddress)?;
    let version = first.to_ne_bytes()[0];
    let header = usize::from(version & 0xf) * 4;
    if version >> 4 != 4 || header < 20 {
        return Err(Unparsed::BadVersion);
    }
    let protocol = u16::from(third.to_ne_bytes()[1]);
    let transport_offset = offset + header;
    let fragment = u32::from_be(second) & (MORE_FRAGMENTS | FRAGMENT_OFFSET);
    if fragment != 0 {
        // The length in the header: the rest of the frame is padding.
        let payload = (u32::from_be(first) as usize & 0xffff).saturating_sub(header);
        check_fragment(fragment & FRAGMENT_OFFSET, protocol, payload, depth)?;
    }
    let segment = if fragment & FRAGMENT_OFFSET != 0 {
        transport::portless(protocol)
    } else {
        let begins = |payload, is_dns| bytes.begins_request(offset, payload, is_dns);
        transport::segment(bytes, transport_offset, protocol, depth, begins)?
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

/// Refuses a fragment that hides fields of limits: a first one that ends within its transport header, or a later one
/// that would overwrite the flags of a TCP header. The offset is in units of eight bytes; `payload` is the fragment's
/// length.
///
/// No link requires such fragments: the least MTU is 68 bytes for IPv4 and 1,280 for IPv6. Where requests are counted, links
/// of IPv4 need one of 84.
#[inline(always)]
fn check_fragment(
    offset: u32,
    protocol: u16,
    payload: usize,
    depth: Depth,
) -> Result<(), Unparsed> {
    match offset {
        // Unless it is the last fragment, hosts only keep whole units of it.
        0 if payload & !7 < transport::least(protocol, depth) => Err(Unparsed::TinyFragment),
        1 if protocol == transport::TCP => Err(Unparsed::OverlappingFragment),
        _ => Ok(()),
    }
}

#[inline(always)]
pub(super) fn ipv6(
    bytes: &(impl RareHeaders + ?Sized),
    offset: usize,
    depth: Depth,
) -> Result<Packet, Unparsed> {
    let [first, source_hi, source_lo, destination_hi, destination_lo] =
        bytes.u64s::<5>(offset).ok_or(Unparsed::TruncatedAddress)?;
    let [version, _, _, _, length_hi, length_lo, next, hop_limit] = first.to_ne_bytes();
    if version >> 4 != 6 {
        return Err(Unparsed::BadVersion);
    }
    let source = Address {
        hi: source_hi,
        lo: source_lo,
    };
    let destination = Address {
        hi: destination_hi,
        lo: destination_lo,
    };

    let transport = if is_extension(next) {
        let transport = bytes.behind_extensions(next, offset + 40);
        if transport.is_fragment() {
            let end = offset + 40 + usize::from(u16::from_be_bytes([length_hi, length_lo]));
            let payload = end
                .checked_sub(transport.offset())
                .ok_or(Unparsed::TinyFragment)?;
            check_fragment(
                transport.fragment_offset(),
                transport.protocol(),
                payload,
                depth,
            )?;
        }
        transport
    } else {
        Transport::new(u16::from(next), offset + 40)
    };
    let (protocol, transport_offset) = (transport.protocol(), bytes.within(transport.offset()));
    let mut segment = match transport_offset {
        0 => transport::portless(protocol),
        at => {
            let begins = |payload, is_dns| bytes.begins_request(offset, payload, is_dns);
            transport::segment(bytes, at, protocol, depth, begins)?
        }
    };
    // A hop limit of 255 cannot have passed a router, so only a neighbour can send these.
    if protocol == transport::ICMPV6
        && hop_limit == 255
        && transport_offset != 0
        && bytes
            .u16(transport_offset)
            .is_some_and(|word| NEIGHBOUR_DISCOVERY.contains(&halves(word).0))
    {
        segment.is_essential = true;
    }
    Ok(packet(
        source,
        destination,
        false,
        offset,
        transport_offset,
        segment,
    ))
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
