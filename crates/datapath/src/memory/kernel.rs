//! The kernel memory of a policy's maps, computed like the kernel's `map_mem_usage` (Linux 6.4).

use common::bank::Bank;
use common::connections::{Addressed, Attempt, Client, Reservation, Tuple};
use common::counters::{KeyStatistics, SampleQuota, TableCounters};
use common::essential::ESSENTIAL_BUCKETS;
use common::hot::CpuRow;
use common::key::Key;
use common::own::OwnKey;
use common::packet::reply::Reply;
use common::prefix::Line;
use common::proof::Recent;
use common::proof::resets::Known;
use common::rule::Rule;
use common::scope::ScopeSpans;
use common::settings::{Mark, PortSpans, Runtime, Settings, TableIdentity};
use common::table::ELEMENT_WORDS;
use common::throttle::PacketState;

use crate::compile::Image;
use crate::maps::size::{
    self, MOST_OPEN, MOST_RESERVED, RING_BYTES, SAMPLES, TEXT_CHUNK, interfaces, recorded,
};

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// `struct bpf_array`, about.
const ARRAY: u64 = 320;
/// `struct bpf_htab`, about.
const HASH: u64 = 1024;
/// `struct htab_elem`, before key and value.
const HASH_ELEMENT: u64 = 48;
const BUCKET: u64 = 16;
/// A program before and after compilation, its BTF and its links.
const PROGRAM: u64 = 576 << 10;

/// A mappable array.
const fn mapped(entries: u64, value: usize) -> u64 {
    PAGE + (entries * (value as u64).next_multiple_of(8)).next_multiple_of(PAGE)
}

const fn array(entries: u64, value: usize) -> u64 {
    ARRAY + entries * (value as u64).next_multiple_of(8)
}

const fn per_cpu(entries: u64, value: usize, cpus: u64) -> u64 {
    ARRAY + entries * (8 + (value as u64).next_multiple_of(8) * cpus)
}

const fn hash(entries: u64, key: usize, value: usize) -> u64 {
    let element =
        HASH_ELEMENT + (key as u64).next_multiple_of(8) + (value as u64).next_multiple_of(8);
    HASH + entries * element + entries.next_power_of_two() * BUCKET
}

/// The table of sources and its maps: see `SHARED_MAPS`.
pub fn table(settings: &Settings) -> u64 {
    let rings = (u64::from(settings.shape.all_slots()) * u64::from(settings.ring_words)).max(1);
    mapped(
        u64::from(settings.shape.elements()),
        ELEMENT_WORDS as usize * size_of::<u64>(),
    ) + mapped(rings, size_of::<u64>())
        + hash(
            u64::from(SAMPLES),
            size_of::<Key>(),
            size_of::<KeyStatistics>(),
        )
        + array(1, size_of::<TableIdentity>())
        + array(1, TEXT_CHUNK)
}

/// The most memory of a copy of a table's used part.
#[must_use]
pub fn copy(table: &Settings) -> u64 {
    let words = u64::from(table.shape.slot_words + table.ring_words);
    (table.shape.capacity() * words * 8).next_multiple_of(PAGE)
}

/// The maps of open connections; those of connections are allocated on demand.
fn connections(image: &Image, cpus: u64) -> u64 {
    let is_in_use = image.connections != 0;
    let of = |most: u32| if is_in_use { u64::from(most) } else { 1 };
    let maps = HASH
        + of(MOST_OPEN).next_power_of_two() * BUCKET
        + hash(of(MOST_RESERVED), size_of::<Key>(), size_of::<u64>())
        + hash(
            of(MOST_RESERVED),
            size_of::<Tuple>(),
            size_of::<Reservation>(),
        )
        + hash(
            of(MOST_RESERVED),
            size_of::<Client>(),
            size_of::<Addressed>(),
        );
    if !is_in_use {
        return maps;
    }
    let counting = HASH + of(MOST_OPEN) * BUCKET + per_cpu(1, size_of::<u64>(), cpus);
    maps + counting + PROGRAM / 8
}

/// The maps and programs of one direction.
pub fn policy(image: &Image, cpus: u64) -> u64 {
    let rows = |count: usize| (count as u64).max(1);
    let banks = |size: u32| u64::from(Bank::COUNT * size).max(1);
    let own = u64::from(size::own_addresses(&image.settings));
    let ring_of = |bytes: u64| bytes + bytes / PAGE * 16 + 3 * PAGE;
    PROGRAM
        + array(1, size_of::<Settings>())
        + mapped(banks(size::rows_of_bank(image)), size_of::<Rule>())
        + mapped(rows(image.ports.len()), size_of::<PortSpans>())
        + mapped(rows(image.scopes.len()), size_of::<ScopeSpans>())
        + hash(u64::from(interfaces(image)), size_of::<u32>(), size_of::<u32>())
        + mapped(banks(size::lines_of_bank(image)), size_of::<Line>())
        + mapped(rows(image.marks.len()), size_of::<Mark>())
        + mapped(1, size_of::<Runtime>())
        + per_cpu(u64::from(image.counters()), size_of::<CpuRow>(), cpus)
        + per_cpu(1, size_of::<TableCounters>(), cpus)
        + per_cpu(1, size_of::<PacketState>(), cpus)
        + per_cpu(1, size_of::<Reply>(), cpus)
        + per_cpu(1, size_of::<u64>(), cpus)
        + per_cpu(1, size_of::<SampleQuota>(), cpus)
        + array(1, size_of::<u64>())
        + array(1, size_of::<u64>())
        + per_cpu(u64::from(Recent::COUNT), size_of::<Recent>(), cpus)
        + array(u64::from(size::cookie_ports(&image.settings)), size_of::<u32>())
        + array(u64::from(size::proven_sources(&image.settings)), size_of::<[Known; Known::PLACES]>())
        + array(u64::from(ESSENTIAL_BUCKETS), size_of::<u64>())
        + 2 * (HASH + u64::from(recorded(image)) * BUCKET)
        + per_cpu(1, size_of::<u64>(), cpus)
        // The rings of captured packets and of the stream are allocated while somebody reads them.
        + 2 * (array(cpus, size_of::<u64>()) + per_cpu(1, size_of::<u64>(), cpus))
        + hash(own, size_of::<OwnKey>(), size_of::<u32>())
        + ring_of(u64::from(RING_BYTES))
        + ring_of(u64::from(size::offered(&image.settings)))
        + per_cpu(1, size_of::<Attempt>(), cpus)
        + connections(image, cpus)
        // A separate map names the limits of the rows of counters.
        + image.catalogue.len() as u64 * 64
}
