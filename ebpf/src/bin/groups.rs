//! Weir's kernel programs for process groups: each group's network, and process starts. A separate object, since it is
//! loaded and attached separately. All decisions are in `common`.
#![no_std]
#![no_main]
#![feature(core_intrinsics)]
#![expect(
    missing_docs,
    reason = "the entry points that aya's macros generate have none"
)]
#![expect(
    internal_features,
    reason = "the BPF target has no stable compare-and-swap; see atomics.rs"
)]

#[path = "../atomics.rs"]
#[expect(
    dead_code,
    reason = "groups need only one of the operations that limits on packets do"
)]
mod atomics;

use aya_ebpf::Global;
use aya_ebpf::btf_maps::{Array, LruHashMap, PerCpuArray, RingBuf};
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use aya_ebpf::helpers::{bpf_get_current_comm, bpf_get_current_pid_tgid, bpf_probe_read_kernel};
use aya_ebpf::macros::{btf_map, cgroup_skb, cgroup_sock_addr, raw_tracepoint};
use aya_ebpf::programs::{RawTracePointContext, SkBuffContext, SockAddrContext};
use common::counters::Traffic;
use common::group::{
    CONNECTS, DESTINATIONS, DIRECTIONS, EGRESS, GroupBucket, GroupCounters, GroupSettings, INGRESS,
    OUTBOUND, PACKETS, Refused, Started, is_known,
};
use common::limiter::Decision;

/// The constants of these programs; the agent writes them before they are verified.
#[unsafe(no_mangle)]
pub static GROUP_SETTINGS: Global<GroupSettings> = Global::new(GroupSettings::NONE);

/// The state of each direction's bucket.
#[btf_map]
pub static GROUP_STATES: Array<u64, DIRECTIONS> = Array::new();

/// The counters of each direction.
#[btf_map]
pub static GROUP_COUNTERS: PerCpuArray<GroupCounters, DIRECTIONS> = PerCpuArray::new();

/// The state of the buckets of connections, destinations and packets.
#[btf_map]
pub static OUTBOUND_STATES: Array<u64, OUTBOUND> = Array::new();

/// The counters of outbound limits.
#[btf_map]
pub static OUTBOUND_COUNTERS: PerCpuArray<GroupCounters, OUTBOUND> = PerCpuArray::new();

/// When destinations were charged. An evicted one is charged again, so the limit only gets stricter.
#[btf_map]
pub static KNOWN_DESTINATIONS: LruHashMap<[u32; 4], u64, 1024> = LruHashMap::new();

/// Refused connections and datagrams, as far as there is room.
#[btf_map]
pub static REFUSED: RingBuf<Refused, 4096> = RingBuf::new();

/// Processes that have started, for the agent.
#[btf_map]
pub static STARTED: RingBuf<Started, 4096> = RingBuf::new();

/// Starts that found no room.
#[btf_map]
pub static MISSED: PerCpuArray<u64, 1> = PerCpuArray::new();

/// The most attempts to charge a bucket that other CPUs keep changing; then the packet is refused.
const TRIES: u32 = 16;

/// The return values of an egress program (`BPF_PROG_CGROUP_INET_EGRESS_RUN_ARRAY`, Linux 5.2): bit 0 passes the
/// packet, and bit 1 reports congestion, so that TCP slows down at once instead of waiting for its timeout.
const PASS: i32 = 1;
const DROP_FOR_CONGESTION: i32 = 2;
const DROP: i32 = 0;

/// Packets that the group's processes send.
#[cgroup_skb(egress)]
pub fn weir_group_egress(context: SkBuffContext) -> i32 {
    // SAFETY: the kernel passes a valid context.
    let segments = unsafe { (*context.skb.skb).gso_segs };
    match send(context.len(), segments.max(1)) {
        PacketVerdict::Passed => PASS,
        PacketVerdict::Refused => DROP_FOR_CONGESTION,
    }
}

/// Packets that they receive.
#[cgroup_skb(ingress)]
pub fn weir_group_ingress(context: SkBuffContext) -> i32 {
    // SAFETY: the helper has no preconditions.
    let verdict = charge(INGRESS_LIMIT, u64::from(context.len()), unsafe {
        bpf_ktime_get_ns()
    })
    .into();
    count(
        GROUP_COUNTERS.get_ptr_mut(INGRESS),
        verdict,
        1,
        context.len(),
    );
    match verdict {
        PacketVerdict::Passed => PASS,
        PacketVerdict::Refused => DROP,
    }
}

