//! Process groups: what the kernel's programs for a group's network and for starting processes share with the agent.

use crate::counters::Traffic;
use crate::limiter::{Rate, TokenBucket, token_bucket::Costs};
use crate::time::TickScale;

/// Rows of a group's maps: one each way.
pub const EGRESS: u32 = 0;
/// See [`EGRESS`].
pub const INGRESS: u32 = 1;
/// How many rows there are.
pub const DIRECTIONS: usize = 2;

/// The smallest bucket, in bytes: twice what segmentation offload hands over at once, since one packet above the burst
/// could never pass.
pub const LEAST_BURST: u64 = 128 << 10;

/// A token bucket of bytes as the kernel's program has it, and the clock it counts by.
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
    /// Nothing.
    pub _pad: u32,
}

impl GroupBucket {
    /// No limit.
    pub const NONE: Self = Self { emission: 0, tolerance: 0, burst: 0, emission_shift: 0, left: 0, right: 0, _pad: 0 };

    /// The bucket of a rate in bytes. Its burst is what the rate passes in half a second, and at least [`LEAST_BURST`].
    ///
    /// A TCP sender that loses all it has in flight, as it does where segments are as large as the loopback's, waits for
    /// its retransmission timer, 200 ms and then twice that. A bucket that is full before the timer fires wastes what it
    /// would have been refilled with, and TCP stays far below the rate.
    #[must_use]
    pub fn new(rate: Rate) -> Self {
        let in_half_a_second = u128::from(rate.count) * 500_000_000 / u128::from(rate.per_nanoseconds);
        let burst = u64::try_from(in_half_a_second).unwrap_or(u64::MAX).clamp(LEAST_BURST, 1 << 36);
        let scale = TickScale::for_longest_life(rate.nanoseconds_for(burst));
        let bucket = TokenBucket::new(rate, burst, Costs::Many, scale);
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

    /// As the limiter takes it.
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

    /// As the limiter takes it.
    #[inline(always)]
    #[must_use]
    pub const fn scale(&self) -> TickScale {
        TickScale { left: self.left, right: self.right }
    }
}

/// What was counted one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GroupCounters {
    /// Let through.
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
    /// Where in the kernel's `task_struct` its process's number (`tgid`) stands, in bytes.
    pub process_offset: u32,
    /// Where its own number (`pid`) stands, in bytes.
    pub thread_offset: u32,
}

impl GroupSettings {
    /// No limits, and no offsets.
    pub const NONE: Self = Self { buckets: [GroupBucket::NONE; DIRECTIONS], process_offset: 0, thread_offset: 0 };
}

/// A process that has started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Started {
    /// Which.
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
            Rate { count: 1, per_nanoseconds: 86_400_000_000_000 },
            Rate::per_second(12_500_000),
            Rate { count: 1 << 40, per_nanoseconds: 1_000_000_000 },
        ] {
            let group = GroupBucket::new(rate);
            let bucket = TokenBucket::new(rate, group.burst, Costs::Many, group.scale());
            assert_eq!(group.bucket(), bucket);
            assert!(group.burst >= LEAST_BURST);
            // A bucket that starts full holds its burst, and no more.
            let now = group.scale().ticks(1 << 40);
            assert!(matches!(bucket.decide(0, now, group.burst), Decision::Pass(_)));
            assert_eq!(bucket.decide(0, now, group.burst + 1), Decision::Refuse);
        }
    }
}
