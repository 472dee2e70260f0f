//! Builds the search trees from prefixes, in the agent.

extern crate std;

use std::vec;
use std::vec::Vec;

use super::filter::{self, BITS, FILTER_LINES};
use super::{
    HEADER_NODES, Header, LINE_WORDS, Line, NODES, Node, PrefixEntry, PrefixRoot, PrefixRoots,
    SEPARATORS,
};

/// A prefix of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The address's 16 bytes as a number, IPv4 as IPv4-mapped; bits after the prefix are 0.
    pub address: u128,
    /// 0 to 128; 96 more than an IPv4 prefix's own length.
    pub length: u32,
}

/// The search trees of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct PrefixTree {
    /// The roots of the search.
    pub roots: PrefixRoots,
    /// The lines; none if the roots suffice.
    pub lines: Vec<Line>,
}

/// The most bytes of a table for each range below it. The finest table within this limit is used: it needs the fewest
/// steps.
const BYTES_PER_RANGE: usize = 24;
/// The least nodes of a table: two levels of leaves are as good as a smaller one.
const FEWEST_NODES: usize = 64;
/// Ranges of a leaf.
const LEAF: usize = SEPARATORS + 1;
/// Ranges of two levels of leaves.
const LEAVES: usize = LEAF * LEAF;

/// The first IPv4-mapped address, and how many bits precede IPv4's own.
pub(crate) const MAPPED: u128 = 0xffff_0000_0000;
pub(crate) const MAPPED_LENGTH: u32 = 96;

/// Builds the trees for distinct prefixes in any order, in O(n log n).
#[must_use]
pub fn build(prefixes: &[(Prefix, PrefixEntry)]) -> PrefixTree {
    let mut lines = Vec::new();
    PrefixTree {
        roots: build_after(&mut lines, prefixes),
        lines,
    }
}

/// As [`build`], behind a filter ([`super::filter`]).
#[must_use]
pub fn build_filtered(prefixes: &[(Prefix, PrefixEntry)]) -> PrefixTree {
    let mut lines = filter_lines(prefixes);
    PrefixTree {
        roots: build_after(&mut lines, prefixes),
        lines,
    }
}

/// The lines of the filter for these prefixes.
fn filter_lines(prefixes: &[(Prefix, PrefixEntry)]) -> Vec<Line> {
    let mut lines = vec![Line::default(); FILTER_LINES as usize];
    let with_entry = prefixes
        .iter()
        .filter(|(_, entry)| *entry != PrefixEntry::default());
    for (prefix, _) in with_entry {
        for bit in prefix.filter_bits() {
            let (line, word, bit) = filter::place(bit);
            lines[line as usize].0[word] |= 1 << bit;
        }
    }
    lines
}

/// As [`build`], with lines after those of other trees.
#[must_use]
pub fn build_after(lines: &mut Vec<Line>, prefixes: &[(Prefix, PrefixEntry)]) -> PrefixRoots {
    let (ipv4, ipv6): (Vec<_>, Vec<_>) = prefixes
        .iter()
        .copied()
        .partition(|(prefix, _)| prefix.is_ipv4());
    let around = ipv6
        .iter()
        .filter(|(prefix, _)| prefix.length < MAPPED_LENGTH && prefix.holds(MAPPED));
    let around = around
        .max_by_key(|(prefix, _)| prefix.length)
        .map_or(Node(0), |(_, entry)| Node(entry.0));

    let mut trees = Trees {
        lines: std::mem::take(lines),
    };
    let mut ranges = flatten(ipv4, MAPPED, around);
    ranges.retain(|range| range.start >> 32 == MAPPED >> 32);
    let ranges: Vec<_> = ranges
        .iter()
        .map(|range| ((range.start - MAPPED) as u64, range.node.into()))
        .collect();
    let ipv4 = trees.root(&ranges);
    let ranges = trees.upper(&flatten(ipv6, 0, Node::default()));
    let ipv6 = trees.root(&ranges);
    *lines = trees.lines;
    PrefixRoots { ipv4, ipv6 }
}

