//! The maps, by the names that bpftool shows, and bounds-checked access to them. Sizes are set when they are created.

use aya_ebpf::Global;
use aya_ebpf::bindings::{BPF_F_MMAPABLE, BPF_F_RDONLY_PROG};
use aya_ebpf::btf_maps::{Array, HashMap, LpmTrie, LruHashMap, PerCpuArray, RingBuf};
use aya_ebpf::macros::btf_map;
use common::ban::Ban;
use common::counters::{Counters, Sighted, TableCounters};
use common::essential::ESSENTIAL_BUCKETS;
use common::event::Event;
use common::key::Key;
use common::own::OwnKey;
use common::packet::reply::Reply;
use common::prefix::Line;
use common::rule::Rule;
use common::settings::{Mark, PortSpans, Runtime, Settings, TableIdentity};
use common::table::ELEMENT_WORDS;
use common::throttle::Hearing;

/// Page-aligned, so that an element of 64 bytes is one cache line, and readable by the agent without a system call.
const SHARED: usize = BPF_F_MMAPABLE as usize;
const POLICY: usize = (BPF_F_MMAPABLE | BPF_F_RDONLY_PROG) as usize;

/// The constants of this program; the agent writes them before it is verified.
#[unsafe(no_mangle)]
pub static SETTINGS: Global<Settings> = Global::new(Settings::NONE);

/// Policy: the rules, rows of one span side by side. Only the agent writes it; it does so in place, a word at a time,
/// when this host's share of a limit changes, and the kernel maps nothing writable that is read-only to programs.
#[btf_map]
pub static RULES: Array<Rule, 1, SHARED> = Array::new();

/// Policy: what packets on a local port are held to.
#[btf_map]
pub static PORTS: Array<PortSpans, 1, POLICY> = Array::new();

/// Policy: the class of a prefix, and whether it is never limited: trees, whose roots are in the settings. Only the agent writes it,
/// once, through shared memory, which the kernel does not grant for what is read-only to programs.
#[btf_map]
pub static PREFIXES: Array<Line, 1, SHARED> = Array::new();

/// Policy: how packets are marked, by the row of the rule that marks them.
#[btf_map]
pub static MARKS: Array<Mark, 1, POLICY> = Array::new();

/// What is banned. Only the agent writes it, and it outlives every policy.
#[btf_map]
pub static BANS: LpmTrie<[u8; 16], Ban, 1> = LpmTrie::new();

/// The table of sources.
#[btf_map]
pub static SOURCES: Array<[u64; ELEMENT_WORDS as usize], 1, SHARED> = Array::new();

/// The rings of sliding logs, as many words for each slot of the table as the policy needs.
#[btf_map]
pub static RINGS: Array<u64, 1, SHARED> = Array::new();

/// What is counted of rules, and of packets that come to none.
#[btf_map]
pub static COUNTERS: PerCpuArray<Counters, 1> = PerCpuArray::new();

/// What befell the table of sources.
#[btf_map]
pub static TABLE_COUNTERS: PerCpuArray<TableCounters, 1> = PerCpuArray::new();

/// The busiest and the refused, for people to look at; no verdict depends on it.
#[btf_map]
pub static SIGHTINGS: LruHashMap<Key, Sighted, 1> = LruHashMap::new();

/// Who was refused, sampled; for the agent to tell.
#[btf_map]
pub static EVENTS: RingBuf<Event, 4096> = RingBuf::new();

/// Those there was no room for.
#[btf_map]
pub static EVENTS_LOST: PerCpuArray<u64, 1> = PerCpuArray::new();

/// What the agent changes while the program runs.
#[btf_map]
pub static RUNTIME: Array<Runtime, 1, POLICY> = Array::new();

/// A packet with several rules, while it is judged.
#[btf_map]
pub static HEARING: PerCpuArray<Hearing, 1> = PerCpuArray::new();

/// An answer, while it is written: kept off the stack.
#[btf_map]
pub static REPLY: PerCpuArray<Reply, 1> = PerCpuArray::new();

/// The state of the bucket that all answers share.
#[btf_map]
pub static ANSWERS: Array<u64, 1> = Array::new();

/// The states of the buckets for what limits per source do not apply to.
#[btf_map]
pub static ESSENTIAL: Array<u64, { ESSENTIAL_BUCKETS as usize }> = Array::new();

/// The addresses of this host, for replies. Only the agent writes it.
#[btf_map]
pub static OWN: HashMap<OwnKey, u32, 1> = HashMap::new();

/// What table this is: for the agent that comes after this one.
#[btf_map]
pub static TABLE: Array<TableIdentity, 1> = Array::new();

/// What is where in the table of sources, as text: for the agent that comes after this one. No program reads it.
#[btf_map]
pub static LAYOUT: Array<[u8; 4096], 1> = Array::new();

/// Where one field of the settings is.
macro_rules! setting_at {
    ($($field:tt)+) => {
        // SAFETY: the static is initialised.
        unsafe { core::ptr::addr_of!((*core::ptr::addr_of!($crate::maps::SETTINGS).cast::<common::settings::Settings>()).$($field)+) }
    };
}
pub(crate) use setting_at;

/// Reads one field of the settings: a constant to the verifier.
macro_rules! setting {
    ($($field:tt)+) => {{
        let at = $crate::maps::setting_at!($($field)+);
        // SAFETY: a field of the settings; the read is volatile since its value is that of load time.
        unsafe { at.read_volatile() }
    }};
}
pub(crate) use setting;
