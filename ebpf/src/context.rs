//! Bounds-checked access to a frame as the driver hands it over.

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::helpers::generated::bpf_xdp_get_buff_len;
use aya_ebpf::programs::XdpContext;
use common::packet::Bytes;

use crate::maps::setting;

/// The frame of an XDP program.
pub struct XdpFrame {
    start: usize,
    end: usize,
    context: *mut xdp_md,
}

impl XdpFrame {
    #[inline(always)]
    pub fn new(context: &XdpContext) -> Self {
        Self { start: context.data(), end: context.data_end(), context: context.ctx }
    }

    /// The value at `offset`, if it lies within the frame's first buffer.
    #[inline(always)]
    fn at<T: Copy>(&self, offset: usize) -> Option<T> {
        let at = self.start + offset;
        if at + size_of::<T>() > self.end {
            return None;
        }
        // SAFETY: the range was just checked against the end of the buffer. Loads from packets need no alignment: the
        // kernel allows them where the machine does, and refuses to load the program elsewhere.
        Some(unsafe { *(at as *const T) })
    }
}

impl Bytes for XdpFrame {
    #[inline(always)]
    fn u8(&self, offset: usize) -> Option<u8> {
        self.at(offset)
    }

    #[inline(always)]
    fn u16(&self, offset: usize) -> Option<u16> {
        self.at(offset).map(u16::from_be)
    }

    #[inline(always)]
    fn u32(&self, offset: usize) -> Option<u32> {
        self.at(offset)
    }

    #[inline(always)]
    fn u64(&self, offset: usize) -> Option<u64> {
        self.at(offset)
    }

    #[inline(always)]
    fn length(&self) -> u32 {
        if setting!(multi_buffer) != 0 {
            // SAFETY: the context is the one the program was called with.
            return unsafe { bpf_xdp_get_buff_len(self.context) } as u32;
        }
        (self.end - self.start) as u32
    }
}
