//! The constants with which a program is loaded.
//!
//! They are read-only when the program is verified, so that the verifier removes unused parts of the program.

use crate::bank::Bank;
use crate::buffer::BufferLayout;
use crate::capture::CaptureSettings;
use crate::essential::PacketBucket;
use crate::key::{HashSeed, SEED_WORDS};
use crate::prefix::Roots;
use crate::rule::RuleSpan;
use crate::scope::Scoping;
use crate::stream::StreamSettings;
use crate::table::Shape;
use crate::time::TickScale;

pub use crate::spans::{HIDDEN_SPAN, PortSpans, SPANS, span_index};

/// The constants of a loaded program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Settings {
    /// The secret of the table of sources.
    pub seed: HashSeed,
    /// The shape of the table.
    pub shape: Shape,
    /// The length of a tick.
    pub scale: TickScale,
    /// A hash of the groups of keys and the states in their slots.
    pub groups: u64,
    /// Words of ring of each slot.
    pub ring_words: u32,
    /// The most rules of any span.
    pub most_rules: u32,
    /// Rows of rules for one multiplier; the rows for the next one follow.
    pub rules_per_multiplier: u32,
    /// The bits of a source index in one [`crate::bank::Bank`]; the bank's number is above them.
    pub source_index_bits: u32,
    /// Lines of prefixes in each [`crate::bank::Bank`].
    pub lines_of_bank: u32,
    /// [`crate::packet::Depth`]: how far packets have to be parsed.
    pub depth: u32,
    /// [`crate::scope::SpansBy`]: whether some limit is for certain ports, sources or interfaces.
    pub spans_by: u32,
    /// 1: some prefix has a class, is exempt or has specific limits.
    pub prefixes_in_use: u32,
    /// 1: some limit is for networks, and some prefix has one.
    pub networks_in_use: u32,
    /// A bit for each [`crate::limiter::Algorithm`] that some rule runs.
    pub algorithms: u32,
    /// 1: some limit is elastic.
    pub elastic_in_use: u32,
    /// 1: some limit counts by the interface.
    pub interfaces_in_use: u32,
    /// 1: some limit is on bytes.
    pub bytes_in_use: u32,
    /// 1: frames may have several buffers, and the kernel reports their whole length.
    pub multi_buffer: u32,
    /// 1: the clock is the value in [`Runtime`]; for tests.
    pub given_clock: u32,
    /// 1: nothing is refused, only counted.
    pub observe: u32,
    /// 1: the policy is for outgoing packets.
    pub is_egress: u32,
    /// 1: some limit replies to refused packets.
    pub reject_in_use: u32,
    /// 1: some limit marks.
    pub mark_in_use: u32,
    /// 1: some limit shapes.
    pub shape_in_use: u32,
    /// 1: packets with a hidden protocol are refused, since no span has room for all their limits.
    pub refuse_hidden: u32,
    /// 1: the program is for generic XDP, which receives merged buffers.
    pub is_generic: u32,
    /// A bit for each [`crate::essential::Essential`] to which some limit applies in addition to its own.
    pub essential_limited: u32,
    /// The look-up of limits for certain sources and interfaces.
    pub scoping: Scoping,
    /// 1: the policy has ban lists.
    pub lists_in_use: u32,
    /// The ways in which sources of limits prove their address: [`Settings::BY_COOKIES`], [`Settings::BY_RESETS`].
    pub prove_in_use: u32,
    /// 1: some limit counts open connections.
    pub connections_in_use: u32,
    /// 1: refusals by some limit may ban a source.
    pub escalate_in_use: u32,
    /// [`Settings::FAIR`]: some limit is fair; [`Settings::WIDER`]: some such limit has levels of wider keys.
    pub fair_in_use: u32,
    /// 0.
    pub unused: u32,
    /// The location of such a buffer's segments; all 0 if the kernel's layout is unknown.
    pub buffer_layout: BufferLayout,
    /// The limit on replies.
    pub answers: PacketBucket,
    /// The limit on answers to SYNs.
    pub cookies: PacketBucket,
    /// The limit on ARP, neighbour discovery and DHCP, each.
    pub essential: PacketBucket,
    /// The limit on ARP, neighbour discovery and DHCP of one neighbour, each.
    pub neighbour: PacketBucket,
    /// The limit on frames that are neither IP nor ARP.
    pub not_ip: PacketBucket,
    /// The rules for packets on ports without specific limits.
    pub spans: [RuleSpan; SPANS],
}

