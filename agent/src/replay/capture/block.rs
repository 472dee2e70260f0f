//! Blocks of pcapng.

use std::ops::Range;

use common::packet::Direction;
use pcap_parser::{Block, InterfaceDescriptionBlock, OptionCode};

use super::interface::{Clock, Interface, InterfaceNames};
use super::link::LinkType;
use crate::pcapng::{SYSTEM_DROPS, Sample};

/// The offset of the packet in pcapng's kinds of packet blocks.
const ENHANCED_PACKET: usize = 28;
const SIMPLE_PACKET: usize = 12;
/// The obsolete Packet Block of old versions of Wireshark.
const PACKET_BLOCK: u32 = 2;
/// The same from the end of its type and length on.
const PACKET_BLOCK_HEADER: usize = 20;
/// pcapng's packet option with the direction and the length of the frame check sequence.
const FLAGS: OptionCode = OptionCode(2);
/// pcapng's option of an interface with the length of its frame check sequences.
const CHECK_LENGTH: OptionCode = OptionCode(13);
/// The most bytes of a frame check sequence; larger values are bits, as an early draft has it.
const MOST_CHECK_BYTES: u8 = 8;

/// The most interfaces of one section.
const MOST_INTERFACES: usize = 65_536;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteOrder {
    Little,
    Big,
}

impl ByteOrder {
    /// Two bytes at this offset; 0 beyond the end.
    fn half(self, bytes: &[u8], at: usize) -> u16 {
        let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |bytes| match self {
            Self::Little => u16::from_le_bytes(*bytes),
            Self::Big => u16::from_be_bytes(*bytes),
        })
    }

    /// Four bytes at this offset; 0 beyond the end.
    fn word(self, bytes: &[u8], at: usize) -> u32 {
        let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |bytes| match self {
            Self::Little => u32::from_le_bytes(*bytes),
            Self::Big => u32::from_be_bytes(*bytes),
        })
    }
}

/// The flags of a packet.
#[derive(Clone, Copy, Default)]
struct Flags(u32);

impl Flags {
    const fn direction(self) -> Option<Direction> {
        match self.0 & 3 {
            1 => Some(Direction::Ingress),
            2 => Some(Direction::Egress),
            _ => None,
        }
    }

    /// The interface, with the packet's own length of the frame check sequence if it has one.
    const fn on(self, interface: Interface) -> Interface {
        match self.0 >> 5 & 0xf {
            0 => interface,
            check_bytes => Interface {
                check_bytes,
                ..interface
            },
        }
    }
}

/// What a capture of `weir record --capture` records about itself.
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
            let flags = packet.options.iter().find(|option| option.code == FLAGS);
            let flags = flags.map_or(Flags::default(), |option| {
                Flags(order.word(&option.value, 0))
            });
            return Ok(BlockRead::Packet(Record {
                length,
                packet: ENHANCED_PACKET..ENHANCED_PACKET + captured,
                wire_length: packet.origlen,
                nanoseconds: Some(interface.clock.nanoseconds(stamp)),
                direction: flags.direction(),
                interface: flags.on(interface),
            }));
        }
        // The parser reads types as little endian.
        Block::Unknown(block) if order.word(&block.block_type.to_le_bytes(), 0) == PACKET_BLOCK => {
            return obsolete(length, block.data, *order, interfaces);
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

/// A packet of the obsolete Packet Block, which has the fields of an Enhanced Packet Block with a shorter number of its
/// interface.
fn obsolete(
    length: usize,
    data: &[u8],
    order: ByteOrder,
    interfaces: &[Interface],
) -> Result<BlockRead, &'static str> {
    let interface = *interfaces
        .get(usize::from(order.half(data, 0)))
        .ok_or("its interface was not described")?;
    let captured = order.word(data, 12) as usize;
    let rest = data
        .get(PACKET_BLOCK_HEADER..)
        .and_then(|packet| packet.get(captured..))
        .ok_or("its packet is longer than the block")?;
    let options = rest.get(captured.wrapping_neg() % 4..).unwrap_or_default();
    let flags = flags_of(options, order);
    let stamp = u64::from(order.word(data, 4)) << 32 | u64::from(order.word(data, 8));
    Ok(BlockRead::Packet(Record {
        length,
        packet: ENHANCED_PACKET..ENHANCED_PACKET + captured,
        wire_length: order.word(data, 16),
        nanoseconds: Some(interface.clock.nanoseconds(stamp)),
        direction: flags.direction(),
        interface: flags.on(interface),
    }))
}

/// The flags among the options of a packet.
fn flags_of(mut options: &[u8], order: ByteOrder) -> Flags {
    while options.len() >= 4 {
        let (code, length) = (order.half(options, 0), usize::from(order.half(options, 2)));
        if code == FLAGS.0 {
            return Flags(order.word(options, 4));
        }
        let next = 4 + length.next_multiple_of(4);
        options = options.get(next..).unwrap_or_default();
    }
    Flags::default()
}

/// The length of an interface's frame check sequences.
fn check_bytes(description: &InterfaceDescriptionBlock<'_>) -> u32 {
    let mut options = description.options.iter();
    let value = options
        .find(|option| option.code == CHECK_LENGTH)
        .and_then(|option| option.value.first().copied())
        .unwrap_or(0);
    u32::from(if value > MOST_CHECK_BYTES {
        value / 8
    } else {
        value
    })
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
        check_bytes: check_bytes(description),
    })
}
