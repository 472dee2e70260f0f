//! Weir's kernel programs: hooks, maps and access to frames. What is decided is decided in `common`.
#![no_std]
#![no_main]
#![feature(core_intrinsics, asm_experimental_arch)]
#![expect(missing_docs, reason = "the entry points that aya's macros generate have none")]
#![expect(internal_features, reason = "the BPF target has no stable compare-and-swap; see atomics.rs")]

mod answer;
mod atomics;
mod classify;
mod context;
mod essential;
mod maps;
mod sight;
mod throttle;

use core::mem::MaybeUninit;

use aya_ebpf::bindings::xdp_action::{XDP_DROP, XDP_PASS, XDP_TX};
use aya_ebpf::bindings::{__sk_buff, BPF_F_INGRESS, TC_ACT_SHOT, TC_ACT_UNSPEC, xdp_md};
use aya_ebpf::helpers::generated::bpf_redirect;
use aya_ebpf::macros::{classifier, xdp};
use aya_ebpf::programs::{TcContext, XdpContext};
use common::counters::Bypass;
use common::packet::{Depth, Direction, Disposition, Link, parse};
use common::rule::{Action, RuleSpan, Size, Subject};
use common::settings::Mark;
use common::throttle::{Host, Outcome, Passage, Verdict, judge};
use common::time::is_alive;

use crate::answer::answer;
use crate::classify::classify;
use crate::context::{Frame, TcFrame, XdpFrame};
use crate::maps::{MARKS, setting};
use crate::throttle::Kernel;

/// Ingress, as early as a frame can be looked at, in one buffer or several.
#[xdp(frags)]
#[inline(always)]
pub fn weir_xdp(context: XdpContext) -> u32 {
    express(context.ctx)
}

/// The same for kernels before 5.18, which know no frames in several buffers.
#[xdp]
#[inline(always)]
pub fn weir_xdp_linear(context: XdpContext) -> u32 {
    express(context.ctx)
}

/// Egress, and ingress where XDP cannot be.
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
    let (mut seen, mut subject) = (Seen::NOTHING, MaybeUninit::uninit());
    if setting!(interfaces_in_use) != 0 {
        // SAFETY: the context is the one the program was called with.
        seen.interface = unsafe { (*context).ingress_ifindex };
    }
    let found = look_at(&XdpFrame::new(context), Link::Ethernet, Direction::Ingress, &mut seen, &mut subject);
    match hold(found, &seen, &subject) {
        Fate::Passed(_) => XDP_PASS,
        Fate::Refused(Telling::Nothing) => XDP_DROP,
        Fate::Refused(Telling::Sender) => {
            if answer_driver_frame(context) != 0 {
                XDP_TX
            } else {
                XDP_DROP
            }
        }
    }
}

#[inline(always)]
fn traffic_control(context: *mut __sk_buff, link: Link) -> i32 {
    let (mut seen, mut subject) = (Seen::NOTHING, MaybeUninit::uninit());
    TcFrame::gather(context, link);
    if setting!(interfaces_in_use) != 0 {
        // SAFETY: the context is the one the program was called with.
        seen.interface = unsafe { (*context).ifindex };
    }
    let found = look_at(&TcFrame::new(context), link, direction(), &mut seen, &mut subject);
    match hold(found, &seen, &subject) {
        Fate::Passed(passage) => {
            send_on(context, link, passage);
            // What comes after us in the chain has its say.
            TC_ACT_UNSPEC
        }
        Fate::Refused(Telling::Nothing) => TC_ACT_SHOT,
        Fate::Refused(Telling::Sender) => {
            let is_answered = match link {
                Link::Ethernet => answer_stack_frame(context),
                Link::RawIp => answer_stack_packet(context),
            };
            if is_answered == 0 {
                return TC_ACT_SHOT;
            }
            // An answer goes to where the packet came from: out again, or back up to the program that sent it.
            let flags = if setting!(is_egress) != 0 { u64::from(BPF_F_INGRESS) } else { 0 };
            // SAFETY: the context is the one the program was called with; the helper only takes note of the interface.
            unsafe { bpf_redirect((*context).ifindex, flags) as i32 }
        }
    }
}

// Functions of their own, so that what a packet is answered or marked with does not lie on the stack while it is judged: there is
// room for 512 bytes in all calls together.

#[inline(never)]
fn answer_driver_frame(context: *mut xdp_md) -> u32 {
    u32::from(answer(&mut XdpFrame::new(context), Link::Ethernet))
}

#[inline(never)]
fn answer_stack_frame(context: *mut __sk_buff) -> u32 {
    u32::from(answer(&mut TcFrame::new(context), Link::Ethernet))
}

#[inline(never)]
fn answer_stack_packet(context: *mut __sk_buff) -> u32 {
    u32::from(answer(&mut TcFrame::new(context), Link::RawIp))
}

#[inline(never)]
fn set_dscp_of_frame(context: *mut __sk_buff, dscp: u32) -> u32 {
    set_dscp(context, Link::Ethernet, dscp)
}

