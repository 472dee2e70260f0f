//! Look-up of the longest matching prefix of an address in a few steps, regardless of the number of prefixes.
//!
//! The prefixes of a policy are replaced as a whole. So [`build`] flattens them into ranges that do not
//! overlap, each with its entry, and a search tree over the starts of the ranges. A key has 64 bits: an IPv4 address,
//! the upper half of an IPv6 address, or its lower half within a /64 that longer prefixes divide.
//!
//! A [`Line`] is one cache line. A *leaf* has five separators and six nodes. A *table* is a row of nodes, one for each
//! of equally long stretches between the first range and the last: a header of two words, then two nodes per word. A
//! node is an entry or a reference to another line. IPv4 and IPv6 have separate trees, whose roots contain the header of
//! their first table. A search among few prefixes, or among dense ones of one length, takes one cache line. A bitmap
//! before the trees ([`filter`]) spares most packets the search.

#[cfg(any(test, feature = "user"))]
pub mod build;
mod filter;
#[cfg(test)]
mod tests;

pub use filter::{FILTER_LINES, may_have_entry};

use crate::bank::Bank;
use crate::packet::Address;

/// The entry of an address: its class, 0 for the default one, its source index, and how far limits apply to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct PrefixEntry(u32);

/// The most classes of a policy.
pub const MAX_CLASSES: u32 = SOURCE_INDEXES - 1;
const SOURCE_INDEXES: u32 = 1 << 13;
/// The kinds of [`PrefixEntry::exemption`].
const EXEMPTIONS: u32 = 1 << 3;
/// Source indexes of both banks.
const BANKED_INDEXES: u32 = Bank::COUNT * SOURCE_INDEXES;

impl PrefixEntry {
    /// The address is exempt from limits and bans.
    pub const NEVER_LIMIT: u32 = 1;
    /// The address is in a class without limits.
    pub const UNLIMITED: u32 = 2;
    /// The address is exempt from bans, and from limits up to [`crate::essential::Essential::Protected`].
    pub const WITHIN_ALLOWANCE: u32 = 3;
    /// The address is exempt from bans, and from no limit.
    pub const NEVER_BANNED: u32 = 4;

    /// An entry of a class and its source index: the multiplier index, with the number of its source where limits are for
    /// certain sources ([`crate::scope::Scoping`]). Both are at most [`MAX_CLASSES`].
    #[must_use]
    pub const fn new(class: u32, source_index: u32) -> Self {
        debug_assert!(class <= MAX_CLASSES && source_index <= MAX_CLASSES);
        Self((class * BANKED_INDEXES + source_index) * EXEMPTIONS)
    }

    /// The entry with these bits.
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Its bits.
    #[inline(always)]
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// An entry of a network ([`crate::network`]), in a tree of its own.
    #[must_use]
    pub const fn of_network(network: u32) -> Self {
        debug_assert!(network < 1 << 29);
        Self(network)
    }

    /// The network of such an entry; 0 if there is none.
    #[inline(always)]
    #[must_use]
    pub const fn network(self) -> u32 {
        self.0
    }

    /// The same with another exemption.
    #[must_use]
    pub const fn with(self, exemption: u32) -> Self {
        Self(self.0 / EXEMPTIONS * EXEMPTIONS + exemption)
    }

    /// The same with another source index, which is at most [`MAX_CLASSES`].
    #[must_use]
    pub const fn with_source_index(self, source_index: u32) -> Self {
        debug_assert!(source_index <= MAX_CLASSES);
        Self(self.0 - self.source_index() * EXEMPTIONS + source_index * EXEMPTIONS)
    }

    /// How far it is exempt: 0 if not at all.
    #[inline(always)]
    #[must_use]
    pub const fn exemption(self) -> u32 {
        self.0 % EXEMPTIONS
    }

    /// Whether bans apply to the address.
    #[inline(always)]
    #[must_use]
    pub const fn may_be_banned(self) -> bool {
        matches!(self.exemption(), 0 | Self::UNLIMITED)
    }

    /// The class, 0 for the default one.
    #[inline(always)]
    #[must_use]
    pub const fn class(self) -> u32 {
        self.0 / EXEMPTIONS / BANKED_INDEXES
    }

    /// The same, found in a bank, whose number is above this many bits of the source index.
    #[inline(always)]
    #[must_use]
    pub const fn in_bank(self, bank: Bank, bits: u32) -> Self {
        Self(self.0 | ((bank.number() << (bits & 15)) * EXEMPTIONS))
    }

    /// The bank in which it was found.
    #[inline(always)]
    #[must_use]
    pub const fn bank(self, bits: u32) -> Bank {
        Bank::from_setting(self.source_index() >> (bits & 15))
    }

    /// The index of the rows of rules.
    #[inline(always)]
    #[must_use]
    pub const fn source_index(self) -> u32 {
        self.0 / EXEMPTIONS % BANKED_INDEXES
    }
}

