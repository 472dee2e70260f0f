//! The counters of each source that the kernel programs keep for `weir record`.
//!
//! Packets are counted before their verdict, so that the limits in effect do not clip the rates. They are counted in parts
//! of a second, each under a key of its own: the agent reads a part when it is over, and nothing depends on when it does.

use crate::key::{Hash, Key};
use crate::packet::{Direction, Kind, Packet, Protocol};
use crate::rule::Size;

/// The length of a part in nanoseconds.
pub const PART: u64 = 250_000_000;

/// The most counters of a part. Packets of further sources are lost, and counted as lost.
pub const MOST_RECORDED: u32 = 8_192;

/// Local ports from this one on are those of outgoing connections, if the remote port is below [`WELL_KNOWN`]
/// (`net.ipv4.ip_local_port_range`).
const FIRST_EPHEMERAL: u16 = 32_768;
/// Ports below this one are those of services.
const WELL_KNOWN: u16 = 1_024;

/// One source, one service and one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct RecordKey {
    /// First half of the address.
    pub hi: u64,
    /// Second half of the address; 0 for IPv6, which is recorded by /64.
    pub lo: u64,
    /// The number of the part since the host's boot.
    pub part: u32,
    /// The local port; 0 for packets that are only counted for their protocol.
    pub local_port: u16,
    /// 0: TCP; 1: UDP; 2: ICMP and ICMPv6.
    pub protocol: u16,
}

/// The packets of a [`RecordKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Recorded {
    /// Packets on the wire.
    pub packets: u64,
    /// Their bytes, as limits count them.
    pub bytes: u64,
    /// The sum of the squares of their lengths.
    pub squares: u64,
    /// TCP SYNs.
    pub connections: u64,
    /// Requests, as limits count them.
    pub requests: u64,
}

impl RecordKey {
    /// The key of an incoming packet at this instant; `None` if no limit on sources counts it.
    #[inline(always)]
    #[must_use]
    pub fn of(packet: &Packet, nanoseconds: u64) -> Option<Self> {
        let protocol = match packet.protocol {
            Protocol::Tcp => 0,
            Protocol::Udp => 1,
            Protocol::Icmp => 2,
            Protocol::Other | Protocol::Hidden => return None,
        };
        if packet.is_essential {
            return None;
        }
        Some(Self {
            hi: packet.source.hi,
            lo: if packet.is_ipv4 { packet.source.lo } else { 0 },
            part: Self::part_at(nanoseconds),
            local_port: if Self::is_reply(packet) {
                0
            } else {
                packet.local_port_or_0(Direction::Ingress)
            },
            protocol,
        })
    }

    /// The number of the part at an instant.
    #[inline(always)]
    #[must_use]
    pub const fn part_at(nanoseconds: u64) -> u32 {
        (nanoseconds / PART) as u32
    }

    /// Whether the packet replies to this host: from a well-known port to one of outgoing connections.
    #[inline(always)]
    fn is_reply(packet: &Packet) -> bool {
        packet.kind != Kind::Connection
            && packet.ports.destination >= FIRST_EPHEMERAL
            && packet.ports.source < WELL_KNOWN
    }

    /// The key whose hash selects recorded sources.
    #[inline(always)]
    #[must_use]
    pub const fn source(&self) -> Key {
        Key {
            hi: self.hi,
            lo: self.lo,
            extra: 0,
            group: 0,
        }
    }

    /// Whether the source with this hash is recorded if one in `one_in` sources is, a power of two: all packets of a source
    /// or none, so that the distribution of sources is not distorted. The hash is keyed, so that no source can choose to be
    /// recorded.
    #[inline(always)]
    #[must_use]
    pub const fn is_sampled(source: Hash, one_in: u32) -> bool {
        source.0 as u32 & one_in.wrapping_sub(1) == 0
    }
}

impl Recorded {
    /// Of a buffer of packets of this size.
    #[inline(always)]
    #[must_use]
    pub const fn of(size: Size, kind: Kind) -> Self {
        let (packets, bytes) = (size.packets as u64, size.bytes as u64);
        Self {
            packets,
            bytes,
            // The packets of a buffer count as equally long.
            squares: if packets > 1 {
                bytes * bytes / packets
            } else {
                bytes * bytes
            },
            connections: matches!(kind, Kind::Connection) as u64,
            requests: matches!(kind, Kind::Request) as u64,
        }
    }

