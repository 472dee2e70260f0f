//! Captured packets: `weir record --capture`.
//!
//! The kernel programs send the first bytes of a packet to the agent after the verdict, with a [`Captured`] before them. A
//! sample has all packets of one in several sources, so that each source's rates are those of its traffic.

use crate::fields::{half, word};
use crate::packet::{Direction, Link, Packet};
use crate::source_sketch;

/// The most bytes of a packet: the headers, and the start of a request.
pub const SNAP_LENGTH: u32 = 128;

/// The capture that the agent runs, as a part of [`crate::settings::Runtime`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct CaptureSettings {
    /// The instant of `bpf_ktime_get_ns` at which the capture ends, even without an agent; 0: there is none.
    pub until: u64,
    /// The secret by which sources are sampled, so that no source can choose to be in the sample.
    pub seed: [u64; 2],
    /// One in this many sources is captured; 1: all packets are, also those without an address.
    pub one_in: u32,
    /// 1: only refused packets; 0: all.
    pub only_refused: u32,
}

/// What is known of a captured packet, before its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Captured {
    /// The instant of `bpf_ktime_get_ns`.
    pub at: u64,
    /// The length of the whole frame.
    pub length: u32,
    /// The number of bytes that follow.
    pub captured: u32,
    /// The interface's index.
    pub interface: u32,
    /// [`Captured::REFUSED`] and the others.
    pub flags: u32,
}

/// A captured packet as a record of a ring.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CapturedFrame {
    /// About the packet.
    pub record: Captured,
    /// The packet's first bytes, as many as were captured; the rest is undefined.
    pub bytes: [u8; SNAP_LENGTH as usize],
}

impl CaptureSettings {
    /// Whether the source of a packet, or the destination of an outgoing one, is in the sample: an IPv4 address, or the /64
    /// of an IPv6 address.
    #[inline(always)]
    #[must_use]
    pub fn is_sampled(&self, packet: &Packet, direction: Direction) -> bool {
        let other = packet.other(direction);
        self.has(if packet.is_ipv4 { other.lo } else { other.hi })
    }

    /// The upper half of the product of a hash of 32 bits and the number is 0 for one in so many (Lemire, 2019).
    #[inline(always)]
    const fn has(&self, source: u64) -> bool {
        (source_sketch::hash(self.seed, source) >> 32).wrapping_mul(self.one_in as u64) >> 32 == 0
    }
}

impl Captured {
    /// The packet was refused.
    pub const REFUSED: u32 = 1;
    /// It leaves this host.
    pub const OUTGOING: u32 = 2;
    /// It starts with its IP header.
    pub const RAW_IP: u32 = 4;
    /// It was seen in the driver.
    pub const DRIVER: u32 = 8;
    /// It stands for several packets that the kernel merged.
    pub const MERGED: u32 = 16;
    /// The length of a record, in bytes.
    pub const LENGTH: usize = size_of::<Self>();

    /// The flags of a packet.
    #[inline(always)]
    #[must_use]
    pub const fn flags(link: Link, direction: Direction, is_refused: u32) -> u32 {
        let link = if matches!(link, Link::RawIp) {
            Self::RAW_IP
        } else {
            0
        };
        let direction = if matches!(direction, Direction::Egress) {
            Self::OUTGOING
        } else {
            0
        };
        link | direction | is_refused & Self::REFUSED
    }

    /// Parses a record and the packet's bytes after it; `None` if they are too short.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let record = Self {
            at: word(bytes, 0)?,
            length: half(bytes, 8)?,
            captured: half(bytes, 12)?,
            interface: half(bytes, 16)?,
            flags: half(bytes, 20)?,
        };
        let packet = bytes.get(Self::LENGTH..)?.get(..record.captured as usize)?;
        Some((record, packet))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_has_its_share_of_sources_and_another_seed_another_sample() {
        for one_in in [1u32, 3, 10, 100, 1_000] {
            let capture = |seed| CaptureSettings {
                seed,
                one_in,
                ..CaptureSettings::default()
            };
            let (one, other) = (
                capture([0x2545_f491_4f6c_dd1d, 7]),
                capture([0x9e37_79b9_7f4a_7c15, 11]),
            );
            let addresses = || (0..100_000u64).map(|nth| nth << 32 | 0xffff);
            let count = addresses().filter(|source| one.has(*source)).count() as f64;
            let expected = 100_000.0 / f64::from(one_in);
            assert!(
                (count - expected).abs() <= 6.0 * expected.sqrt(),
                "1 in {one_in}: {count}"
            );
            let both = addresses()
                .filter(|source| one.has(*source) && other.has(*source))
                .count() as f64;
            assert!(
                one_in == 1 || both <= expected / 2.0 + 6.0 * expected.sqrt(),
                "1 in {one_in}: {both} in both"
            );
        }
    }

    #[test]
    fn a_record_is_read_back_as_it_was_laid_out() {
        let mut bytes = vec![0; Captured::LENGTH];
        bytes[..8].copy_from_slice(&5u64.to_ne_bytes());
        for (place, value) in [
            (8, 1_500u32),
            (12, 3),
            (16, 2),
            (20, Captured::REFUSED | Captured::RAW_IP),
        ] {
            bytes[place..place + 4].copy_from_slice(&value.to_ne_bytes());
        }
        // A record has room for more bytes than were captured.
        bytes.extend([1, 2, 3, 0]);
        let (record, packet) = Captured::from_bytes(&bytes).unwrap();
        assert_eq!(
            record,
            Captured {
                at: 5,
                length: 1_500,
                captured: 3,
                interface: 2,
                flags: 5
            }
        );
        assert_eq!(packet, [1, 2, 3]);
        assert!(
            (0..Captured::LENGTH + 3)
                .all(|length| Captured::from_bytes(&bytes[..length]).is_none())
        );
        assert_eq!(Captured::flags(Link::RawIp, Direction::Egress, 1), 7);
    }
}
