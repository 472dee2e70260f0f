//! The network limits of a group.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs::{self, File};
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::event::seconds_since_1970;
use aya::maps::{MapData, PerCpuArray, RingBuf};
use aya::programs::links::FdLink;
use aya::programs::{
    CgroupAttachMode, CgroupSkb, CgroupSkbAttachType, CgroupSockAddr, Program, ProgramError,
};
use aya::{Ebpf, EbpfLoader};
use bpf::{link, open_directory};
use common::group::{
    CONNECTS, DESTINATIONS, EGRESS, GroupBucket, GroupCounters, GroupSettings, INGRESS, PACKETS,
    Refused,
};
use config::group::{self, ByteRate};

use super::account::{NetworkStatus, Refusal};
use super::error::GroupsError;
use super::kernel::{foreign, kernel, load, refused};

/// The smallest ring buffer of the kernel.
const NO_ROOM: u32 = 4096;

const SHARED_MAPS: [&str; 4] = [
    "GROUP_STATES",
    "GROUP_COUNTERS",
    "OUTBOUND_STATES",
    "OUTBOUND_COUNTERS",
];
/// Pinned under a name with its size.
const KNOWN: &str = "KNOWN_DESTINATIONS";
/// The least number of destinations that the map keeps.
const LEAST_KNOWN: u32 = 1024;
/// Room for some 80 refusals between two reads.
const REFUSED_BYTES: u32 = 4096;

/// The hooks of the programs.
#[derive(Clone, Copy)]
enum Hook {
    Packets(CgroupSkbAttachType),
    /// connect().
    Connect,
    /// sendto() and sendmsg() without a connection.
    Datagram,
}

const HOOKS: [(&str, Hook); 6] = [
    (
        "weir_group_egress",
        Hook::Packets(CgroupSkbAttachType::Egress),
    ),
    (
        "weir_group_ingress",
        Hook::Packets(CgroupSkbAttachType::Ingress),
    ),
    ("weir_group_connect4", Hook::Connect),
    ("weir_group_connect6", Hook::Connect),
    ("weir_group_sendmsg4", Hook::Datagram),
    ("weir_group_sendmsg6", Hook::Datagram),
];

/// A group's network: one bucket for each limit, shared by all its cgroups.
pub struct Network {
    ebpf: Ebpf,
    pins: PathBuf,
    hooks: Vec<(&'static str, Hook)>,
    refused: Option<RingBuf<MapData>>,
    last_refusal: Option<Refusal>,
}

impl Network {
    /// Loads the programs for these rates, with the state that is pinned in `pins`.
    ///
    /// # Errors
    ///
    /// When a step fails; the previous programs stay in effect.
    pub fn load(limits: &group::Network, pins: &Path) -> Result<Self, GroupsError> {
        open_directory(pins).map_err(|error| kernel("pinning the network of a group", &error))?;
        let bucket = |rate: Option<ByteRate>| {
            rate.map_or(GroupBucket::NONE, |rate| GroupBucket::new(rate.0))
        };
        let ones = |rate: Option<_>| rate.map_or(GroupBucket::NONE, GroupBucket::of_ones);
        let settings = GroupSettings {
            buckets: [bucket(limits.egress), bucket(limits.ingress)],
            outbound: [
                ones(limits.connects),
                ones(limits.destinations),
                ones(limits.packets),
            ],
            destination_life: limits.destinations.map_or(0, |rate| rate.per_nanoseconds),
            ..GroupSettings::NONE
        };
        let destinations = limits
            .destinations
            .and_then(|rate| u32::try_from(rate.count).ok())
            .unwrap_or(0);
        // Two periods' destinations may be in the map, and the kernel allocates entries to CPUs in batches.
        let known = destinations.saturating_mul(4).max(LEAST_KNOWN);
        let mut loader = EbpfLoader::new();
        loader
            .override_global("GROUP_SETTINGS", &settings, true)
            .map_max_entries("STARTED", NO_ROOM);
        loader
            .map_max_entries(KNOWN, known)
            .map_max_entries("REFUSED", REFUSED_BYTES);
        loader.map_pin_path(KNOWN, pins.join(format!("{KNOWN}-{known}")));
        for map in SHARED_MAPS {
            loader.map_pin_path(map, pins.join(map));
        }
        let mut ebpf = load(&mut loader)?;
        let has_connects = limits.connects.is_some() || limits.destinations.is_some();
        let is_needed = |(_, hook): &(&str, Hook)| match hook {
            Hook::Packets(_) => true,
            Hook::Connect => has_connects,
            Hook::Datagram => limits.destinations.is_some(),
        };
        let hooks: Vec<(&str, Hook)> = HOOKS.into_iter().filter(is_needed).collect();
        for (name, hook) in &hooks {
            let what = format!("loading {name}");
            let loaded = match hook {
                Hook::Packets(_) => program::<CgroupSkb>(&mut ebpf, name)?.load(),
                Hook::Connect | Hook::Datagram => {
                    program::<CgroupSockAddr>(&mut ebpf, name)?.load()
                }
            };
            loaded.map_err(|error| refused(&what, &error))?;
        }
        let ring = if has_connects {
            ebpf.take_map("REFUSED")
        } else {
            None
        };
        let refused = ring.and_then(|map| RingBuf::try_from(map).ok());
        Ok(Self {
            ebpf,
            pins: pins.to_owned(),
            hooks,
            refused,
            last_refusal: None,
        })
    }