    /// The sum.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            packets: self.packets.saturating_add(other.packets),
            bytes: self.bytes.saturating_add(other.bytes),
            squares: self.squares.saturating_add(other.squares),
            connections: self.connections.saturating_add(other.connections),
            requests: self.requests.saturating_add(other.requests),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::HashSeed;
    use crate::packet::build::Frame;
    use crate::packet::{Depth, Link, parse};

    const HOST: [u8; 4] = [192, 0, 2, 1];
    const SYN: u8 = 2;
    const ACK: u8 = 16;

    fn key(frame: Frame) -> Option<RecordKey> {
        let bytes = frame.build();
        RecordKey::of(
            &parse(bytes.as_slice(), Link::Ethernet, Depth::Requests).unwrap(),
            7 * PART + 1,
        )
    }

    #[test]
    fn a_packet_counts_for_its_service_and_a_reply_only_for_its_protocol() {
        let tcp = |from: u16, to: u16, flags| {
            key(Frame::ethernet()
                .ipv4([10, 0, 0, 7], HOST)
                .tcp(from, to, flags, b""))
        };
        let udp = |from: u16, to: u16| {
            key(Frame::ethernet()
                .ipv4([10, 0, 0, 7], HOST)
                .udp(from, to, b"12345678"))
        };
        let port = |key: Option<RecordKey>| key.unwrap().local_port;
        assert_eq!(
            tcp(40_000, 443, ACK).unwrap(),
            RecordKey {
                part: 7,
                ..tcp(50_000, 443, SYN).unwrap()
            }
        );
        assert_eq!(
            (port(tcp(443, 40_000, ACK)), port(tcp(443, 40_000, SYN))),
            (0, 40_000)
        );
        assert_eq!(
            (
                port(udp(53, 40_000)),
                port(udp(5_000, 51_820)),
                port(udp(53, 53))
            ),
            (0, 51_820, 53)
        );
        assert_eq!(
            (
                tcp(1, 2, ACK).unwrap().protocol,
                udp(1, 2).unwrap().protocol
            ),
            (0, 1)
        );
    }

    #[test]
    fn a_source_of_ipv6_is_its_64() {
        let of = |last: u8| {
            let mut source = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, last];
            source[15] = last;
            key(Frame::ethernet()
                .ipv6(source, [0xfc; 16])
                .tcp(40_000, 443, ACK, b""))
            .unwrap()
        };
        assert_eq!(of(1), of(2));
        assert_eq!(of(1).lo, 0);
    }

    #[test]
    fn the_sample_has_its_share_of_sources_and_smaller_samples_are_within() {
        let seed = HashSeed::of_number(2);
        let sampled = |nth: u64, one_in| {
            let key = RecordKey {
                lo: nth << 32,
                ..RecordKey::default()
            };
            RecordKey::is_sampled(seed.hash(&key.source()), one_in)
        };
        for one_in in [1u32, 2, 16, 64] {
            let count = (0..100_000).filter(|nth| sampled(*nth, one_in)).count() as f64;
            let expected = 100_000.0 / f64::from(one_in);
            assert!(
                (count - expected).abs() <= 6.0 * expected.sqrt(),
                "1 in {one_in}: {count}"
            );
            assert!((0..10_000).all(|nth| !sampled(nth, one_in * 2) || sampled(nth, one_in)));
        }
    }

    #[test]
    fn a_buffer_counts_as_its_packets() {
        let one = Recorded::of(
            Size {
                packets: 1,
                bytes: 100,
            },
            Kind::Connection,
        );
        assert_eq!(
            (one.packets, one.bytes, one.squares, one.connections),
            (1, 100, 10_000, 1)
        );
        let three = Recorded::of(
            Size {
                packets: 3,
                bytes: 300,
            },
            Kind::Request,
        );
        assert_eq!(
            (three.packets, three.squares, three.requests),
            (3, 30_000, 1)
        );
        assert_eq!(one.plus(three).bytes, 400);
    }
}
