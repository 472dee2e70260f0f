//! A frame in the driver.

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::helpers::generated::{
    bpf_probe_read_kernel, bpf_xdp_adjust_head, bpf_xdp_adjust_tail, bpf_xdp_get_buff_len,
    bpf_xdp_load_bytes,
};
use common::buffer::Segments;
use common::capture::SNAP_LENGTH;
use common::packet::reply::{LONGEST_REPLY, Reply};
use common::packet::{
    Bytes, Layers, MAX_TAGS, Network, RareHeaders, Transport, behind_tags, headers,
};
use common::program::{Context, Frame};

use super::copied::bounded;
use super::reads::{behind, bounded_reads, packet_pointer, request, walk};
use super::{CopiedFrame, Writable};
use crate::maps::setting;

/// Length of a link header without tags.
const ETHERNET: usize = 14;

/// The most bytes by which a reply is longer than its packet.
const MOST_MISSING: usize = 4 * LONGEST_REPLY;

/// The frame of an XDP program.
pub struct XdpFrame {
    start: usize,
    end: usize,
    context: *mut xdp_md,
}

impl XdpFrame {
    #[inline(always)]
    pub fn new(context: *mut xdp_md) -> Self {
        // SAFETY: the context is the one the program was called with.
        let (start, end) = unsafe {
            (
                packet_pointer!(xdp_md, context, data),
                packet_pointer!(xdp_md, context, data_end),
            )
        };
        Self {
            start,
            end,
            context,
        }
    }

    /// Writes a value at `offset`; `false` if it is not within the frame's first buffer.
    #[inline(always)]
    fn put<T: Copy>(&mut self, offset: usize, value: T) -> bool {
        let at = self.start + offset;
        if behind::<T>(at) > self.end {
            return false;
        }
        // SAFETY: as in `at`; programs may write to the buffer.
        unsafe { *(at as *mut T) = value };
        true
    }

    /// The value at `offset`, if it is within the frame's first buffer.
    #[inline(always)]
    fn at<T: Copy>(&self, offset: usize) -> Option<T> {
        let at = self.start + offset;
        if behind::<T>(at) > self.end {
            return None;
        }
        // SAFETY: the range was just checked against the end of the buffer. Loads from packets need no alignment: the
        // kernel allows them where the machine does, and rejects the program elsewhere.
        Some(unsafe { *(at as *const T) })
    }
}

impl XdpFrame {
    /// Whether the first buffer has everything that the IP header announces. A call for the whole length is only worth
    /// its cost where bytes are counted: a header may announce less than there is.
    #[inline(always)]
    fn is_whole(&self) -> bool {
        if setting!(bytes_in_use) != 0 {
            return false;
        }
        // The frame's type, and the length fields of IPv4 and IPv6.
        let Some([.., ethertype, _, of_ipv4, of_ipv6]) = self.at::<[u16; 10]>(0) else {
            return false;
        };
        let told = match u16::from_be(ethertype) {
            0x0800 => usize::from(u16::from_be(of_ipv4)),
            0x86dd => 40 + usize::from(u16::from_be(of_ipv6)),
            _ => return false,
        };
        ETHERNET + told <= self.end - self.start
    }
}

/// `gso_size` and `gso_segs` of the socket buffer that generic XDP runs on; 0 if they cannot be read. The program's context
/// is the kernel's `struct xdp_buff`.
#[inline(never)]
fn read_segments(context: *mut xdp_md) -> u32 {
    let buffer = context.cast::<u8>().cast_const();
    let start_at = buffer.wrapping_add(setting!(buffer_layout.start) as usize);
    let length_at = buffer.wrapping_add(setting!(buffer_layout.length) as usize);
    let segments = u64::from(setting!(buffer_layout.segments))
        .wrapping_sub(setting!(buffer_layout.shared).into());
    // SAFETY: the helper checks every address that it reads, and the agent has the offsets from the kernel's BTF.
    unsafe {
        let start: u64 = read_kernel(start_at);
        let length: u32 = read_kernel(length_at);
        read_kernel(start.wrapping_add(u64::from(length)).wrapping_add(segments) as *const u8)
    }
}

/// The value at a kernel address; 0 if it cannot be read.
///
/// # Safety
///
/// Every bit pattern is a `T`.
#[inline(always)]
unsafe fn read_kernel<T: Default>(address: *const u8) -> T {
    let mut value = T::default();
    // SAFETY: the helper writes exactly the value's bytes, or clears them.
    unsafe {
        bpf_probe_read_kernel(
            (&raw mut value).cast(),
            size_of::<T>() as u32,
            address.cast(),
        )
    };
    value
}

impl Bytes for XdpFrame {
    bounded_reads!();

