//! Bounds-checked access to a frame, as each hook hands it over.

/// The reads of [`Bytes`] for a frame that has a bounds-checked `at` and a `context`.
macro_rules! bounded_reads {
    () => {
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
        fn u32s<const N: usize>(&self, offset: usize) -> Option<[u32; N]> {
            self.at(offset)
        }

        #[inline(always)]
        fn u64s<const N: usize>(&self, offset: usize) -> Option<[u64; N]> {
            self.at(offset)
        }

        #[inline(always)]
        fn within(&self, offset: usize) -> usize {
            let mut offset = offset;
            // SAFETY: arithmetic on a register. It is written out, since the compiler knows of the bound and would leave it
            // away; the verifier does not, or loses it on the stack.
            unsafe {
                core::arch::asm!("{0} &= {1}", inout(reg) offset, const common::packet::FURTHEST, options(pure, nomem, nostack));
            }
            offset
        }

        #[inline(always)]
        fn forget(&self, offset: usize) -> usize {
            // SAFETY: the context is the one the program was called with.
            unsafe { $crate::context::unknown(&raw const (*self.context).data, offset) }
        }
    };
}
use bounded_reads;

/// A field of the context that the verifier takes for a pointer into the packet. The load is written out, since its result
/// is all of a register: to a compiler the field has 32 bits, and it would keep only as many on the stack.
macro_rules! packet_pointer {
    ($type:ident, $context:expr, $field:ident) => {{
        let pointer: usize;
        core::arch::asm!("{0} = *(u32 *)({1} + {2})", out(reg) pointer, in(reg) $context,
            const core::mem::offset_of!($type, $field), options(pure, readonly, nostack));
        pointer
    }};
}

mod tc;
mod xdp;

pub use tc::TcFrame;
pub use xdp::XdpFrame;

use aya_ebpf::bindings::{__sk_buff, xdp_md};
use common::buffer::Segments;
use common::packet::reply::Reply;
use common::packet::{Bytes, FURTHEST, Layers, behind_extensions, behind_tags, headers};
use core::arch::asm;

/// A frame that the program may change.
pub trait Frame: Bytes {
    /// The index of the interface that it comes in or leaves by.
    fn interface(&self) -> u32;

    /// The packets that the frame stands for.
    fn segments(&self) -> Segments;

    /// Whether the driver may have taken a VLAN tag off it that a reply would lack.
    fn may_lack_tag(&self) -> bool;

    /// Cuts or extends the frame, all but the link header's type and tags of which is to be written anew; `false` if that
    /// cannot be.
    fn resize(&mut self, length: usize) -> bool;

    /// Writes an Ethernet header's first twelve bytes; `false` if there are not as many.
    fn put_addresses(&mut self, words: [u32; 3]) -> bool;

    /// Writes the first `words` words of a reply at `offset`; `false` if they do not fit.
    fn put_reply(&mut self, offset: usize, reply: &Reply, words: usize) -> bool;
}

// Few packets have tags, extension headers or several segments. Global functions of the context and numbers, so that each is
// verified once, and the others need no stack for them. The numbers can be any, as far as the verifier knows.

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_untag_driver_frame(context: *mut xdp_md, ethertype: u32) -> u32 {
    behind_tags(&XdpFrame::new(context), ethertype as u16).to_bits()
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_untag_stack_frame(context: *mut __sk_buff, ethertype: u32) -> u32 {
    behind_tags(&TcFrame::new(context), ethertype as u16).to_bits()
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_walk_driver_frame(context: *mut xdp_md, next: u32, offset: u32) -> u32 {
    walk(&XdpFrame::new(context), next, offset)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_walk_stack_frame(context: *mut __sk_buff, next: u32, offset: u32) -> u32 {
    walk(&TcFrame::new(context), next, offset)
}

#[inline(always)]
fn walk(frame: &impl Frame, next: u32, offset: u32) -> u32 {
    behind_extensions(frame, next as u8, frame.within(offset as usize)).to_bits()
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_headers_of_driver_frame(context: *mut xdp_md, layers: u32) -> u32 {
    headers(&XdpFrame::new(context), Layers::from_bits(layers))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_headers_of_stack_frame(context: *mut __sk_buff, layers: u32) -> u32 {
    headers(&TcFrame::new(context), Layers::from_bits(layers))
}

/// The address behind a value at `at`. The addition is written out: moved to the other side of a comparison, as compilers
/// do in loops, it would be arithmetic on the end of the packet, which the verifier refuses.
#[inline(always)]
fn behind<T>(at: usize) -> usize {
    let mut behind = at;
    // SAFETY: one addition.
    unsafe { asm!("{0} += {1}", inout(reg) behind, const size_of::<T>(), options(pure, nomem, nostack)) };
    behind
}

/// `offset`, at most [`FURTHEST`], as a number of which the verifier knows only that: the difference of two pointers into
/// the packet is a number it does not follow, though the two are the same.
///
/// # Safety
///
/// `data` is the field of that name of the context that the program was called with.
#[inline(always)]
unsafe fn unknown(data: *const u32, offset: usize) -> usize {
    // SAFETY: as above. The subtraction is written out, since the compiler knows as well as we do what it comes to.
    let nothing = unsafe {
        let mut nothing = data.read_volatile() as usize;
        asm!("{0} -= {1}", inout(reg) nothing, in(reg) data.read_volatile() as usize, options(pure, nomem, nostack));
        nothing
    };
    (offset + (nothing & FURTHEST)) & FURTHEST
}
