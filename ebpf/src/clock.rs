//! The clock of the limiters.

use aya_ebpf::helpers::generated::{bpf_ktime_get_coarse_ns, bpf_ktime_get_ns};
use common::time::{TickScale, Ticks};

use crate::maps::{RUNTIME, setting};

/// The time since the host's boot, or a test's value.
#[inline(always)]
pub fn nanoseconds() -> u64 {
    if setting!(given_clock) != 0 {
        return RUNTIME.get(0).map_or(0, |runtime| runtime.nanoseconds);
    }
    // SAFETY: a helper without arguments.
    unsafe { bpf_ktime_get_ns() }
}

/// The same at the kernel's last tick, some milliseconds ago, for a tenth of the cost.
#[inline(always)]
pub fn coarse_nanoseconds() -> u64 {
    if setting!(given_clock) != 0 {
        return nanoseconds();
    }
    // SAFETY: a helper without arguments.
    unsafe { bpf_ktime_get_coarse_ns() }
}

/// The length of a tick.
#[inline(always)]
pub fn scale() -> TickScale {
    TickScale {
        left: setting!(scale.left),
        right: setting!(scale.right),
    }
}

/// An instant in ticks.
#[inline(always)]
pub fn ticks(nanoseconds: u64) -> Ticks {
    scale().ticks(nanoseconds)
}
