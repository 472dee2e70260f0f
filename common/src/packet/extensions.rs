//! Extension headers of IPv6.

use super::{Bytes, FURTHEST, transport};

/// The most extension headers that are parsed. A longer chain hides the protocol.
pub const MAX_EXTENSIONS: usize = 8;

/// The largest offset of a header: eight extension headers of some length.
const LAST_HEADER: usize = 1024;
const _: () = assert!(LAST_HEADER <= FURTHEST);

/// The transport header's protocol and offset as one number, for functions that return numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Transport(u32);

impl Transport {
    /// A header behind extension headers that are not parsed completely.
    const HIDDEN: Self = Self::new(transport::HIDDEN, 0);
    /// A fragment, except one that is the whole packet.
    const FRAGMENT: u32 = 1 << 9;
    /// The first bit of the fragment's offset, stored as 0, 1 or more; and of the header's offset.
    const FRAGMENT_OFFSET: u32 = 10;
    const OFFSET: u32 = 12;

    #[inline(always)]
    pub(super) const fn new(protocol: u16, offset: usize) -> Self {
        Self((offset as u32) << Self::OFFSET | protocol as u32)
    }

    /// The same in a first fragment.
    #[inline(always)]
    const fn of_first_fragment(self, is_first: bool) -> Self {
        if is_first {
            Self(self.0 | Self::FRAGMENT)
        } else {
            self
        }
    }

    /// The result for a later fragment, at `offset` in units of eight bytes.
    #[inline(always)]
    const fn of_later_fragment(next: u8, offset: u16) -> Self {
        // The first fragment may have had more extension headers.
        let protocol = if is_extension(next) {
            transport::HIDDEN
        } else {
            next as u16
        };
        let offset = if offset > 1 { 2 } else { 1 };
        Self(Self::new(protocol, 0).0 | Self::FRAGMENT | offset << Self::FRAGMENT_OFFSET)
    }

    /// The transport protocol's number, or [`transport::HIDDEN`].
    #[inline(always)]
    pub(super) const fn protocol(self) -> u16 {
        (self.0 & 0x1ff) as u16
    }

    /// The offset of its header; 0 if there is no readable one.
    #[inline(always)]
    pub(super) const fn offset(self) -> usize {
        (self.0 >> Self::OFFSET) as usize
    }

    #[inline(always)]
    pub(super) const fn is_fragment(self) -> bool {
        self.0 & Self::FRAGMENT != 0
    }

    /// 0 in a first fragment, 1 at offset 8 bytes, 2 in any other.
    #[inline(always)]
    pub(super) const fn fragment_offset(self) -> u32 {
        self.0 >> Self::FRAGMENT_OFFSET & 3
    }

    /// The number.
    #[inline(always)]
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// From the number of [`Transport::to_bits`].
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }
}

/// Whether `next` is an extension header that is parsed.
#[inline(always)]
pub(super) const fn is_extension(next: u8) -> bool {
    matches!(next, 0 | 43 | 44 | 51 | 60 | 135 | 139 | 140)
}

/// The transport header after the extension header `next` at `offset` and those that follow it.
#[inline(always)]
pub fn behind_extensions(
    bytes: &(impl Bytes + ?Sized),
    mut next: u8,
    mut offset: usize,
) -> Transport {
    let mut is_first_fragment = false;
    for _ in 0..=MAX_EXTENSIONS {
        match next {
            // Hop-by-hop, routing, destination options, mobility, host identity, shim6: length in units of eight bytes.
            0 | 43 | 60 | 135 | 139 | 140 => {
                let Some((following, length)) = bytes.u16(offset).map(halves) else {
                    return Transport::HIDDEN;
                };
                next = following;
                offset += (usize::from(length) + 1) * 8;
            }
            // Authentication: in units of four, less two.
            51 => {
                let Some((following, length)) = bytes.u16(offset).map(halves) else {
                    return Transport::HIDDEN;
                };
                next = following;
                offset += (usize::from(length) + 2) * 4;
            }
            44 => {
                let (Some((following, _)), Some(fragment)) =
                    (bytes.u16(offset).map(halves), bytes.u16(offset + 2))
                else {
                    return Transport::HIDDEN;
                };
                next = following;
                offset += 8;
                if fragment & 0xfff8 != 0 {
                    return Transport::of_later_fragment(next, fragment >> 3);
                }
                is_first_fragment |= fragment & 1 != 0;
            }
            _ => {
                return Transport::new(u16::from(next), offset)
                    .of_first_fragment(is_first_fragment);
            }
        }
        if offset > LAST_HEADER {
            return Transport::HIDDEN;
        }
        offset = bytes.forget(offset);
    }
    Transport::HIDDEN
}

/// The first and the second byte of two.
#[inline(always)]
pub(super) const fn halves(word: u16) -> (u8, u8) {
    ((word >> 8) as u8, word as u8)
}