/// An entry, or a reference to the line where the search continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Node(pub u32);

impl Node {
    const GOES_ON: u32 = 1 << 31;
    /// The search continues in a table, not in a leaf.
    const TABLE: u32 = 1 << 30;
    /// The search continues with the lower half of the address.
    const LOWER: u32 = 1 << 29;

    #[inline(always)]
    const fn goes_on(self) -> bool {
        self.0 & Self::GOES_ON != 0
    }

    #[inline(always)]
    const fn is_table(self) -> bool {
        // Both bits are required: a class number may look like one of them.
        self.0 & (Self::GOES_ON | Self::TABLE) == Self::GOES_ON | Self::TABLE
    }

    #[inline(always)]
    const fn line(self) -> u32 {
        self.0 & (Self::LOWER - 1)
    }
}

/// Words of a line.
pub const LINE_WORDS: usize = 8;
/// Separators of a leaf; it has one node more.
const SEPARATORS: usize = 5;
/// The nodes that fit into a line, and how many the header of a table replaces.
const NODES: u64 = 2 * LINE_WORDS as u64;
const HEADER_NODES: u64 = 4;

/// A cache line of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C, align(64))]
pub struct Line(pub [u64; LINE_WORDS]);

impl Line {
    #[inline(always)]
    const fn node(&self, nth: usize) -> Node {
        Node((self.0[nth / 2 % LINE_WORDS] >> (nth % 2 * 32)) as u32)
    }

    /// The node for `key` in a leaf.
    #[inline(always)]
    fn behind_separators(&self, key: u64) -> Node {
        let [a, b, c, d, e, ..] = self.0;
        // The verifier follows each path: six here, but thirty-two for a sum of five comparisons.
        let nth = if c <= key {
            if e <= key {
                5
            } else if d <= key {
                4
            } else {
                3
            }
        } else if b <= key {
            2
        } else if a <= key {
            1
        } else {
            0
        };
        self.node(2 * SEPARATORS + nth)
    }
}

/// The lines of a policy's trees.
pub trait Lines {
    /// A line by its index; every index in a node or root is valid.
    fn line(&self, number: u32) -> Option<&Line>;
    /// Returns `number`, whatever `any` is. In the kernel, the verifier loses its knowledge of the value here, and
    /// continues once instead of once per path.
    fn forget(&self, number: u64, any: u64) -> u64 {
        let _ = any;
        number
    }
    /// [`Search::finish`]. In the kernel a separate function, which is verified once.
    fn go_further(&self, search: Search) -> Node {
        search.finish(self)
    }
}

/// Inlined steps: enough unless prefixes are very unevenly distributed.
const NEAR: u32 = 3;
/// More than the steps in any tree: a table has at least 64 nodes, of which the first and the last that differ are at
/// least 31 apart, so that one of them covers at most a thirtieth of the table's span. That makes 13 tables for 64
/// bits, and two leaves after them, for either half.
const MOST_STEPS: u32 = 30;

impl Lines for [Line] {
    fn line(&self, number: u32) -> Option<&Line> {
        self.get(number as usize)
    }
}

/// The header of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
struct Header {
    /// The start of the first stretch, which includes all smaller keys.
    base: u64,
    /// The binary logarithm of a stretch's length.
    shift: u32,
    /// The last stretch, which includes all larger keys.
    last: u32,
}

impl Header {
    #[inline(always)]
    const fn of(line: &Line) -> Self {
        Self {
            base: line.0[0],
            shift: line.0[1] as u32,
            last: (line.0[1] >> 32) as u32,
        }
    }

    /// The node for `key` in the table that starts with line `first`.
    #[inline(always)]
    fn follow<L: Lines + ?Sized>(self, lines: &L, first: u32, key: u64) -> Node {
        let from_base = key.saturating_sub(self.base);
        let stretch = from_base >> (self.shift % 64);
        let stretch = if stretch < u64::from(self.last) {
            stretch
        } else {
            u64::from(self.last)
        };
        let place = stretch + HEADER_NODES;
        let Some(line) = lines.line(first + (place / NODES) as u32) else {
            return Node(0);
        };
        line.node((place % NODES) as usize)
    }
}

/// The root of a search: a node and, if that is a table, its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct PrefixRoot {
    /// See the table's header.
    pub base: u64,
    /// See the table's header.
    pub shift: u32,
    /// See the table's header.
    pub last: u32,
    /// The node.
    pub node: Node,
    /// The most lines and tables after the root's table.
    pub steps: u32,
}

/// The roots for IPv4 and IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct PrefixRoots {
    /// For IPv4, also if IPv4-mapped.
    pub ipv4: PrefixRoot,
    /// For every other address.
    pub ipv6: PrefixRoot,
}

