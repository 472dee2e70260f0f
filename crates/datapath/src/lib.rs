//! The packet path: compiles a policy to rows, loads it into the kernel through aya, attaches it to interfaces, and reads
//! its counters and state.
//!
//! Each policy has a program with its own maps. All programs share the table of sources, the rings and the
//! samples, which are pinned in bpffs. Replacing a policy is therefore one atomic replacement of the program behind
//! each link: each packet is evaluated by the old policy or the new one. A policy that differs in rules and prefixes only is
//! written into the other bank of the same program, and put in effect by one word.

pub mod bans;
mod buffers;
pub mod compile;
pub mod connections;
pub mod counters;
mod datapath;
mod devices;
mod error;
mod fair;
mod hooks;
mod loading;
mod maps;
pub mod memory;
mod programs;
mod table;
pub mod translations;

pub use api::interface::AttachMode;
pub use bans::BanEntry;
pub use bpf::objects::WEIR as OBJECT;
pub use bpf::{is_kernel_too_old, kernel_release};
pub use datapath::Datapath;
pub use devices::device::{Interface, interfaces as host_interfaces};
pub use devices::features::{
    AttachedProgram, DeviceFacts, LostReplies, Owner, facts as device_facts,
};
pub use devices::gateways::default_gateways;
pub use devices::names::default_route_interfaces;
pub use devices::{host_links, topology};
pub use error::{AttachError, LoadError};
pub use fair::{FairCounts, FairHandle, FairLevel, FairLevels, FairLimit, FairSample};
pub use hooks::attach::Step;
pub use hooks::attached::{Attached, Turn};
pub use hooks::conflicts::PinLock;
pub use hooks::pins::PinDirectory;
pub use hooks::queueing::lacking_for_shape;
pub use hooks::trouble::Trouble;
pub use maps::bans::Bans;
pub use maps::capture::{CaptureRings, CapturedPacket, new_capture};
pub use maps::events::{EventRing, MOST_AT_ONCE};
pub use maps::generation::{Generation, Generations};
pub use maps::lists::ListMap;
pub use maps::own::OwnAddresses;
pub use maps::record::RecordMaps;
pub use maps::size::MOST_BANS;
pub use maps::stream::StreamRings;
pub use maps::trace::{TraceRecord, TraceRing};
pub use programs::Entry;
pub use table::carry::Carry;
pub use table::place::{Before, TablePlace};
pub use table::saved::{SavedLayout, SavedTable};
pub use table::sources::{SlotView, Sources};
