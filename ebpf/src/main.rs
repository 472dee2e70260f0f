//! Weir's kernel programs: hooks, maps and access to frames. All decisions are in `common`.
#![no_std]
#![no_main]
#![feature(core_intrinsics, asm_experimental_arch)]
#![expect(
    missing_docs,
    reason = "the entry points that aya's macros generate have none"
)]
#![expect(
    internal_features,
    reason = "the BPF target has no stable compare-and-swap; see atomics.rs"
)]

mod answer;
mod atomics;
mod capture;
mod cell;
mod clock;
mod connections;
mod context;
mod maps;
mod program;
mod prove;
mod record;
mod resets;
mod ring;
mod sample;
mod stream;
mod tap;
mod throttle;
#[cfg_attr(not(feature = "trace"), path = "no_trace.rs")]
mod trace;
mod unconnected;

use aya_ebpf::bindings::xdp_action::{XDP_DROP, XDP_PASS, XDP_TX};
use aya_ebpf::bindings::{__sk_buff, BPF_F_INGRESS, TC_ACT_SHOT, TC_ACT_UNSPEC, xdp_md};
use aya_ebpf::helpers::generated::bpf_redirect;
use aya_ebpf::macros::{classifier, xdp};
use aya_ebpf::programs::{TcContext, XdpContext};
use common::capture::Captured;
use common::packet::{Depth, Direction, Link, parse};
use common::program::{Case, PacketVerdict};
use common::rule::Action;
use common::settings::Mark;
use common::throttle::{Host, Passage};
use common::time::is_alive;

use crate::answer::answer;
use crate::context::{TcFrame, XdpFrame};
use crate::maps::{MARKS, RUNTIME, direction, setting};
use crate::throttle::{KERNEL, Kernel};

/// Ingress in the driver, for frames in one buffer or several.
#[xdp(frags)]
#[inline(always)]
pub fn weir_xdp(context: XdpContext) -> u32 {
    express(context.ctx)
}

/// The same for kernels before 5.18, which have no frames in several buffers.
#[xdp]
#[inline(always)]
pub fn weir_xdp_linear(context: XdpContext) -> u32 {
    express(context.ctx)
}

/// Egress, and ingress where XDP is not possible.
#[classifier]
#[inline(always)]
pub fn weir_tc(context: TcContext) -> i32 {
    traffic_control(context.skb.skb, Link::Ethernet)
}

/// The same on devices without a link header, such as tunnels.
#[classifier]
#[inline(always)]
pub fn weir_tc_ip(context: TcContext) -> i32 {
    traffic_control(context.skb.skb, Link::RawIp)
}

#[inline(always)]
fn express(context: *mut xdp_md) -> u32 {
    let Some(runtime) = RUNTIME.get(0) else {
        return XDP_PASS;
    };
    let mut interface = 0;
    if setting!(interfaces_in_use) != 0 {
        // SAFETY: the context is the one the program was called with.
        interface = unsafe { (*context).ingress_ifindex };
    }
    record::driver_frame(context, runtime);
    let mut case = Case::new(interface);
    let verdict = case.evaluate(
        &Kernel::with_runtime(runtime),
        &XdpFrame::new(context),
        Link::Ethernet,
        Direction::Ingress,
    );
    trace::driver_frame(context, &verdict);
    let rule = match verdict {
        PacketVerdict::Passed(_) => {
            tap::driver_frame(context, runtime, 0);
            return XDP_PASS;
        }
        PacketVerdict::Refused(rule, _) => rule,
        PacketVerdict::Dropped => NO_RULE,
        PacketVerdict::Answered(reply) => {
            tap::driver_frame(context, runtime, Captured::REFUSED);
            return if answer_driver_syn(context, reply.to_bits()) != 0 {
                XDP_TX
            } else {
                XDP_DROP
            };
        }
    };
    let is_proven = prove::is_refused();
    if !is_proven {
        unconnected::driver_frame(context, rule);
    }
    // Before a reply takes the packet's place.
    tap::driver_frame(context, runtime, Captured::REFUSED);
    if (is_proven || replies(rule)) && answer_driver_frame(context, is_proven.into()) != 0 {
        XDP_TX
    } else {
        XDP_DROP
    }
}

#[inline(always)]
fn traffic_control(context: *mut __sk_buff, link: Link) -> i32 {
    let Some(runtime) = RUNTIME.get(0) else {
        return TC_ACT_UNSPEC;
    };
    let mut interface = 0;
    TcFrame::gather(context, link);
    if setting!(interfaces_in_use) != 0 {
        // SAFETY: the context is the one the program was called with.
        interface = unsafe { (*context).ifindex };
    }
    record::stack_frame(context, link, runtime);
    let mut case = Case::new(interface);
    let verdict = case.evaluate(
        &Kernel::with_runtime(runtime),
        &TcFrame::new(context),
        link,
        direction(),
    );
    trace::stack_frame(context, link, &verdict);
    let rule = match verdict {
        PacketVerdict::Passed(passage) => {
            send_on(context, link, passage);
            tap::stack_frame(context, link, runtime, 0);
            // The next program of the chain decides.
            return TC_ACT_UNSPEC;
        }
        PacketVerdict::Refused(rule, _) => rule,
        PacketVerdict::Dropped => NO_RULE,
        PacketVerdict::Answered(reply) => {
            tap::stack_frame(context, link, runtime, Captured::REFUSED);
            return if answer_syn(context, link, reply.to_bits()) {
                send_back(context)
            } else {
                TC_ACT_SHOT
            };
        }
    };
    let is_proven = prove::is_refused();
    if !is_proven {
        unconnected::stack_frame(context, link, rule);
    }
    // Before a reply takes the packet's place.
    tap::stack_frame(context, link, runtime, Captured::REFUSED);
    if (is_proven || replies(rule)) && reply(context, link, is_proven.into()) {
        send_back(context)
    } else {
        TC_ACT_SHOT
    }
}