impl Prefix {
    const fn is_ipv4(self) -> bool {
        self.length >= MAPPED_LENGTH && self.address >> 32 == MAPPED >> 32
    }

    /// The filter's bits of its addresses; those of IPv4 too if it contains the IPv4-mapped ones.
    fn filter_bits(self) -> Vec<u32> {
        // The values of a group of 16 bits of which the first ones are given.
        let group =
            |first: u16, length: u32| first..=first | u16::MAX.checked_shr(length).unwrap_or(0);
        if self.is_ipv4() {
            let first = (self.address >> 16) as u16;
            return group(first, self.length - MAPPED_LENGTH)
                .map(|first| filter::of_ipv4(u32::from(first.to_be())))
                .collect();
        }
        let mut bits: Vec<u32> = if self.holds(MAPPED) {
            (0..BITS).collect()
        } else {
            Vec::new()
        };
        let (first, second) = ((self.address >> 112) as u16, (self.address >> 96) as u16);
        if self.length < 16 {
            let last = (self.last() >> 112) as u16;
            let high_bits = first >> 13..=last >> 13;
            bits.extend(
                (BITS..2 * BITS).filter(|bit| high_bits.contains(&filter::high_bits_of_ipv6(*bit))),
            );
        } else {
            bits.extend(group(second, self.length - 16).map(|second| {
                let hi = u64::from(first.to_be()) | u64::from(second.to_be()) << 16;
                filter::of_ipv6(hi)
            }));
        }
        bits
    }

    const fn last(self) -> u128 {
        match u128::MAX.checked_shr(self.length) {
            Some(behind) => self.address | behind,
            None => self.address,
        }
    }

    pub(crate) const fn holds(self, address: u128) -> bool {
        self.address <= address && address <= self.last()
    }
}

/// The addresses from `start` to the start of the next range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    start: u128,
    node: Node,
}

/// Ranges in order, starting at `from`, adjacent ones distinct. `around` is the entry outside of all prefixes.
fn flatten(mut prefixes: Vec<(Prefix, PrefixEntry)>, from: u128, around: Node) -> Vec<Range> {
    prefixes.sort_unstable_by_key(|(prefix, _)| (prefix.address, prefix.length));
    let mut ranges = Flat {
        ranges: vec![Range {
            start: from,
            node: around,
        }],
        open: Vec::new(),
        around,
    };
    for (prefix, entry) in prefixes {
        ranges.close(|last| last < prefix.address);
        ranges.open.push((prefix.last(), Node(entry.0)));
        ranges.begin(prefix.address);
    }
    ranges.close(|_| true);
    ranges.ranges
}

struct Flat {
    ranges: Vec<Range>,
    /// The last address and the entry of each prefix that contains the current address; outermost first.
    open: Vec<(u128, Node)>,
    around: Node,
}

impl Flat {
    /// Closes prefixes, innermost first.
    fn close(&mut self, is_over: impl Fn(u128) -> bool) {
        while let Some((last, _)) = self.open.pop_if(|(last, _)| is_over(*last)) {
            if let Some(behind) = last.checked_add(1) {
                self.begin(behind);
            }
        }
    }

    /// From `start` on, the innermost prefix applies. Of several calls for one address, the last one counts.
    fn begin(&mut self, start: u128) {
        let node = self.open.last().map_or(self.around, |(_, node)| *node);
        self.ranges.pop_if(|range| range.start == start);
        if self.ranges.last().is_none_or(|range| range.node != node) {
            self.ranges.push(Range { start, node });
        }
    }
}

/// A node, and the most steps from it to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Child {
    node: Node,
    steps: u32,
}

impl From<Node> for Child {
    /// A node that is an entry.
    fn from(node: Node) -> Self {
        Self { node, steps: 0 }
    }
}

