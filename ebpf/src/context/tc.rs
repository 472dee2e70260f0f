//! A frame in the network stack: a socket buffer, whose data may be only partly linear.

use aya_ebpf::bindings::{__sk_buff, BPF_F_RECOMPUTE_CSUM};
use aya_ebpf::helpers::generated::{
    bpf_l3_csum_replace, bpf_skb_change_tail, bpf_skb_load_bytes, bpf_skb_pull_data,
    bpf_skb_store_bytes,
};
use common::buffer::Segments;
use common::capture::SNAP_LENGTH;
use common::packet::reply::{LONGEST_REPLY, Reply};
use common::packet::{
    Bytes, Depth, Layers, Link, Network, RareHeaders, Transport, behind_tags, headers,
};
use common::program::{Context, Frame};

use super::copied::bounded;
use super::reads::{behind, bounded_reads, packet_pointer, request, walk};
use super::{CopiedFrame, Writable};
use crate::maps::setting;

/// The furthest end of a parsed header: link header, tags, and extension headers.
const HEADERS: u32 = 1_152;

/// The frame of a traffic control program.
pub struct TcFrame {
    start: usize,
    end: usize,
    context: *mut __sk_buff,
}

impl TcFrame {
    #[inline(always)]
    pub fn new(context: *mut __sk_buff) -> Self {
        // SAFETY: the context of this program's call.
        let (start, end) = unsafe {
            (
                packet_pointer!(__sk_buff, context, data),
                packet_pointer!(__sk_buff, context, data_end),
            )
        };
        Self {
            start,
            end,
            context,
        }
    }

    /// The value at `offset`, if it is in the linear part of the buffer.
    #[inline(always)]
    fn at<T: Copy>(&self, offset: usize) -> Option<T> {
        let at = self.start + offset;
        if behind::<T>(at) > self.end {
            return None;
        }
        // SAFETY: the range was just checked against the end of the linear part; see `XdpFrame::at`.
        Some(unsafe { *(at as *const T) })
    }

    /// Makes the headers linear, unless they surely are, so that no header escapes the parser. Every pointer into the
    /// packet is invalid afterwards.
    #[inline(always)]
    pub fn gather(context: *mut __sk_buff, link: Link) {
        let frame = Self::new(context);
        let length = frame.length();
        if frame.linear() < length as usize && frame.linear() < HEADERS as usize {
            match link {
                Link::Ethernet => gather_frame(context),
                Link::RawIp => gather_packet(context),
            };
        }
    }

    #[inline(always)]
    fn gather_parts(context: *mut __sk_buff, link: Link) -> u32 {
        let frame = Self::new(context);
        if !frame.is_plain(link) {
            // SAFETY: the context of this program's call. Without memory for it, the packet is evaluated by its linear
            // part.
            unsafe { bpf_skb_pull_data(context, frame.length().min(HEADERS)) };
        }
        0
    }

    #[inline(always)]
    fn linear(&self) -> usize {
        self.end - self.start
    }

    /// Whether the headers are of the usual types and all linear. The stack's outgoing packets have non-linear payload,
    /// and pulling it for every packet would cost a copy.
    #[inline(always)]
    fn is_plain(&self, link: Link) -> bool {
        const WITHOUT_OPTIONS: u16 = 0x45;
        const IPV4_AND_TCP: usize = 20 + 20;
        const IPV6_AND_TCP: usize = 40 + 20;
        if Depth::from_setting(setting!(depth)) >= Depth::Requests {
            return false;
        }
        let (is_ipv4, network) = match (link, self.u16(12), self.u16(0)) {
            (Link::Ethernet, Some(0x0800), _) => (true, 14),
            (Link::Ethernet, Some(0x86dd), _) => (false, 14),
            (Link::RawIp, _, Some(start)) => (start >> 12 == 4, 0),
            _ => return false,
        };
        if is_ipv4 {
            self.u16(network)
                .is_some_and(|start| start >> 8 == WITHOUT_OPTIONS)
                && self.linear() >= network + IPV4_AND_TCP
        } else {
            // TCP, UDP and ICMPv6 without extension headers.
            self.u16(network + 6)
                .is_some_and(|next| matches!(next >> 8, 6 | 17 | 58))
                && self.linear() >= network + IPV6_AND_TCP
        }
    }

    /// Sets the earliest departure, in nanoseconds of the monotonic clock. Requires the queueing discipline `fq`.
    #[inline(always)]
    pub fn depart_at(&mut self, nanoseconds: u64) {
        // SAFETY: the context is the one the program was called with.
        unsafe {
            if (*self.context).tstamp < nanoseconds {
                (*self.context).tstamp = nanoseconds;
            }
        }
    }

    /// Sets the packet's mark inside this host.
    #[inline(always)]
    pub fn set_mark(&mut self, mark: u32) {
        // SAFETY: the context is the one the program was called with.
        unsafe { (*self.context).mark = mark };
    }

    /// Sets the code point of the IPv4 header at `network`.
    #[inline(always)]
    pub fn set_dscp_ipv4(&mut self, network: usize, dscp: u8) {
        let Some(old) = self.at::<u8>(network + 1) else {
            return;
        };
        let new = dscp << 2 | old & 3;
        // SAFETY: both helpers check that the range is within the packet. The header's sum with its new checksum is
        // unchanged, so that no checksum over the whole packet changes.
        unsafe {
            let (from, to) = (
                u64::from(u16::from(old).to_be()),
                u64::from(u16::from(new).to_be()),
            );
            bpf_l3_csum_replace(self.context, network as u32 + 10, from, to, 2);
            bpf_skb_store_bytes(
                self.context,
                network as u32 + 1,
                (&raw const new).cast(),
                1,
                0,
            );
        }
    }

