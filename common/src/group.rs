//! Process groups: the types that the kernel programs of groups share with the agent.

use crate::counters::Traffic;
use crate::limiter::{Costs, Rate, TokenBucket};
use crate::time::TickScale;

/// Rows of a group's maps: one for each direction.
pub const EGRESS: u32 = 0;
/// See [`EGRESS`].
pub const INGRESS: u32 = 1;
/// The number of rows.
pub const DIRECTIONS: usize = 2;

/// Rows of outbound limits, besides [`EGRESS`]: new connections, new destinations, and packets.
pub const CONNECTS: u32 = 0;
/// See [`CONNECTS`].
pub const DESTINATIONS: u32 = 1;
/// See [`CONNECTS`].
pub const PACKETS: u32 = 2;
/// The number of rows.
pub const OUTBOUND: usize = 3;

/// The smallest bucket, in bytes: twice the largest segment of segmentation offload, since a packet above the burst
/// never passes.
pub const LEAST_BURST: u64 = 128 << 10;

/// A token bucket of bytes for the kernel program, and its clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GroupBucket {
    /// [`TokenBucket::emission`].
    pub emission: u64,
    /// [`TokenBucket::tolerance`], in ticks.
    pub tolerance: u64,
    /// [`TokenBucket::burst`], in bytes; 0 for no limit.
    pub burst: u64,
    /// [`TokenBucket::emission_shift`].
    pub emission_shift: u32,
    /// [`TickScale::left`].
    pub left: u32,
    /// [`TickScale::right`].
    pub right: u32,
    /// Always 0.
    pub _pad: u32,
}

impl GroupBucket {
    /// No limit.
    pub const NONE: Self = Self {
        emission: 0,
        tolerance: 0,
        burst: 0,
        emission_shift: 0,
        left: 0,
        right: 0,
        _pad: 0,
    };

    /// The bucket of a rate in bytes. Its burst is the rate's bytes in half a second, at least [`LEAST_BURST`].
    ///
    /// A TCP sender that loses all segments in flight, as with the loopback's large segments, waits for its
    /// retransmission timeout: 200 ms, then twice that. A bucket that is full before that loses the refill, and TCP
    /// stays far below the rate.
    #[must_use]
    pub fn new(rate: Rate) -> Self {
        let in_half_a_second =
            u128::from(rate.count) * 500_000_000 / u128::from(rate.per_nanoseconds);
        let burst = u64::try_from(in_half_a_second)
            .unwrap_or(u64::MAX)
            .clamp(LEAST_BURST, 1 << 36);
        Self::with(rate, burst, Costs::Many)
    }

    /// The bucket of a rate of connections, destinations or packets. Its burst is the rate's count: of 20/s, 20 at
    /// once.
    #[must_use]
    pub fn of_ones(rate: Rate) -> Self {
        Self::with(rate, rate.count, Costs::Single)
    }

    fn with(rate: Rate, burst: u64, costs: Costs) -> Self {
        let scale = TickScale::for_longest_life(rate.nanoseconds_for(burst));
        let bucket = TokenBucket::new(rate, burst, costs, scale);
        Self {
            emission: bucket.emission,
            tolerance: bucket.tolerance,
            burst: bucket.burst,
            emission_shift: bucket.emission_shift,
            left: scale.left,
            right: scale.right,
            _pad: 0,
        }
    }

    /// The limiter of this bucket.
    #[inline(always)]
    #[must_use]
    pub const fn bucket(&self) -> TokenBucket {
        TokenBucket {
            emission: self.emission,
            emission_shift: self.emission_shift,
            tolerance: self.tolerance,
            burst: self.burst,
        }
    }

    /// The scale of its clock.
    #[inline(always)]
    #[must_use]
    pub const fn scale(&self) -> TickScale {
        TickScale {
            left: self.left,
            right: self.right,
        }
    }
}

/// The counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GroupCounters {
    /// Passed.
    pub passed: Traffic,
    /// Refused.
    pub throttled: Traffic,
}

