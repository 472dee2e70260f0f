//! Proofs of addresses, by the kernel's SYN cookies, and replies to SYNs.

use core::ffi::c_void;

use aya_ebpf::bindings::{__sk_buff, bpf_sock, xdp_md};
use aya_ebpf::helpers::generated::{
    bpf_check_mtu, bpf_sk_release, bpf_skc_lookup_tcp, bpf_tcp_check_syncookie,
    bpf_tcp_gen_syncookie,
};
use common::counters::Bypass;
use common::key::Key;
use common::packet::reply::{Syn, SynReply};
use common::packet::{Address, Depth, Link, Packet, parse};
use common::program::Context;
use common::proof::{Header, Proof, Recent, Step, TRANSLATED, may_have_cookies, second};
use common::rule::Size;
use common::throttle::{Host, Outcome};

use crate::answer::{UNTAGGED, is_to_own, may_answer, may_answer_syn, send};
use crate::clock;
use crate::context::{TcFrame, Writable, XdpFrame};
use crate::maps::{COOKIE_PORTS, HEADERS, PROOF_HEADERS, PROVEN, PROVEN_NOW, REPLY, setting};
use crate::throttle::KERNEL;

/// The fourth word of a TCP header: its length, flags, and window.
const SYN: u32 = 1 << 17;
const ACK: u32 = 1 << 20;

/// The kernel's `TCP_LISTEN`.
const LISTEN: u32 = 10;
const THIS_NAMESPACE: u64 = u64::MAX;

/// The proof in a TCP packet.
#[inline(always)]
pub fn prove(context: Context, packet: &Packet) -> Proof {
    // Of a later fragment, there is no TCP header. The first one has all of it, and is evaluated by it.
    if !packet.has_ports() {
        return Proof::NONE;
    }
    let (network, transport) = (
        u32::from(packet.network_offset),
        u32::from(packet.transport_offset),
    );
    Proof::from_bits(match (context, packet.is_ipv4) {
        (Context::None, _) => return Proof::NONE,
        (Context::Driver(context), true) => {
            weir_prove_driver_ipv4(context.cast(), network, transport)
        }
        (Context::Driver(context), false) => {
            weir_prove_driver_ipv6(context.cast(), network, transport)
        }
        (Context::Stack(context), true) => {
            weir_prove_stack_ipv4(context.cast(), network, transport)
        }
        (Context::Stack(context), false) => {
            weir_prove_stack_ipv6(context.cast(), network, transport)
        }
    })
}

