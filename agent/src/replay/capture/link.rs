//! Link types: the frame of a captured packet as a hook would have received it.

use std::ops::Range;

use common::packet::{Direction, FURTHEST, Link};

/// The first header of a capture's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkType {
    /// An Ethernet header.
    Ethernet,
    /// The IP header.
    RawIp,
    /// Linux's header of 16 bytes (SLL), in captures of all interfaces.
    Cooked,
    /// The same with the interface (SLL2), 20 bytes.
    Cooked2,
}

/// Length of an Ethernet header without tags.
const ETHERNET: usize = 14;
/// Length of [`LinkType::Cooked`]'s header, which ends with the ethertype.
const COOKED: usize = 16;
const COOKED2: usize = 20;

/// `PACKET_OUTGOING` of <linux/if_packet.h>.
const OUTGOING: u16 = 4;
/// Hardware types of <linux/if_arp.h> without a link header: PPP, tunnels, none.
const WITHOUT_HEADER: [u16; 8] = [512, 768, 769, 776, 778, 783, 823, 65_534];

/// The location of a packet's frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Framed {
    pub(super) link: Link,
    /// The range in the captured bytes.
    pub(super) frame: Range<usize>,
    /// The ethertype of a frame that lacks an Ethernet header, which is added.
    pub(super) header: Option<[u8; 2]>,
    /// The difference between the frame's length on the wire and the packet's.
    pub(super) longer: i64,
    pub(super) direction: Option<Direction>,
    /// The interface's index, if the header has it.
    pub(super) interface: Option<u32>,
}

impl LinkType {
    /// From the number in the file (<https://www.tcpdump.org/linktypes.html>).
    pub(super) const fn of(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Ethernet),
            // The numbers for raw IP in BSDs and Linux, and for raw IP of one version.
            12 | 14 | 101 | 228 | 229 => Some(Self::RawIp),
            113 => Some(Self::Cooked),
            276 => Some(Self::Cooked2),
            _ => None,
        }
    }

    /// Locates the frame in a packet of which `data` was captured; `None` if that ends within the header.
    #[inline]
    pub(super) fn frame(self, data: &[u8]) -> Option<Framed> {
        let plain = Framed {
            link: Link::Ethernet,
            frame: 0..data.len(),
            header: None,
            longer: 0,
            direction: None,
            interface: None,
        };
        let word = |at: usize| Some(u16::from_be_bytes(*data.get(at..)?.first_chunk()?));
        let direction = |kind: u16| {
            Some(if kind == OUTGOING {
                Direction::Egress
            } else {
                Direction::Ingress
            })
        };
        match self {
            Self::Ethernet => Some(plain),
            Self::RawIp => Some(Framed {
                link: Link::RawIp,
                ..plain
            }),
            Self::Cooked => {
                let (direction, hardware) = (direction(word(0)?), word(2)?);
                word(COOKED - 2)?;
                Some(if WITHOUT_HEADER.contains(&hardware) {
                    let frame = COOKED..data.len();
                    Framed {
                        link: Link::RawIp,
                        frame,
                        longer: -(COOKED as i64),
                        direction,
                        ..plain
                    }
                } else {
                    // Its last twelve bytes replace the addresses, which no limit reads, and the ethertype.
                    let cut = COOKED - ETHERNET;
                    Framed {
                        frame: cut..data.len(),
                        longer: -(cut as i64),
                        direction,
                        ..plain
                    }
                })
            }
            Self::Cooked2 => {
                let header: &[u8; COOKED2] = data.first_chunk()?;
                let direction = direction(u16::from(header[10]));
                let interface = Some(u32::from_be_bytes([
                    header[4], header[5], header[6], header[7],
                ]));
                let framed = Framed {
                    frame: COOKED2..data.len(),
                    direction,
                    interface,
                    ..plain
                };
                Some(if WITHOUT_HEADER.contains(&word(8)?) {
                    Framed {
                        link: Link::RawIp,
                        longer: -(COOKED2 as i64),
                        ..framed
                    }
                } else {
                    Framed {
                        header: Some([header[0], header[1]]),
                        longer: ETHERNET as i64 - COOKED2 as i64,
                        ..framed
                    }
                })
            }
        }
    }
}

/// Prepends an Ethernet header to the part of the payload that a parser reads.
#[inline]
pub(super) fn with_header(scratch: &mut Vec<u8>, ethertype: [u8; 2], payload: &[u8]) {
    scratch.clear();
    scratch.extend_from_slice(&[0; ETHERNET - 2]);
    scratch.extend_from_slice(&ethertype);
    scratch.extend_from_slice(&payload[..payload.len().min(FURTHEST + 64)]);
}
