//! A bitmap before the trees: most packets come from addresses without an entry, and one bit shows it without a search.
//!
//! An address has one of 65,536 bits by the first 16 bits of IPv4, or by the exclusive or of the first two groups of
//! IPv6. An exempt gateway in 10.0.0.0/8 sends a /16 to the trees, not all of the /8. The first three bits of IPv6 are left
//! as they are, so that link-local and private prefixes set no bit of 2000::/3, where clients are. The bit of an address
//! with an entry is always set.

use super::{LINE_WORDS, Lines};
use crate::packet::Address;

/// Bits for each version of IP.
pub(super) const BITS: u32 = 1 << 16;
const LINE_BITS: u32 = 64 * LINE_WORDS as u32;

/// The lines before those of the trees.
pub const FILTER_LINES: u32 = 2 * BITS / LINE_BITS;

/// The bit of an address.
#[inline(always)]
const fn bit(address: Address) -> u32 {
    if address.is_ipv4() {
        of_ipv4(address.ipv4_memory())
    } else {
        of_ipv6(address.hi)
    }
}

/// The bit of an IPv4 address, from its bytes in memory.
#[inline(always)]
pub(super) const fn of_ipv4(memory: u32) -> u32 {
    memory & (BITS - 1)
}

/// The bit of an IPv6 address, from its first eight bytes in memory.
#[inline(always)]
pub(super) const fn of_ipv6(hi: u64) -> u32 {
    BITS | (hi ^ hi >> 16 & 0xff1f) as u32 & (BITS - 1)
}

/// The first three bits of the IPv6 addresses with this bit.
#[cfg(any(test, feature = "user"))]
pub(super) const fn high_bits_of_ipv6(bit: u32) -> u16 {
    (bit >> 5) as u16 & 7
}

/// The line and the word of a bit, and the bit in the word.
#[inline(always)]
pub(super) const fn place(bit: u32) -> (u32, usize, u32) {
    (bit / LINE_BITS, bit as usize / 64 % LINE_WORDS, bit % 64)
}

/// Whether an address may have an entry in the trees behind these lines.
#[inline(always)]
#[must_use]
pub fn may_have_entry<L: Lines + ?Sized>(lines: &L, address: Address) -> bool {
    let (line, word, bit) = place(bit(address));
    match lines.line(line) {
        Some(line) => line.0[word] >> bit & 1 != 0,
        None => true,
    }
}
