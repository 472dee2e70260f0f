//! The maps, by the names that bpftool shows, and bounds-checked access to them. Sizes are set when they are created.

use aya_ebpf::Global;
use aya_ebpf::bindings::{BPF_F_INNER_MAP, BPF_F_MMAPABLE, BPF_F_NO_PREALLOC, BPF_F_RDONLY_PROG};
use aya_ebpf::btf_maps::{Array, ArrayOfMaps, HashMap, LpmTrie, LruHashMap, PerCpuArray, RingBuf};
use aya_ebpf::macros::btf_map;
use common::ban::Ban;
use common::capture::CapturedFrame;
use common::connections::{Addressed, Attempt, Client, Reservation, Tuple};
use common::counters::{KeyStatistics, SampleQuota, TableCounters};
use common::essential::ESSENTIAL_BUCKETS;
use common::event::Event;
use common::fair::Offered;
use common::hot::CpuRow;
use common::key::Key;
use common::list::Chunk;
use common::own::OwnKey;
use common::packet::Direction;
use common::packet::reply::Reply;
use common::prefix::Line;
use common::proof::Recent;
use common::proof::resets::Known;
use common::record::{RecordKey, Recorded};
use common::rule::Rule;
use common::scope::ScopeSpans;
use common::settings::{Mark, PortSpans, Runtime, Settings, TableIdentity};
use common::stream::Streamed;
use common::table::ELEMENT_WORDS;
use common::throttle::PacketState;

use crate::ring::{Lost, Rings};

/// Page-aligned, so that an element of 64 bytes is one cache line, and readable by the agent without a system call.
const SHARED: usize = BPF_F_MMAPABLE as usize;
const ON_DEMAND: usize = BPF_F_NO_PREALLOC as usize;
const POLICY: usize = (BPF_F_MMAPABLE | BPF_F_RDONLY_PROG) as usize;

/// The constants of this program; the agent writes them before it is verified.
#[unsafe(no_mangle)]
pub static SETTINGS: Global<Settings> = Global::new(Settings::NONE);

/// Policy: two banks of rules, rows of one span side by side. Only the agent writes it: the bank that is not in effect,
/// and, word by word, rows in effect when this host's share of a limit or the level of a fair one changes. The kernel maps no memory as writable that
/// is read-only for programs.
#[btf_map]
pub static RULES: Array<Rule, 1, SHARED> = Array::new();

/// Policy: the spans of local ports.
#[btf_map]
pub static PORTS: Array<PortSpans, 1, POLICY> = Array::new();

/// Policy: the spans for certain sources and interfaces.
#[btf_map]
pub static SCOPES: Array<ScopeSpans, 1, POLICY> = Array::new();

/// The numbers of interfaces for those limits, by index. Only the agent writes it: before a program is attached to the
/// interface, and when its name changes.
#[btf_map]
pub static INTERFACES: HashMap<u32, u32, 1> = HashMap::new();

/// Policy: two banks of trees over prefixes. Only the agent writes it, the bank that is not in effect, through shared
/// memory, which the kernel does not allow for maps that are read-only for programs.
#[btf_map]
pub static PREFIXES: Array<Line, 1, SHARED> = Array::new();

/// Policy: the marks, by the row of the rule that marks.
#[btf_map]
pub static MARKS: Array<Mark, 1, POLICY> = Array::new();

/// The bans. Only the agent writes it, and it outlives every policy.
#[btf_map]
pub static BANS: LpmTrie<[u8; 16], Ban, 1> = LpmTrie::new();

/// The ban lists: one map, which the agent replaces as a whole. It outlives every policy. Programs only add to the
/// counters in its first chunk.
#[btf_map]
pub static LISTS: ArrayOfMaps<ListChunks, 1> = ArrayOfMaps::new();

/// The chunks of the lists; their number differs from map to map.
pub type ListChunks = Array<Chunk, 1, { (BPF_F_MMAPABLE | BPF_F_INNER_MAP) as usize }>;

/// The table of sources.
#[btf_map]
pub static SOURCES: Array<[u64; ELEMENT_WORDS as usize], 1, SHARED> = Array::new();

/// The rings of sliding logs, with the policy's number of words for each slot of the table.
#[btf_map]
pub static RINGS: Array<u64, 1, SHARED> = Array::new();

/// The counters of rules, and of packets without any rule.
#[btf_map]
pub static COUNTERS: PerCpuArray<CpuRow, 1> = PerCpuArray::new();

/// The counters of events in the table of sources.
#[btf_map]
pub static TABLE_COUNTERS: PerCpuArray<TableCounters, 1> = PerCpuArray::new();

/// Samples of the busiest and of refused keys, for display; no verdict depends on them.
#[btf_map]
pub static SAMPLES: LruHashMap<Key, KeyStatistics, 1> = LruHashMap::new();

/// The recent samples of this CPU.
#[btf_map]
pub static SAMPLE_QUOTA: PerCpuArray<SampleQuota, 1> = PerCpuArray::new();

/// Events of refused sources, for the agent.
#[btf_map]
pub static EVENTS: RingBuf<Event, 4096> = RingBuf::new();

/// Events that found no room.
#[btf_map]
pub static EVENTS_LOST: PerCpuArray<u64, 1> = PerCpuArray::new();

