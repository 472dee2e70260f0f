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

/// What is said of an address: a class, the default one if it is 0, and what else there is to know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct PrefixEntry(u32);

/// The most classes of a policy.
pub const MAX_CLASSES: u32 = GRADES - 1;
const GRADES: u32 = 1 << 13;
const FLAGS: u32 = 1 << 2;

impl PrefixEntry {
    /// The address is never throttled, whatever else is said.
    pub const NEVER_LIMIT: u32 = 1;
    /// The address is of a class that no limit applies to.
    pub const UNLIMITED: u32 = 2;

    /// Of a class, and the index of its multiplier. Both are at most [`MAX_CLASSES`].
    #[must_use]
    pub const fn new(class: u32, grade: u32) -> Self {
        debug_assert!(class <= MAX_CLASSES && grade <= MAX_CLASSES);
        Self((class * GRADES + grade) * FLAGS)
    }

    /// The same with one of the flags.
    #[must_use]
    pub const fn with(self, flag: u32) -> Self {
        Self(self.0 | flag)
    }

    /// Whether it has one of the flags.
    #[inline(always)]
    #[must_use]
    pub const fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }

    /// The class, 0 for the default one.
    #[inline(always)]
    #[must_use]
    pub const fn class(self) -> u32 {
        self.0 / FLAGS / GRADES
    }

    /// Which rows of rules apply: the index of the class's multiplier.
    #[inline(always)]
    #[must_use]
    pub const fn grade(self) -> u32 {
        self.0 / FLAGS % GRADES
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

    /// The node for `key`, in a leaf.
    #[inline(always)]
    fn behind_separators(&self, key: u64) -> Node {
        let [a, b, c, d, e, ..] = self.0;
        // Each way through is one for the verifier: six, where a sum of five comparisons has thirty-two.
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
    /// A line by its number; there always is one with a number from a node or a root.
    fn line(&self, number: u32) -> Option<&Line>;
    /// `number` itself, whatever `any` is. In the kernel, the verifier forgets here what it knows of it, and goes on once
    /// and not once for each way to get there.
    fn forget(&self, number: u64, any: u64) -> u64 {
        let _ = any;
        number
    }
    /// [`Search::finish`]. In the kernel a function of its own, which is verified once.
    fn go_further(&self, search: Search) -> Node {
        search.finish(self)
    }
}

/// Steps that are taken in line: all there are, unless prefixes lie very unevenly.
const NEAR: u32 = 3;
/// More than any tree has: a table has at least 64 nodes, of which the first and the last that differ are at least 31 apart,
/// so that one of them is at most a thirtieth of what the table is for. That makes 13 tables for 64 bits, and two leaves behind
/// them, for either half.
const MOST_STEPS: u32 = 30;

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
        let from_base = key.saturating_sub(self.base);
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
        let root = if address.is_ipv4() { &self.ipv4 } else { &self.ipv6 };
        root.look_up(lines, address)
    }
}

impl PrefixRoot {
    /// What is said of an address that this is the root for.
    #[inline(always)]
    #[must_use]
    pub fn look_up<L: Lines + ?Sized>(self, lines: &L, address: Address) -> PrefixEntry {
        let key =
            if address.is_ipv4() { u64::from(u32::from_be(address.ipv4_memory())) } else { u64::from_be(address.hi) };
        let mut node = self.node;
        if node.is_table() {
            let header = Header { base: self.base, shift: self.shift, last: self.last };
            node = header.follow(lines, node.line(), key);
        }
        let mut search = Search { node, key, lower: u64::from_be(address.lo) };
        search.go_on(lines, if self.steps < NEAR { self.steps } else { NEAR });
        if self.steps > NEAR && search.node.goes_on() {
            search.node = lines.go_further(search);
        }
        PrefixEntry(lines.forget(u64::from(search.node.0), address.lo) as u32)
    }
}

/// How far a search has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Search {
    /// Where it is.
    pub node: Node,
    /// What is looked for there.
    pub key: u64,
    /// What is looked for once the upper half is found.
    pub lower: u64,
}

impl Search {
    #[inline(always)]
    fn go_on<L: Lines + ?Sized>(&mut self, lines: &L, steps: u32) {
        let mut step = 0;
        while step < steps {
            self.node = Node(lines.forget(u64::from(self.node.0), self.lower) as u32);
            self.key = lines.forget(self.key, self.lower);
            if !self.node.goes_on() {
                break;
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
            step += 1;
        }
    }

    /// To the end, from after the first steps.
    #[inline(always)]
    #[must_use]
    pub fn finish<L: Lines + ?Sized>(mut self, lines: &L) -> Node {
        self.go_on(lines, MOST_STEPS - NEAR);
        self.node
    }
}
