//! Blocks of pcapng.

use std::ops::Range;

use common::packet::Direction;
use pcap_parser::{Block, InterfaceDescriptionBlock, OptionCode};

use super::interface::{Clock, Interface, InterfaceNames};
use super::link::LinkType;
use crate::pcapng::{SYSTEM_DROPS, Sample};

/// The offset of the packet in pcapng's two kinds of packet blocks.
const ENHANCED_PACKET: usize = 28;
const SIMPLE_PACKET: usize = 12;
/// pcapng's packet option with the direction.
const FLAGS: OptionCode = OptionCode(2);

/// The most interfaces of one section.
const MOST_INTERFACES: usize = 65_536;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteOrder {
    Little,
    Big,
}

/// What a capture of `agent record --capture` records about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The share of the traffic; `None` for captures of other programs.
    pub sample: Option<Sample>,
    /// Packets of the sample that are missing.
    pub lost: u64,
}

/// A record in the window.
pub(super) struct Record {
    pub(super) length: usize,
    pub(super) packet: Range<usize>,
    pub(super) wire_length: u32,
    pub(super) nanoseconds: Option<u64>,
    pub(super) direction: Option<Direction>,
    pub(super) interface: Interface,
}

pub(super) enum BlockRead {
    Packet(Record),
    Other(usize),
    End,
}

pub(super) fn understood(
    length: usize,
    block: &Block<'_>,
    order: &mut ByteOrder,
    interfaces: &mut Vec<Interface>,
    names: &mut InterfaceNames,
    origin: &mut Origin,
) -> Result<BlockRead, &'static str> {
    match block {
        Block::SectionHeader(header) => {
            let comments = header
                .options
                .iter()
                .filter(|option| option.code == OptionCode::Comment);
            let mut samples =
                comments.filter_map(|comment| Sample::from_comment(comment.as_str().ok()?));
            origin.sample = samples.next().or(origin.sample);
            *order = if header.big_endian() {
                ByteOrder::Big
            } else {
                ByteOrder::Little
            };
            interfaces.clear();
        }
        Block::InterfaceDescription(description) => {
            if interfaces.len() >= MOST_INTERFACES {
                return Err("it describes more interfaces than any host has");
            }
            interfaces.push(described(description, *order, names)?);
        }
        Block::EnhancedPacket(packet) => {
            let interface = *interfaces
                .get(packet.if_id as usize)
                .ok_or("its interface was not described")?;
            let captured = packet.caplen as usize;
            if captured > packet.data.len() {
                return Err("its packet is longer than the block");
            }
            let stamp = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
            return Ok(BlockRead::Packet(Record {
                length,
                packet: ENHANCED_PACKET..ENHANCED_PACKET + captured,
                wire_length: packet.origlen,
                nanoseconds: Some(interface.clock.nanoseconds(stamp)),
                direction: packet
                    .options
                    .iter()
                    .find(|option| option.code == FLAGS)
                    .and_then(|option| {
                        let bytes = *option.value.first_chunk()?;
                        let flags = if *order == ByteOrder::Big {
                            u32::from_be_bytes(bytes)
                        } else {
                            u32::from_le_bytes(bytes)
                        };
                        match flags & 3 {
                            1 => Some(Direction::Ingress),
                            2 => Some(Direction::Egress),
                            _ => None,
                        }
                    }),
                interface,
            }));
        }
        Block::SimplePacket(packet) => {
            let interface = *interfaces
                .first()
                .ok_or("its interface was not described")?;
            let most = if interface.snap_length == 0 {
                u32::MAX
            } else {
                interface.snap_length
            };
            let captured = (packet.origlen.min(most) as usize).min(packet.data.len());
            return Ok(BlockRead::Packet(Record {
                length,
                packet: SIMPLE_PACKET..SIMPLE_PACKET + captured,
                wire_length: packet.origlen,
                nanoseconds: None,
                direction: None,
                interface,
            }));
        }
        Block::InterfaceStatistics(statistics) if origin.sample.is_some() => {
            let mut drops = statistics
                .options
                .iter()
                .filter(|option| option.code == OptionCode(SYSTEM_DROPS));
            let bytes = drops
                .next()
                .and_then(|option| option.value.first_chunk().copied());
            let lost = bytes.map_or(
                0,
                if *order == ByteOrder::Big {
                    u64::from_be_bytes
                } else {
                    u64::from_le_bytes
                },
            );
            origin.lost = origin.lost.saturating_add(lost);
        }
        _ => {}
    }
    Ok(BlockRead::Other(length))
}

fn described(
    description: &InterfaceDescriptionBlock<'_>,
    order: ByteOrder,
    names: &mut InterfaceNames,
) -> Result<Interface, &'static str> {
    let link_number = description.linktype.0 as u32;
    // The parser reads the offset as little endian.
    let offset = if order == ByteOrder::Big {
        description.if_tsoffset.swap_bytes()
    } else {
        description.if_tsoffset
    };
    let name = description
        .if_name()
        .and_then(Result::ok)
        .map(|name| name.trim_end_matches('\0'));
    Ok(Interface {
        link: LinkType::of(link_number),
        link_number,
        clock: Clock::of(description.if_tsresol, offset)
            .ok_or("its resolution of time is not supported")?,
        number: match name.filter(|name| !name.is_empty()) {
            Some(name) => names.number(name),
            None => names.unnamed(),
        },
        snap_length: description.snaplen,
        check_bytes: 0,
    })
}
