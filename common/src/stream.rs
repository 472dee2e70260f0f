//! The sources of sampled packets: `weir top --by prefix`.
//!
//! While somebody watches, the kernel programs send the source of a random sample of incoming packets to the agent, after
//! the verdict. Packets are sampled, not sources: sources that are seen once are in the sample like all others.

use crate::fields::{half, word};
use crate::packet::Address;
use crate::rule::Size;

/// The sample that the agent reads, as a part of [`crate::settings::Runtime`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct StreamSettings {
    /// The instant of `bpf_ktime_get_ns` at which sampling ends, even without an agent; 0: there is none.
    pub until: u64,
    /// One in this many packets is sampled; 1: all are.
    pub one_in: u32,
    /// 0.
    pub unused: u32,
}

impl StreamSettings {
    /// Whether a packet is in the sample, by a random number: the upper half of the product is 0 for one in so many
    /// (Lemire, 2019).
    #[inline(always)]
    #[must_use]
    pub const fn has(&self, random: u32) -> bool {
        (random as u64).wrapping_mul(self.one_in as u64) >> 32 == 0
    }
}

/// A sampled packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Streamed {
    /// First half of its source's address, in memory order.
    pub hi: u64,
    /// Second half.
    pub lo: u64,
    /// The packets on the wire that it stands for.
    pub packets: u32,
    /// Their bytes.
    pub bytes: u32,
    /// The one-in-so-many of the sample to which it belongs.
    pub one_in: u32,
    /// 1: it was refused.
    pub is_refused: u32,
}

impl Streamed {
    /// The length of a record, in bytes.
    pub const LENGTH: usize = size_of::<Self>();

    /// A packet of a sample.
    #[inline(always)]
    #[must_use]
    pub const fn new(source: Address, size: Size, one_in: u32, is_refused: u32) -> Self {
        Self {
            hi: source.hi,
            lo: source.lo,
            packets: size.packets,
            bytes: size.bytes,
            one_in,
            is_refused,
        }
    }

    /// Parses a record; `None` if it is too short.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            hi: word(bytes, 0)?,
            lo: word(bytes, 8)?,
            packets: half(bytes, 16)?,
            bytes: half(bytes, 20)?,
            one_in: half(bytes, 24)?,
            is_refused: half(bytes, 28)?,
        })
    }

    /// Its source.
    #[must_use]
    pub const fn source(&self) -> Address {
        Address {
            hi: self.hi,
            lo: self.lo,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_so_many_random_numbers_is_in_the_sample() {
        for one_in in [1u32, 2, 3, 64, 1_000, 1 << 20] {
            let settings = StreamSettings {
                one_in,
                ..StreamSettings::default()
            };
            // Evenly spaced numbers instead of random ones.
            let count = (0..1u64 << 22)
                .filter(|nth| settings.has((nth << 10) as u32))
                .count() as u64;
            assert_eq!(count, (1u64 << 22).div_ceil(one_in.into()), "1 in {one_in}");
        }
    }

    #[test]
    fn a_record_is_read_back_as_it_was_laid_out() {
        let mut bytes = [0; Streamed::LENGTH + 4];
        bytes[..16].copy_from_slice(&Address::from_ipv4([192, 0, 2, 7]).octets());
        for (place, value) in [(16, 3u32), (20, 4_500), (24, 64), (28, 1)] {
            bytes[place..place + 4].copy_from_slice(&value.to_ne_bytes());
        }
        let size = Size {
            packets: 3,
            bytes: 4_500,
        };
        let expected = Streamed::new(Address::from_ipv4([192, 0, 2, 7]), size, 64, 1);
        assert_eq!(Streamed::from_bytes(&bytes), Some(expected));
        assert_eq!(expected.source(), Address::from_ipv4([192, 0, 2, 7]));
        assert!(
            (0..Streamed::LENGTH).all(|length| Streamed::from_bytes(&bytes[..length]).is_none())
        );
    }
}
