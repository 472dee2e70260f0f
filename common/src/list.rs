//! Ban lists in the kernel: search trees over their prefixes, in one map that is replaced whole.
//!
//! The map has [`Chunk`]s. The first one is the head: the roots of the trees, a filter and the counters. The lines of the
//! trees follow. The filter has a bit for each IPv4 /20, and for each hash of an IPv6 /32, that a list overlaps. So most
//! packets cost one look-up and one cache line, however long the lists are.

#[cfg(any(test, feature = "user"))]
pub mod build;

use crate::packet::Address;
use crate::prefix::{LINE_WORDS, Lines, PrefixRoot};

/// Words of a chunk.
pub const CHUNK_WORDS: usize = 1 << 15;
/// Lines of a chunk.
pub const CHUNK_LINES: u32 = (CHUNK_WORDS / LINE_WORDS) as u32;
/// The most lists.
pub const MOST_LISTS: usize = 256;

/// An element of the map.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Chunk(pub [u64; CHUNK_WORDS]);

/// Words of a root.
const ROOT_WORDS: u32 = (size_of::<PrefixRoot>() / size_of::<u64>()) as u32;
/// Binary logarithms of the filters' numbers of bits.
const IPV4_BITS: u32 = 20;
const IPV6_BITS: u32 = 19;
/// Where the filters and counters begin, in words.
const IPV4_FILTER: u32 = 64;
const IPV6_FILTER: u32 = IPV4_FILTER + (1 << IPV4_BITS) / u64::BITS;
const REFUSED: u32 = IPV6_FILTER + (1 << IPV6_BITS) / u64::BITS;

const _: () = assert!(2 * ROOT_WORDS <= IPV4_FILTER);
const _: () = assert!(REFUSED as usize + MOST_LISTS <= CHUNK_WORDS);

/// The head's words.
pub trait Head {
    /// A word; `index` is below [`CHUNK_WORDS`].
    fn word(&self, index: u32) -> u64;
}

impl Head for Chunk {
    fn word(&self, index: u32) -> u64 {
        self.0[index as usize % CHUNK_WORDS]
    }
}

/// The word of the packets that a list refused; lists are numbered from 1.
#[inline(always)]
#[must_use]
pub const fn refused_word(list: u32) -> u32 {
    REFUSED + (list.wrapping_sub(1)) % MOST_LISTS as u32
}

/// The word and the bit of the filter for an address.
#[inline(always)]
const fn filter_of(address: Address) -> (u32, u32) {
    if address.is_ipv4() {
        let block = u32::from_be(address.ipv4_memory()) >> (32 - IPV4_BITS);
        (IPV4_FILTER + block / u64::BITS, block % u64::BITS)
    } else {
        let block = ipv6_block((u64::from_be(address.hi) >> 32) as u32);
        (IPV6_FILTER + block / u64::BITS, block % u64::BITS)
    }
}

/// The bit of an IPv6 /32.
#[inline(always)]
const fn ipv6_block(upper: u32) -> u32 {
    // Multiplicative hashing: the upper bits of the product depend on all bits.
    upper.wrapping_mul(0x9e37_79b1) >> (32 - IPV6_BITS)
}

/// Whether a list may contain the address. `false` is certain.
#[inline(always)]
#[must_use]
pub fn may_contain(head: &impl Head, address: Address) -> bool {
    let (word, bit) = filter_of(address);
    head.word(word) >> bit & 1 != 0
}

/// The number of the list that contains the address; 0 if none does.
#[inline(always)]
#[must_use]
pub fn list_of<L: Lines + ?Sized>(head: &impl Head, lines: &L, address: Address) -> u32 {
    let first = if address.is_ipv4() { 0 } else { ROOT_WORDS };
    let root = PrefixRoot::from_words([head.word(first), head.word(first + 1), head.word(first + 2)]);
    root.look_up_in_one_loop(lines, address).class()
}

#[cfg(test)]
mod tests;
