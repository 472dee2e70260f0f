//! Sends packets to the agent for `weir record --capture`, after their verdict.

use aya_ebpf::bindings::{__sk_buff, xdp_md};
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use common::capture::{Captured, SNAP_LENGTH};
use common::packet::{Depth, Direction, Link, parse};
use common::program::Frame;

use crate::context::{CopiedFrame, TcFrame, XdpFrame};
use crate::maps::{CAPTURE, CAPTURE_LOST, RUNTIME, direction};
use crate::ring::{NO_WAKEUP, count_lost, of_this_cpu};

// Global functions of the context and a number, so that each is verified once, and packets need no stack for them without
// a capture.

#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn weir_capture_driver_frame(context: *mut xdp_md, is_refused: u32) -> u32 {
    let flags = Captured::flags(Link::Ethernet, Direction::Ingress, is_refused) | Captured::DRIVER;
    capture(
        &XdpFrame::new(context),
        Link::Ethernet,
        Direction::Ingress,
        flags,
    )
}

#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn weir_capture_stack_frame(context: *mut __sk_buff, is_refused: u32) -> u32 {
    let flags = Captured::flags(Link::Ethernet, direction(), is_refused);
    capture(&TcFrame::new(context), Link::Ethernet, direction(), flags)
}

#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn weir_capture_stack_packet(context: *mut __sk_buff, is_refused: u32) -> u32 {
    let flags = Captured::flags(Link::RawIp, direction(), is_refused);
    capture(&TcFrame::new(context), Link::RawIp, direction(), flags)
}

#[inline(always)]
fn capture(
    frame: &(impl Frame + CopiedFrame),
    link: Link,
    direction: Direction,
    flags: u32,
) -> u32 {
    let Some(runtime) = RUNTIME.get(0) else {
        return 0;
    };
    let settings = &runtime.capture;
    // SAFETY: a helper without arguments.
    let now = unsafe { bpf_ktime_get_ns() };
    if now >= settings.until || settings.only_refused != 0 && flags & Captured::REFUSED == 0 {
        return 0;
    }
    if settings.one_in > 1 {
        let Ok(packet) = parse(frame, link, Depth::Addresses) else {
            return 0;
        };
        if !settings.is_sampled(&packet, direction) {
            return 0;
        }
    }
    let length = frame.length();
    let captured = if length > SNAP_LENGTH {
        SNAP_LENGTH
    } else {
        length
    };
    let merged = if frame.segments().payload != 0 {
        Captured::MERGED
    } else {
        0
    };
    let record = Captured {
        at: now,
        length,
        captured,
        interface: frame.interface(),
        flags: flags | merged,
    };
    let Some(mut entry) = of_this_cpu(&CAPTURE).and_then(|ring| ring.reserve(0)) else {
        count_lost(&CAPTURE_LOST);
        return 0;
    };
    let captured_frame = entry.as_mut_ptr();
    // SAFETY: the ring's memory, reserved for one record. What is not written of its bytes is not read.
    let is_copied = unsafe {
        (*captured_frame).record = record;
        frame.copy(&raw mut (*captured_frame).bytes, captured)
    };
    if is_copied {
        entry.submit(NO_WAKEUP);
    } else {
        entry.discard(NO_WAKEUP);
        count_lost(&CAPTURE_LOST);
    }
    0
}
