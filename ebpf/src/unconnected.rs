//! Refused packets that do not count towards a ban: TCP segments that belong to no connection of this host. All decisions are
//! in [`common::escalation`].

use core::ffi::c_void;

use aya_ebpf::bindings::{__sk_buff, bpf_sock, xdp_md};
use aya_ebpf::helpers::generated::{bpf_sk_release, bpf_skc_lookup_tcp};
use common::counters::SampleKey;
use common::escalation::{Counts, key_of};
use common::packet::{Depth, Link, parse};
use common::program::Frame;
use common::throttle::Host;

use crate::context::{TcFrame, XdpFrame};
use crate::maps::{PROOF_HEADERS, setting};
use crate::sample::weir_unconnected;
use crate::throttle::KERNEL;

/// The kernel's states of sockets without a connection: `TCP_TIME_WAIT`, `TCP_LISTEN`, and `TCP_NEW_SYN_RECV`, which one SYN
/// makes, also a forged one.
const TIME_WAIT: u32 = 6;
const LISTEN: u32 = 10;
const NEW_SYN_RECEIVED: u32 = 12;
const THIS_NAMESPACE: u64 = u64::MAX;
/// Words of a tuple: addresses and ports.
const IPV4: u32 = 3;
const IPV6: u32 = 9;
/// The bit of [`weir_refused_stack`] for frames without a link header.
const RAW_IP: u32 = 1 << 31;

/// Notes a packet in the driver that the rule has refused.
#[inline(always)]
pub fn driver_frame(context: *mut xdp_md, rule: u32) {
    if setting!(escalate_in_use) != 0 {
        weir_refused_driver(context, rule);
    }
}

/// Notes a packet in the network stack, likewise.
#[inline(always)]
pub fn stack_frame(context: *mut __sk_buff, link: Link, rule: u32) {
    if setting!(escalate_in_use) != 0 {
        let bit = match link {
            Link::Ethernet => 0,
            Link::RawIp => RAW_IP,
        };
        weir_refused_stack(context, rule & !RAW_IP | bit);
    }
}

// Global functions of the context and a number, so that each is verified once, and not at all without bans (Linux 6.8).

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_refused_driver(context: *mut xdp_md, rule: u32) -> u32 {
    note(
        &XdpFrame::new(context),
        context.cast(),
        Link::Ethernet,
        rule,
    )
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_refused_stack(context: *mut __sk_buff, rule: u32) -> u32 {
    let frame = TcFrame::new(context);
    if rule & RAW_IP == 0 {
        note(&frame, context.cast(), Link::Ethernet, rule)
    } else {
        note(&frame, context.cast(), Link::RawIp, rule & !RAW_IP)
    }
}

#[inline(always)]
fn note(frame: &impl Frame, context: *mut c_void, link: Link, rule: u32) -> u32 {
    let Some(rule) = KERNEL.rule(rule) else {
        return 0;
    };
    if !rule.escalates() {
        return 0;
    }
    let Ok(packet) = parse(frame, link, Depth::Ports) else {
        return 0;
    };
    let counts = Counts::of(rule, &packet);
    if counts == Counts::Always {
        return 0;
    }
    let Some(words) = PROOF_HEADERS.get_ptr_mut(0) else {
        return 0;
    };
    // SAFETY: a map value that only this CPU uses, between proofs.
    let words = unsafe { &mut *words };
    let length = packet.write_tuple(words);
    if counts == Counts::IfConnected && is_connected(context, words.as_mut_ptr().cast(), length) {
        return 0;
    }
    let segments = frame.segments();
    let packets = if segments.payload == 0 {
        1
    } else {
        segments.size(frame.length(), packet.headers(frame)).packets
    };
    let key = key_of(rule, &packet);
    let entry = SampleKey::refused(key.group, rule.position);
    let extra = u64::from(key.extra) << 32 | u64::from(entry.0);
    weir_unconnected(key.hi, key.lo, extra, packets)
}

/// Whether this host has the connection of a tuple of so many words.
#[inline(always)]
fn is_connected(context: *mut c_void, tuple: *mut c_void, words: u32) -> bool {
    // SAFETY: the map's value has room for both tuples; these are the lengths that the helper accepts.
    let socket: *mut bpf_sock = unsafe {
        if words == IPV4 {
            bpf_skc_lookup_tcp(context, tuple.cast(), 4 * IPV4, THIS_NAMESPACE, 0)
        } else {
            bpf_skc_lookup_tcp(context, tuple.cast(), 4 * IPV6, THIS_NAMESPACE, 0)
        }
    };
    if socket.is_null() {
        return false;
    }
    // SAFETY: the socket is not null, and held until it is released.
    let state = unsafe { (*socket).state };
    let is_connection = !matches!(state, TIME_WAIT | LISTEN | NEW_SYN_RECEIVED);
    // SAFETY: as above.
    unsafe { bpf_sk_release(socket.cast()) };
    is_connection
}
