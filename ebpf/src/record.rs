//! Counts the packets of sources for `weir record`, before their verdict.

use aya_ebpf::bindings::{__sk_buff, BPF_NOEXIST, xdp_md};
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use common::key::Hash;
use common::packet::{Depth, Direction, Kind, Link, parse};
use common::program::Frame;
use common::record::{RecordKey, Recorded};
use common::rule::Size;
use common::settings::Runtime;

use crate::atomics;
use crate::context::{TcFrame, XdpFrame};
use crate::maps::{RECORD_EVEN, RECORD_LOST, RECORD_ODD, RUNTIME, direction};
use crate::throttle::KERNEL;

/// The initial counters. Not on the stack, which has no room for them.
static UNSEEN: Recorded = Recorded {
    packets: 0,
    bytes: 0,
    squares: 0,
    connections: 0,
    requests: 0,
};

/// Counts a frame in the driver.
#[inline(always)]
pub fn driver_frame(context: *mut xdp_md, runtime: &Runtime) {
    if runtime.record != 0 {
        weir_record_driver_frame(context);
    }
}

/// Counts an incoming frame in the network stack.
#[inline(always)]
pub fn stack_frame(context: *mut __sk_buff, link: Link, runtime: &Runtime) {
    if direction() == Direction::Ingress && runtime.record != 0 {
        match link {
            Link::Ethernet => weir_record_stack_frame(context),
            Link::RawIp => weir_record_stack_packet(context),
        };
    }
}

// Global functions of numbers and the context, so that each is verified once, and packets need no stack for them while
// nothing is recorded.

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_record_driver_frame(context: *mut xdp_md) -> u32 {
    record(&XdpFrame::new(context), Link::Ethernet)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_record_stack_frame(context: *mut __sk_buff) -> u32 {
    record(&TcFrame::new(context), Link::Ethernet)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_record_stack_packet(context: *mut __sk_buff) -> u32 {
    record(&TcFrame::new(context), Link::RawIp)
}

#[inline(always)]
fn record(frame: &impl Frame, link: Link) -> u32 {
    let Ok(packet) = parse(frame, link, Depth::Requests) else {
        return 0;
    };
    let Some(key) = RecordKey::of(&packet, 0) else {
        return 0;
    };
    let segments = frame.segments();
    let mut size = Size::of_one(frame.length());
    if segments.payload != 0 {
        size = segments.size(frame.length(), packet.headers(frame));
    }
    let service = u32::from(key.local_port) << 16 | u32::from(key.protocol);
    weir_record(
        key.hi,
        key.lo,
        service,
        u64::from(size.packets) << 32 | u64::from(size.bytes),
        packet.kind as u32,
    )
}

/// A function of numbers, so that it is verified once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_record(hi: u64, lo: u64, service: u32, size: u64, kind: u32) -> u32 {
    // SAFETY: a helper without arguments.
    let part = RecordKey::part_at(unsafe { bpf_ktime_get_ns() });
    // On this function's stack, since kernels such as 6.1 accept no memory of a caller as a map's key.
    let key = &RecordKey {
        hi,
        lo,
        part,
        local_port: (service >> 16) as u16,
        protocol: service as u16,
    };
    let source = Hash(KERNEL.hash_by_call(&key.source()));
    let one_in = RUNTIME.get(0).map_or(0, |runtime| runtime.record);
    if !RecordKey::is_sampled(source, one_in) {
        return 0;
    }
    let size = Size {
        packets: (size >> 32) as u32,
        bytes: size as u32,
    };
    let kind = match kind {
        1 => Kind::Connection,
        2 => Kind::Request,
        _ => Kind::Plain,
    };
    let counted = Recorded::of(size, kind);
    let mut found = if part & 1 == 0 {
        RECORD_EVEN.get_ptr_mut(key)
    } else {
        RECORD_ODD.get_ptr_mut(key)
    };
    if found.is_none() {
        // Another CPU may have been first, and its counters are kept.
        let unseen: &Recorded = &UNSEEN;
        found = if part & 1 == 0 {
            let _ = RECORD_EVEN.insert(key, unseen, BPF_NOEXIST.into());
            RECORD_EVEN.get_ptr_mut(key)
        } else {
            let _ = RECORD_ODD.insert(key, unseen, BPF_NOEXIST.into());
            RECORD_ODD.get_ptr_mut(key)
        };
    }
    let Some(recorded) = found else {
        if let Some(lost) = RECORD_LOST.get_ptr_mut(0) {
            // SAFETY: this CPU's own value.
            unsafe { *lost += 1 };
        }
        return 0;
    };
    // SAFETY: words of a map's value.
    unsafe {
        atomics::add(&raw mut (*recorded).packets, counted.packets);
        atomics::add(&raw mut (*recorded).bytes, counted.bytes);
        atomics::add(&raw mut (*recorded).squares, counted.squares);
        if counted.connections != 0 {
            atomics::add(&raw mut (*recorded).connections, 1);
        }
        if counted.requests != 0 {
            atomics::add(&raw mut (*recorded).requests, 1);
        }
    }
    0
}
