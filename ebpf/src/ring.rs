//! A ring for each CPU, which the agent puts into its map while somebody reads it.

use aya_ebpf::bindings::BPF_RB_NO_WAKEUP;
use aya_ebpf::btf_maps::{ArrayOfMaps, PerCpuArray, RingBuf};
use aya_ebpf::helpers::generated::bpf_get_smp_processor_id;

/// A ring, as the map of rings declares it: a page, also where pages have 64 KiB. The agent makes larger ones.
type Ring<T> = RingBuf<T, { 64 << 10 }>;

/// The rings, by CPU. The agent reads them on a timer, so that records wake nobody.
pub type Rings<T> = ArrayOfMaps<Ring<T>, 1>;

/// Records that found no room.
pub type Lost = PerCpuArray<u64, 1>;

/// The flag with which a record is sent.
pub const NO_WAKEUP: u64 = BPF_RB_NO_WAKEUP as u64;

/// This CPU's ring; `None` if nobody reads it.
#[inline(always)]
pub fn of_this_cpu<T>(rings: &'static Rings<T>) -> Option<&'static Ring<T>> {
    // SAFETY: a helper without arguments.
    rings.get(unsafe { bpf_get_smp_processor_id() })
}

/// Counts a record that found no room.
#[inline(always)]
pub fn count_lost(lost: &'static Lost) {
    if let Some(lost) = lost.get_ptr_mut(0) {
        // SAFETY: this CPU's own value.
        unsafe { *lost += 1 };
    }
}
