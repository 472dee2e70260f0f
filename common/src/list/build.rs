//! Builds the map's content from prefixes, in the agent.

extern crate std;

use std::boxed::Box;
use std::vec;
use std::vec::Vec;

use super::{
    CHUNK_LINES, CHUNK_WORDS, Chunk, FINER, IPV4_BITS, IPV4_FILTER, IPV6_BITS, IPV6_FILTER,
    MOST_FINER, ROOT_WORDS, ipv6_block,
};
use crate::prefix::build::{MAPPED, MAPPED_LENGTH, Prefix, build};
use crate::prefix::{Line, PrefixEntry};

/// IPv6 prefixes shorter than this pass the whole filter, instead of a bit for each /32.
const SHORTEST_IPV6: u32 = 16;
/// The blocks of the IPv4 filter for each prefix, at least, while they are not the smallest.
const BLOCKS_PER_PREFIX: u64 = 32;

/// The content of a map of lists.
#[derive(Clone, Debug)]
pub struct ListTrees {
    /// The first chunk.
    pub head: Box<[u64]>,
    /// The lines of the following chunks.
    pub lines: Vec<Line>,
    /// The filter in the chunks after those; empty if the head's is enough.
    pub filter: Box<[u64]>,
}

/// Builds the content for distinct prefixes, each with the number of its list. 0 is no list, inside another prefix. IPv6
/// prefixes contain no IPv4 addresses, whatever their length.
#[must_use]
pub fn build_lists(prefixes: Vec<(Prefix, u32)>) -> ListTrees {
    let refused = prefixes
        .iter()
        .filter(|(prefix, list)| *list != 0 && is_ipv4(*prefix))
        .count() as u64;
    let finer =
        (0..MOST_FINER).find(|finer| refused * BLOCKS_PER_PREFIX <= 1 << (IPV4_BITS + finer));
    build_with_filter(prefixes, finer.unwrap_or(MOST_FINER))
}

/// The same with blocks of the filter that are smaller by `finer` bits.
pub(super) fn build_with_filter(mut prefixes: Vec<(Prefix, u32)>, finer: u32) -> ListTrees {
    let mapped = Prefix {
        address: MAPPED,
        length: MAPPED_LENGTH,
    };
    let is_around = |prefix: &Prefix| prefix.length < MAPPED_LENGTH && prefix.holds(MAPPED);
    if prefixes.iter().any(|(prefix, _)| is_around(prefix))
        && !prefixes.iter().any(|(prefix, _)| *prefix == mapped)
    {
        prefixes.push((mapped, 0));
    }
    let mut head = vec![0; CHUNK_WORDS].into_boxed_slice();
    let filter_words = if finer == 0 {
        0
    } else {
        1 << (IPV4_BITS + finer - u64::BITS.ilog2())
    };
    let mut filter = vec![0; filter_words].into_boxed_slice();
    for (prefix, _) in prefixes.iter().filter(|(_, list)| *list != 0) {
        mark(&mut head, *prefix);
        if finer != 0 && is_ipv4(*prefix) {
            mark_ipv4(&mut filter, IPV4_BITS + finer, *prefix);
        }
    }
    let entries: Vec<_> = prefixes
        .into_iter()
        .map(|(prefix, list)| (prefix, PrefixEntry::new(list, 0)))
        .collect();
    let tree = build(&entries);
    for (nth, root) in [tree.roots.ipv4, tree.roots.ipv6].into_iter().enumerate() {
        let first = nth * ROOT_WORDS as usize;
        head[first..first + ROOT_WORDS as usize].copy_from_slice(&root.to_words());
    }
    let mut trees = ListTrees {
        head,
        lines: tree.lines,
        filter,
    };
    if finer != 0 {
        trees.head[FINER as usize] = u64::from(finer) | u64::from(trees.filter_chunk()) << 32;
    }
    trees
}

impl ListTrees {
    /// The number of the filter's first chunk, if it has chunks of its own.
    #[must_use]
    pub fn filter_chunk(&self) -> u32 {
        1 + (self.lines.len() as u32).div_ceil(CHUNK_LINES)
    }

    /// The number of chunks, with the head.
    #[must_use]
    pub fn chunks(&self) -> u32 {
        self.filter_chunk() + self.filter.len().div_ceil(CHUNK_WORDS) as u32
    }

    /// Bytes of the map.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.chunks()) * size_of::<Chunk>() as u64
    }
}

/// Whether a prefix contains IPv4 addresses only.
fn is_ipv4(prefix: Prefix) -> bool {
    prefix.length >= MAPPED_LENGTH && prefix.address >> 32 == MAPPED >> 32
}

/// Sets the bits of a filter of `1 << bits` blocks for an IPv4 prefix.
fn mark_ipv4(filter: &mut [u64], bits: u32, prefix: Prefix) {
    let first = (prefix.address as u32) >> (32 - bits);
    let blocks = 1u32 << bits.saturating_sub(prefix.length - MAPPED_LENGTH);
    (first..first + blocks).for_each(|block| set(filter, block));
}

fn set(filter: &mut [u64], block: u32) {
    filter[(block / u64::BITS) as usize] |= 1 << (block % u64::BITS);
}

/// Sets the bits of the head's filters for a prefix.
fn mark(head: &mut [u64], prefix: Prefix) {
    let (ipv4, ipv6) = head.split_at_mut(IPV6_FILTER as usize);
    if is_ipv4(prefix) {
        mark_ipv4(&mut ipv4[IPV4_FILTER as usize..], IPV4_BITS, prefix);
    } else if prefix.length < SHORTEST_IPV6 {
        (0..1 << IPV6_BITS).for_each(|block| set(ipv6, block));
    } else {
        let first = (prefix.address >> 96) as u32;
        let more = (1u64 << 32u32.saturating_sub(prefix.length)) - 1;
        (first..=first | more as u32).for_each(|upper| set(ipv6, ipv6_block(upper)));
    }
}