    /// Attaches to the cgroup at `directory` of the unified hierarchy, replacing its pinned links. `tag` identifies the
    /// cgroup. Other programs stay attached.
    ///
    /// # Errors
    ///
    /// When a step fails; the previous programs stay in effect.
    pub fn attach(&mut self, directory: &Path, tag: &str) -> Result<(), GroupsError> {
        let cgroup =
            File::open(directory).map_err(|source| GroupsError::read(directory, source))?;
        for (name, hook) in &self.hooks {
            attach(
                &mut self.ebpf,
                name,
                *hook,
                &cgroup,
                &self.pins.join(format!("link-{name}{tag}")),
            )?;
        }
        Ok(())
    }

    /// Removes the links of cgroups without one of these tags, and of hooks that the group does not need.
    pub fn keep_only(&self, tags: &BTreeSet<String>) {
        for pin in pinned(&self.pins, &["link-"]) {
            let name = pin
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            let tag = |(hook, _): &(&str, Hook)| name.strip_prefix(&format!("link-{hook}"));
            let is_known = HOOKS.iter().any(|hook| tag(hook).is_some());
            let is_kept = self
                .hooks
                .iter()
                .any(|hook| tag(hook).is_some_and(|tag| tags.contains(tag)));
            if is_known && !is_kept {
                // A link that stays is found again at the end.
                let _ = link::release(&pin);
            }
        }
    }

    /// The IDs of the programs.
    #[must_use]
    pub fn programs(&self) -> Vec<u32> {
        let id = |(name, _): &(&str, _)| Some(self.ebpf.program(name)?.info().ok()?.id());
        self.hooks.iter().filter_map(id).collect()
    }

    /// Passed and refused units since the group was first enforced.
    ///
    /// # Errors
    ///
    /// When the counters cannot be read.
    pub fn status(&mut self) -> Result<NetworkStatus, GroupsError> {
        self.read_refused();
        let (egress, ingress) = (
            self.counted("GROUP_COUNTERS", EGRESS)?,
            self.counted("GROUP_COUNTERS", INGRESS)?,
        );
        let outbound = |row| self.counted("OUTBOUND_COUNTERS", row);
        let (connects, destinations, packets) = (
            outbound(CONNECTS)?,
            outbound(DESTINATIONS)?,
            outbound(PACKETS)?,
        );
        Ok(NetworkStatus {
            egress_bytes: egress.passed.bytes,
            egress_throttled_packets: egress.throttled.packets,
            ingress_bytes: ingress.passed.bytes,
            ingress_throttled_packets: ingress.throttled.packets,
            packets_refused: packets.throttled.packets,
            connects: connects.passed.packets,
            connects_refused: connects.throttled.packets,
            destinations: destinations.passed.packets,
            destinations_refused: destinations.throttled.packets,
            last_refusal: self.last_refusal.clone(),
        })
    }

    /// A row of a map of counters, summed over CPUs.
    fn counted(&self, map: &str, row: u32) -> Result<GroupCounters, GroupsError> {
        let fail = |error: &(dyn Error + 'static)| {
            kernel("reading the network counters of a group", error)
        };
        let map = self.ebpf.map(map).ok_or_else(foreign)?;
        let map = PerCpuArray::<_, GroupCounters>::try_from(map).map_err(|error| fail(&error))?;
        let mut all = GroupCounters::default();
        for cpu in map.get(&row, 0).map_err(|error| fail(&error))?.iter() {
            for (all, one) in [
                (&mut all.passed, cpu.passed),
                (&mut all.throttled, cpu.throttled),
            ] {
                all.packets += one.packets;
                all.bytes += one.bytes;
            }
        }
        Ok(all)
    }