/// The roots of a policy's trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Roots {
    /// Classes, exempt addresses and limits' sources.
    pub prefixes: PrefixRoots,
    /// Networks, for keys with them; empty if there are none.
    pub networks: PrefixRoots,
}

impl PrefixRoot {
    /// A tree without prefixes.
    pub const NONE: Self = Self {
        base: 0,
        shift: 0,
        last: 0,
        node: Node(0),
        steps: 0,
    };
}

impl PrefixRoots {
    /// Trees without prefixes.
    pub const NONE: Self = Self {
        ipv4: PrefixRoot::NONE,
        ipv6: PrefixRoot::NONE,
    };

    /// Whether no address has an entry.
    #[must_use]
    pub const fn are_empty(&self) -> bool {
        self.ipv4.node.0 == 0 && self.ipv6.node.0 == 0
    }

    /// The entry of an address.
    #[must_use]
    pub fn look_up<L: Lines + ?Sized>(&self, lines: &L, address: Address) -> PrefixEntry {
        let root = if address.is_ipv4() {
            &self.ipv4
        } else {
            &self.ipv6
        };
        root.look_up(lines, address)
    }
}

impl PrefixRoot {
    /// The entry of an address of this root's version.
    #[inline(always)]
    #[must_use]
    pub fn look_up<L: Lines + ?Sized>(self, lines: &L, address: Address) -> PrefixEntry {
        let mut search = self.begin(lines, address);
        search.go_on(lines, NEAR);
        if search.node.goes_on() {
            search.node = lines.go_further(search);
        }
        PrefixEntry(lines.forget(u64::from(search.node.0), address.lo) as u32)
    }
}

impl PrefixRoot {
    /// The same with all steps in one loop, for searches that few packets need: it is smaller.
    #[inline(always)]
    #[must_use]
    pub fn look_up_in_one_loop<L: Lines + ?Sized>(
        self,
        lines: &L,
        address: Address,
    ) -> PrefixEntry {
        let mut search = self.begin(lines, address);
        // 64 bits, since the verifier loses a smaller counter that shares a word of the stack with a map's key.
        let mut left = u64::from(MOST_STEPS);
        while left > 0 && search.step(lines) {
            left -= 1;
        }
        PrefixEntry(lines.forget(u64::from(search.node.0), address.lo) as u32)
    }

    /// The search after the root.
    #[inline(always)]
    fn begin<L: Lines + ?Sized>(self, lines: &L, address: Address) -> Search {
        let key = if address.is_ipv4() {
            u64::from(u32::from_be(address.ipv4_memory()))
        } else {
            u64::from_be(address.hi)
        };
        let mut node = self.node;
        if node.is_table() {
            let header = Header {
                base: self.base,
                shift: self.shift,
                last: self.last,
            };
            node = header.follow(lines, node.line(), key);
        }
        Search {
            node,
            key,
            lower: u64::from_be(address.lo),
        }
    }

    /// The words of its memory.
    #[must_use]
    pub const fn to_words(self) -> [u64; 3] {
        [
            self.base,
            self.shift as u64 | (self.last as u64) << 32,
            self.node.0 as u64 | (self.steps as u64) << 32,
        ]
    }

    /// The root with these words.
    #[inline(always)]
    #[must_use]
    pub const fn from_words(words: [u64; 3]) -> Self {
        let [base, stretches, node] = words;
        Self {
            base,
            shift: stretches as u32,
            last: (stretches >> 32) as u32,
            node: Node(node as u32),
            steps: (node >> 32) as u32,
        }
    }
}

/// The state of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Search {
    /// The current node.
    pub node: Node,
    /// The key for that node.
    pub key: u64,
    /// The key after the upper half has been found.
    pub lower: u64,
}

impl Search {
    #[inline(always)]
    fn go_on<L: Lines + ?Sized>(&mut self, lines: &L, steps: u32) {
        let mut step = 0;
        while step < steps {
            if !self.step(lines) {
                break;
            }
            step += 1;
        }
    }

    /// One step; `false` at the end.
    #[inline(always)]
    fn step<L: Lines + ?Sized>(&mut self, lines: &L) -> bool {
        self.node = Node(lines.forget(u64::from(self.node.0), self.lower) as u32);
        self.key = lines.forget(self.key, self.lower);
        if !self.node.goes_on() {
            return false;
        }
        if self.node.0 & Node::LOWER != 0 {
            self.key = self.lower;
        }
        self.node = match lines.line(self.node.line()) {
            Some(line) if self.node.0 & Node::TABLE != 0 => {
                Header::of(line).follow(lines, self.node.line(), self.key)
            }
            Some(line) => line.behind_separators(self.key),
            None => Node(0),
        };
        true
    }

    /// Continues to the end after the first steps.
    #[inline(always)]
    #[must_use]
    pub fn finish<L: Lines + ?Sized>(mut self, lines: &L) -> Node {
        self.go_on(lines, MOST_STEPS - NEAR);
        self.node
    }
}