/// The constants of the programs; the agent writes them before they are verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct GroupSettings {
    /// The buckets, [`EGRESS`] and [`INGRESS`].
    pub buckets: [GroupBucket; DIRECTIONS],
    /// The offset of the process ID (`tgid`) in the kernel's `task_struct`, in bytes.
    pub process_offset: u32,
    /// The offset of the thread ID (`pid`), in bytes.
    pub thread_offset: u32,
    /// The buckets of [`CONNECTS`], [`DESTINATIONS`] and [`PACKETS`].
    pub outbound: [GroupBucket; OUTBOUND],
    /// How long a destination stays known, in nanoseconds: the period of its rate.
    pub destination_life: u64,
}

impl GroupSettings {
    /// No limits, and no offsets.
    pub const NONE: Self = Self {
        buckets: [GroupBucket::NONE; DIRECTIONS],
        process_offset: 0,
        thread_offset: 0,
        outbound: [GroupBucket::NONE; OUTBOUND],
        destination_life: 0,
    };
}

/// Whether a destination that was charged at `charged` is still known at `now`, both in nanoseconds since boot. In any
/// period `life`, a group with a rate of N destinations per `life` is charged for at most 2·N of them: the bucket's
/// burst and its refill.
#[inline(always)]
#[must_use]
pub const fn is_known(charged: u64, now: u64, life: u64) -> bool {
    now.wrapping_sub(charged) < life
}

/// A refused connection or datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Refused {
    /// The instant in nanoseconds since boot.
    pub time: u64,
    /// The destination: an IPv6 address, or an IPv4-mapped one, in network byte order.
    pub address: [u32; 4],
    /// The process ID.
    pub process: u32,
    /// The destination's port in network byte order.
    pub port: u16,
    /// The limit: [`CONNECTS`] or [`DESTINATIONS`].
    pub limit: u16,
    /// The process's name, padded with zeros.
    pub name: [u8; 16],
}

/// A process that has started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Started {
    /// The process ID.
    pub process: u32,
    /// The process that forked it; 0 if it has started a program instead.
    pub parent: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::Decision;

    #[test]
    fn a_bucket_survives_the_way_into_the_kernel() {
        for rate in [
            Rate {
                count: 1,
                per_nanoseconds: 86_400_000_000_000,
            },
            Rate::per_second(12_500_000),
            Rate {
                count: 1 << 40,
                per_nanoseconds: 1_000_000_000,
            },
        ] {
            let group = GroupBucket::new(rate);
            let bucket = TokenBucket::new(rate, group.burst, Costs::Many, group.scale());
            assert_eq!(group.bucket(), bucket);
            assert!(group.burst >= LEAST_BURST);
            // A full bucket passes its burst, and no more.
            let now = group.scale().ticks(1 << 40);
            assert!(matches!(
                bucket.decide(0, now, group.burst),
                Decision::Pass(_)
            ));
            assert_eq!(bucket.decide(0, now, group.burst + 1), Decision::Refuse);
        }
    }

    #[test]
    fn a_bucket_of_ones_passes_its_count_at_once_and_then_its_rate() {
        let rate = Rate {
            count: 100,
            per_nanoseconds: 60_000_000_000,
        };
        let group = GroupBucket::of_ones(rate);
        let (bucket, scale) = (group.bucket(), group.scale());
        let (mut state, mut passed) = (0, 0);
        // An attempt every millisecond for three minutes.
        for millisecond in 0..180_000u64 {
            let now = scale.ticks((1 << 40) + millisecond * 1_000_000);
            if let Decision::Pass(next) = bucket.decide(state, now, 1) {
                (state, passed) = (next, passed + 1);
            }
            let most = 100 + millisecond / 600;
            assert!(passed <= most, "{passed} of {most} after {millisecond} ms");
        }
        assert!(passed >= 398, "{passed}");
    }

    #[test]
    fn a_destination_is_known_for_one_period() {
        assert!(is_known(5, 5, 10) && is_known(5, 14, 10));
        assert!(!is_known(5, 15, 10) && !is_known(5, 5, 0));
    }
}
