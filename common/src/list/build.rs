//! Builds the map's content from prefixes, in the agent.

extern crate std;

use std::boxed::Box;
use std::vec;
use std::vec::Vec;

use super::{CHUNK_LINES, CHUNK_WORDS, Chunk, IPV4_BITS, IPV4_FILTER, IPV6_BITS, IPV6_FILTER, ROOT_WORDS, ipv6_block};
use crate::prefix::build::{MAPPED, MAPPED_LENGTH, Prefix, build};
use crate::prefix::{Line, PrefixEntry};

/// IPv6 prefixes shorter than this pass the whole filter, instead of a bit for each /32.
const SHORTEST_IPV6: u32 = 16;

/// The content of a map of lists.
#[derive(Clone, Debug)]
pub struct ListTrees {
    /// The first chunk.
    pub head: Box<[u64]>,
    /// The lines of the following chunks.
    pub lines: Vec<Line>,
}

/// Builds the content for distinct prefixes, each with the number of its list. 0 is no list, inside another prefix. IPv6
/// prefixes contain no IPv4 addresses, whatever their length.
#[must_use]
pub fn build_lists(mut prefixes: Vec<(Prefix, u32)>) -> ListTrees {
    let mapped = Prefix { address: MAPPED, length: MAPPED_LENGTH };
    let is_around = |prefix: &Prefix| prefix.length < MAPPED_LENGTH && prefix.holds(MAPPED);
    if prefixes.iter().any(|(prefix, _)| is_around(prefix)) && !prefixes.iter().any(|(prefix, _)| *prefix == mapped) {
        prefixes.push((mapped, 0));
    }
    let mut head = vec![0; CHUNK_WORDS].into_boxed_slice();
    for (prefix, _) in prefixes.iter().filter(|(_, list)| *list != 0) {
        mark(&mut head, *prefix);
    }
    let entries: Vec<_> = prefixes.into_iter().map(|(prefix, list)| (prefix, PrefixEntry::new(list, 0))).collect();
    let tree = build(&entries);
    for (nth, root) in [tree.roots.ipv4, tree.roots.ipv6].into_iter().enumerate() {
        let first = nth * ROOT_WORDS as usize;
        head[first..first + ROOT_WORDS as usize].copy_from_slice(&root.to_words());
    }
    ListTrees { head, lines: tree.lines }
}

impl ListTrees {
    /// The number of chunks, with the head.
    #[must_use]
    pub fn chunks(&self) -> u32 {
        1 + (self.lines.len() as u32).div_ceil(CHUNK_LINES)
    }

    /// Bytes of the map.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.chunks()) * size_of::<Chunk>() as u64
    }
}

/// Sets the filter's bits for a prefix.
fn mark(head: &mut [u64], prefix: Prefix) {
    let mut set = |first: u32, block: u32| head[(first + block / u64::BITS) as usize] |= 1 << (block % u64::BITS);
    if prefix.length >= MAPPED_LENGTH && prefix.address >> 32 == MAPPED >> 32 {
        let first = (prefix.address as u32) >> (32 - IPV4_BITS);
        let blocks = 1u32 << IPV4_BITS.saturating_sub(prefix.length - MAPPED_LENGTH);
        (first..first + blocks).for_each(|block| set(IPV4_FILTER, block));
    } else if prefix.length < SHORTEST_IPV6 {
        (0..1 << IPV6_BITS).for_each(|block| set(IPV6_FILTER, block));
    } else {
        let first = (prefix.address >> 96) as u32;
        let more = (1u64 << 32u32.saturating_sub(prefix.length)) - 1;
        (first..=first | more as u32).for_each(|upper| set(IPV6_FILTER, ipv6_block(upper)));
    }
}
