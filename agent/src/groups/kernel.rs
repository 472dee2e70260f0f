//! The kernel programs of process groups: each group's network, and the processes that start.
//!
//! They are an object of their own beside the one for limits on packets, with maps and a life of their own: links, states
//! and counters of a group's network are pinned, so that they stay in force while there is no agent, and the next one
//! goes on counting.

use std::error::Error;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use aya::maps::{MapData, PerCpuArray, RingBuf};
use aya::programs::links::FdLink;
use aya::programs::{CgroupAttachMode, CgroupSkb, CgroupSkbAttachType, RawTracePoint};
use aya::{Ebpf, EbpfLoader};
use common::group::{EGRESS, GroupBucket, GroupCounters, GroupSettings, INGRESS, Started};
use tokio::io::unix::AsyncFd;

use super::account::NetworkStatus;
use super::error::GroupsError;
use crate::btf::Btf;
use crate::config::policy_group;
use crate::datapath::{PinDirectory, is_kernel_too_old, kernel_release};
use crate::link;

/// The eBPF object of the groups; empty if the agent was built without it.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/groups.o"));

/// Room for some 16,000 processes that have started and were not looked at yet.
const STARTED_BYTES: u32 = 256 << 10;
/// The least the kernel makes.
const NO_ROOM: u32 = 4096;

const SHARED_MAPS: [&str; 2] = ["GROUP_STATES", "GROUP_COUNTERS"];
const HOOKS: [(&str, CgroupSkbAttachType); 2] =
    [("weir_group_egress", CgroupSkbAttachType::Egress), ("weir_group_ingress", CgroupSkbAttachType::Ingress)];

/// A group's network, held.
pub struct Network {
    ebpf: Ebpf,
}

impl Network {
    /// Holds the processes in the cgroup at `directory`, of the unified hierarchy, to these rates, in place of what is
    /// pinned for the group in `pins`.
    ///
    /// # Errors
    ///
    /// With what failed, which leaves what was in force in force.
    pub fn hold(limits: &policy_group::Network, directory: &Path, pins: &Path) -> Result<Self, GroupsError> {
        PinDirectory::open(pins).map_err(|error| kernel("pinning the network of a group", &error))?;
        let bucket = |rate: Option<_>| rate.map_or(GroupBucket::NONE, GroupBucket::new);
        let settings =
            GroupSettings { buckets: [bucket(limits.egress), bucket(limits.ingress)], ..GroupSettings::NONE };
        let mut loader = EbpfLoader::new();
        loader.override_global("GROUP_SETTINGS", &settings, true).map_max_entries("STARTED", NO_ROOM);
        for map in SHARED_MAPS {
            loader.map_pin_path(map, pins.join(map));
        }
        let mut ebpf = load(&mut loader)?;
        let cgroup = File::open(directory).map_err(|source| GroupsError::read(directory, source))?;
        for (name, hook) in HOOKS {
            let pin = pins.join(format!("link-{name}"));
            attach(&mut ebpf, name, hook, &cgroup, &pin)?;
        }
        Ok(Self { ebpf })
    }