    /// Sets the code point of the IPv6 header at `network`: bits 4 to 9 of its first two bytes.
    #[inline(always)]
    pub fn set_dscp_ipv6(&mut self, network: usize, dscp: u8) {
        let Some(old) = self.u16(network) else { return };
        let new = (old & !0x0fc0 | u16::from(dscp) << 6).to_be();
        // SAFETY: the helper checks that the range is within the packet.
        unsafe {
            bpf_skb_store_bytes(
                self.context,
                network as u32,
                (&raw const new).cast(),
                2,
                u64::from(BPF_F_RECOMPUTE_CSUM),
            )
        };
    }
}

// Separate functions, to save stack space.

#[inline(never)]
fn gather_frame(context: *mut __sk_buff) -> u32 {
    TcFrame::gather_parts(context, Link::Ethernet)
}

#[inline(never)]
fn gather_packet(context: *mut __sk_buff) -> u32 {
    TcFrame::gather_parts(context, Link::RawIp)
}

impl Bytes for TcFrame {
    bounded_reads!();

    #[inline(always)]
    fn length(&self) -> u32 {
        // SAFETY: the context of this program's call.
        unsafe { (*self.context).len }
    }
}

impl RareHeaders for TcFrame {
    #[inline(always)]
    fn behind_tags(&self, ethertype: u16) -> Network {
        Network::from_bits(weir_untag_stack_frame(self.context, ethertype.into()))
    }

    #[inline(always)]
    fn behind_extensions(&self, next: u8, offset: usize) -> Transport {
        Transport::from_bits(weir_walk_stack_frame(
            self.context,
            next.into(),
            offset as u32,
        ))
    }

    #[inline(always)]
    fn begins_request(&self, network: usize, payload: usize, is_dns: bool) -> bool {
        weir_request_in_stack_frame(self.context, network as u32, payload as u32, is_dns.into())
            != 0
    }

    #[inline(always)]
    fn headers(&self, layers: Layers) -> u32 {
        weir_headers_of_stack_frame(self.context, layers.to_bits())
    }
}

// Few packets have tags, extension headers or several segments. Global functions of the context and numbers, so that
// each is verified once, and other packets need no stack for them. The verifier assumes any numbers.

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_untag_stack_frame(context: *mut __sk_buff, ethertype: u32) -> u32 {
    behind_tags(&TcFrame::new(context), ethertype as u16).to_bits()
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_walk_stack_frame(context: *mut __sk_buff, next: u32, offset: u32) -> u32 {
    walk(&TcFrame::new(context), next, offset)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_request_in_stack_frame(
    context: *mut __sk_buff,
    network: u32,
    payload: u32,
    is_dns: u32,
) -> u32 {
    request(&TcFrame::new(context), network, payload, is_dns)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_headers_of_stack_frame(context: *mut __sk_buff, layers: u32) -> u32 {
    headers(&TcFrame::new(context), Layers::from_bits(layers))
}

impl Frame for TcFrame {
    #[inline(always)]
    fn interface(&self) -> u32 {
        // SAFETY: the context is the one the program was called with.
        unsafe { (*self.context).ifindex }
    }

    #[inline(always)]
    fn segments(&self) -> Segments {
        // SAFETY: the context is the one the program was called with.
        let payload = unsafe { (*self.context).gso_size };
        if payload == 0 {
            return Segments::NONE;
        }
        // SAFETY: as above.
        let count = unsafe { (*self.context).gso_segs };
        Segments { payload, count }
    }

    #[inline(always)]
    fn context(&self) -> Context {
        Context::Stack(self.context.cast())
    }
}

impl CopiedFrame for TcFrame {
    #[inline(always)]
    unsafe fn copy(&self, to: *mut [u8; SNAP_LENGTH as usize], length: u32) -> bool {
        // SAFETY: the context of this program's call, and no more bytes than may be written.
        unsafe { bpf_skb_load_bytes(self.context.cast(), 0, to.cast(), bounded(length)) == 0 }
    }
}

impl Writable for TcFrame {
    #[inline(always)]
    fn may_lack_tag(&self) -> bool {
        // The buffer stores the tag separately, and adds it again when the reply is sent.
        false
    }

    #[inline(always)]
    fn resize(&mut self, length: usize) -> bool {
        // SAFETY: the context is the one the program was called with.
        if unsafe { bpf_skb_change_tail(self.context, length as u32, 0) } != 0 {
            return false;
        }
        *self = Self::new(self.context);
        true
    }

    #[inline(always)]
    fn put_addresses(&mut self, words: [u32; 3]) -> bool {
        // SAFETY: the helper checks that the range is within the packet. A direct store would make the kernel copy
        // every packet's headers before the program starts.
        unsafe { bpf_skb_store_bytes(self.context, 0, words.as_ptr().cast(), 12, 0) == 0 }
    }

    #[inline(always)]
    fn put_reply(&mut self, offset: usize, reply: &Reply, words: usize) -> bool {
        let words = words.clamp(1, LONGEST_REPLY);
        // SAFETY: as in `put_addresses`; a reply has `LONGEST_REPLY` words.
        unsafe {
            bpf_skb_store_bytes(
                self.context,
                offset as u32,
                reply.as_ptr().cast(),
                4 * words as u32,
                0,
            ) == 0
        }
    }
}