// Global functions of the context and numbers, so that each is verified once, and not at all without proofs (Linux 6.8).

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_prove_driver_ipv4(context: *mut xdp_md, network: u32, transport: u32) -> u64 {
    prove_ipv4(&XdpFrame::new(context), context.cast(), network, transport).to_bits()
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_prove_driver_ipv6(context: *mut xdp_md, network: u32, transport: u32) -> u64 {
    prove_ipv6(&XdpFrame::new(context), context.cast(), network, transport).to_bits()
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_prove_stack_ipv4(context: *mut __sk_buff, network: u32, transport: u32) -> u64 {
    prove_ipv4(&TcFrame::new(context), context.cast(), network, transport).to_bits()
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_prove_stack_ipv6(context: *mut __sk_buff, network: u32, transport: u32) -> u64 {
    prove_ipv6(&TcFrame::new(context), context.cast(), network, transport).to_bits()
}

#[inline(always)]
fn prove_ipv4(frame: &impl Writable, context: *mut c_void, network: u32, transport: u32) -> Proof {
    const MORE_FRAGMENTS: u32 = 0x2000;

    let (network, transport) = (
        frame.within(network as usize),
        frame.within(transport as usize),
    );
    let Some(ip) = frame.u32s::<5>(network) else {
        return Proof::NONE;
    };
    let Some(tcp) = frame.u32s::<5>(transport) else {
        return Proof::of(Step::Unproven);
    };
    let to = Address::from_ipv4_memory(ip[4]);
    let length = (u32::from_be(ip[0]) & 0xffff).wrapping_sub((transport - network) as u32);
    let header = Header::new(u32::from_be(tcp[3]), length);
    if !concerns(header, tcp) {
        return Proof::NONE;
    }
    // No host sends a SYN in parts: it would be charged to the address that it names.
    if header.is_syn() && u32::from_be(ip[1]) & MORE_FRAGMENTS != 0 {
        return Proof::of(Step::Refuse);
    }
    let mut option = 0;
    if header.is_syn() {
        option = syn_option(frame, transport, header, true);
        if option == 0 {
            return Proof::of(Step::Refuse);
        }
    }
    let Some(words) = words() else {
        return Proof::NONE;
    };
    words[..5].copy_from_slice(&ip);
    words[5] = tcp[0];
    let syn = SynFacts {
        option,
        is_untagged: network <= UNTAGGED,
    };
    query::<6>(context, words, 3, tcp, header, syn, || {
        is_to_own(frame, to, network)
    })
}

#[inline(always)]
fn prove_ipv6(frame: &impl Writable, context: *mut c_void, network: u32, transport: u32) -> Proof {
    let (network, transport) = (
        frame.within(network as usize),
        frame.within(transport as usize),
    );
    let Some(ip) = frame.u32s::<10>(network) else {
        return Proof::NONE;
    };
    let Some(tcp) = frame.u32s::<5>(transport) else {
        return Proof::of(Step::Unproven);
    };
    let half = |first: usize| u64::from(ip[first]) | u64::from(ip[first + 1]) << 32;
    let to = Address {
        hi: half(6),
        lo: half(8),
    };
    let extensions = (transport as u32).wrapping_sub(network as u32 + 40);
    let length = (u32::from_be(ip[1]) >> 16).wrapping_sub(extensions);
    let header = Header::new(u32::from_be(tcp[3]), length);
    if !concerns(header, tcp) {
        return Proof::NONE;
    }
    let mut option = 0;
    if header.is_syn() {
        option = syn_option(frame, transport, header, false);
        if option == 0 {
            return Proof::of(Step::Refuse);
        }
    }
    let Some(words) = words() else {
        return Proof::NONE;
    };
    words[..10].copy_from_slice(&ip);
    words[10] = tcp[0];
    let syn = SynFacts {
        option,
        is_untagged: network <= UNTAGGED,
    };
    query::<11>(context, words, 2, tcp, header, syn, || {
        is_to_own(frame, to, network)
    })
}

/// Whether it is a SYN to a port that is not translated, or an ACK or reset to a port whose cookies are in use.
#[inline(always)]
fn concerns(header: Header, tcp: [u32; 5]) -> bool {
    if !header.is_syn() && !header.is_ack() && !header.is_reset() {
        return false;
    }
    let Some(last) = COOKIE_PORTS.get(port(tcp)) else {
        return false;
    };
    if header.is_syn() {
        return *last != TRANSLATED;
    }
    may_have_cookies(*last, second(clock::coarse_nanoseconds()))
}

/// The option for a SYN's cookie, which is not 0; 0 of a SYN that the kernel drops. Not an `Option`, since the compiler saves
/// the content of `None` on the stack, which the verifier rejects.
#[inline(always)]
fn syn_option(frame: &impl Writable, transport: usize, header: Header, is_ipv4: bool) -> u32 {
    if !header.is_whole() {
        return 0;
    }
    let Some(syn) = Syn::read(frame, transport, is_ipv4) else {
        return 0;
    };
    syn.option()
}

#[inline(always)]
const fn port(tcp: [u32; 5]) -> u32 {
    u32::from_be(tcp[0]) & 0xffff
}

/// This CPU's memory for the headers of a packet: the stack has no room for them.
#[inline(always)]
fn words() -> Option<&'static mut [u32; HEADERS]> {
    // SAFETY: a map value that only this CPU uses.
    PROOF_HEADERS
        .get_ptr_mut(0)
        .map(|words| unsafe { &mut *words })
}

/// The source and the ports of a packet in the form of a key.
#[inline(always)]
fn connection<const W: usize>(words: &[u32; HEADERS], tuple: usize) -> Key {
    let half =
        |first: usize| u64::from(words[tuple + first]) | u64::from(words[tuple + first + 1]) << 32;
    let (hi, lo) = if W == 6 {
        (0, words[tuple].into())
    } else {
        (half(0), half(2))
    };
    Key {
        hi,
        lo,
        extra: words[W - 1],
        group: 0,
    }
}

/// What [`query`] needs of a SYN.
struct SynFacts {
    /// The option for its cookie.
    option: u32,
    /// Its frame has no VLAN tag. Listeners bound to a VLAN device are not found.
    is_untagged: bool,
}

/// Queries the kernel for the packet's socket. Anything but a listener knows the packet's connection. `words` are the IP header
/// and the ports, `W` in all; from the word `tuple` on, they are what the kernel looks up.
#[inline(always)]
fn query<const W: usize>(
    context: *mut c_void,
    words: &[u32; HEADERS],
    tuple: usize,
    tcp: [u32; 5],
    segment: Header,
    SynFacts {
        option,
        is_untagged,
    }: SynFacts,
    is_to_own: impl FnOnce() -> bool,
) -> Proof {
    if segment.is_reset() && !segment.is_syn() {
        end(connection::<W>(words, tuple));
        return Proof::NONE;
    }
    let (header_length, tuple_length) = (4 * (W as u32 - 1), 4 * (W - tuple) as u32);
    // SAFETY: the tuple is within the words, and has one of the two lengths that the helper accepts.
    let socket: *mut bpf_sock = unsafe {
        let tuple = words.as_ptr().add(tuple).cast_mut().cast();
        bpf_skc_lookup_tcp(context, tuple, tuple_length, THIS_NAMESPACE, 0)
    };
    let is_syn = segment.is_syn();
    // SAFETY: a socket is held until it is released.
    let is_listener = !socket.is_null() && unsafe { (*socket).state } == LISTEN;
    let may_be_closed = socket.is_null() && is_syn && is_untagged;
    // After the look-up, since most packets are those of a connection.
    if !(is_listener || may_be_closed) || !is_to_own() {
        if !socket.is_null() {
            // SAFETY: as above.
            unsafe { bpf_sk_release(socket.cast()) };
        }
        return Proof::NONE;
    }
    if socket.is_null() {
        return to_closed_port();
    }
    // The only option, so that the length of the header is a constant.
    let header = if is_syn {
        [tcp[0], tcp[1], 0, (6 << 28 | SYN).to_be(), 0, option]
    } else {
        [tcp[0], tcp[1], tcp[2], (5 << 28 | ACK).to_be(), 0, 0]
    };
    let (ip, header) = (
        words.as_ptr().cast_mut().cast(),
        header.as_ptr().cast_mut().cast(),
    );
    if is_syn {
        // SAFETY: the headers have these lengths.
        let made = unsafe { bpf_tcp_gen_syncookie(socket.cast(), ip, header_length, header, 24) };
        // SAFETY: as above.
        unsafe { bpf_sk_release(socket.cast()) };
        return made_cookie(made, port(tcp));
    }
    // SAFETY: as above.
    let checked = unsafe { bpf_tcp_check_syncookie(socket.cast(), ip, header_length, header, 20) };
    // SAFETY: as above.
    unsafe { bpf_sk_release(socket.cast()) };
    concluded(connection::<W>(words, tuple), segment, checked == 0)
}

/// The step of an ACK to a listener. A connection is charged once, although packets behind its ACK may find the listener, too.
#[inline(always)]
fn concluded(connection: Key, segment: Header, is_valid: bool) -> Proof {
    let (hash, now) = (
        KERNEL.hash_by_call(&connection),
        clock::coarse_nanoseconds(),
    );
    let Some(place) = PROVEN.get_ptr_mut(Recent::index(hash)) else {
        return Proof::NONE;
    };
    // SAFETY: an aligned word of a map's value, which other CPUs write.
    let recent = unsafe { place.read_volatile() };
    if let Some(after) = recent.covers(hash, now, segment, is_valid) {
        if after != recent {
            // SAFETY: as above.
            unsafe { place.write_volatile(after) };
        }
        return Proof::NONE;
    }
    if !is_valid {
        return Proof::of(Step::Unproven);
    }
    let Some(proven) = PROVEN_NOW.get_ptr_mut(0) else {
        return Proof::NONE;
    };
    let entry = Recent::new(hash, now, segment);
    // SAFETY: this CPU's own value.
    unsafe { *proven = [u64::from(Recent::index(hash)), entry.0] };
    Proof::of(Step::Proven)
}

/// After a reset, the connection's cookie may open another one.
#[inline(always)]
fn end(connection: Key) {
    let hash = KERNEL.hash_by_call(&connection);
    let Some(place) = PROVEN.get_ptr_mut(Recent::index(hash)) else {
        return;
    };
    // SAFETY: an aligned word of a map's value, which other CPUs write.
    let recent = unsafe { place.read_volatile() };
    if recent.is(hash, clock::coarse_nanoseconds()) {
        // SAFETY: as above.
        unsafe { place.write_volatile(recent.ended()) };
    }
}

/// Counts and remembers the connection of the packet that was just proven: its rules passed it. A refused one is evaluated
/// again with its next packet. A global function, so that it is not verified without proofs.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn weir_note_proven() -> u32 {
    KERNEL.count(Bypass::Proven as u32, Outcome::Over, Size::of_one(0));
    let Some(proven) = PROVEN_NOW.get_ptr_mut(0) else {
        return 0;
    };
    // SAFETY: this CPU's own value.
    let [index, recent] = unsafe { core::mem::take(&mut *proven) };
    if let Some(place) = PROVEN.get_ptr_mut(index as u32) {
        // SAFETY: an aligned word of a map's value, which other CPUs write.
        unsafe { place.write_volatile(Recent(recent)) };
    }
    0
}

/// Whether the present packet, which is refused, has just proven its source's address. It is then reset, whatever its rule's
/// action: the source believes that it is connected, and would wait for a server that speaks first.
#[inline(always)]
pub fn is_refused() -> bool {
    setting!(prove_in_use) != 0 && weir_refused_proven() != 0
}

/// A global function, so that it is not verified without proofs. Not another verdict, since the verifier would follow each
/// path of the evaluation twice.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_refused_proven() -> u32 {
    let Some(proven) = PROVEN_NOW.get_ptr_mut(0) else {
        return 0;
    };
    // SAFETY: this CPU's own value.
    let [_, recent] = unsafe { core::mem::take(&mut *proven) };
    if recent == 0 {
        return 0;
    }
    KERNEL.count(Bypass::ProvenRefused as u32, Outcome::Over, Size::of_one(0));
    1
}