#[inline(never)]
fn set_dscp_of_packet(context: *mut __sk_buff, dscp: u32) -> u32 {
    set_dscp(context, Link::RawIp, dscp)
}

/// What becomes of a frame; each hook turns it into an action in one match.
enum Fate {
    Passed(Passage),
    /// By a rule, or before any was asked.
    Refused(Telling),
}

/// Who is told of a refusal.
enum Telling {
    Nothing,
    Sender,
}

/// The rules for a frame, or why there are none.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Found(u64);

impl Found {
    const BYPASS: u64 = 1 << 63;

    #[inline(always)]
    const fn rules(span: RuleSpan) -> Self {
        Self((span.first as u64) << 8 | (span.count as u64 & 0xff))
    }

    #[inline(always)]
    const fn bypass(bypass: Bypass) -> Self {
        Self(Self::BYPASS | bypass as u64)
    }

    #[inline(always)]
    const fn span(self) -> RuleSpan {
        RuleSpan { first: (self.0 >> 8) as u32, count: (self.0 & 0xff) as u32 }
    }
}

/// Which way packets go that come by traffic control; by XDP they only come in, which leaves it less to keep in mind.
#[inline(always)]
fn direction() -> Direction {
    if setting!(is_egress) != 0 { Direction::Egress } else { Direction::Ingress }
}

/// What is known of any frame.
pub(crate) struct Seen {
    pub(crate) size: Size,
    /// The interface's index, if a limit asks for it.
    pub(crate) interface: u32,
}

impl Seen {
    const NOTHING: Self = Self { size: Size::of_one(0), interface: 0 };
}

/// Parses and classifies. What the rules look at is filled in if there are any: clearing it for every frame would cost
/// as much as a map look-up.
#[inline(always)]
fn look_at(
    frame: &impl Frame,
    link: Link,
    direction: Direction,
    seen: &mut Seen,
    subject: &mut MaybeUninit<Subject>,
) -> Found {
    seen.size = Size::of_one(frame.length());
    let packet = match parse(frame, link, Depth::from_setting(setting!(depth))) {
        Ok(packet) => packet,
        Err(unparsed) => {
            return Found::bypass(match unparsed.disposition() {
                Disposition::Limit(kind) => essential::bypass(kind, frame.interface()),
                Disposition::Refuse => Bypass::Malformed,
            });
        }
    };
    let segments = frame.segments();
    if segments.payload != 0 {
        seen.size = segments.size(frame.length(), packet.headers(frame));
    }
    match classify(frame, &packet, direction, seen, subject) {
        Ok(span) => Found::rules(span),
        Err(bypass) => Found::bypass(bypass),
    }
}

/// Decides and counts.
#[inline(always)]
fn hold(found: Found, seen: &Seen, subject: &MaybeUninit<Subject>) -> Fate {
    if found.0 & Found::BYPASS == 0 {
        // SAFETY: rules were found, and with them this was filled in; the verifier checks as much.
        let subject = unsafe { subject.assume_init_ref() };
        return match judge(&Kernel, found.span(), subject) {
            Verdict::Pass(passage) => Fate::Passed(passage),
            Verdict::Refuse(rule) => Fate::Refused(telling(rule)),
        };
    }
    let bypass = found.0 as u32;
    // A ban is an operator's order, and observe mode is about limits.
    let is_enforced = setting!(observe) == 0 || bypass == Bypass::Banned as u32;
    let outcome = match (Bypass::is_refusal(bypass), is_enforced) {
        (false, _) => Outcome::Passed,
        (true, true) => Outcome::Throttled,
        (true, false) => Outcome::WouldThrottle,
    };
    Kernel.count(bypass, outcome, seen.size);
    if outcome == Outcome::Throttled { Fate::Refused(Telling::Nothing) } else { Fate::Passed(Passage::FREE) }
}

#[inline(always)]
fn telling(rule: u32) -> Telling {
    let is_answered =
        setting!(reject_in_use) != 0 && Kernel.rule(rule).is_some_and(|rule| rule.action == Action::Reject as u8);
    if is_answered { Telling::Sender } else { Telling::Nothing }
}

/// Marks a packet that passes marked, and tells when it is the turn of one that waits for it.
#[inline(always)]
fn send_on(context: *mut __sk_buff, link: Link, passage: Passage) {
    let mut frame = TcFrame::new(context);
    if setting!(shape_in_use) != 0 && passage.departure != Passage::AT_ONCE {
        let nanoseconds = Kernel::nanoseconds();
        let now = Kernel::ticks(nanoseconds);
        if is_alive(passage.departure, now) {
            let wait = Kernel::scale().whole_nanoseconds(passage.departure.wrapping_sub(now));
            frame.depart_at(nanoseconds + wait);
        }
    }
    if setting!(mark_in_use) != 0 && passage.marked_by != Passage::UNMARKED {
        let Some(mark) = MARKS.get(passage.marked_by % setting!(rules_per_grade).max(1)) else { return };
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
    let Ok(packet) = parse(&frame, link, Depth::Addresses) else { return 0 };
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

/// The kernel lends its GPL-only helpers to programs that declare a compatible licence.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
