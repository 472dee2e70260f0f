//! Ban lists in the kernel: search trees over their prefixes, in one map that is replaced whole.
//!
//! The map has [`Chunk`]s. The first one is the head: the roots of the trees, a filter and the counters. The lines of the
//! trees follow. The filter has a bit for each IPv4 /20, and for each hash of an IPv6 /32, that a list overlaps. Long
//! lists overlap most of the /20s: for them, a filter with a bit for each of smaller blocks, at least a /24, takes chunks
//! of its own after the lines. So most packets cost one or two look-ups and as many cache lines, however long the lists
//! are.

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
/// The most bits by which the blocks of the filter behind the lines may be smaller than those of the head's.
const MOST_FINER: u32 = 4;
/// The word that describes the filter behind the lines, beside the roots: by how many bits its blocks are smaller, 0 if
/// there is none, and in the upper half its first chunk. A map of an agent without such filters has 0 here.
const FINER: u32 = 2 * ROOT_WORDS;
/// Where the filters and counters begin, in words.
const IPV4_FILTER: u32 = 64;
const IPV6_FILTER: u32 = IPV4_FILTER + (1 << IPV4_BITS) / u64::BITS;
const REFUSED: u32 = IPV6_FILTER + (1 << IPV6_BITS) / u64::BITS;

const _: () = assert!(FINER < IPV4_FILTER);
const _: () = assert!(REFUSED as usize + MOST_LISTS <= CHUNK_WORDS);

/// The words of the map.
pub trait Words {
    /// A word of the head; `index` is below [`CHUNK_WORDS`].
    fn head(&self, index: u32) -> u64;
    /// A word of a chunk, of which only the bits below [`CHUNK_WORDS`] of `index` count; 0 if there is no such chunk.
    fn word(&self, chunk: u32, index: u32) -> u64;
}

/// The word of the packets that a list refused; lists are numbered from 1.
#[inline(always)]
#[must_use]
pub const fn refused_word(list: u32) -> u32 {
    REFUSED + (list.wrapping_sub(1)) % MOST_LISTS as u32
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
pub fn may_contain(words: &impl Words, address: Address) -> bool {
    let (word, bit) = if address.is_ipv4() {
        let finer = words.head(FINER);
        let bits = finer as u32 % (MOST_FINER + 1).next_power_of_two();
        let block = u32::from_be(address.ipv4_memory()) >> (32 - IPV4_BITS - bits);
        let nth = block / u64::BITS;
        let word = if bits == 0 {
            words.head(IPV4_FILTER + nth)
        } else {
            words.word((finer >> 32) as u32 + nth / CHUNK_WORDS as u32, nth)
        };
        (word, block % u64::BITS)
    } else {
        let block = ipv6_block((u64::from_be(address.hi) >> 32) as u32);
        (
            words.head(IPV6_FILTER + block / u64::BITS),
            block % u64::BITS,
        )
    };
    word >> bit & 1 != 0
}

/// The number of the list that contains the address; 0 if none does.
#[inline(always)]
#[must_use]
pub fn list_of<L: Lines + ?Sized>(words: &impl Words, lines: &L, address: Address) -> u32 {
    let first = if address.is_ipv4() { 0 } else { ROOT_WORDS };
    let root = PrefixRoot::from_words([
        words.head(first),
        words.head(first + 1),
        words.head(first + 2),
    ]);
    root.look_up_in_one_loop(lines, address).class()
}

#[cfg(test)]
mod tests;