/// The step of a SYN that no socket of this host takes.
#[inline(always)]
fn to_closed_port() -> Proof {
    if !may_answer(true) {
        return Proof::of(Step::Refuse);
    }
    KERNEL.count(Bypass::Closed as u32, Outcome::Over, Size::of_one(0));
    Proof::of(Step::Closed)
}

/// The step after a cookie was requested: the helper returns it in the lowest 32 bits, or an error.
#[inline(always)]
fn made_cookie(made: i64, port: u32) -> Proof {
    if made < 0 {
        KERNEL.count(Bypass::WithoutCookie as u32, Outcome::Over, Size::of_one(0));
        return Proof::NONE;
    }
    // The burst of the limit on answers is that of several of the kernel's ticks.
    let now = clock::coarse_nanoseconds();
    if !may_answer_syn(now) {
        return Proof::of(Step::Refuse);
    }
    if let Some(last) = COOKIE_PORTS.get_ptr_mut(port) {
        let now = second(now);
        // SAFETY: an aligned word of a map's value; it is written at most once a second, since all CPUs share it.
        unsafe {
            if last.read_volatile() != now {
                last.write_volatile(now);
            }
        }
    }
    Proof::answer(SynReply::cookie(made as u32))
}

/// Turns the frame, a SYN, into its SYN-ACK; `false` if that fails.
#[inline(always)]
pub fn answer_syn(frame: &mut impl Writable, context: *mut c_void, link: Link, bits: u64) -> bool {
    let mut mtu = 0u32;
    // SAFETY: the helper writes the number; without one the reply has the SYN's.
    unsafe { bpf_check_mtu(context, 0, &raw mut mtu, 0, 0) };
    let Ok(packet) = parse(frame, link, Depth::Ports) else {
        return false;
    };
    let Some(reply) = REPLY.get_ptr_mut(0) else {
        return false;
    };
    // SAFETY: a map value that only this CPU uses. Every word of the reply is written.
    let reply = unsafe { &mut *reply };
    let words = reply.syn_ack(frame, &packet, SynReply::from_bits(bits), mtu);
    words != 0 && send(frame, link, &packet, reply, words)
}