impl Settings {
    /// The bit of `fair_in_use` for fair limits.
    pub const FAIR: u32 = 1;
    /// The bit of `fair_in_use` for levels of networks and of all sources together.
    pub const WIDER: u32 = 2;
    /// The bit of `prove_in_use` for proofs by SYN cookies.
    pub const BY_COOKIES: u32 = 1;
    /// The bit of `prove_in_use` for [`crate::proof::resets`].
    pub const BY_RESETS: u32 = 2;

    /// No policy: every packet passes. The default of a program until the agent writes its own.
    pub const NONE: Self = Self {
        seed: HashSeed {
            words: [0; SEED_WORDS],
        },
        shape: Shape {
            sets: 1,
            slot_words: 2,
            groups: 1,
            cells: 1,
        },
        scale: TickScale::FINEST,
        groups: 0,
        ring_words: 0,
        most_rules: 0,
        rules_per_multiplier: 0,
        source_index_bits: 0,
        lines_of_bank: 0,
        depth: 0,
        spans_by: 0,
        prefixes_in_use: 0,
        networks_in_use: 0,
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
        scoping: Scoping::NONE,
        lists_in_use: 0,
        prove_in_use: 0,
        connections_in_use: 0,
        escalate_in_use: 0,
        fair_in_use: 0,
        unused: 0,
        buffer_layout: BufferLayout::UNKNOWN,
        answers: PacketBucket::CLOSED,
        cookies: PacketBucket::CLOSED,
        essential: PacketBucket::CLOSED,
        neighbour: PacketBucket::CLOSED,
        not_ip: PacketBucket::CLOSED,
        spans: [RuleSpan { first: 0, count: 0 }; SPANS],
    };
}

/// The mark of a rule. One row for each row of rules of one multiplier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Mark {
    /// The packet's mark inside this host.
    pub mark: u32,
    /// 1: the packet gets that mark; 0: it keeps its own.
    pub sets_mark: u32,
    /// Its code point on the wire, 0 to 63; [`Mark::SAME_DSCP`] if it is not changed.
    pub dscp: u32,
}

impl Mark {
    /// The code point is not changed.
    pub const SAME_DSCP: u32 = u32::MAX;
}

/// Settings that the agent changes while the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Runtime {
    /// The instant of `bpf_ktime_get_ns` until which elastic limits may pass more than their rate. The agent renews it
    /// while the host has spare CPU time; 0: no instant.
    pub room_until: u64,
    /// The number of banned prefixes; 0 skips the look-up.
    pub bans: u32,
    /// One in this many sources is recorded, a power of two; 0: none is.
    pub record: u32,
    /// The clock in nanoseconds where [`Settings::given_clock`] is set.
    pub nanoseconds: u64,
    /// The [`crate::bank::Bank`] in effect.
    pub bank: u32,
    /// [`Runtime::CAPTURE`] and [`Runtime::STREAM`]: who receives packets after their verdict.
    pub taps: u32,
    /// The capture of packets.
    pub capture: CaptureSettings,
    /// The sample of packets whose sources are read.
    pub stream: StreamSettings,
    /// The roots of the trees of prefixes, for each bank.
    pub roots: [Roots; Bank::COUNT as usize],
}

impl Runtime {
    /// There is a capture.
    pub const CAPTURE: u32 = 1;
    /// The sources of sampled packets are read.
    pub const STREAM: u32 = 2;

    /// With the taps that the settings of captures and streams require.
    #[must_use]
    pub const fn with_taps(self) -> Self {
        let capture = if self.capture.until == 0 {
            0
        } else {
            Self::CAPTURE
        };
        let stream = if self.stream.until == 0 {
            0
        } else {
            Self::STREAM
        };
        Self {
            taps: capture | stream,
            ..self
        }
    }
}

/// The properties of a table that a policy must share to reuse it. Pinned beside the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct TableIdentity {
    /// The secret of its hash.
    pub seed: HashSeed,
    /// Its shape.
    pub shape: Shape,
    /// The length of a tick.
    pub scale: TickScale,
    /// [`Settings::groups`].
    pub groups: u64,
    /// Words of ring of each slot.
    pub ring_words: u32,
    /// [`TableIdentity::VERSION`] of the agent that created it.
    pub version: u32,
}

impl TableIdentity {
    /// Changes whenever a word of the table, the rings or the samples changes its meaning.
    pub const VERSION: u32 = 7;

    /// The identity of a table created for `settings`.
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

    /// Whether a policy with `settings`, regardless of its seed, can reuse this table.
    #[must_use]
    pub fn fits(&self, settings: &Settings) -> bool {
        *self
            == Self {
                seed: self.seed,
                ..Self::of(settings)
            }
    }
}