/// Sampled packets of fair rules, for the agent, which reads them on a timer. One that finds no room is lost: the sample is
/// then of fewer packets.
#[btf_map]
pub static OFFERED: RingBuf<Offered, 4096> = RingBuf::new();

/// Settings that the agent changes while the program runs.
#[btf_map]
pub static RUNTIME: Array<Runtime, 1, POLICY> = Array::new();

/// The sources of parts with an even number, while they are recorded; allocated on demand. The agent empties it in the
/// part after.
#[btf_map]
pub static RECORD_EVEN: HashMap<RecordKey, Recorded, 1, ON_DEMAND> = HashMap::new();

/// The sources of the other parts.
#[btf_map]
pub static RECORD_ODD: HashMap<RecordKey, Recorded, 1, ON_DEMAND> = HashMap::new();

/// Packets of sources that found no room.
#[btf_map]
pub static RECORD_LOST: PerCpuArray<u64, 1> = PerCpuArray::new();

/// Captured packets.
#[btf_map]
pub static CAPTURE: Rings<CapturedFrame> = Rings::new();

/// Packets of a capture that found no room.
#[btf_map]
pub static CAPTURE_LOST: Lost = Lost::new();

/// The sources of sampled packets.
#[btf_map]
pub static STREAM: Rings<Streamed> = Rings::new();

/// Sampled packets that found no room.
#[btf_map]
pub static STREAM_LOST: Lost = Lost::new();

/// The working state of a packet with several rules.
#[btf_map]
pub static PACKET_STATE: PerCpuArray<PacketState, 1> = PerCpuArray::new();

/// The SYN under evaluation, if some limit counts open connections.
#[btf_map]
pub static ATTEMPT: PerCpuArray<Attempt, 1> = PerCpuArray::new();

/// The open connections of each key. Shared with the programs that count them; likewise the following two maps.
#[btf_map]
pub static OPEN: HashMap<Key, u64, 1, ON_DEMAND> = HashMap::new();

/// The reservations of each key, of which a flood of SYNs evicts the oldest.
#[btf_map]
pub static PENDING: LruHashMap<Key, u64, 1> = LruHashMap::new();

/// The keys of each reserved connection, likewise.
#[btf_map]
pub static RESERVED: LruHashMap<Tuple, Reservation, 1> = LruHashMap::new();

/// The reserved connection of each client, likewise: see [`common::connections::Addressed`].
#[btf_map]
pub static ADDRESSED: LruHashMap<Client, Addressed, 1> = LruHashMap::new();

/// A reply under construction, outside of the stack.
#[btf_map]
pub static REPLY: PerCpuArray<Reply, 1> = PerCpuArray::new();

/// The state of the bucket that all replies share.
#[btf_map]
pub static ANSWERS: Array<u64, 1> = Array::new();

/// The state of the bucket that all answers to SYNs share.
#[btf_map]
pub static COOKIES: Array<u64, 1> = Array::new();

/// The connection of the packet that is evaluated, if it was just proven: its index in [`PROVEN`], and the entry; else 0.
#[btf_map]
pub static PROVEN_NOW: PerCpuArray<[u64; 2], 1> = PerCpuArray::new();

/// Words of the longest IP header without options, and of the ports.
pub const HEADERS: usize = 11;

/// The headers of the packet that is proven.
#[btf_map]
pub static PROOF_HEADERS: PerCpuArray<[u32; HEADERS], 1> = PerCpuArray::new();

/// The second of the last cookie of each local port: [`common::proof::second`].
#[btf_map]
pub static COOKIE_PORTS: Array<u32, 1> = Array::new();

/// The connections that were proven a moment ago, on any CPU: fragments may come to another one.
#[btf_map]
pub static PROVEN: Array<Recent, { Recent::COUNT as usize }> = Array::new();

/// The sources that proved their address by resets. It outlives policies, until one has no such limit.
#[btf_map]
pub static PROVEN_SOURCES: Array<[Known; Known::PLACES], 1> = Array::new();

/// The states of the buckets for traffic to which limits per source do not apply.
#[btf_map]
pub static ESSENTIAL: Array<u64, { ESSENTIAL_BUCKETS as usize }> = Array::new();

/// The addresses of this host, for replies. Only the agent writes it.
#[btf_map]
pub static OWN: HashMap<OwnKey, u32, 1> = HashMap::new();

/// The identity of this table, for the next agent.
#[btf_map]
pub static TABLE: Array<TableIdentity, 1> = Array::new();

/// The layout of the table of sources as text, for the next agent. No program reads it.
#[btf_map]
pub static LAYOUT: Array<[u8; 4096], 1> = Array::new();

/// Reads a field of the settings: a constant for the verifier.
macro_rules! setting {
    ($($field:tt)+) => {{
        // SAFETY: a field of an initialised static; the read is volatile since its value is that of load time.
        unsafe { core::ptr::addr_of!((*core::ptr::addr_of!($crate::maps::SETTINGS).cast::<common::settings::Settings>()).$($field)+).read_volatile() }
    }};
}
pub(crate) use setting;

/// The direction of packets in traffic control; in XDP always ingress, which gives the verifier less to track.
#[inline(always)]
pub fn direction() -> Direction {
    if setting!(is_egress) != 0 {
        Direction::Egress
    } else {
        Direction::Ingress
    }
}
