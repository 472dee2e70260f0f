//! What a policy fixes for every packet: the constants that a program is loaded with.
//!
//! They are read-only when the program is verified, so that what a policy does not use is not part of the program.

use crate::buffer::BufferLayout;
use crate::essential::PacketBucket;
use crate::key::HashSeed;
use crate::packet::{Kind, Protocol};
use crate::prefix::PrefixRoots;
use crate::rule::RuleSpan;
use crate::table::Shape;
use crate::time::TickScale;

/// Rows of [`Settings::spans`]: protocols times kinds of packet, and [`HIDDEN_SPAN`].
pub const SPANS: usize = 13;

/// The row for packets whose protocol is hidden: the limits of every protocol.
pub const HIDDEN_SPAN: usize = 12;

/// The constants of a loaded program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Settings {
    /// The secret of the table of sources.
    pub seed: HashSeed,
    /// How the table is cut.
    pub shape: Shape,
    /// How long a tick is.
    pub scale: TickScale,
    /// Stands for what the groups of keys are and which state of a slot is whose.
    pub groups: u64,
    /// Words of ring of each slot.
    pub ring_words: u32,
    /// The most rules of any span.
    pub most_rules: u32,
    /// Rows of rules for one multiplier; the rows for the next one follow.
    pub rules_per_grade: u32,
    /// [`crate::packet::Depth`]: how far packets have to be parsed.
    pub depth: u32,
    /// 1: some limit is for certain ports, so the map of ports has to be asked.
    pub ports_in_use: u32,
    /// 1: some prefix has a class or is never limited.
    pub prefixes_in_use: u32,
    /// A bit for each [`crate::rule::Algorithm`] that some rule runs.
    pub algorithms: u32,
    /// 1: some limit is elastic.
    pub elastic_in_use: u32,
    /// 1: some limit counts by the interface.
    pub interfaces_in_use: u32,
    /// 1: some limit is on bytes.
    pub bytes_in_use: u32,
    /// 1: frames may come in several buffers, and the kernel can tell their whole length.
    pub multi_buffer: u32,
    /// 1: the clock is what user space wrote into [`Runtime`]; for tests.
    pub given_clock: u32,
    /// 1: nothing is refused, only counted.
    pub observe: u32,
    /// 1: the policy is for what this host sends.
    pub is_egress: u32,
    /// 1: some limit answers what it refuses.
    pub reject_in_use: u32,
    /// 1: some limit marks.
    pub mark_in_use: u32,
    /// 1: some limit shapes.
    pub shape_in_use: u32,
    /// 1: packets whose protocol is hidden are refused, since no one span holds all their limits.
    pub refuse_hidden: u32,
    /// 1: the program is for generic XDP, which gets merged buffers.
    pub is_generic: u32,
    /// A bit for each [`crate::essential::Essential`] that comes under some limit above its own.
    pub essential_limited: u32,
    /// Where such a buffer's segments are written; all 0 if the kernel's layout is unknown.
    pub buffer_layout: BufferLayout,
    /// How many answers are sent at most.
    pub answers: PacketBucket,
    /// How much ARP, neighbour discovery and DHCP passes, each.
    pub essential: PacketBucket,
    /// How much passes of what is neither IP nor ARP.
    pub not_ip: PacketBucket,
    /// Where the search for what prefixes say begins.
    pub prefixes: PrefixRoots,
    /// What packets are held to that are to or from a port without limits of its own.
    pub spans: [RuleSpan; SPANS],
}

