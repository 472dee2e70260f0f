//! A trace build's log: the verdict on each packet of a traced source, logged in one place after the verdict.
//!
//! The reason of a verdict is recorded in a map of the CPU, since the stack has no room for it. Packets of other
//! sources cost one read of the list of traced ones.

use aya_ebpf::bindings::{__sk_buff, xdp_md};
use aya_ebpf::btf_maps::{Array, PerCpuArray};
use aya_ebpf::helpers::generated::bpf_get_smp_processor_id;
use aya_ebpf::macros::btf_map;
use aya_log_ebpf::macro_support::{Level, level_enabled};
use common::counters::SampleQuota;
use common::packet::{Address, Depth, Direction, Link, parse};
use common::program::{Frame, PacketVerdict};
use common::rule::Size;
use common::throttle::{Outcome, TableEvent};
use common::trace::{Reason, TracedSources};

use crate::clock::nanoseconds;
use crate::context::{TcFrame, XdpFrame};
use crate::maps::direction;

/// The traced sources. Only the agent writes it.
#[btf_map]
pub static TRACED: Array<TracedSources, 1> = Array::new();

/// The packet of this CPU, while it is evaluated.
#[btf_map]
pub static TRACE: PerCpuArray<Traced, 1> = PerCpuArray::new();

/// The traced packet, and the numbers of traced packets.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Traced {
    source: [u64; 2],
    size: Size,
    reason: Reason,
    is_traced: u32,
    /// Verdicts so far, refusals counted separately: a gap in the log shows the number of lost records.
    numbers: [u64; 2],
    quota: SampleQuota,
}

/// Starts a packet from or to a source.
#[inline(always)]
pub fn begin(source: Address) {
    weir_trace_begin(source.hi, source.lo);
}

/// Records a counter of the packet.
#[inline(always)]
pub fn count(counter: u32, outcome: Outcome, size: Size) {
    weir_trace_count(
        counter,
        Reason::of_outcome(outcome),
        size.packets,
        size.bytes,
    );
}

/// Records an event of the table.
#[inline(always)]
pub fn note(event: TableEvent) {
    weir_trace_note(Reason::of_event(event));
}

/// Logs the verdict on a frame in the driver.
#[inline(always)]
pub fn driver_frame(context: *mut xdp_md, verdict: &PacketVerdict<'_>) {
    weir_trace_driver_frame(context, is_refused(verdict));
}

/// Logs the verdict on a frame in the network stack.
#[inline(always)]
pub fn stack_frame(context: *mut __sk_buff, link: Link, verdict: &PacketVerdict<'_>) {
    match link {
        Link::Ethernet => weir_trace_stack_frame(context, is_refused(verdict)),
        Link::RawIp => weir_trace_stack_packet(context, is_refused(verdict)),
    };
}

#[inline(always)]
const fn is_refused(verdict: &PacketVerdict<'_>) -> u32 {
    !matches!(verdict, PacketVerdict::Passed(_)) as u32
}

/// The packet of this CPU.
#[inline(always)]
fn packet() -> Option<&'static mut Traced> {
    // SAFETY: this CPU's own value; a program is not interrupted by another run of itself on the same CPU.
    TRACE.get_ptr_mut(0).map(|traced| unsafe { &mut *traced })
}

// Global functions of numbers and the context, so that each is verified once, and other packets need no stack for them.

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_trace_begin(hi: u64, lo: u64) -> u32 {
    let (Some(traced), Some(packet)) = (TRACED.get(0), packet()) else {
        return 0;
    };
    let is_traced = traced.has(Address { hi, lo });
    packet.is_traced = u32::from(is_traced);
    if is_traced {
        packet.source = [hi, lo];
        packet.size = Size::of_one(0);
        packet.reason = Reason {
            counter: 0,
            outcome: 0,
            event: 0,
        };
    }
    0
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_trace_count(counter: u32, outcome: u32, packets: u32, bytes: u32) -> u32 {
    if let Some(packet) = packet() {
        packet.reason.count(counter, outcome);
        packet.size = Size { packets, bytes };
    }
    0
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_trace_note(event: u32) -> u32 {
    if let Some(packet) = packet() {
        packet.reason.event = event;
    }
    0
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_trace_driver_frame(context: *mut xdp_md, is_refused: u32) -> u32 {
    conclude(
        &XdpFrame::new(context),
        Link::Ethernet,
        Direction::Ingress,
        is_refused,
    )
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_trace_stack_frame(context: *mut __sk_buff, is_refused: u32) -> u32 {
    conclude(
        &TcFrame::new(context),
        Link::Ethernet,
        direction(),
        is_refused,
    )
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_trace_stack_packet(context: *mut __sk_buff, is_refused: u32) -> u32 {
    conclude(&TcFrame::new(context), Link::RawIp, direction(), is_refused)
}

/// Logs the verdict if the packet is traced. A packet without an address is never traced.
#[inline(always)]
fn conclude(frame: &impl Frame, link: Link, direction: Direction, is_refused: u32) -> u32 {
    let Some(traced) = packet().filter(|packet| packet.is_traced != 0) else {
        return 0;
    };
    traced.is_traced = 0;
    let Ok(parsed) = parse(frame, link, Depth::Ports) else {
        return 0;
    };
    let (protocol, port) = (parsed.protocol as u32, parsed.local_port_or_0(direction));
    weir_trace_log(
        is_refused,
        protocol << 16 | u32::from(port),
        frame.interface(),
    )
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_trace_log(is_refused: u32, transport: u32, interface: u32) -> u32 {
    let Some(packet) = packet() else { return 0 };
    let number = if is_refused != 0 {
        &mut packet.numbers[1]
    } else {
        &mut packet.numbers[0]
    };
    *number += 1;
    let number = *number;
    let now = nanoseconds();
    let level = if is_refused != 0 {
        Level::Warn
    } else {
        Level::Info
    };
    if !level_enabled(level) || !packet.quota.take(now) {
        return 0;
    }
    // SAFETY: a helper without arguments.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let source = Address {
        hi: packet.source[0],
        lo: packet.source[1],
    }
    .octets();
    aya_log_ebpf::log!(
        &packet,
        level,
        "source {:i} refused {} counter {} outcome {} event {} protocol {} port {} packets {} bytes {} interface {} \
         at {} cpu {} number {}",
        source,
        is_refused,
        packet.reason.counter,
        packet.reason.outcome,
        packet.reason.event,
        transport >> 16,
        transport & 0xffff,
        packet.size.packets,
        packet.size.bytes,
        interface,
        now,
        cpu,
        number
    );
    0
}