    fn read_refused(&mut self) {
        let Some(ring) = &mut self.refused else {
            return;
        };
        while let Some(item) = ring.next() {
            // SAFETY: the kernel's program writes values of this type, and every bit pattern is valid.
            let refused = (item.len() >= size_of::<Refused>())
                .then(|| unsafe { item.as_ptr().cast::<Refused>().read_unaligned() });
            self.last_refusal = refused
                .map(|refused| refusal(&refused))
                .or(self.last_refusal.take());
        }
    }
}

/// Converts a refusal for the API.
fn refusal(refused: &Refused) -> Refusal {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    let now = now.map(Duration::from).unwrap_or_default();
    let ago = now.saturating_sub(Duration::from_nanos(refused.time));
    let mut octets = [0; 16];
    for (bytes, word) in octets.chunks_exact_mut(4).zip(refused.address) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    let name: Vec<u8> = refused
        .name
        .into_iter()
        .take_while(|byte| *byte != 0)
        .collect();
    Refusal {
        time: seconds_since_1970() - ago.as_secs_f64(),
        destination: Ipv6Addr::from(octets).to_canonical(),
        port: u16::from_be(refused.port),
        process: refused.process,
        program: String::from_utf8_lossy(&name).into_owned(),
        limit: if u32::from(refused.limit) == CONNECTS {
            "connects"
        } else {
            "destinations"
        }
        .to_owned(),
    }
}

/// Removes the pins of a group's network; missing ones are no error.
///
/// # Errors
///
/// When a pin cannot be removed.
pub fn release(pins: &Path) -> Result<(), GroupsError> {
    for pin in pinned(pins, &["link-"]) {
        release_link(&pin)?;
    }
    for pin in pinned(pins, &SHARED_MAPS)
        .into_iter()
        .chain(pinned(pins, &[KNOWN]))
    {
        link::remove(&pin).map_err(|source| unpin(&pin, &source))?;
    }
    // Fails if other files are in the directory, which is not our error.
    let _ = fs::remove_dir(pins);
    Ok(())
}

/// The pins of a group whose names start with one of these.
fn pinned(pins: &Path, beginnings: &[&str]) -> Vec<PathBuf> {
    let entries = fs::read_dir(pins).into_iter().flatten().flatten();
    let is_wanted = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        beginnings
            .iter()
            .any(|beginning| name.to_string_lossy().starts_with(beginning))
    };
    entries
        .filter(is_wanted)
        .map(|entry| entry.path())
        .collect()
}

fn program<'e, P>(ebpf: &'e mut Ebpf, name: &str) -> Result<&'e mut P, GroupsError>
where
    &'e mut P: TryFrom<&'e mut Program, Error = ProgramError>,
{
    let program = ebpf.program_mut(name).ok_or_else(foreign)?;
    program
        .try_into()
        .map_err(|error| kernel(&format!("loading {name}"), &error))
}

/// The directory of a group's network pins.
#[must_use]
pub fn pins_of(pins: &Path, group: &str) -> PathBuf {
    pins.join("groups").join(group)
}

fn attach(
    ebpf: &mut Ebpf,
    name: &str,
    hook: Hook,
    cgroup: &File,
    pin: &Path,
) -> Result<(), GroupsError> {
    let what = format!("attaching {name}");
    let fail = |error: &(dyn Error + 'static)| kernel(&what, error);
    // Links are always attached beside others; the kernel rejects the flag for it (cgroup_bpf_link_attach).
    let mode = CgroupAttachMode::Single;
    let link = match hook {
        Hook::Packets(way) => {
            let program = program::<CgroupSkb>(ebpf, name)?;
            let link = program
                .attach(cgroup, way, mode)
                .and_then(|link| program.take_link(link));
            link.map_err(|error| fail(&error))
                .and_then(|link| FdLink::try_from(link).map_err(|error| fail(&error)))?
        }
        Hook::Connect | Hook::Datagram => {
            let program = program::<CgroupSockAddr>(ebpf, name)?;
            let link = program
                .attach(cgroup, mode)
                .and_then(|link| program.take_link(link));
            link.map_err(|error| fail(&error))
                .and_then(|link| FdLink::try_from(link).map_err(|error| fail(&error)))?
        }
    };
    // The old link is removed after the new one is attached: packets are charged twice for a moment, but never go
    // uncharged.
    release_link(pin)?;
    link.pin(pin).map_err(|error| fail(&error))?;
    Ok(())
}

fn release_link(pin: &Path) -> Result<(), GroupsError> {
    link::release(pin).map_err(|source| unpin(pin, &source))
}

fn unpin(pin: &Path, source: &std::io::Error) -> GroupsError {
    kernel(&format!("removing the pin {}", pin.display()), source)
}