impl Settings {
    /// No policy: every packet passes. What a program holds until the agent writes its own.
    pub const NONE: Self = Self {
        seed: HashSeed::new([0; 4]),
        shape: Shape { sets: 1, slot_words: 2, groups: 1, cells: 1 },
        scale: TickScale::FINEST,
        groups: 0,
        ring_words: 0,
        most_rules: 0,
        rules_per_grade: 0,
        depth: 0,
        ports_in_use: 0,
        prefixes_in_use: 0,
        algorithms: 0,
        elastic_in_use: 0,
        interfaces_in_use: 0,
        bytes_in_use: 0,
        multi_buffer: 0,
        given_clock: 0,
        observe: 0,
        is_egress: 0,
        reject_in_use: 0,
        mark_in_use: 0,
        shape_in_use: 0,
        refuse_hidden: 0,
        is_generic: 0,
        essential_limited: 0,
        buffer_layout: BufferLayout::UNKNOWN,
        answers: PacketBucket::CLOSED,
        essential: PacketBucket::CLOSED,
        not_ip: PacketBucket::CLOSED,
        prefixes: PrefixRoots::NONE,
        spans: [RuleSpan { first: 0, count: 0 }; SPANS],
    };
}

/// How a packet is marked that a limit marks. One row for each row of rules of one multiplier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Mark {
    /// The packet's mark inside this host.
    pub mark: u32,
    /// 1: the packet gets that mark; 0: it keeps its own.
    pub sets_mark: u32,
    /// Its code point on the wire, 0 to 63; [`Mark::SAME_DSCP`] if it stays as it is.
    pub dscp: u32,
}

impl Mark {
    /// The code point stays as it is.
    pub const SAME_DSCP: u32 = u32::MAX;
}

/// The row of [`Settings::spans`] and of [`PortSpans`] for a packet.
#[inline(always)]
#[must_use]
pub const fn span_index(protocol: Protocol, kind: Kind) -> usize {
    let protocol = match protocol {
        Protocol::Tcp => 0,
        Protocol::Udp => 3,
        Protocol::Icmp => 6,
        Protocol::Other => 9,
        Protocol::Hidden => return HIDDEN_SPAN,
    };
    protocol
        + match kind {
            Kind::Plain => 0,
            Kind::Connection => 1,
            Kind::Request => 2,
        }
}

/// What TCP and UDP packets on one local port are held to: rows 0 to 5 of [`span_index`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct PortSpans {
    /// `first << 8 | count` each.
    pub packed: [u32; 6],
}

impl PortSpans {
    /// Packs a span.
    #[must_use]
    pub const fn pack(span: RuleSpan) -> u32 {
        span.first << 8 | span.count & 0xff
    }

    /// Unpacks a span.
    #[inline(always)]
    #[must_use]
    pub const fn unpack(packed: u32) -> RuleSpan {
        RuleSpan { first: packed >> 8, count: packed & 0xff }
    }
}

/// What the agent changes while the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Runtime {
    /// The instant of `bpf_ktime_get_ns` before which elastic limits may pass more than their rate. The agent renews it
    /// while the host has room; 0 is none.
    pub room_until: u64,
    /// Number of prefixes that are banned; 0 spares the packet the look-up.
    pub bans: u32,
    /// Always 0.
    pub _pad: u32,
    /// The clock in nanoseconds where [`Settings::given_clock`] is set.
    pub nanoseconds: u64,
}

/// What a table of sources has to have in common with a policy that goes on with it. Pinned beside the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct TableIdentity {
    /// The secret that its keys were hashed with.
    pub seed: HashSeed,
    /// How it is cut.
    pub shape: Shape,
    /// How long a tick is.
    pub scale: TickScale,
    /// [`Settings::groups`].
    pub groups: u64,
    /// Words of ring of each slot.
    pub ring_words: u32,
    /// [`TableIdentity::VERSION`] of the agent that made it.
    pub version: u32,
}

impl TableIdentity {
    /// Changes whenever a word of the table, the rings or the sightings comes to mean something else.
    pub const VERSION: u32 = 4;

    /// The identity of a table made for `settings`.
    #[must_use]
    pub const fn of(settings: &Settings) -> Self {
        Self {
            seed: settings.seed,
            shape: settings.shape,
            scale: settings.scale,
            groups: settings.groups,
            ring_words: settings.ring_words,
            version: Self::VERSION,
        }
    }

    /// Whether a policy with `settings`, whatever its seed, can go on with this table.
    #[must_use]
    pub fn fits(&self, settings: &Settings) -> bool {
        *self == Self { seed: self.seed, ..Self::of(settings) }
    }
}
