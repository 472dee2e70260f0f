//! Sends packets to the agent for `agent record --capture`, after their verdict.

use aya_ebpf::bindings::{__sk_buff, BPF_F_CURRENT_CPU, xdp_md};
use aya_ebpf::helpers::generated::{bpf_ktime_get_ns, bpf_perf_event_output};
use common::capture::{Captured, SNAP_LENGTH};
use common::packet::{Depth, Direction, Link, parse};
use common::program::Frame;

use crate::context::{TcFrame, XdpFrame};
use crate::maps::{CAPTURE, CAPTURE_LOST, RUNTIME, direction};

// Global functions of the context and a number, so that each is verified once, and packets need no stack for them without
// a capture.

#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn weir_capture_driver_frame(context: *mut xdp_md, is_refused: u32) -> u32 {
    let flags = Captured::flags(Link::Ethernet, Direction::Ingress, is_refused) | Captured::DRIVER;
    capture(
        &XdpFrame::new(context),
        context.cast(),
        Link::Ethernet,
        Direction::Ingress,
        flags,
    )
}

#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn weir_capture_stack_frame(context: *mut __sk_buff, is_refused: u32) -> u32 {
    let flags = Captured::flags(Link::Ethernet, direction(), is_refused);
    capture(
        &TcFrame::new(context),
        context.cast(),
        Link::Ethernet,
        direction(),
        flags,
    )
}

#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn weir_capture_stack_packet(context: *mut __sk_buff, is_refused: u32) -> u32 {
    let flags = Captured::flags(Link::RawIp, direction(), is_refused);
    capture(
        &TcFrame::new(context),
        context.cast(),
        Link::RawIp,
        direction(),
        flags,
    )
}

#[inline(always)]
fn capture(
    frame: &impl Frame,
    context: *mut core::ffi::c_void,
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
    let where_to = u64::from(captured) << 32 | u64::from(BPF_F_CURRENT_CPU as u32);
    // SAFETY: the context of this program's call, and a record on the stack. The helper copies that many bytes of the
    // packet, which has them, after the record.
    let failed = unsafe {
        let record = (&raw const record).cast_mut().cast();
        let rings = (&raw const CAPTURE).cast_mut().cast();
        bpf_perf_event_output(context, rings, where_to, record, Captured::LENGTH as u64)
    };
    if failed != 0
        && let Some(lost) = CAPTURE_LOST.get_ptr_mut(0)
    {
        // SAFETY: this CPU's own value.
        unsafe { *lost += 1 };
    }
    0
}