/// Ranges of one half of an address, in order; keys before the first one belong to it.
type Ranges<'r> = &'r [(u64, Child)];

struct Trees {
    lines: Vec<Line>,
}

impl Trees {
    /// The ranges of the upper halves, with a separate tree for each one whose lower halves differ.
    fn upper(&mut self, ranges: &[Range]) -> Vec<(u64, Child)> {
        let mut upper: Vec<(u64, Child)> = Vec::new();
        for of_one in ranges.chunk_by(|a, b| a.start >> 64 == b.start >> 64) {
            let (Some(first), Some(last)) = (of_one.first(), of_one.last()) else {
                continue;
            };
            let half = (first.start >> 64) as u64;
            if of_one.len() == 1 && first.start as u64 == 0 {
                // It replaces the previous range's entry for this half.
                upper.pop_if(|(start, _)| *start == half);
                upper.push((half, first.node.into()));
                continue;
            }
            // Addresses before the first range here belong to the previous one, which is an entry.
            let before = upper.last().map_or(first.node.into(), |(_, child)| *child);
            upper.pop_if(|(start, _)| *start == half);
            let lower = of_one
                .iter()
                .map(|range| (range.start as u64, Child::from(range.node)));
            let lower: Vec<_> = std::iter::once((0, before))
                .filter(|_| first.start as u64 != 0)
                .chain(lower)
                .collect();
            let Child { node, steps } = self.child(&lower);
            upper.push((
                half,
                Child {
                    node: Node(node.0 | Node::LOWER),
                    steps,
                },
            ));
            if let Some(next) = half.checked_add(1) {
                upper.push((next, last.node.into()));
            }
        }
        upper
    }

    fn root(&mut self, ranges: Ranges<'_>) -> PrefixRoot {
        let Child { node, steps } = self.child(ranges);
        if !node.is_table() {
            return PrefixRoot {
                node,
                steps,
                ..PrefixRoot::NONE
            };
        }
        let Header { base, shift, last } = Header::of(&self.lines[node.line() as usize]);
        PrefixRoot {
            base,
            shift,
            last,
            node,
            steps: steps - 1,
        }
    }

    fn child(&mut self, ranges: Ranges<'_>) -> Child {
        match ranges {
            [] => Node::default().into(),
            [(_, only)] => *only,
            _ if ranges.len() <= LEAVES => self.leaves(ranges),
            _ => self.table(ranges),
        }
    }

    /// One leaf, or one that refers to leaves.
    fn leaves(&mut self, ranges: Ranges<'_>) -> Child {
        if ranges.len() <= LEAF {
            return self.leaf(ranges);
        }
        let behind: Vec<_> = ranges
            .chunks(LEAF)
            .map(|chunk| {
                (
                    chunk[0].0,
                    if let [(_, only)] = chunk {
                        *only
                    } else {
                        self.leaf(chunk)
                    },
                )
            })
            .collect();
        self.leaf(&behind)
    }

    fn leaf(&mut self, ranges: Ranges<'_>) -> Child {
        let mut line = Line([u64::MAX; LINE_WORDS]);
        for (separator, (start, _)) in line.0.iter_mut().zip(&ranges[1..]) {
            *separator = *start;
        }
        // All keys compare as in the last range, so unused nodes equal its node.
        for nth in 0..LEAF {
            set_node(
                &mut line,
                2 * SEPARATORS + nth,
                ranges[nth.min(ranges.len() - 1)].1.node,
            );
        }
        let number = self.lines.len() as u32;
        self.lines.push(line);
        Child {
            node: Node(Node::GOES_ON | number),
            steps: 1 + most_steps(ranges.iter().map(|(_, child)| *child)),
        }
    }

