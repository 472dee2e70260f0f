//! Weir's kernel programs: hooks, maps and access to frames. What is decided is decided in `common`.
#![no_std]
#![no_main]
#![feature(core_intrinsics)]
#![expect(missing_docs, reason = "the entry points that aya's macros generate have none")]
#![expect(internal_features, reason = "the BPF target has no stable compare-and-swap; see atomics.rs")]

mod atomics;
mod classify;
mod context;
mod maps;
mod throttle;

use aya_ebpf::bindings::xdp_action::{XDP_DROP, XDP_PASS};
use aya_ebpf::macros::xdp;
use aya_ebpf::programs::XdpContext;
use common::counters::Bypass;
use common::packet::{Bytes, Depth, Direction, Disposition, Link, parse};
use common::throttle::{Host, Outcome, Verdict, judge};

use crate::classify::classify;
use crate::context::XdpFrame;
use crate::maps::setting;
use crate::throttle::Kernel;

/// Ingress, as early as a frame can be looked at, in one buffer or several.
#[xdp(frags)]
pub fn weir_xdp(context: XdpContext) -> u32 {
    ingress(&context)
}

/// The same for kernels before 5.18, which know no frames in several buffers.
#[xdp]
pub fn weir_xdp_linear(context: XdpContext) -> u32 {
    ingress(&context)
}

#[inline(always)]
fn ingress(context: &XdpContext) -> u32 {
    let frame = XdpFrame::new(context);
    // SAFETY: the context is the one the program was called with.
    let interface = unsafe { (*context.ctx).ingress_ifindex };
    match hold(&frame, Direction::Ingress, interface) {
        Fate::Passed => XDP_PASS,
        Fate::Refused => XDP_DROP,
    }
}

/// What becomes of a frame; each hook turns it into an action in one match.
enum Fate {
    Passed,
    /// By a rule, or before any was asked.
    Refused,
}

/// Parses, classifies, decides and counts.
#[inline(always)]
fn hold(frame: &impl Bytes, direction: Direction, interface: u32) -> Fate {
    let kernel = Kernel;
    let length = frame.length();
    let held = parse(frame, Link::Ethernet, Depth::from_setting(setting!(depth)))
        .map_err(|unparsed| match unparsed.disposition() {
            Disposition::Pass => Bypass::NotIp,
            Disposition::Refuse => Bypass::Malformed,
        })
        .and_then(|packet| classify(&packet, direction, interface, length));
    match held {
        Ok((span, subject)) => match judge(&kernel, span, &subject) {
            Verdict::Pass => Fate::Passed,
            Verdict::Refuse(_) => Fate::Refused,
        },
        Err(bypass) => {
            let outcome = match bypass {
                Bypass::Malformed | Bypass::Banned if setting!(observe) != 0 => Outcome::WouldThrottle,
                Bypass::Malformed | Bypass::Banned => Outcome::Throttled,
                Bypass::Unlimited | Bypass::NotIp | Bypass::Essential | Bypass::NeverLimit => Outcome::Passed,
            };
            kernel.count(bypass as u32, outcome, length);
            if outcome == Outcome::Throttled { Fate::Refused } else { Fate::Passed }
        }
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
