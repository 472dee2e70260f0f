//! Weir's kernel programs for process groups: a group's network, and processes as they start. An object of its own,
//! since its life is its own. What is decided is decided in `common`.
#![no_std]
#![no_main]
#![feature(core_intrinsics)]
#![expect(missing_docs, reason = "the entry points that aya's macros generate have none")]
#![expect(internal_features, reason = "the BPF target has no stable compare-and-swap; see atomics.rs")]

#[path = "../atomics.rs"]
#[expect(dead_code, reason = "groups need only one of the operations that limits on packets do")]
mod atomics;

use aya_ebpf::Global;
use aya_ebpf::btf_maps::{Array, PerCpuArray, RingBuf};
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_probe_read_kernel};
use aya_ebpf::macros::{btf_map, cgroup_skb, raw_tracepoint};
use aya_ebpf::programs::{RawTracePointContext, SkBuffContext};
use common::counters::Traffic;
use common::group::{DIRECTIONS, EGRESS, GroupBucket, GroupCounters, GroupSettings, INGRESS, Started};
use common::limiter::Decision;

/// The constants of these programs; the agent writes them before they are verified.
#[unsafe(no_mangle)]
pub static GROUP_SETTINGS: Global<GroupSettings> = Global::new(GroupSettings::NONE);

/// The state of each direction's bucket.
#[btf_map]
pub static GROUP_STATES: Array<u64, DIRECTIONS> = Array::new();

/// What was counted in each direction.
#[btf_map]
pub static GROUP_COUNTERS: PerCpuArray<GroupCounters, DIRECTIONS> = PerCpuArray::new();

/// Processes that have started, for the agent to put where they belong.
#[btf_map]
pub static STARTED: RingBuf<Started, 4096> = RingBuf::new();

/// Those there was no room for.
#[btf_map]
pub static MISSED: PerCpuArray<u64, 1> = PerCpuArray::new();

/// How often a packet tries to charge a bucket that other CPUs keep changing, before it is refused.
const TRIES: u32 = 16;

/// What the kernel takes from a program on egress (`BPF_PROG_CGROUP_INET_EGRESS_RUN_ARRAY`, Linux 5.2): bit 0 lets pass,
/// and bit 1 tells TCP that there is congestion, so that it slows down at once instead of waiting for its timer.
const PASS: i32 = 1;
const DROP_FOR_CONGESTION: i32 = 2;
const DROP: i32 = 0;

/// What the group's processes send.
#[cgroup_skb(egress)]
pub fn weir_group_egress(context: SkBuffContext) -> i32 {
    match hold(EGRESS, context.len()) {
        Fate::Passed => PASS,
        Fate::Refused => DROP_FOR_CONGESTION,
    }
}

/// What they receive.
#[cgroup_skb(ingress)]
pub fn weir_group_ingress(context: SkBuffContext) -> i32 {
    match hold(INGRESS, context.len()) {
        Fate::Passed => PASS,
        Fate::Refused => DROP,
    }
}

enum Fate {
    Passed,
    Refused,
}

/// Decides on a packet of `length` bytes and counts it.
#[inline(always)]
fn hold(direction: u32, length: u32) -> Fate {
    let fate = charge(direction, u64::from(length));
    if let Some(counters) = GROUP_COUNTERS.get_ptr_mut(direction) {
        // SAFETY: a live value of this CPU's own. A softirq that interrupts may make it lose a count, and no more.
        let counters = unsafe { &mut *counters };
        let traffic: &mut Traffic = match fate {
            Fate::Passed => &mut counters.passed,
            Fate::Refused => &mut counters.throttled,
        };
        traffic.packets += 1;
        traffic.bytes += u64::from(length);
    }
    fate
}

#[inline(always)]
fn charge(direction: u32, cost: u64) -> Fate {
    let limit = limit(direction);
    if limit.burst == 0 {
        return Fate::Passed;
    }
    let Some(word) = GROUP_STATES.get_ptr_mut(direction) else { return Fate::Refused };
    let bucket = limit.bucket();
    // SAFETY: the helper has no preconditions.
    let now = limit.scale().ticks(unsafe { bpf_ktime_get_ns() });
    for _ in 0..TRIES {
        // SAFETY: a word of a map's value; volatile since other CPUs write it.
        let state = unsafe { word.read_volatile() };
        match bucket.decide(state, now, cost) {
            Decision::Refuse => return Fate::Refused,
            Decision::Pass(next) => {
                // SAFETY: a word of a map's value.
                if unsafe { atomics::compare_exchange(word, state, next) } == state {
                    return Fate::Passed;
                }
            }
        }
    }
    Fate::Refused
}

/// The limit of a direction, a constant to the verifier.
#[inline(always)]
fn limit(direction: u32) -> GroupBucket {
    let buckets = (&raw const GROUP_SETTINGS).cast::<GroupBucket>();
    // SAFETY: the buckets are the first field, and a direction is 0 or 1. Volatile since the value is that of load time.
    unsafe { buckets.add((direction & 1) as usize).read_volatile() }
}

/// A process has started a program.
#[raw_tracepoint(tracepoint = "sched_process_exec")]
pub fn weir_exec(_context: RawTracePointContext) -> i32 {
    let process = (bpf_get_current_pid_tgid() >> 32) as u32;
    tell(Started { process, parent: 0 });
    0
}

/// A process has forked. What is forked before its parent is in its group is not born there.
#[raw_tracepoint(tracepoint = "sched_process_fork")]
pub fn weir_fork(context: RawTracePointContext) -> i32 {
    let child: *const u8 = context.arg(1);
    let settings = &raw const GROUP_SETTINGS;
    // SAFETY: the fields of an initialised static; volatile since their values are those of load time.
    let (process_offset, thread_offset) = unsafe {
        let settings = settings.cast::<GroupSettings>();
        (
            (&raw const (*settings).process_offset).read_volatile(),
            (&raw const (*settings).thread_offset).read_volatile(),
        )
    };
    // SAFETY: the helper checks the address, and fails where there is nothing to read.
    let process = unsafe { bpf_probe_read_kernel(child.wrapping_add(process_offset as usize).cast::<u32>()) };
    // SAFETY: as above.
    let thread = unsafe { bpf_probe_read_kernel(child.wrapping_add(thread_offset as usize).cast::<u32>()) };
    if let (Ok(process), Ok(thread)) = (process, thread)
        // A new thread is in its process's cgroup.
        && process == thread
    {
        tell(Started { process, parent: (bpf_get_current_pid_tgid() >> 32) as u32 });
    }
    0
}

#[inline(always)]
fn tell(started: Started) {
    if STARTED.output(started, 0).is_err()
        && let Some(missed) = MISSED.get_ptr_mut(0)
    {
        // SAFETY: a live value of this CPU's own.
        unsafe { *missed += 1 };
    }
}

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The kernel lends its GPL-only helpers to programs that declare a compatible licence.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