    fn table(&mut self, ranges: Ranges<'_>) -> Child {
        let header = header(ranges);
        let first = self.lines.len();
        let nodes = HEADER_NODES as usize + header.last as usize + 1;
        self.lines
            .resize(first + nodes.div_ceil(NODES as usize), Line::default());
        self.lines[first].0[..2].copy_from_slice(&[
            header.base,
            u64::from(header.shift) | u64::from(header.last) << 32,
        ]);

        let mut steps = 0;
        for (stretch, within) in stretches(header, ranges) {
            let child = self.child(within);
            steps = steps.max(child.steps);
            let place = HEADER_NODES as usize + stretch;
            set_node(
                &mut self.lines[first + place / NODES as usize],
                place % NODES as usize,
                child.node,
            );
        }
        Child {
            node: Node(Node::GOES_ON | Node::TABLE | first as u32),
            steps: steps + 1,
        }
    }
}

fn set_node(line: &mut Line, nth: usize, node: Node) {
    let shift = nth % 2 * 32;
    let word = &mut line.0[nth / 2];
    *word = *word & !(u64::from(u32::MAX) << shift) | u64::from(node.0) << shift;
}

fn most_steps(children: impl Iterator<Item = Child>) -> u32 {
    children.map(|child| child.steps).max().unwrap_or(0)
}

/// Each stretch of a table, with the ranges that its keys may belong to.
fn stretches<'r>(header: Header, ranges: Ranges<'r>) -> impl Iterator<Item = (usize, Ranges<'r>)> {
    let mut from = 0;
    (0..=header.last as usize).map(move |stretch| {
        let start = header.base + ((stretch as u64) << header.shift);
        while ranges.get(from + 1).is_some_and(|(next, _)| *next <= start) {
            from += 1;
        }
        let is_before_end =
            |at: u64| stretch == header.last as usize || (at - start) >> header.shift == 0;
        let inside = ranges[from + 1..]
            .iter()
            .take_while(|(at, _)| is_before_end(*at))
            .count();
        (stretch, &ranges[from..=from + inside])
    })
}

/// The header of a table for these ranges, at least three: as fine as its memory allows.
fn header(ranges: Ranges<'_>) -> Header {
    let starts = &ranges[1..];
    let (min, max) = (starts[0].0, starts[starts.len() - 1].0);
    // No stretch need be shorter than the shortest range.
    let finest = starts
        .iter()
        .map(|(start, _)| start.trailing_zeros())
        .min()
        .unwrap_or(0);
    let cut = |most_nodes: usize| {
        let fits = |shift: &u32| (max >> shift) - (min >> shift) <= most_nodes as u64 - 2;
        let shift = (finest..64).find(fits).unwrap_or(63);
        let aligned = min >> shift << shift;
        // The first stretch contains the keys before the first start, which exist.
        let base = if aligned == min {
            min - (1 << shift)
        } else {
            aligned
        };
        Header {
            base,
            shift,
            last: ((max - base) >> shift) as u32,
        }
    };
    let mut smallest: Option<(usize, Header)> = None;
    let mut most_nodes = 4 * ranges.len();
    while most_nodes >= FEWEST_NODES.max(ranges.len() / 8) {
        let header = cut(most_nodes);
        let bytes = bytes(header, ranges);
        if bytes <= BYTES_PER_RANGE * ranges.len() {
            return header;
        }
        if smallest.is_none_or(|(least, _)| bytes < least) {
            smallest = Some((bytes, header));
        }
        most_nodes /= 2;
    }
    smallest.map_or_else(|| cut(FEWEST_NODES), |(_, header)| header)
}

/// The bytes of a table and of the lines below it.
fn bytes(header: Header, ranges: Ranges<'_>) -> usize {
    let below = |(_, within): (usize, Ranges<'_>)| match within.len() {
        0 | 1 => 0,
        few if few <= LEAF => size_of::<Line>(),
        some if some <= LEAVES => (1 + (some + LEAF - 2) / LEAF) * size_of::<Line>(),
        many => many * BYTES_PER_RANGE,
    };
    (header.last as usize + 1) * size_of::<Node>()
        + stretches(header, ranges).map(below).sum::<usize>()
}
