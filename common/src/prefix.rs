//! What the longest matching prefix says of an address, found in a few steps however many prefixes there are.
//!
//! The prefixes of a policy never change while it is in force. So they are flattened when it is compiled ([`build`]): into
//! ranges that do not overlap, each with its own answer, and a search tree over where the ranges begin. A key is 64 bits:
//! an IPv4 address, the upper half of an IPv6 address, or, below a /64 that longer prefixes divide, its lower half.
//!
//! A [`Line`] is one cache line. A *leaf* has five separators and six nodes. A *table* is a row of nodes, one for each of
//! equally long stretches between the first range and the last: a header of two words, then two nodes a word. A node is an
//! answer, or where to go on. IPv4 and IPv6 have a tree each, and its root is a constant of the program, so that a
//! policy with few prefixes costs a packet one cache line, and dense ones with one length the same.

#[cfg(any(test, feature = "user"))]
pub mod build;
#[cfg(test)]
mod tests;

use crate::packet::Address;

/// What is said of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PrefixEntry {
    /// The class, 0 for the default one; at most [`MAX_CLASSES`].
    pub class: u32,
    /// Which rows of rules apply: the index of the class's multiplier, at most [`MAX_CLASSES`].
    pub grade: u16,
    /// [`PrefixEntry::NEVER_LIMIT`] and others.
    pub flags: u16,
}

/// The most classes of a policy.
pub const MAX_CLASSES: u32 = GRADES - 1;
const GRADES: u32 = 1 << 13;
const FLAGS: u32 = 1 << 2;

impl PrefixEntry {
    /// The address is never throttled, whatever else is said.
    pub const NEVER_LIMIT: u16 = 1;
    /// The address is of a class that no limit applies to.
    pub const UNLIMITED: u16 = 2;

    #[inline(always)]
    const fn unpack(node: Node) -> Self {
        let rest = node.0 / FLAGS;
        Self { class: rest / GRADES, grade: (rest % GRADES) as u16, flags: (node.0 % FLAGS) as u16 }
    }
}

/// An answer, or the line where the search goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Node(pub u32);

impl Node {
    const GOES_ON: u32 = 1 << 31;
    /// Goes on in a table, and not in a leaf.
    const TABLE: u32 = 1 << 30;
    /// Goes on with the lower half of the address.
    const LOWER: u32 = 1 << 29;

    #[inline(always)]
    const fn goes_on(self) -> bool {
        self.0 & Self::GOES_ON != 0
    }

    #[inline(always)]
    const fn is_table(self) -> bool {
        // Which no answer has to be asked: a number of a class may look the same.
        self.0 & (Self::GOES_ON | Self::TABLE) == Self::GOES_ON | Self::TABLE
    }

    #[inline(always)]
    const fn line(self) -> u32 {
        self.0 & (Self::LOWER - 1)
    }
}

/// Words of a line.
pub const LINE_WORDS: usize = 8;
/// Separators of a leaf; one node more lies behind them.
const SEPARATORS: usize = 5;
/// Nodes of a line that has nothing else, and how many the header of a table takes the place of.
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
}

/// The lines of a policy's trees.
pub trait Lines {
    /// A line by its number; there always is one with a number from a node or a root.
    fn line(&self, number: u32) -> Option<&Line>;
}

impl Lines for [Line] {
    fn line(&self, number: u32) -> Option<&Line> {
        self.get(number as usize)
    }
}

/// The header of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
struct Header {
    /// Where the first stretch begins; keys before that belong to it too.
    base: u64,
    /// Two to the power of this is the length of a stretch.
    shift: u32,
    /// The last stretch, to which all keys behind it belong too.
    last: u32,
}

impl Header {
    #[inline(always)]
    const fn of(line: &Line) -> Self {
        Self { base: line.0[0], shift: line.0[1] as u32, last: (line.0[1] >> 32) as u32 }
    }

    /// The node for `key`, in the table that begins with line `first`.
    #[inline(always)]
    fn follow<L: Lines + ?Sized>(self, lines: &L, first: u32, key: u64) -> Node {
        let from_base = if key > self.base { key - self.base } else { 0 };
        let stretch = from_base >> (self.shift % 64);
        let stretch = if stretch < u64::from(self.last) { stretch } else { u64::from(self.last) };
        let place = stretch + HEADER_NODES;
        let Some(line) = lines.line(first + (place / NODES) as u32) else { return Node(0) };
        line.node((place % NODES) as usize)
    }
}

/// Where the search begins: a node, and if that is a table, its header beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct PrefixRoot {
    /// Of the header.
    pub base: u64,
    /// Of the header.
    pub shift: u32,
    /// Of the header.
    pub last: u32,
    /// The node.
    pub node: Node,
    /// How many lines and tables may follow, the root's table not counted.
    pub steps: u32,
}

/// Where the search begins, by what an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct PrefixRoots {
    /// For IPv4, also where it is mapped into IPv6.
    pub ipv4: PrefixRoot,
    /// For every other address.
    pub ipv6: PrefixRoot,
}

impl PrefixRoot {
    /// Nothing is said of any address.
    pub const NONE: Self = Self { base: 0, shift: 0, last: 0, node: Node(0), steps: 0 };
}

impl PrefixRoots {
    /// Nothing is said of any address.
    pub const NONE: Self = Self { ipv4: PrefixRoot::NONE, ipv6: PrefixRoot::NONE };

    /// What is said of an address.
    #[must_use]
    pub fn look_up<L: Lines + ?Sized>(&self, lines: &L, address: Address) -> PrefixEntry {
        let root = if address.is_ipv4() { self.ipv4 } else { self.ipv6 };
        root.look_up(lines, address)
    }
}

impl PrefixRoot {
    /// What is said of an address that this is the root for.
    #[inline(always)]
    #[must_use]
    pub fn look_up<L: Lines + ?Sized>(self, lines: &L, address: Address) -> PrefixEntry {
        let mut key =
            if address.is_ipv4() { u64::from(u32::from_be(address.ipv4_memory())) } else { u64::from_be(address.hi) };
        let mut node = self.node;
        if node.is_table() {
            let header = Header { base: self.base, shift: self.shift, last: self.last };
            node = header.follow(lines, node.line(), key);
        }
        let mut step = 0;
        while step < self.steps && node.goes_on() {
            if node.0 & Node::LOWER != 0 {
                key = u64::from_be(address.lo);
            }
            let Some(line) = lines.line(node.line()) else { return PrefixEntry::default() };
            if node.0 & Node::TABLE != 0 {
                node = Header::of(line).follow(lines, node.line(), key);
            } else {
                let mut nth = 2 * SEPARATORS;
                for separator in 0..SEPARATORS {
                    nth += usize::from(line.0[separator] <= key);
                }
                node = line.node(nth);
            }
            step += 1;
        }
        PrefixEntry::unpack(node)
    }
}
