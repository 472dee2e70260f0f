//! The neighbour on a link, to whose bucket its essential traffic is charged first.

use crate::essential::{NEIGHBOUR_BITS, OF_INTERFACES};
use crate::packet::{Bytes, Direction, Link};

/// The other end of a link: its hardware address as a number, 0 if the link has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Neighbour(u64);

impl Neighbour {
    /// A link without hardware addresses, or packets without a bucket of their neighbour.
    pub const NONE: Self = Self(0);

    /// The sender of an incoming frame, the receiver of an outgoing one.
    #[inline(always)]
    #[must_use]
    pub fn of(frame: &(impl Bytes + ?Sized), link: Link, direction: Direction) -> Self {
        const BITS: u32 = 48;
        let offset = match (link, direction) {
            (Link::RawIp, _) => return Self::NONE,
            (Link::Ethernet, Direction::Ingress) => 6,
            (Link::Ethernet, Direction::Egress) => 0,
        };
        // The address and the two bytes behind it.
        let address = frame.u64(offset).map_or(0, u64::from_le);
        Self(address & ((1 << BITS) - 1))
    }

    /// The number.
    #[inline(always)]
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The neighbour with this number.
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The index of the bucket of its packets of a kind on an interface, whose own bucket has the index `of_interface`.
    ///
    /// Multilinear multiply-shift (Dietzfelbinger, "Universal hashing and k-wise independence via integer arithmetic without
    /// primes", STACS 1996): of numbers below 2⁵⁵, ten bits of the sum are strongly universal over random seeds. Two neighbours
    /// share a bucket with a probability of 1 in 1,024, whatever addresses one of them chooses before it has found out by trying.
    #[inline(always)]
    #[must_use]
    pub const fn bucket(self, of_interface: u32, seed: [u64; 3]) -> u32 {
        let [of_address, of_kind, added] = seed;
        let sum = of_address
            .wrapping_mul(self.0)
            .wrapping_add(of_kind.wrapping_mul(of_interface as u64))
            .wrapping_add(added);
        OF_INTERFACES + (sum >> (u64::BITS - NEIGHBOUR_BITS)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::essential::{ESSENTIAL_BUCKETS, Essential};
    use crate::key::HashSeed;

    #[test]
    fn a_neighbour_is_the_sender_of_a_frame_or_its_receiver() {
        let frame: Vec<u8> = (1..=14).collect();
        let of = |frame: &[u8], link, direction| Neighbour::of(frame, link, direction).to_bits();
        assert_eq!(
            of(&frame, Link::Ethernet, Direction::Ingress),
            0x0c0b_0a09_0807
        );
        assert_eq!(
            of(&frame, Link::Ethernet, Direction::Egress),
            0x0605_0403_0201
        );
        assert_eq!(of(&frame, Link::RawIp, Direction::Ingress), 0);
        assert_eq!(of(&frame[..13], Link::Ethernet, Direction::Ingress), 0);
    }

    /// Chosen pairs, over random seeds: the same address on other interfaces and of other kinds, addresses that differ in one
    /// bit, and in all.
    #[test]
    fn neighbours_share_a_bucket_as_seldom_as_random_ones() {
        const SEEDS: u64 = 1 << 18;
        let victim = (0x0200_0077_0001, Essential::Arp.bucket(7));
        let others = [
            (victim.0, Essential::Dhcp.bucket(7)),
            (victim.0, Essential::Arp.bucket(8)),
            (victim.0 ^ 1, victim.1),
            (victim.0 ^ 1 << 47, victim.1),
            (!victim.0 & ((1 << 48) - 1), victim.1),
        ];
        for other in others {
            let shared = (0..SEEDS).filter(|number| {
                let words = HashSeed::of_number(*number).words;
                let bucket = |(address, of_interface)| {
                    Neighbour::from_bits(address)
                        .bucket(of_interface, [words[0], words[1], words[2]])
                };
                let (own, other) = (bucket(victim), bucket(other));
                assert!((OF_INTERFACES..ESSENTIAL_BUCKETS).contains(&own));
                own == other
            });
            // 256 are expected, with a deviation of 16.
            let shared = shared.count();
            assert!((160..=352).contains(&shared), "{other:?}: {shared}");
        }
    }
}
