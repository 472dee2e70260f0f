//! Who receives packets after their verdict, beside the network: captures, and the stream of sources. One comparison
//! while nobody does.

use aya_ebpf::bindings::{__sk_buff, xdp_md};
use common::packet::{Direction, Link};
use common::settings::Runtime;

use crate::capture::{
    weir_capture_driver_frame, weir_capture_stack_frame, weir_capture_stack_packet,
};
use crate::maps::direction;
use crate::stream::{weir_stream_driver_frame, weir_stream_stack_frame, weir_stream_stack_packet};

/// Of a frame in the driver; `is_refused` is [`common::capture::Captured::REFUSED`] or 0.
#[inline(always)]
pub fn driver_frame(context: *mut xdp_md, runtime: &Runtime, is_refused: u32) {
    let taps = runtime.taps;
    if taps == 0 {
        return;
    }
    if taps & Runtime::CAPTURE != 0 {
        weir_capture_driver_frame(context, is_refused);
    }
    if taps & Runtime::STREAM != 0 {
        weir_stream_driver_frame(context, is_refused);
    }
}

/// Of a frame in the network stack.
#[inline(always)]
pub fn stack_frame(context: *mut __sk_buff, link: Link, runtime: &Runtime, is_refused: u32) {
    let taps = runtime.taps;
    if taps == 0 {
        return;
    }
    if taps & Runtime::CAPTURE != 0 {
        match link {
            Link::Ethernet => weir_capture_stack_frame(context, is_refused),
            Link::RawIp => weir_capture_stack_packet(context, is_refused),
        };
    }
    // Outgoing packets have no source elsewhere.
    if direction() == Direction::Ingress && taps & Runtime::STREAM != 0 {
        match link {
            Link::Ethernet => weir_stream_stack_frame(context, is_refused),
            Link::RawIp => weir_stream_stack_packet(context, is_refused),
        };
    }
}
