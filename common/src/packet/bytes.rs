//! Bounded reads of a frame.

/// A frame, read at bounded offsets. The frame may be longer than its readable part.
pub trait Bytes {
    /// The byte at `offset`, `None` past the end.
    ///
    /// Where `offset` is 0 or not a constant, prefer [`Bytes::u16`]: compilers turn the check for one byte into one
    /// that the kernel's verifier does not understand.
    fn u8(&self, offset: usize) -> Option<u8>;
    /// The big-endian number at `offset`.
    fn u16(&self, offset: usize) -> Option<u16>;
    /// The four bytes at `offset` in memory order.
    fn u32(&self, offset: usize) -> Option<u32>;
    /// The eight bytes at `offset` in memory order.
    fn u64(&self, offset: usize) -> Option<u64>;
    /// `N` times four bytes from `offset` on in memory order, with one check for all.
    fn u32s<const N: usize>(&self, offset: usize) -> Option<[u32; N]> {
        let mut words = [0; N];
        for (nth, word) in words.iter_mut().enumerate() {
            *word = self.u32(offset + 4 * nth)?;
        }
        Some(words)
    }
    /// The same, eight bytes at a time.
    fn u64s<const N: usize>(&self, offset: usize) -> Option<[u64; N]> {
        let mut words = [0; N];
        for (nth, word) in words.iter_mut().enumerate() {
            *word = self.u64(offset + 8 * nth)?;
        }
        Some(words)
    }
    /// The length of the whole frame in bytes.
    fn length(&self) -> u32;
    /// Returns the offset, which is at most [`FURTHEST`]. In the kernel, the verifier loses its knowledge of the value
    /// here, so that it verifies each header once instead of every combination of preceding headers.
    fn forget(&self, offset: usize) -> usize {
        offset
    }
    /// Returns the offset, which is at most [`FURTHEST`]. In the kernel, the verifier learns this bound.
    fn within(&self, offset: usize) -> usize {
        offset
    }
}

/// The largest offset for [`Bytes::forget`] and [`Bytes::within`]: one less than a power of two.
pub const FURTHEST: usize = 2_047;

impl Bytes for [u8] {
    fn u8(&self, offset: usize) -> Option<u8> {
        self.get(offset).copied()
    }
    fn u16(&self, offset: usize) -> Option<u16> {
        Some(u16::from_be_bytes(
            self.get(offset..)?.first_chunk().copied()?,
        ))
    }
    fn u32(&self, offset: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(
            self.get(offset..)?.first_chunk().copied()?,
        ))
    }
    fn u64(&self, offset: usize) -> Option<u64> {
        Some(u64::from_ne_bytes(
            self.get(offset..)?.first_chunk().copied()?,
        ))
    }
    fn length(&self) -> u32 {
        self.len() as u32
    }
}
