//! From a frame to a packet.

use super::link::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Network, is_tag};
use super::{Depth, Link, Packet, RareHeaders, Unparsed, network};

/// Parses a frame to the given depth.
///
/// # Errors
///
/// When the frame has no address to limit.
#[inline(always)]
pub fn parse(
    bytes: &(impl RareHeaders + ?Sized),
    link: Link,
    depth: Depth,
) -> Result<Packet, Unparsed> {
    let (is_ipv4, offset) = match link {
        Link::Ethernet => ethernet(bytes)?,
        Link::RawIp => match bytes.u16(0).ok_or(Unparsed::TruncatedAddress)? >> 12 {
            4 => (true, 0),
            6 => (false, 0),
            _ => return Err(Unparsed::BadVersion),
        },
    };
    if is_ipv4 {
        network::ipv4(bytes, offset, depth)
    } else {
        network::ipv6(bytes, offset, depth)
    }
}

#[inline(always)]
fn ethernet(bytes: &(impl RareHeaders + ?Sized)) -> Result<(bool, usize), Unparsed> {
    let ethertype = bytes.u16(12).ok_or(Unparsed::TruncatedLink)?;
    let (ethertype, offset) = if is_tag(ethertype) {
        let network = bytes.behind_tags(ethertype);
        (network.ethertype(), bytes.within(network.offset()))
    } else {
        (ethertype, 14)
    };
    match ethertype {
        ETHERTYPE_IPV4 => Ok((true, offset)),
        ETHERTYPE_IPV6 => Ok((false, offset)),
        ETHERTYPE_ARP => Err(Unparsed::Arp),
        Network::TRUNCATED => Err(Unparsed::TruncatedLink),
        ethertype if is_tag(ethertype) => Err(Unparsed::TooManyTags),
        _ => Err(Unparsed::NotIp),
    }
}
