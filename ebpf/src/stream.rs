//! Sends the sources of sampled packets to the agent for `agent top --by prefix`, after the verdict.

use aya_ebpf::bindings::{__sk_buff, BPF_F_CURRENT_CPU, xdp_md};
use aya_ebpf::helpers::generated::{bpf_get_prandom_u32, bpf_ktime_get_ns, bpf_perf_event_output};
use common::packet::{Depth, Link, parse};
use common::program::Frame;
use common::rule::Size;
use common::stream::Streamed;

use crate::context::{TcFrame, XdpFrame};
use crate::maps::{RUNTIME, STREAM, STREAM_LOST};

// Global functions of the context and a number, so that each is verified once, and packets need no stack for them while
// nobody watches.

#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn weir_stream_driver_frame(context: *mut xdp_md, is_refused: u32) -> u32 {
    stream(
        &XdpFrame::new(context),
        context.cast(),
        Link::Ethernet,
        is_refused,
    )
}

#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn weir_stream_stack_frame(context: *mut __sk_buff, is_refused: u32) -> u32 {
    stream(
        &TcFrame::new(context),
        context.cast(),
        Link::Ethernet,
        is_refused,
    )
}

#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn weir_stream_stack_packet(context: *mut __sk_buff, is_refused: u32) -> u32 {
    stream(
        &TcFrame::new(context),
        context.cast(),
        Link::RawIp,
        is_refused,
    )
}

#[inline(always)]
fn stream(frame: &impl Frame, context: *mut core::ffi::c_void, link: Link, is_refused: u32) -> u32 {
    let Some(runtime) = RUNTIME.get(0) else {
        return 0;
    };
    let settings = &runtime.stream;
    // SAFETY: a helper without arguments. The CPU's generator has a seed that no sender knows.
    if !settings.has(unsafe { bpf_get_prandom_u32() }) {
        return 0;
    }
    // SAFETY: a helper without arguments.
    if unsafe { bpf_ktime_get_ns() } >= settings.until {
        return 0;
    }
    // A frame without an address is of no source.
    let Ok(packet) = parse(frame, link, Depth::Addresses) else {
        return 0;
    };
    let segments = frame.segments();
    let mut size = Size::of_one(frame.length());
    if segments.payload != 0 {
        size = segments.size(frame.length(), packet.headers(frame));
    }
    let record = Streamed::new(packet.source, size, settings.one_in, is_refused);
    // SAFETY: the context of this program's call, and a record on the stack.
    let failed = unsafe {
        let record = (&raw const record).cast_mut().cast();
        let rings = (&raw const STREAM).cast_mut().cast();
        bpf_perf_event_output(
            context,
            rings,
            u64::from(BPF_F_CURRENT_CPU as u32),
            record,
            Streamed::LENGTH as u64,
        )
    };
    if failed != 0
        && let Some(lost) = STREAM_LOST.get_ptr_mut(0)
    {
        // SAFETY: this CPU's own value.
        unsafe { *lost += 1 };
    }
    0
}
