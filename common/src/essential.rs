//! Traffic to which limits per source do not apply, and its own limits.
//!
//! Without ARP, neighbour discovery or DHCP a host has no network, and frames that are not IP have no address. Each
//! kind has a separate bucket on each interface, so that a flood of one kind does not starve another. Before that bucket, a
//! packet is charged to its neighbour's ([`crate::neighbour`]), so that a flood from one neighbour does not starve the others.

use crate::limiter::{Costs, Decision, Rate, TokenBucket};
use crate::throttle::Cell;
use crate::time::{TickScale, Ticks};

/// The kinds of such traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Essential {
    /// ARP.
    Arp = 0,
    /// IPv6 neighbour discovery.
    NeighbourDiscovery = 1,
    /// DHCP and DHCPv6.
    Dhcp = 2,
    /// Any other frame that is not IP: LLDP, spanning tree, PPPoE, storage protocols.
    NotIp = 3,
    /// Packets of gateways and resolvers ([`crate::prefix::PrefixEntry::WITHIN_ALLOWANCE`]), which others can forge. Packets
    /// above this limit come under the rules.
    Protected = 4,
}

/// The number of interfaces with separate buckets; interfaces whose indexes are equal modulo this share one.
const INTERFACES: u32 = 1_024;
/// Buckets of an interface: a power of two, for [`Essential::is_not_ip`].
const KINDS: u32 = 8;

/// The most attempts on a bucket that other CPUs keep changing.
const TRIES: u32 = 16;

/// Buckets of interfaces; those of neighbours follow.
pub(crate) const OF_INTERFACES: u32 = INTERFACES * KINDS;
/// The binary logarithm of the number of buckets of neighbours ([`crate::neighbour`]).
pub(crate) const NEIGHBOUR_BITS: u32 = 10;

/// The number of buckets.
pub const ESSENTIAL_BUCKETS: u32 = OF_INTERFACES + (1 << NEIGHBOUR_BITS);

impl Essential {
    /// The index of this kind's bucket on the interface with this index.
    #[inline(always)]
    #[must_use]
    pub const fn bucket(self, interface: u32) -> u32 {
        interface % INTERFACES * KINDS + self as u32
    }

    /// Whether a bucket is that of [`Essential::NotIp`].
    #[inline(always)]
    #[must_use]
    pub const fn is_not_ip(bucket: u32) -> bool {
        bucket % KINDS == Self::NotIp as u32
    }
}

/// A token bucket of packets without a row of rules: [`TokenBucket`] without fraction bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PacketBucket {
    /// [`TokenBucket::emission`].
    pub emission: u64,
    /// [`TokenBucket::tolerance`].
    pub tolerance: u64,
    /// [`TokenBucket::burst`].
    pub burst: u64,
}

impl PacketBucket {
    /// Nothing passes.
    pub const CLOSED: Self = Self {
        emission: 1,
        tolerance: 0,
        burst: 0,
    };

    /// All replies to refused packets together: 1,000 a second, 100 at once, which is also Linux's limit on ICMP
    /// errors. A forged source receives the replies without having requested them.
    #[must_use]
    pub fn of_replies(scale: TickScale) -> Self {
        Self::new(1_000, 100, scale)
    }

    /// ARP, neighbour discovery, DHCP and packets of gateways and resolvers, each: 10,000 a second, 1,000 at once. A host stays
    /// below with ten thousand neighbours that all resolve it within a second.
    #[must_use]
    pub fn of_essential(scale: TickScale) -> Self {
        Self::new(10_000, 1_000, scale)
    }

    /// ARP, neighbour discovery and DHCP of one neighbour, each: 100 a second, 100 at once. All buckets of neighbours together
    /// pass 102,400 a second, which the kernel processes with a part of one CPU.
    #[must_use]
    pub fn of_neighbour(scale: TickScale) -> Self {
        Self::new(100, 100, scale)
    }

    /// Other frames that are not IP: 100,000 a second, 10,000 at once, so that storage and encapsulations are not
    /// affected.
    #[must_use]
    pub fn of_not_ip(scale: TickScale) -> Self {
        Self::new(100_000, 10_000, scale)
    }

    pub(crate) fn new(per_second: u64, burst: u64, scale: TickScale) -> Self {
        let bucket = TokenBucket::new(Rate::per_second(per_second), burst, Costs::Single, scale);
        Self {
            emission: bucket.emission,
            tolerance: bucket.tolerance,
            burst: bucket.burst,
        }
    }

    /// The limiter of this bucket.
    #[inline(always)]
    #[must_use]
    pub const fn bucket(&self) -> TokenBucket {
        TokenBucket {
            emission: self.emission,
            emission_shift: 0,
            tolerance: self.tolerance,
            burst: self.burst,
        }
    }

    /// Charges one packet to the bucket with this state; `false` if it does not conform.
    #[inline(always)]
    #[must_use]
    pub fn take(&self, state: impl Cell, now: Ticks) -> bool {
        let bucket = self.bucket();
        let mut found = state.load();
        for _ in 0..TRIES {
            let Decision::Pass(next) = bucket.decide(found, now, 1) else {
                return false;
            };
            let current = found;
            found = state.compare_exchange(current, next);
            if found == current {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_kind_on_each_interface_has_a_bucket_of_its_own() {
        let kinds = [
            Essential::Arp,
            Essential::NeighbourDiscovery,
            Essential::Dhcp,
            Essential::NotIp,
            Essential::Protected,
        ];
        let buckets: HashSet<u32> = (1..=INTERFACES)
            .flat_map(|interface| kinds.map(|kind| kind.bucket(interface)))
            .collect();
        assert_eq!(buckets.len(), kinds.len() * INTERFACES as usize);
        assert!(buckets.iter().all(|bucket| *bucket < OF_INTERFACES));
        for kind in kinds {
            let bucket = kind.bucket(u32::MAX);
            assert!(bucket < OF_INTERFACES);
            assert_eq!(Essential::is_not_ip(bucket), kind == Essential::NotIp);
        }
    }

    #[test]
    fn the_slowest_policy_keeps_the_rates() {
        // A burst of ten million units at one a day: the coarsest clock that a policy can require.
        let scale = TickScale::for_longest_life(10_000_000 * 86_400 * 1_000_000_000);
        for (bucket, rate) in [
            (PacketBucket::of_neighbour(scale), 100),
            (PacketBucket::of_essential(scale), 10_000),
            (PacketBucket::of_not_ip(scale), 100_000),
        ] {
            let bucket = bucket.bucket();
            let (mut state, mut passed) = (0, 0);
            for nanosecond in (1..=2_000_000_000u64).step_by(1_000) {
                let now = scale.ticks(1_000_000_000_000 + nanosecond);
                if let Decision::Pass(next) = bucket.decide(state, now, 1) {
                    (state, passed) = (next, passed + 1);
                }
            }
            let expected = bucket.burst + 2 * rate;
            assert!(
                passed <= expected && passed * 20 >= expected * 19,
                "{passed} of {expected}"
            );
        }
    }
}