/// Connections of the group's processes.
#[cgroup_sock_addr(connect4)]
pub fn weir_group_connect4(context: SockAddrContext) -> i32 {
    begin(&context, Family::V4, Attempt::Connect)
}

/// See [`weir_group_connect4`].
#[cgroup_sock_addr(connect6)]
pub fn weir_group_connect6(context: SockAddrContext) -> i32 {
    begin(&context, Family::V6, Attempt::Connect)
}

/// Datagrams that they send without a connection.
#[cgroup_sock_addr(sendmsg4)]
pub fn weir_group_sendmsg4(context: SockAddrContext) -> i32 {
    begin(&context, Family::V4, Attempt::Datagram)
}

/// See [`weir_group_sendmsg4`].
#[cgroup_sock_addr(sendmsg6)]
pub fn weir_group_sendmsg6(context: SockAddrContext) -> i32 {
    begin(&context, Family::V6, Attempt::Datagram)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PacketVerdict {
    Passed,
    Refused,
}

impl From<Charge> for PacketVerdict {
    #[inline(always)]
    fn from(charge: Charge) -> Self {
        if matches!(charge, Charge::Refused) {
            Self::Refused
        } else {
            Self::Passed
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    Connect,
    Datagram,
}

/// A limit and its bucket's state.
#[derive(Clone, Copy)]
struct Limited {
    bucket: fn() -> GroupBucket,
    state: fn() -> Option<*mut u64>,
}

const EGRESS_LIMIT: Limited = Limited {
    bucket: || bucket(EGRESS),
    state: || GROUP_STATES.get_ptr_mut(EGRESS),
};
const INGRESS_LIMIT: Limited = Limited {
    bucket: || bucket(INGRESS),
    state: || GROUP_STATES.get_ptr_mut(INGRESS),
};
const CONNECT_LIMIT: Limited = Limited {
    bucket: || outbound(CONNECTS),
    state: || OUTBOUND_STATES.get_ptr_mut(CONNECTS),
};
const DESTINATION_LIMIT: Limited = Limited {
    bucket: || outbound(DESTINATIONS),
    state: || OUTBOUND_STATES.get_ptr_mut(DESTINATIONS),
};
const PACKET_LIMIT: Limited = Limited {
    bucket: || outbound(PACKETS),
    state: || OUTBOUND_STATES.get_ptr_mut(PACKETS),
};

/// The result of charging a bucket.
#[derive(Clone, Copy)]
enum Charge {
    /// There is no limit.
    Unlimited,
    /// The cost conforms; with the state after the charge.
    Charged(u64),
    Refused,
}

/// Charges a connection or datagram to both of its limits, or to none, and counts it.
#[inline(always)]
fn begin(context: &SockAddrContext, family: Family, attempt: Attempt) -> i32 {
    let address = destination(context, family);
    // SAFETY: the helper has no preconditions.
    let now = unsafe { bpf_ktime_get_ns() };
    let is_new = !is_known_destination(&address, now);
    let connect = if attempt == Attempt::Connect {
        charge_before(
            CONNECT_LIMIT,
            1,
            !is_new || conforms(DESTINATION_LIMIT, 1, now),
            now,
        )
    } else {
        Charge::Unlimited
    };
    if matches!(connect, Charge::Refused) {
        return refuse(context, CONNECTS, address, now);
    }
    if is_new {
        match charge(DESTINATION_LIMIT, 1, now) {
            Charge::Refused => {
                refund(CONNECT_LIMIT, connect, 1);
                return refuse(context, DESTINATIONS, address, now);
            }
            Charge::Charged(_) => {
                // Without room it is charged again the next time.
                let _ = KNOWN_DESTINATIONS.insert(address, now, 0);
                count(
                    OUTBOUND_COUNTERS.get_ptr_mut(DESTINATIONS),
                    PacketVerdict::Passed,
                    1,
                    0,
                );
            }
            Charge::Unlimited => {}
        }
    }
    if attempt == Attempt::Connect {
        count(
            OUTBOUND_COUNTERS.get_ptr_mut(CONNECTS),
            PacketVerdict::Passed,
            1,
            0,
        );
    }
    PASS
}

#[inline(always)]
fn is_known_destination(address: &[u32; 4], now: u64) -> bool {
    let life = &raw const GROUP_SETTINGS;
    // SAFETY: a field of an initialised static; volatile since its value is that of load time.
    let life =
        unsafe { (&raw const (*life.cast::<GroupSettings>()).destination_life).read_volatile() };
    if life == 0 {
        return false;
    }
    let charged = KNOWN_DESTINATIONS.get_ptr(address);
    // SAFETY: a word of a map's value. If it is reused meanwhile, it is the time of another destination, which was
    // charged, too.
    charged.is_some_and(|charged| is_known(unsafe { charged.read_volatile() }, now, life))
}

/// The destination; an IPv4 address as IPv4-mapped IPv6.
#[inline(always)]
fn destination(context: &SockAddrContext, family: Family) -> [u32; 4] {
    let at = context.sock_addr;
    // SAFETY: the kernel passes a valid context; volatile since it only accepts loads of single words.
    unsafe {
        match family {
            Family::V4 => [
                0,
                0,
                0xffff_u32.to_be(),
                (&raw const (*at).user_ip4).read_volatile(),
            ],
            Family::V6 => {
                let words = (&raw const (*at).user_ip6).cast::<u32>();
                [
                    words.read_volatile(),
                    words.add(1).read_volatile(),
                    words.add(2).read_volatile(),
                    words.add(3).read_volatile(),
                ]
            }
        }
    }
}

/// Counts and reports a refusal.
#[inline(always)]
fn refuse(context: &SockAddrContext, limit: u32, address: [u32; 4], time: u64) -> i32 {
    count(
        OUTBOUND_COUNTERS.get_ptr_mut(limit),
        PacketVerdict::Refused,
        1,
        0,
    );
    // SAFETY: the context of this program, which the kernel passes.
    let port = unsafe { (&raw const (*context.sock_addr).user_port).read_volatile() } as u16;
    let process = (bpf_get_current_pid_tgid() >> 32) as u32;
    let name = bpf_get_current_comm().unwrap_or_default();
    // If there is no room, it is still counted.
    let _ = REFUSED.output(
        Refused {
            time,
            address,
            process,
            port,
            limit: limit as u16,
            name,
        },
        0,
    );
    DROP
}

/// Charges a packet to both of its limits, or to none, and counts it.
#[inline(always)]
fn send(length: u32, segments: u32) -> PacketVerdict {
    // SAFETY: the helper has no preconditions.
    let now = unsafe { bpf_ktime_get_ns() };
    let packets = charge_before(
        PACKET_LIMIT,
        u64::from(segments),
        conforms(EGRESS_LIMIT, u64::from(length), now),
        now,
    );
    let mut verdict = packets.into();
    if verdict == PacketVerdict::Passed {
        verdict = charge(EGRESS_LIMIT, u64::from(length), now).into();
        if verdict == PacketVerdict::Refused {
            refund(PACKET_LIMIT, packets, u64::from(segments));
        }
    } else {
        count(
            OUTBOUND_COUNTERS.get_ptr_mut(PACKETS),
            verdict,
            segments,
            length,
        );
    }
    count(GROUP_COUNTERS.get_ptr_mut(EGRESS), verdict, 1, length);
    verdict
}

#[inline(always)]
fn count(counters: Option<*mut GroupCounters>, verdict: PacketVerdict, packets: u32, length: u32) {
    let Some(counters) = counters else { return };
    // SAFETY: a live value of this CPU. An interrupting softirq may make it lose a count, and nothing more.
    let counters = unsafe { &mut *counters };
    let traffic: &mut Traffic = match verdict {
        PacketVerdict::Passed => &mut counters.passed,
        PacketVerdict::Refused => &mut counters.throttled,
    };
    traffic.packets += u64::from(packets);
    traffic.bytes += u64::from(length);
}

#[inline(always)]
fn charge(limited: Limited, cost: u64, now: u64) -> Charge {
    let limit = (limited.bucket)();
    if limit.burst == 0 {
        return Charge::Unlimited;
    }
    let Some(word) = (limited.state)() else {
        return Charge::Refused;
    };
    let bucket = limit.bucket();
    let now = limit.scale().ticks(now);
    for _ in 0..TRIES {
        // SAFETY: a word of a map's value; volatile since other CPUs write it.
        let state = unsafe { word.read_volatile() };
        match bucket.decide(state, now, cost) {
            Decision::Refuse => return Charge::Refused,
            Decision::Pass(next) => {
                // SAFETY: a word of a map's value.
                if unsafe { atomics::compare_exchange(word, state, next) } == state {
                    return Charge::Charged(next);
                }
            }
        }
    }
    Charge::Refused
}

/// Whether the cost would pass in the present state.
#[inline(always)]
fn conforms(limited: Limited, cost: u64, now: u64) -> bool {
    let limit = (limited.bucket)();
    if limit.burst == 0 {
        return true;
    }
    (limited.state)().is_some_and(|word| {
        // SAFETY: a word of a map's value; volatile since other CPUs write it.
        let state = unsafe { word.read_volatile() };
        limit.bucket().decide(state, limit.scale().ticks(now), cost) != Decision::Refuse
    })
}

/// Charges the first of two limits. If the second one refuses already, it is not charged but only checked: a refund is
/// lost where another CPU has charged meanwhile.
#[inline(always)]
fn charge_before(limited: Limited, cost: u64, second_conforms: bool, now: u64) -> Charge {
    if second_conforms {
        charge(limited, cost, now)
    } else if conforms(limited, cost, now) {
        Charge::Unlimited
    } else {
        Charge::Refused
    }
}

/// Refunds a charge, unless another CPU has charged meanwhile.
#[inline(always)]
fn refund(limited: Limited, charge: Charge, cost: u64) {
    let (Charge::Charged(charged), Some(word)) = (charge, (limited.state)()) else {
        return;
    };
    let before = (limited.bucket)().bucket().uncharged(charged, cost);
    // SAFETY: a word of a map's value.
    unsafe { atomics::compare_exchange(word, charged, before) };
}

/// The limit of a direction, as a constant for the verifier.
#[inline(always)]
fn bucket(direction: u32) -> GroupBucket {
    let buckets = (&raw const GROUP_SETTINGS).cast::<GroupBucket>();
    // SAFETY: the buckets are the first field, and a direction is 0 or 1. Volatile since the value is that of load time.
    unsafe { buckets.add((direction & 1) as usize).read_volatile() }
}

/// The same for outbound limits.
#[inline(always)]
fn outbound(row: u32) -> GroupBucket {
    let settings = (&raw const GROUP_SETTINGS).cast::<GroupSettings>();
    // SAFETY: as above; every row is below the length.
    unsafe {
        (&raw const (*settings).outbound)
            .cast::<GroupBucket>()
            .add(row as usize % OUTBOUND)
            .read_volatile()
    }
}

/// A process has started a program.
#[raw_tracepoint(tracepoint = "sched_process_exec")]
pub fn weir_exec(_context: RawTracePointContext) -> i32 {
    let process = (bpf_get_current_pid_tgid() >> 32) as u32;
    report(Started { process, parent: 0 });
    0
}

/// A process has forked. A child that is forked before its parent is moved into the group does not start there.
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
    // SAFETY: the helper checks the address, and fails if it is not readable.
    let process =
        unsafe { bpf_probe_read_kernel(child.wrapping_add(process_offset as usize).cast::<u32>()) };
    // SAFETY: as above.
    let thread =
        unsafe { bpf_probe_read_kernel(child.wrapping_add(thread_offset as usize).cast::<u32>()) };
    if let (Ok(process), Ok(thread)) = (process, thread)
        // A new thread is in its process's cgroup.
        && process == thread
    {
        report(Started {
            process,
            parent: (bpf_get_current_pid_tgid() >> 32) as u32,
        });
    }
    0
}

#[inline(always)]
fn report(started: Started) {
    if STARTED.output(started, 0).is_err()
        && let Some(missed) = MISSED.get_ptr_mut(0)
    {
        // SAFETY: a live value of this CPU.
        unsafe { *missed += 1 };
    }
}

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The kernel restricts GPL-only helpers to programs with a compatible licence.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