    /// What was let through and refused, since the group was first held.
    ///
    /// # Errors
    ///
    /// When the counters cannot be read.
    pub fn status(&self) -> Result<NetworkStatus, GroupsError> {
        let fail = |error: &(dyn Error + 'static)| kernel("reading the network counters of a group", error);
        let map = self.ebpf.map("GROUP_COUNTERS").ok_or_else(foreign)?;
        let map = PerCpuArray::<_, GroupCounters>::try_from(map).map_err(|error| fail(&error))?;
        let row = |row: u32| {
            let cpus = map.get(&row, 0).map_err(|error| fail(&error))?;
            Ok(cpus
                .iter()
                .fold((0, 0), |(bytes, refused), cpu| (bytes + cpu.passed.bytes, refused + cpu.throttled.packets)))
        };
        let ((egress_bytes, egress_throttled_packets), (ingress_bytes, ingress_throttled_packets)) =
            (row(EGRESS)?, row(INGRESS)?);
        Ok(NetworkStatus { egress_bytes, egress_throttled_packets, ingress_bytes, ingress_throttled_packets })
    }
}

/// Takes out what is pinned for a group's network; what is not there is not missed.
///
/// # Errors
///
/// When a pin cannot be removed.
pub fn release(pins: &Path) -> Result<(), GroupsError> {
    for (name, _) in HOOKS {
        release_link(&pins.join(format!("link-{name}")))?;
    }
    for pin in SHARED_MAPS.map(|name| pins.join(name)) {
        link::remove(&pin).map_err(|source| unpin(&pin, &source))?;
    }
    // Somebody else's files keep the directory; that is not our failure.
    let _ = fs::remove_dir(pins);
    Ok(())
}

/// Where a group's network is pinned.
#[must_use]
pub fn pins_of(pins: &Path, group: &str) -> PathBuf {
    pins.join("groups").join(group)
}

fn attach(
    ebpf: &mut Ebpf,
    name: &str,
    hook: CgroupSkbAttachType,
    cgroup: &File,
    pin: &Path,
) -> Result<(), GroupsError> {
    let what = format!("attaching {name}");
    let fail = |error: &(dyn Error + 'static)| kernel(&what, error);
    let program: &mut CgroupSkb = ebpf
        .program_mut(name)
        .ok_or_else(foreign)?
        .try_into()
        .map_err(|error: aya::programs::ProgramError| fail(&error))?;
    program.load().map_err(|error| refused(&what, &error))?;
    // Links are beside others of the same kind by their nature; asked for it, the kernel refuses (cgroup_bpf_link_attach).
    let link = program.attach(cgroup, hook, CgroupAttachMode::Single).map_err(|error| fail(&error))?;
    let link = program.take_link(link).map_err(|error| fail(&error))?;
    let link = FdLink::try_from(link).map_err(|error| fail(&error))?;
    // The old link, if there is one, goes after the new one has come: for a moment packets are charged twice, and at no
    // moment not at all.
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

/// Processes as they start.
pub struct Starts {
    started: AsyncFd<RingBuf<MapData>>,
    missed: u64,
    // Detaches when it is dropped.
    ebpf: Ebpf,
}

/// What has been heard of.
pub struct Heard {
    /// Processes that have started, in order.
    pub started: Vec<Started>,
    /// Whether there were more than there was room for.
    pub is_incomplete: bool,
}

impl Starts {
    /// Has the kernel tell of every process that starts a program or is forked.
    ///
    /// # Errors
    ///
    /// With what failed. Without it, the scan finds processes later.
    pub fn watch(sys: &Path) -> Result<Self, GroupsError> {
        let what = "watching processes start";
        let fail = |error: &(dyn Error + 'static)| kernel(what, error);
        let btf = Btf::of_kernel(sys).map_err(|error| GroupsError::read(&error.path, error.source))?;
        let offset =
            |field| btf.offset("task_struct", field).ok_or_else(|| wrong(what, "task_struct is not as expected"));
        let settings =
            GroupSettings { process_offset: offset("tgid")?, thread_offset: offset("pid")?, ..GroupSettings::NONE };
        let mut loader = EbpfLoader::new();
        loader.override_global("GROUP_SETTINGS", &settings, true).map_max_entries("STARTED", STARTED_BYTES);
        let mut ebpf = load(&mut loader)?;
        for (name, tracepoint) in [("weir_exec", "sched_process_exec"), ("weir_fork", "sched_process_fork")] {
            let program = ebpf.program_mut(name).ok_or_else(foreign)?;
            let program: &mut RawTracePoint =
                program.try_into().map_err(|error: aya::programs::ProgramError| fail(&error))?;
            program.load().map_err(|error| refused(what, &error))?;
            program.attach(tracepoint).map_err(|error| fail(&error))?;
        }
        let map = ebpf.take_map("STARTED").ok_or_else(foreign)?;
        let started = RingBuf::try_from(map).map_err(|error| fail(&error))?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe; a ring buffer's descriptor lives as long as the buffer"
        )]
        let started = AsyncFd::new(started).map_err(|error| fail(&error))?;
        Ok(Self { started, missed: 0, ebpf })
    }

    /// Waits until some have started, and tells which.
    ///
    /// # Errors
    ///
    /// When waiting fails.
    pub async fn next(&mut self) -> std::io::Result<Heard> {
        let mut guard = self.started.readable_mut().await?;
        let mut started = Vec::new();
        while let Some(item) = guard.get_inner_mut().next() {
            let word = |at: usize| Some(u32::from_ne_bytes(item.get(at..at + 4)?.try_into().ok()?));
            if let (Some(process), Some(parent)) = (word(0), word(4)) {
                started.push(Started { process, parent });
            }
        }
        guard.clear_ready();
        let missed = self.all_missed().unwrap_or(self.missed);
        let is_incomplete = missed != std::mem::replace(&mut self.missed, missed);
        Ok(Heard { started, is_incomplete })
    }

    fn all_missed(&self) -> Option<u64> {
        let map = PerCpuArray::<_, u64>::try_from(self.ebpf.map("MISSED")?).ok()?;
        Some(map.get(&0, 0).ok()?.iter().sum())
    }
}

fn load(loader: &mut EbpfLoader<'_>) -> Result<Ebpf, GroupsError> {
    if OBJECT.is_empty() {
        return Err(wrong(
            "loading the programs for groups",
            "this agent was built without them: use cargo xtask build",
        ));
    }
    loader.load(OBJECT).map_err(|error| kernel("loading the programs for groups", &error))
}

fn foreign() -> GroupsError {
    wrong("loading the programs for groups", "the eBPF object in this binary is not that of this agent")
}

/// Of a program that the kernel does not take.
fn refused(what: &str, error: &(dyn Error + 'static)) -> GroupsError {
    if is_kernel_too_old() {
        return wrong(what, &format!("Linux {} is too old for it: install 5.15 or newer", kernel_release()));
    }
    kernel(what, error)
}

/// With every cause: aya's own errors name a system call, and their causes why it failed.
fn kernel(what: &str, error: &(dyn Error + 'static)) -> GroupsError {
    let mut reason = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        reason = format!("{reason}: {error}");
        cause = error.source();
    }
    GroupsError::Kernel { what: what.to_owned(), reason }
}

fn wrong(what: &str, reason: &str) -> GroupsError {
    GroupsError::Kernel { what: what.to_owned(), reason: reason.to_owned() }
}
