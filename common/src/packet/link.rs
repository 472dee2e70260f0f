//! The type of an Ethernet frame, and VLAN tags.

use super::Bytes;

/// The most VLAN tags that are parsed.
pub const MAX_TAGS: usize = 4;

pub(super) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(super) const ETHERTYPE_IPV6: u16 = 0x86dd;
pub(super) const ETHERTYPE_ARP: u16 = 0x0806;

/// 802.1Q, 802.1ad, and the tag type used before 802.1ad.
#[inline(always)]
pub(super) const fn is_tag(ethertype: u16) -> bool {
    matches!(ethertype, 0x8100 | 0x88a8 | 0x9100)
}

/// The network header's ethertype and offset as one number, for functions that return numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Network(u32);

impl Network {
    /// Replaces the ethertype, which is never this small: the frame ends within its tags.
    pub(super) const TRUNCATED: u16 = 0;

    #[inline(always)]
    const fn new(ethertype: u16, offset: usize) -> Self {
        Self((offset as u32) << 16 | ethertype as u32)
    }

    #[inline(always)]
    pub(super) const fn ethertype(self) -> u16 {
        self.0 as u16
    }

    /// The offset of the header that the ethertype announces.
    #[inline(always)]
    pub(super) const fn offset(self) -> usize {
        (self.0 >> 16) as usize
    }

    /// The number.
    #[inline(always)]
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// From the number of [`Network::to_bits`].
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }
}

/// The network header after the tag that the frame's first type announces, and the tags that follow it.
#[inline(always)]
pub fn behind_tags(bytes: &(impl Bytes + ?Sized), mut ethertype: u16) -> Network {
    let mut offset = 14;
    for _ in 0..MAX_TAGS {
        if !is_tag(ethertype) {
            break;
        }
        let Some(next) = bytes.u16(offset + 2) else {
            return Network::new(Network::TRUNCATED, 0);
        };
        ethertype = next;
        offset += 4;
    }
    Network::new(ethertype, offset)
}
