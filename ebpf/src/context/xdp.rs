//! A frame as the driver hands it over.

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::helpers::generated::{bpf_xdp_adjust_head, bpf_xdp_adjust_tail, bpf_xdp_get_buff_len};
use common::packet::reply::{LONGEST_REPLY, Reply};
use common::packet::{Bytes, MAX_TAGS, Network, Transport};

use super::{Frame, behind, untag_driver_frame, walk_driver_frame};
use crate::maps::setting;

/// Length of a link header without tags.
const ETHERNET: usize = 14;

/// What the longest reply has more than the shortest packet that is answered.
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
        let (start, end) =
            unsafe { (packet_pointer!(xdp_md, context, data), packet_pointer!(xdp_md, context, data_end)) };
        Self { start, end, context }
    }

    /// Puts a value at `offset`; `false` if it does not lie within the frame's first buffer.
    #[inline(always)]
    fn put<T: Copy>(&mut self, offset: usize, value: T) -> bool {
        let at = self.start + offset;
        if behind::<T>(at) > self.end {
            return false;
        }
        // SAFETY: as in `at`; the buffer is the program's to write.
        unsafe { *(at as *mut T) = value };
        true
    }

    /// The value at `offset`, if it lies within the frame's first buffer.
    #[inline(always)]
    fn at<T: Copy>(&self, offset: usize) -> Option<T> {
        let at = self.start + offset;
        if behind::<T>(at) > self.end {
            return None;
        }
        // SAFETY: the range was just checked against the end of the buffer. Loads from packets need no alignment: the
        // kernel allows them where the machine does, and refuses to load the program elsewhere.
        Some(unsafe { *(at as *const T) })
    }
}

impl XdpFrame {
    /// Whether all that the IP header tells of lies in the first buffer. Asking the kernel for the length costs a call,
    /// which is worth it where bytes decide: a header may tell of less than there is.
    #[inline(always)]
    fn is_whole(&self) -> bool {
        if setting!(bytes_in_use) != 0 {
            return false;
        }
        // The type of the frame, and where IPv4 and IPv6 have their lengths.
        let Some([.., ethertype, _, of_ipv4, of_ipv6]) = self.at::<[u16; 10]>(0) else { return false };
        let told = match u16::from_be(ethertype) {
            0x0800 => usize::from(u16::from_be(of_ipv4)),
            0x86dd => 40 + usize::from(u16::from_be(of_ipv6)),
            _ => return false,
        };
        ETHERNET + told <= self.end - self.start
    }
}

impl Bytes for XdpFrame {
    super::bounded_reads!();

    #[inline(always)]
    fn behind_tags(&self, ethertype: u16) -> Network {
        Network::from_bits(untag_driver_frame(self.context, ethertype))
    }

    #[inline(always)]
    fn behind_extensions(&self, next: u8, offset: usize) -> Transport {
        Transport::from_bits(walk_driver_frame(self.context, next, offset))
    }

    #[inline(always)]
    fn length(&self) -> u32 {
        if setting!(multi_buffer) != 0 && !self.is_whole() {
            // SAFETY: the context is the one the program was called with.
            return unsafe { bpf_xdp_get_buff_len(self.context) } as u32;
        }
        (self.end - self.start) as u32
    }
}

impl Frame for XdpFrame {
    #[inline(always)]
    fn interface(&self) -> u32 {
        // SAFETY: the context is the one the program was called with.
        unsafe { (*self.context).ingress_ifindex }
    }

    #[inline(always)]
    fn segment(&self) -> u32 {
        0
    }

    #[inline(always)]
    fn resize(&mut self, length: usize) -> bool {
        let present = self.length() as usize;
        let missing = length.saturating_sub(present);
        if missing == 0 {
            // SAFETY: the context is the one the program was called with.
            let failed = unsafe { bpf_xdp_adjust_tail(self.context, length as i32 - present as i32) };
            *self = Self::new(self.context);
            return failed == 0;
        }
        // Drivers promise room before a frame, and none behind it.
        if missing > MOST_MISSING {
            return false;
        }
        // Type and tags follow the addresses, to where they will begin. What is copied beyond them is written anew.
        let Some(rest) = self.at::<[u16; 2 * MAX_TAGS + 1]>(12) else { return false };
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