    #[inline(always)]
    fn length(&self) -> u32 {
        if setting!(multi_buffer) != 0 && !self.is_whole() {
            // SAFETY: the context is the one the program was called with.
            return unsafe { bpf_xdp_get_buff_len(self.context) } as u32;
        }
        (self.end - self.start) as u32
    }
}

impl RareHeaders for XdpFrame {
    #[inline(always)]
    fn behind_tags(&self, ethertype: u16) -> Network {
        Network::from_bits(weir_untag_driver_frame(self.context, ethertype.into()))
    }

    #[inline(always)]
    fn behind_extensions(&self, next: u8, offset: usize) -> Transport {
        Transport::from_bits(weir_walk_driver_frame(
            self.context,
            next.into(),
            offset as u32,
        ))
    }

    #[inline(always)]
    fn begins_request(&self, network: usize, payload: usize, is_dns: bool) -> bool {
        weir_request_in_driver_frame(self.context, network as u32, payload as u32, is_dns.into())
            != 0
    }

    #[inline(always)]
    fn headers(&self, layers: Layers) -> u32 {
        weir_headers_of_driver_frame(self.context, layers.to_bits())
    }
}

// Few packets have tags, extension headers or several segments. Global functions of the context and numbers, so that
// each is verified once, and other packets need no stack for them. The verifier assumes any numbers.

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_untag_driver_frame(context: *mut xdp_md, ethertype: u32) -> u32 {
    behind_tags(&XdpFrame::new(context), ethertype as u16).to_bits()
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_walk_driver_frame(context: *mut xdp_md, next: u32, offset: u32) -> u32 {
    walk(&XdpFrame::new(context), next, offset)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_request_in_driver_frame(
    context: *mut xdp_md,
    network: u32,
    payload: u32,
    is_dns: u32,
) -> u32 {
    request(&XdpFrame::new(context), network, payload, is_dns)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_headers_of_driver_frame(context: *mut xdp_md, layers: u32) -> u32 {
    headers(&XdpFrame::new(context), Layers::from_bits(layers))
}

impl Frame for XdpFrame {
    #[inline(always)]
    fn interface(&self) -> u32 {
        // SAFETY: the context is the one the program was called with.
        unsafe { (*self.context).ingress_ifindex }
    }

    #[inline(always)]
    fn segments(&self) -> Segments {
        if setting!(buffer_layout.shared) == 0 {
            return Segments::NONE;
        }
        Segments::from_memory(read_segments(self.context))
    }

    #[inline(always)]
    fn context(&self) -> Context {
        Context::Driver(self.context.cast())
    }
}

impl CopiedFrame for XdpFrame {
    #[inline(always)]
    unsafe fn copy(&self, to: *mut [u8; SNAP_LENGTH as usize], length: u32) -> bool {
        if setting!(multi_buffer) != 0 {
            // SAFETY: the context of this program's call, and no more bytes than may be written.
            return unsafe { bpf_xdp_load_bytes(self.context, 0, to.cast(), bounded(length)) == 0 };
        }
        // Kernels before 5.18 have no helper.
        for nth in 0..SNAP_LENGTH as usize {
            if nth >= length as usize {
                break;
            }
            let Some(byte) = self.u8(nth) else {
                return false;
            };
            // SAFETY: as above.
            unsafe { (*to)[nth] = byte };
        }
        true
    }
}

impl Writable for XdpFrame {
    #[inline(always)]
    fn may_lack_tag(&self) -> bool {
        true
    }

    #[inline(always)]
    fn resize(&mut self, length: usize) -> bool {
        let present = self.length() as usize;
        let missing = length.saturating_sub(present);
        if missing == 0 {
            // SAFETY: the context is the one the program was called with.
            let failed =
                unsafe { bpf_xdp_adjust_tail(self.context, length as i32 - present as i32) };
            *self = Self::new(self.context);
            return failed == 0;
        }
        // Drivers guarantee room before a frame, but not after it.
        if missing > MOST_MISSING {
            return false;
        }
        // Type and tags follow the addresses, at their future offset. Bytes copied beyond them are overwritten.
        let Some(rest) = self.at::<[u16; 2 * MAX_TAGS + 1]>(12) else {
            return false;
        };
        // SAFETY: the context is the one the program was called with.
        if unsafe { bpf_xdp_adjust_head(self.context, -(missing as i32)) } != 0 {
            return false;
        }
        *self = Self::new(self.context);
        self.put(12, rest)
    }

    #[inline(always)]
    fn put_addresses(&mut self, words: [u32; 3]) -> bool {
        self.put(0, words)
    }

    #[inline(always)]
    fn put_reply(&mut self, offset: usize, reply: &Reply, words: usize) -> bool {
        for nth in 0..LONGEST_REPLY {
            if nth >= words {
                break;
            }
            if !self.put(offset + 4 * nth, reply.word(nth)) {
                return false;
            }
        }
        true
    }
}
