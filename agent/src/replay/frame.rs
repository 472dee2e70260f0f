//! A captured frame.

use std::cell::Cell;

use common::buffer::Segments;
use common::packet::{Bytes, RareHeaders};
use common::program::Frame;

use super::capture::CapturedPacket;

/// A frame that may be captured only partly.
#[derive(Clone, Copy)]
pub struct CapturedFrame<'a> {
    bytes: &'a [u8],
    length: u32,
    interface: u32,
    /// Set when a read is within the frame, but beyond its captured part.
    is_cut: &'a Cell<bool>,
}

impl<'a> CapturedFrame<'a> {
    /// The frame of a packet.
    #[must_use]
    pub const fn new(packet: &CapturedPacket<'a>, is_cut: &'a Cell<bool>) -> Self {
        Self {
            bytes: packet.frame,
            length: packet.length,
            interface: packet.interface,
            is_cut,
        }
    }

    #[inline(always)]
    fn part(&self, offset: usize, length: usize) -> Option<&'a [u8]> {
        let part = self.bytes.get(offset..offset + length);
        if part.is_none() && offset + length <= self.length as usize {
            self.is_cut.set(true);
        }
        part
    }

    #[inline(always)]
    fn at<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.part(offset, N)?.first_chunk().copied()
    }
}

impl Bytes for CapturedFrame<'_> {
    #[inline(always)]
    fn u8(&self, offset: usize) -> Option<u8> {
        self.at(offset).map(u8::from_be_bytes)
    }

    #[inline(always)]
    fn u16(&self, offset: usize) -> Option<u16> {
        self.at(offset).map(u16::from_be_bytes)
    }

    #[inline(always)]
    fn u32(&self, offset: usize) -> Option<u32> {
        self.at(offset).map(u32::from_ne_bytes)
    }

    #[inline(always)]
    fn u64(&self, offset: usize) -> Option<u64> {
        self.at(offset).map(u64::from_ne_bytes)
    }

    #[inline(always)]
    fn u32s<const N: usize>(&self, offset: usize) -> Option<[u32; N]> {
        let part = self.part(offset, 4 * N)?;
        Some(std::array::from_fn(|nth| {
            u32::from_ne_bytes(part[4 * nth..].first_chunk().copied().unwrap_or_default())
        }))
    }

    #[inline(always)]
    fn u64s<const N: usize>(&self, offset: usize) -> Option<[u64; N]> {
        let part = self.part(offset, 8 * N)?;
        Some(std::array::from_fn(|nth| {
            u64::from_ne_bytes(part[8 * nth..].first_chunk().copied().unwrap_or_default())
        }))
    }

    #[inline(always)]
    fn length(&self) -> u32 {
        self.length
    }
}

impl RareHeaders for CapturedFrame<'_> {}

impl Frame for CapturedFrame<'_> {
    #[inline(always)]
    fn interface(&self) -> u32 {
        self.interface
    }

    #[inline(always)]
    fn segments(&self) -> Segments {
        Segments::NONE
    }
}
