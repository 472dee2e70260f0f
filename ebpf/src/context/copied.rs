//! The first bytes of a frame, for a record of it.

use common::capture::SNAP_LENGTH;

/// A frame of which the first bytes can be copied.
pub trait CopiedFrame {
    /// Copies the first `length` bytes, 1 to [`SNAP_LENGTH`]; `false` if the frame is shorter.
    ///
    /// # Safety
    ///
    /// `to` may be written.
    unsafe fn copy(&self, to: *mut [u8; SNAP_LENGTH as usize], length: u32) -> bool;
}

/// `length` as a number whose bounds the verifier knows.
#[inline(always)]
pub(super) const fn bounded(length: u32) -> u32 {
    (length.wrapping_sub(1) & (SNAP_LENGTH - 1)) + 1
}
