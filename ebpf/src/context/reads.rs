//! Bounds-checked reads.

use core::arch::asm;

use common::packet::{Bytes, FURTHEST, begins_request, behind_extensions};

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
            // SAFETY: arithmetic on a register. In assembly, since the compiler knows the bound and would remove the
            // operation; the verifier does not know it, or loses it on the stack.
            unsafe {
                core::arch::asm!("{0} &= {1}", inout(reg) offset, const common::packet::FURTHEST, options(pure, nomem, nostack));
            }
            offset
        }

        #[inline(always)]
        fn forget(&self, offset: usize) -> usize {
            // SAFETY: the context of this program's call.
            unsafe { $crate::context::reads::unknown(&raw const (*self.context).data, offset) }
        }
    };
}
pub(super) use bounded_reads;

/// Reads a field of the context that the verifier treats as a pointer into the packet. In assembly, since the result is
/// a whole register: for a compiler the field has 32 bits, and it would only save those on the stack.
macro_rules! packet_pointer {
    ($type:ident, $context:expr, $field:ident) => {{
        let pointer: usize;
        core::arch::asm!("{0} = *(u32 *)({1} + {2})", out(reg) pointer, in(reg) $context,
            const core::mem::offset_of!($type, $field), options(pure, readonly, nostack));
        pointer
    }};
}
pub(super) use packet_pointer;

/// The address after a value at `at`. In assembly: compilers move the addition to the other side of a comparison in
/// loops, where it would be arithmetic on the end of the packet, which the verifier rejects.
#[inline(always)]
pub(super) fn behind<T>(at: usize) -> usize {
    let mut behind = at;
    // SAFETY: one addition.
    unsafe {
        asm!("{0} += {1}", inout(reg) behind, const size_of::<T>(), options(pure, nomem, nostack));
    }
    behind
}

/// Returns `offset`, at most [`FURTHEST`], as a number of which the verifier only knows that bound: it does not track
/// the difference of two packet pointers, although they are equal.
///
/// # Safety
///
/// `data` is the context's field of that name.
#[inline(always)]
pub(super) unsafe fn unknown(data: *const u32, offset: usize) -> usize {
    // SAFETY: as above. In assembly, since the compiler would compute the result.
    let nothing = unsafe {
        let mut nothing = data.read_volatile() as usize;
        asm!("{0} -= {1}", inout(reg) nothing, in(reg) data.read_volatile() as usize, options(pure, nomem, nostack));
        nothing
    };
    (offset + (nothing & FURTHEST)) & FURTHEST
}

/// The transport header after extension headers from `offset` on, as a number.
#[inline(always)]
pub(super) fn walk(frame: &impl Bytes, next: u32, offset: u32) -> u32 {
    behind_extensions(frame, next as u8, frame.within(offset as usize)).to_bits()
}

/// Whether a TCP payload begins with a request, as a number.
#[inline(always)]
pub(super) fn request(frame: &impl Bytes, network: u32, payload: u32, is_dns: u32) -> u32 {
    let (network, payload) = (
        frame.within(network as usize),
        frame.within(payload as usize),
    );
    begins_request(frame, network, payload, is_dns != 0).into()
}
