//! Sends the sources of sampled packets to the agent for `weir top --by prefix`, after the verdict.

use aya_ebpf::bindings::{__sk_buff, xdp_md};
use aya_ebpf::helpers::generated::{bpf_get_prandom_u32, bpf_ktime_get_ns};
use common::packet::{Depth, Link, parse};
use common::program::Frame;
use common::rule::Size;
use common::stream::Streamed;

use crate::context::{TcFrame, XdpFrame};
use crate::maps::{RUNTIME, STREAM, STREAM_LOST};
use crate::ring::{NO_WAKEUP, count_lost, of_this_cpu};

// Global functions of the context and a number, so that each is verified once, and packets need no stack for them while
// nobody watches.

#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn weir_stream_driver_frame(context: *mut xdp_md, is_refused: u32) -> u32 {
    stream(&XdpFrame::new(context), Link::Ethernet, is_refused)
}

#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn weir_stream_stack_frame(context: *mut __sk_buff, is_refused: u32) -> u32 {
    stream(&TcFrame::new(context), Link::Ethernet, is_refused)
}

#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn weir_stream_stack_packet(context: *mut __sk_buff, is_refused: u32) -> u32 {
    stream(&TcFrame::new(context), Link::RawIp, is_refused)
}

#[inline(always)]
fn stream(frame: &impl Frame, link: Link, is_refused: u32) -> u32 {
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
    if of_this_cpu(&STREAM).is_none_or(|ring| ring.output(record, NO_WAKEUP).is_err()) {
        count_lost(&STREAM_LOST);
    }
    0
}
