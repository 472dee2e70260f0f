//! From a packet to the rules it is held to.

use aya_ebpf::btf_maps::lpm_trie::Key as Prefix;
use common::counters::Bypass;
use common::packet::{Direction, Packet, Protocol};
use common::rule::{RuleSpan, Subject};
use common::settings::{PortSpans, PrefixEntry, span_index};

use crate::maps::{PORTS, PREFIXES, setting};

/// The rules for a packet and what they look at, or why there are none.
#[inline(always)]
pub fn classify(
    packet: &Packet,
    direction: Direction,
    interface: u32,
    length: u32,
) -> Result<(RuleSpan, Subject), Bypass> {
    if packet.is_essential {
        return Err(Bypass::Essential);
    }
    let other = packet.other(direction);
    let entry = prefix_entry(other.octets());
    if entry.flags & PrefixEntry::NEVER_LIMIT != 0 {
        return Err(Bypass::NeverLimit);
    }
    if entry.flags & PrefixEntry::UNLIMITED != 0 {
        return Err(Bypass::Unlimited);
    }
    let local_port = packet.local_port(direction);
    let mut span = span(packet, local_port).ok_or(Bypass::Unlimited)?;
    if span.count == 0 {
        return Err(Bypass::Unlimited);
    }
    span.first += u32::from(entry.grade) * setting!(rules_per_grade);
    let subject = Subject {
        hi: other.hi,
        lo: other.lo,
        is_ipv4: u32::from(packet.is_ipv4),
        local_port: u32::from(local_port.unwrap_or(0)),
        class: entry.class,
        interface,
        length,
        _pad: 0,
    };
    Ok((span, subject))
}

#[inline(always)]
fn prefix_entry(address: [u8; 16]) -> PrefixEntry {
    if setting!(prefixes_in_use) == 0 {
        return PrefixEntry::default();
    }
    PREFIXES.get(&Prefix::new(128, address)).copied().unwrap_or_default()
}

#[inline(always)]
fn span(packet: &Packet, local_port: Option<u16>) -> Option<RuleSpan> {
    let index = span_index(packet.protocol, packet.kind);
    if setting!(ports_in_use) != 0
        && matches!(packet.protocol, Protocol::Tcp | Protocol::Udp)
        && let Some(port) = local_port
    {
        return PORTS.get(u32::from(port))?.packed.get(index).map(|packed| PortSpans::unpack(*packed));
    }
    if index < common::settings::SPANS { Some(setting!(spans[index])) } else { None }
}
