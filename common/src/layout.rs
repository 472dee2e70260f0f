//! Compile-time checks of map types: sizes, alignment, no padding.

use crate::ban::Ban;
use crate::buffer::BufferLayout;
use crate::capture::{CaptureSettings, Captured};
use crate::connections::{
    Addressed, Client, Connection, ConnectionSettings, MOST_KEYS, Reservation, Stale, Tuple,
};
use crate::counters::{Counters, KeyStatistics, SampleQuota, TableCounters, Traffic};
use crate::essential::PacketBucket;
use crate::event::Event;
use crate::fair::Offered;
use crate::group::{
    DIRECTIONS, GroupBucket, GroupCounters, GroupSettings, OUTBOUND, Refused, Started,
};
use crate::hot::{CpuRow, HotKey};
use crate::key::{HashSeed, Key};
use crate::list::{CHUNK_WORDS, Chunk};
use crate::own::OwnKey;
use crate::prefix::{LINE_WORDS, Line, PrefixRoot, PrefixRoots, Roots};
use crate::record::{RecordKey, Recorded};
use crate::rule::{Rule, RuleSpan, Size};
use crate::scope::{ScopeSpans, Scoping};
use crate::settings::{Mark, PortSpans, Runtime, SPANS, Settings, TableIdentity};
use crate::source_sketch::{REGISTERS, SourceSketch};
use crate::stream::{StreamSettings, Streamed};
use crate::table::Shape;
use crate::time::TickScale;
use crate::trace::{MOST_TRACED, TracedSources};

/// The size of the type is the sum of its fields' sizes, so there is no padding.
macro_rules! no_padding {
    ($type:ty: $($field:ty),+ $(,)?) => {
        const _: () = assert!(size_of::<$type>() == 0 $(+ size_of::<$field>())+);
    };
}

no_padding!(Key: u64, u64, u32, u32);
no_padding!(Tuple: [u64; 4], u32, u32);
no_padding!(Client: [u64; 2], u32, u32);
no_padding!(Addressed: [u64; 2], u32, u32);
no_padding!(Reservation: [Key; MOST_KEYS], u32, u32);
no_padding!(Connection: Reservation, Tuple, u64, u32, u32);
no_padding!(Stale: u64, u64, u32, u32);
no_padding!(ConnectionSettings: [u32; 12]);
no_padding!(Rule: u64, u64, u64, u64, u64, u32, u32, u16, u16, [u8; 12]);
no_padding!(
    Settings: HashSeed, Shape, TickScale, u64, [u32; 23], Scoping, [u32; 6], BufferLayout, [PacketBucket; 5], [RuleSpan; SPANS]
);
no_padding!(BufferLayout: [u32; 4]);
no_padding!(Offered: u64, u64, [u32; 4]);
no_padding!(PacketBucket: u64, u64, u64);
no_padding!(OwnKey: [u64; 2]);
no_padding!(Mark: u32, u32, u32);
no_padding!(Ban: u64, u64, u64);
no_padding!(TableIdentity: HashSeed, Shape, TickScale, u64, u32, u32);
no_padding!(Size: u32, u32);
no_padding!(PortSpans: [u32; 6]);
no_padding!(Scoping: u32, u32, u32);
no_padding!(ScopeSpans: [u32; 16]);
no_padding!(PrefixRoot: u64, [u32; 4]);
no_padding!(PrefixRoots: [PrefixRoot; 2]);
no_padding!(Roots: [PrefixRoots; 2]);
no_padding!(Chunk: [u64; CHUNK_WORDS]);
no_padding!(Line: [u64; LINE_WORDS]);
no_padding!(Runtime: u64, u32, u32, u64, u32, u32, CaptureSettings, StreamSettings, [Roots; 2]);
no_padding!(StreamSettings: u64, u32, u32);
no_padding!(Streamed: u64, u64, [u32; 4]);
no_padding!(CaptureSettings: u64, [u64; 2], u32, u32);
no_padding!(Captured: u64, [u32; 4]);
no_padding!(RecordKey: u64, u64, u32, u16, u16);
no_padding!(Recorded: [u64; 5]);
no_padding!(Traffic: u64, u64);
no_padding!(Counters: [Traffic; 5]);
no_padding!(CpuRow: HotKey, Counters);
no_padding!(HotKey: Key, [u64; 4], [u32; 5], u16, u16);
no_padding!(TableCounters: [u64; 5]);
no_padding!(GroupBucket: u64, u64, u64, [u32; 4]);
no_padding!(GroupCounters: Traffic, Traffic);
no_padding!(GroupSettings: [GroupBucket; DIRECTIONS], u32, u32, [GroupBucket; OUTBOUND], u64);
no_padding!(Refused: u64, [u32; 4], u32, u16, u16, [u8; 16]);
no_padding!(Started: u32, u32);
no_padding!(KeyStatistics: [u64; 8], SourceSketch);
no_padding!(SourceSketch: [u8; REGISTERS]);
no_padding!(SampleQuota: u64, u64);
no_padding!(Event: Key, u64, u64, u32, u32);
no_padding!(TracedSources: u64, [[u64; 2]; MOST_TRACED]);

const _: () = assert!(size_of::<Rule>() == 64 && align_of::<Rule>() == 64);
const _: () = assert!(size_of::<Line>() == 64 && align_of::<Line>() == 64);
const _: () = assert!(size_of::<Counters>() == 80);
// The kernel aligns values of per-CPU and hash maps only to 8 bytes.
const _: () = assert!(align_of::<Counters>() == 8 && align_of::<KeyStatistics>() == 8);