/// Sends a reply to its packet's origin: out again, or back to the program that sent it.
#[inline(always)]
fn send_back(context: *mut __sk_buff) -> i32 {
    let flags = if setting!(is_egress) != 0 {
        u64::from(BPF_F_INGRESS)
    } else {
        0
    };
    // SAFETY: the context of this program's call; the helper only stores the interface.
    unsafe { bpf_redirect((*context).ifindex, flags) as i32 }
}

/// Turns the SYN into its SYN-ACK; `false` if that fails.
#[inline(always)]
fn answer_syn(context: *mut __sk_buff, link: Link, reply: u64) -> bool {
    match link {
        Link::Ethernet => answer_stack_syn(context, reply) != 0,
        Link::RawIp => answer_stack_syn_packet(context, reply) != 0,
    }
}

/// Turns the refused frame into its reply; `false` if there is none.
#[inline(always)]
fn reply(context: *mut __sk_buff, link: Link, is_proven: u32) -> bool {
    match link {
        Link::Ethernet => answer_stack_frame(context, is_proven) != 0,
        Link::RawIp => answer_stack_packet(context, is_proven) != 0,
    }
}

// Separate functions, so that replies and marks take no stack space during the evaluation: all calls together have 512
// bytes.

#[inline(never)]
fn answer_driver_frame(context: *mut xdp_md, is_proven: u32) -> u32 {
    let mut frame = XdpFrame::new(context);
    u32::from(answer(&mut frame, Link::Ethernet, is_proven != 0))
}

#[inline(never)]
fn answer_stack_frame(context: *mut __sk_buff, is_proven: u32) -> u32 {
    let mut frame = TcFrame::new(context);
    u32::from(answer(&mut frame, Link::Ethernet, is_proven != 0))
}

#[inline(never)]
fn answer_stack_packet(context: *mut __sk_buff, is_proven: u32) -> u32 {
    let mut frame = TcFrame::new(context);
    u32::from(answer(&mut frame, Link::RawIp, is_proven != 0))
}

#[inline(never)]
fn answer_driver_syn(context: *mut xdp_md, reply: u64) -> u32 {
    u32::from(prove::answer_syn(
        &mut XdpFrame::new(context),
        context.cast(),
        Link::Ethernet,
        reply,
    ))
}

#[inline(never)]
fn answer_stack_syn(context: *mut __sk_buff, reply: u64) -> u32 {
    u32::from(prove::answer_syn(
        &mut TcFrame::new(context),
        context.cast(),
        Link::Ethernet,
        reply,
    ))
}

#[inline(never)]
fn answer_stack_syn_packet(context: *mut __sk_buff, reply: u64) -> u32 {
    u32::from(prove::answer_syn(
        &mut TcFrame::new(context),
        context.cast(),
        Link::RawIp,
        reply,
    ))
}

#[inline(never)]
fn set_dscp_of_frame(context: *mut __sk_buff, dscp: u32) -> u32 {
    set_dscp(context, Link::Ethernet, dscp)
}

#[inline(never)]
fn set_dscp_of_packet(context: *mut __sk_buff, dscp: u32) -> u32 {
    set_dscp(context, Link::RawIp, dscp)
}

/// The rule of a packet that none refused. A number, so that no part of the verdict is read that was not written.
const NO_RULE: u32 = u32::MAX;

/// Whether the rule replies to refused packets.
#[inline(always)]
fn replies(rule: u32) -> bool {
    setting!(reject_in_use) != 0
        && KERNEL
            .rule(rule)
            .is_some_and(|rule| rule.action == Action::Reject as u8)
}

/// Marks a packet, and sets the departure of a delayed one.
#[inline(always)]
fn send_on(context: *mut __sk_buff, link: Link, passage: Passage) {
    let mut frame = TcFrame::new(context);
    if setting!(shape_in_use) != 0 && passage.departure != Passage::AT_ONCE {
        let nanoseconds = clock::nanoseconds();
        let now = clock::ticks(nanoseconds);
        if is_alive(passage.departure, now) {
            let wait = clock::scale().whole_nanoseconds(passage.departure.wrapping_sub(now));
            frame.depart_at(nanoseconds + wait);
        }
    }
    if setting!(mark_in_use) != 0 && passage.marked_by != Passage::UNMARKED {
        let Some(mark) = MARKS.get(passage.marked_by % setting!(rules_per_multiplier).max(1))
        else {
            return;
        };
        if mark.sets_mark != 0 {
            frame.set_mark(mark.mark);
        }
        if mark.dscp != Mark::SAME_DSCP {
            match link {
                Link::Ethernet => set_dscp_of_frame(context, mark.dscp),
                Link::RawIp => set_dscp_of_packet(context, mark.dscp),
            };
        }
    }
}

#[inline(always)]
fn set_dscp(context: *mut __sk_buff, link: Link, dscp: u32) -> u32 {
    let mut frame = TcFrame::new(context);
    let Ok(packet) = parse(&frame, link, Depth::Addresses) else {
        return 0;
    };
    let network = usize::from(packet.network_offset);
    if packet.is_ipv4 {
        frame.set_dscp_ipv4(network, dscp as u8);
    } else {
        frame.set_dscp_ipv6(network, dscp as u8);
    }
    0
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
