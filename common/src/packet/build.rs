//! Builds frames for tests: each layer is a call; checksums are filled in.

extern crate std;

use std::vec::Vec;

/// A frame under construction, from the outside in.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    bytes: Vec<u8>,
    network: Option<Network>,
    /// The position of the field for the next header's type.
    next: usize,
}

#[derive(Clone, Copy, Debug)]
enum Network {
    Ipv4 { at: usize },
    Ipv6 { at: usize, extensions: usize },
}

impl Frame {
    /// An Ethernet header.
    #[must_use]
    pub fn ethernet() -> Self {
        Self::between([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
    }

    /// An Ethernet header from one hardware address to another.
    #[must_use]
    pub fn between(source: [u8; 6], destination: [u8; 6]) -> Self {
        let mut bytes = destination.to_vec();
        bytes.extend(source);
        bytes.extend([0, 0]);
        Self {
            bytes,
            network: None,
            next: 12,
        }
    }

    /// No link header at all.
    #[must_use]
    pub fn raw() -> Self {
        Self::default()
    }

    /// An 802.1Q tag.
    #[must_use]
    pub fn vlan(self, id: u16) -> Self {
        self.tag(0x8100, id)
    }

    /// A tag of any type: 0x88a8 for the outer one of QinQ.
    #[must_use]
    pub fn tag(mut self, ethertype: u16, id: u16) -> Self {
        self.ethertype(ethertype);
        self.bytes.extend(id.to_be_bytes());
        self.next = self.bytes.len();
        self.bytes.extend([0, 0]);
        self
    }

    /// A payload that is not IP.
    #[must_use]
    pub fn other(mut self, ethertype: u16, payload: &[u8]) -> Self {
        self.ethertype(ethertype);
        self.bytes.extend(payload);
        self
    }

    fn ethertype(&mut self, ethertype: u16) {
        if let Some(place) = self.bytes.get_mut(self.next..self.next + 2) {
            place.copy_from_slice(&ethertype.to_be_bytes());
        }
    }

    /// An IPv4 header without options.
    #[must_use]
    pub fn ipv4(self, source: [u8; 4], destination: [u8; 4]) -> Self {
        self.ipv4_with_options(source, destination, 0)
    }

    /// An IPv4 header with this many words of options (no operation).
    #[must_use]
    pub fn ipv4_with_options(mut self, source: [u8; 4], destination: [u8; 4], words: u8) -> Self {
        self.ethertype(0x0800);
        let at = self.bytes.len();
        self.bytes
            .extend([0x45 + words, 0, 0, 0, 0, 0, 0, 0, 64, 59, 0, 0]);
        self.bytes.extend(source);
        self.bytes.extend(destination);
        self.bytes
            .extend(std::iter::repeat_n(1, usize::from(words) * 4));
        self.network = Some(Network::Ipv4 { at });
        self.next = at + 9;
        self
    }

    /// An IPv6 header.
    #[must_use]
    pub fn ipv6(mut self, source: [u8; 16], destination: [u8; 16]) -> Self {
        self.ethertype(0x86dd);
        let at = self.bytes.len();
        self.bytes.extend([0x60, 0, 0, 0, 0, 0, 59, 64]);
        self.bytes.extend(source);
        self.bytes.extend(destination);
        self.network = Some(Network::Ipv6 {
            at,
            extensions: at + 40,
        });
        self.next = at + 6;
        self
    }

    /// The hop limit or time to live.
    #[must_use]
    pub fn hops(mut self, hops: u8) -> Self {
        let at = match self.network {
            Some(Network::Ipv4 { at }) => at + 8,
            Some(Network::Ipv6 { at, .. }) => at + 7,
            None => return self,
        };
        self.bytes[at] = hops;
        self
    }

    /// The identification of an IPv4 packet, which its fragments share.
    #[must_use]
    pub fn identification(mut self, number: u16) -> Self {
        if let Some(Network::Ipv4 { at }) = self.network {
            self.bytes[at + 4..at + 6].copy_from_slice(&number.to_be_bytes());
        }
        self
    }

    /// Turns it into a fragment: `offset` in units of eight bytes. For IPv6 that is an extension header.
    #[must_use]
    pub fn fragment(mut self, offset: u16, more: MoreFragments) -> Self {
        let more = u16::from(more == MoreFragments::Yes);
        match self.network {
            Some(Network::Ipv4 { at }) => {
                let field = offset | more << 13;
                self.bytes[at + 6..at + 8].copy_from_slice(&field.to_be_bytes());
                self
            }
            _ => {
                let field = (offset << 3 | more).to_be_bytes();
                self.extension(44, &[0, field[0], field[1], 0, 0, 0, 7])
            }
        }
    }

    /// An IPv6 extension header: its content after the first byte.
    #[must_use]
    pub fn extension(mut self, number: u8, rest: &[u8]) -> Self {
        self.bytes[self.next] = number;
        self.next = self.bytes.len();
        self.bytes.push(59);
        self.bytes.extend(rest);
        self
    }

    /// An extension header of eight bytes without content.
    #[must_use]
    pub fn empty_extension(self, number: u8) -> Self {
        self.extension(number, &[0; 7])
    }

    /// A UDP datagram.
    #[must_use]
    pub fn udp(self, source: u16, destination: u16, payload: &[u8]) -> Self {
        let mut segment = Vec::new();
        segment.extend(source.to_be_bytes());
        segment.extend(destination.to_be_bytes());
        segment.extend((8 + payload.len() as u16).to_be_bytes());
        segment.extend([0, 0]);
        segment.extend(payload);
        self.segment(17, segment, Some(6))
    }

    /// A TCP segment: flags are FIN 1, SYN 2, RST 4, PSH 8, ACK 16.
    #[must_use]
    pub fn tcp(self, source: u16, destination: u16, flags: u8, payload: &[u8]) -> Self {
        self.tcp_at(source, destination, flags, (1, 0), payload)
    }

    /// The same with its sequence number, and the one that it acknowledges.
    #[must_use]
    pub fn tcp_at(
        self,
        source: u16,
        destination: u16,
        flags: u8,
        (sequence, acknowledged): (u32, u32),
        payload: &[u8],
    ) -> Self {
        let mut segment = Vec::new();
        segment.extend(source.to_be_bytes());
        segment.extend(destination.to_be_bytes());
        segment.extend(sequence.to_be_bytes());
        segment.extend(acknowledged.to_be_bytes());
        segment.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        segment.extend(payload);
        self.segment(6, segment, Some(16))
    }

    /// An ICMP or ICMPv6 message of this type.
    #[must_use]
    pub fn icmp(self, kind: u8) -> Self {
        let number = if matches!(self.network, Some(Network::Ipv6 { .. })) {
            58
        } else {
            1
        };
        self.segment(number, std::vec![kind, 0, 0, 0, 0, 0, 0, 0], Some(2))
    }

    /// A payload of any protocol.
    #[must_use]
    pub fn payload(self, protocol: u8, payload: &[u8]) -> Self {
        self.segment(protocol, payload.to_vec(), None)
    }

    /// Replaces the source of a finished frame, Ethernet and IPv4 without tags; its transport checksum stays.
    pub fn set_ipv4_source(frame: &mut [u8], source: [u8; 4]) {
        const NETWORK: usize = 14;
        frame[NETWORK + 12..NETWORK + 16].copy_from_slice(&source);
        frame[NETWORK + 10..NETWORK + 12].fill(0);
        let header = usize::from(frame[NETWORK] & 0xf) * 4;
        let sum = checksum(&frame[NETWORK..NETWORK + header]).to_be_bytes();
        frame[NETWORK + 10..NETWORK + 12].copy_from_slice(&sum);
    }

    fn segment(mut self, protocol: u8, mut segment: Vec<u8>, checksum_at: Option<usize>) -> Self {
        if let Some(place) = self.bytes.get_mut(self.next) {
            *place = protocol;
        }
        if let Some(at) = checksum_at {
            let mut pseudo = Vec::new();
            match self.network {
                Some(Network::Ipv4 { at }) if protocol != 1 => {
                    pseudo.extend(&self.bytes[at + 12..at + 20]);
                }
                Some(Network::Ipv6 { at, .. }) => pseudo.extend(&self.bytes[at + 8..at + 40]),
                _ => {}
            }
            if !pseudo.is_empty() {
                pseudo.extend((segment.len() as u32).to_be_bytes());
                pseudo.extend([0, 0, 0, protocol]);
            }
            pseudo.extend(&segment);
            let sum = match checksum(&pseudo) {
                0 => 0xffff,
                sum => sum,
            };
            segment[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        }
        self.bytes.extend(segment);
        self
    }

    /// The finished frame.
    #[must_use]
    pub fn build(mut self) -> Vec<u8> {
        let end = self.bytes.len();
        match self.network {
            Some(Network::Ipv4 { at }) => {
                let length = ((end - at) as u16).to_be_bytes();
                self.bytes[at + 2..at + 4].copy_from_slice(&length);
                let header = usize::from(self.bytes[at] & 0xf) * 4;
                let sum = checksum(&self.bytes[at..at + header]).to_be_bytes();
                self.bytes[at + 10..at + 12].copy_from_slice(&sum);
            }
            Some(Network::Ipv6 { at, extensions }) => {
                let length = ((end - extensions) as u16).to_be_bytes();
                self.bytes[at + 4..at + 6].copy_from_slice(&length);
            }
            None => {}
        }
        self.bytes
    }
}

/// Whether more fragments follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoreFragments {
    /// More fragments follow.
    Yes,
    /// This is the last fragment.
    No,
}

/// The Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
