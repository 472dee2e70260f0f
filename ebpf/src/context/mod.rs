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
        fn forget(&self, offset: usize) -> usize {
            // SAFETY: the context is the one the program was called with.
            unsafe { $crate::context::unknown(&raw const (*self.context).data, offset) }
        }
    };
}
use bounded_reads;

mod tc;
mod xdp;

pub use tc::TcFrame;
pub use xdp::XdpFrame;

use common::packet::reply::Reply;
use common::packet::{Bytes, FURTHEST};
use core::arch::asm;

/// A frame that the program may change.
pub trait Frame: Bytes {
    /// Bytes of payload in each packet that the frame stands for; 0 if it is one packet.
    fn segment(&self) -> u32;

    /// Cuts or extends the frame, all but the link header's type and tags of which is to be written anew; `false` if that
    /// cannot be.
    fn resize(&mut self, length: usize) -> bool;

    /// Writes an Ethernet header's first twelve bytes; `false` if there are not as many.
    fn put_addresses(&mut self, words: [u32; 3]) -> bool;

    /// Writes the first `words` words of a reply at `offset`; `false` if they do not fit.
    fn put_reply(&mut self, offset: usize, reply: &Reply, words: usize) -> bool;
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
