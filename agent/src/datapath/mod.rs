//! Loads a policy into the kernel through aya, attaches it, and reads its counters and state. Process groups have an object
//! and a loader of their own, in `groups/kernel.rs`.
//!
//! A policy is a program of its own, with its own read-only maps; what outlives a policy (the table of sources, the
//! rings, the sightings) is shared by all programs through pins in bpffs. Replacing a policy is therefore one atomic
//! replacement of the program behind each link, and a packet sees the old policy or the new one.

mod bans;
mod batch;
mod buffers;
mod carry;
mod device;
mod error;
mod events;
mod features;
mod follow;
mod gateways;
mod generation;
mod interface;
mod locks;
mod others;
mod own;
mod pins;
mod prefixes;
mod release;
mod rows;
mod saved;
mod sources;
mod table;
pub mod topology;
mod traffic_control;
mod transaction;

pub use bans::{BanEntry, Bans};
pub use carry::Carry;
pub use device::{Interface, interfaces as host_interfaces};
pub use error::{AttachError, LoadError};
pub(crate) use events::RING_BYTES;
pub use events::{EventRing, MOST_AT_ONCE};
pub use features::{AttachedProgram, DeviceFacts, facts as device_facts};
pub use follow::{Trouble, Turn};
pub use gateways::default_gateways;
pub use generation::{Generation, Generations};
pub use interface::{AttachMode, Attached, default_route_interfaces, lacking_for_shape, names as interface_names};
pub use others::PinLock;
pub use own::OwnAddresses;
pub use pins::PinDirectory;
pub use release::{is_kernel_too_old, of_this_kernel as kernel_release};
pub use saved::{SavedLayout, SavedTable};
pub use sources::{SlotView, Sources};
pub(crate) use table::CHUNK as LAYOUT_CHUNK;
pub use table::{Before, TablePlace};

use std::os::fd::AsFd;
use std::sync::Arc;

use aya::maps::{Array, HashMap, MapData, PerCpuArray};
use aya::programs::{Program, ProgramFd, TestRun, TestRunOptions, TestRunResult};
use aya::{Ebpf, EbpfLoader};
use common::counters::{BYPASS_ROWS, Counters, Sighted, TableCounters, Traffic};
use common::key::{HashSeed, Key};
use common::own::MOST_OWN;
use common::packet::Direction;
use common::rule::{Enforcement, Rule};
use common::settings::{Mark, PortSpans, Runtime, Settings, TableIdentity};
use common::share::Share;

use self::rows::Rows;
use crate::compile::Image;

/// The eBPF object, put in place by `cargo xtask build`; empty if the agent was built without it.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/weir.o"));

/// How many busy or refused keys are remembered for people to look at.
pub(crate) const SIGHTINGS: u32 = 16_384;

/// The most prefixes that can be banned.
const MOST_BANS: u32 = 1 << 20;

/// The entry points of the object. Each is verified only when it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// XDP.
    Xdp,
    /// Traffic control, frames with an Ethernet header.
    Tc,
    /// Traffic control, frames that are IP packets.
    TcIp,
}

impl Entry {
    const fn name(self, settings: &Settings) -> &'static str {
        match self {
            Self::Xdp if settings.multi_buffer != 0 => "weir_xdp",
            Self::Xdp => "weir_xdp_linear",
            Self::Tc => "weir_tc",
            Self::TcIp => "weir_tc_ip",
        }
    }
}

/// A loaded policy and where it is attached.
pub struct Datapath {
    ebpf: Ebpf,
    image: Image,
    settings: Settings,
    rows: Rows,
    /// Of the limits that other hosts have a part in, by their place in the config.
    shares: std::collections::BTreeMap<usize, Share>,
    events: Arc<EventRing>,
    attached: Vec<Attached>,
    /// As the kernel program knows them.
    own: OwnAddresses,
    troubles: Vec<Trouble>,
    pins: PinDirectory,
}

impl Datapath {
    /// Loads `image` into the kernel, with the table that `pins` holds if that is cut and filled as the image has it, and
    /// with an empty one if not. What [`Datapath::attach`] then attaches is in effect at once.
    ///
    /// # Errors
    ///
    /// As [`Datapath::load_at`].
    pub fn load(image: Image, pins: &PinDirectory) -> Result<Self, LoadError> {
        let before = pins.before()?.ok();
        let place = pins.place(&image.settings, before.as_ref())?;
        let datapath = Self::load_at(image, pins, &place)?;
        pins.commit()?;
        pins.complete()?;
        Ok(datapath)
    }

    /// Loads `image` into the kernel, with the table that is, or shall be, at `place`.
    ///
    /// # Errors
    ///
    /// When the kernel lacks something, a capability is missing, or the verifier refuses; nothing is left behind.
    pub fn load_at(image: Image, pins: &PinDirectory, place: &TablePlace) -> Result<Self, LoadError> {
        let loaded = Self::load_on(image, pins, place);
        if loaded.is_err() {
            pins.clear_unless_linked();
        }
        loaded
    }

    fn load_on(image: Image, pins: &PinDirectory, place: &TablePlace) -> Result<Self, LoadError> {
        if OBJECT.is_empty() {
            return Err(LoadError::NoObject);
        }
        let mut settings = image.settings;
        settings.seed = place.seed();
        settings.multi_buffer = u32::from(kernel_has_multi_buffer());
        if settings.is_generic != 0 {
            settings.buffer_layout = buffers::layout();
        }
        let ports = if image.ports.is_empty() { 1 } else { image.ports.len() as u32 };
        let rings = settings.shape.all_slots().saturating_mul(settings.ring_words).max(1);
        let mut loader = EbpfLoader::new();
        loader
            .override_global("SETTINGS", &settings, true)
            .map_max_entries("RULES", (image.rules.len() as u32).max(1))
            .map_max_entries("PORTS", ports)
            .map_max_entries("MARKS", (image.marks.len() as u32).max(1))
            .map_max_entries("PREFIXES", (image.prefixes.len() as u32).max(1))
            .map_max_entries("BANS", MOST_BANS)
            .map_max_entries("SOURCES", settings.shape.elements())
            .map_max_entries("RINGS", rings)
            .map_max_entries("COUNTERS", image.counters())
            .map_max_entries("SIGHTINGS", SIGHTINGS)
            .map_max_entries("OWN", if settings.reject_in_use != 0 { MOST_OWN } else { 1 })
            .map_max_entries("LAYOUT", table::chunks(&image.layout))
            .map_max_entries("EVENTS", events::RING_BYTES);
        for map in pins::SHARED_MAPS {
            loader.map_pin_path(map, place.map(map));
        }
        loader.map_pin_path(pins::BANS, pins.map(pins::BANS));
        let direction = if settings.is_egress != 0 { Direction::Egress } else { Direction::Ingress };
        for (map, path) in place.generation().iter().flat_map(|generation| generation.maps(direction)) {
            loader.map_pin_path(map, path);
        }
        let mut ebpf = loader.load(OBJECT).map_err(LoadError::from_aya)?;
        write_policy(&mut ebpf, &image)?;
        let mut table = Array::<_, TableIdentity>::try_from(map_mut(&mut ebpf, "TABLE")?)?;
        table.set(0, TableIdentity::of(&settings), 0)?;
        table::write(map_mut(&mut ebpf, "LAYOUT")?, &image.layout)?;
        let rows = Rows::map(array_of(&ebpf, "RULES")?, image.rules.len())?;
        let events = Arc::new(EventRing::take(&mut ebpf)?);
        Ok(Self {
            ebpf,
            image,
            settings,
            rows,
            shares: Default::default(),
            events,
            attached: Vec::new(),
            own: OwnAddresses::default(),
            troubles: Vec::new(),
            pins: pins.clone(),
        })
    }

    /// The counters of every row, summed over CPUs.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn counters(&self) -> Result<Vec<Counters>, LoadError> {
        let map = PerCpuArray::<_, Counters>::try_from(map(&self.ebpf, "COUNTERS")?)?;
        (0..self.image.counters())
            .map(|row| Ok(map.get(&row, 0)?.iter().fold(Counters::default(), |sum, cpu| sum.plus(*cpu))))
            .collect()
    }

    /// What befell the table of sources, summed over CPUs.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn table_counters(&self) -> Result<TableCounters, LoadError> {
        let map = PerCpuArray::<_, TableCounters>::try_from(map(&self.ebpf, "TABLE_COUNTERS")?)?;
        Ok(map.get(&0, 0)?.iter().fold(TableCounters::default(), |sum, cpu| sum.plus(*cpu)))
    }

    /// The busiest keys and those that were refused.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn sightings(&self) -> Result<Vec<(Key, Sighted)>, LoadError> {
        let map = map(&self.ebpf, "SIGHTINGS")?;
        let aya::maps::Map::LruHashMap(data) = map else { return Err(LoadError::ForeignObject) };
        if let Ok(entries) = batch::entries(data.fd().as_fd(), SIGHTINGS as usize) {
            return Ok(entries);
        }
        let map = HashMap::<_, Key, Sighted>::try_from(map)?;
        // A key that is evicted while the map is walked ends the walk early; what was seen until then is true.
        Ok(map.iter().map_while(Result::ok).collect())
    }

    /// Writes what was remembered under a policy before; `row` leads from its rows of counters to this one's.
    ///
    /// # Errors
    ///
    /// When the map cannot be written.
    pub fn take_up_sightings(
        &mut self,
        sightings: &[(Key, Sighted)],
        row: impl Fn(u32) -> Option<u32>,
    ) -> Result<(), LoadError> {
        let mut map = HashMap::<_, Key, Sighted>::try_from(map_mut(&mut self.ebpf, "SIGHTINGS")?)?;
        for (key, sighted) in sightings {
            let refused_by = row(sighted.refused_by);
            let is_known = refused_by.is_some() && sighted.refused_at != 0;
            let refused_at = if is_known { sighted.refused_at } else { 0 };
            let sighted = Sighted { refused_at, refused_by: refused_by.unwrap_or(0), ..*sighted };
            map.insert(key, sighted, 0)?;
        }
        Ok(())
    }

    /// What is remembered of one key.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn sighting(&self, key: &Key) -> Result<Option<Sighted>, LoadError> {
        let map = HashMap::<_, Key, Sighted>::try_from(map(&self.ebpf, "SIGHTINGS")?)?;
        match map.get(key, 0) {
            Ok(sighted) => Ok(Some(sighted)),
            Err(aya::maps::MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// What the program tells of who is refused.
    #[must_use]
    pub fn events(&self) -> &Arc<EventRing> {
        &self.events
    }

    /// The table of sources, mapped for as long as what is returned lives: the pages of a mapped table count as the
    /// agent's own memory.
    ///
    /// # Errors
    ///
    /// When it cannot be mapped.
    pub fn sources(&self) -> Result<Sources, LoadError> {
        Sources::map(array_of(&self.ebpf, "SOURCES")?, array_of(&self.ebpf, "RINGS")?, self.settings)
    }

    /// The policy.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// The constants in force.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Tells the kernel what changes while a policy is in force, in one map write.
    ///
    /// # Errors
    ///
    /// When the map cannot be written.
    pub fn set_runtime(&mut self, runtime: Runtime) -> Result<(), LoadError> {
        let mut map = Array::<_, Runtime>::try_from(map_mut(&mut self.ebpf, "RUNTIME")?)?;
        Ok(map.set(0, runtime, 0)?)
    }

    /// What has been asked of a limit, given by its place in the config: everything that passed and all that was
    /// refused, and what was refused.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn asked(&self, limit: usize) -> Result<(Traffic, Traffic), LoadError> {
        let map = PerCpuArray::<_, Counters>::try_from(map(&self.ebpf, "COUNTERS")?)?;
        let read = |row: u32| -> Result<Counters, LoadError> {
            Ok(map.get(&row, 0)?.iter().fold(Counters::default(), |sum, cpu| sum.plus(*cpu)))
        };
        let (mut asked, mut refused) = (Traffic::default(), Traffic::default());
        let mut spans = std::collections::BTreeSet::new();
        for (row, counted) in (BYPASS_ROWS..).zip(&self.image.catalogue).filter(|(_, counted)| counted.limit == limit) {
            refused = refused.plus(read(row)?.throttled);
            // Several rules of one span see the same packets.
            if spans.insert(counted.span) {
                asked = asked.plus(read(counted.span)?.passed);
            }
        }
        Ok((asked.plus(refused), refused))
    }

    /// Holds a limit, given by its place in the config, to a share of it from the next packet on, or to nothing.
    pub fn set_share(&mut self, limit: usize, share: Share, is_open: bool) {
        let rows_of_one = self.image.catalogue.len();
        for (row, rule) in self.image.rules.iter().enumerate() {
            let counted = self.image.catalogue.get(row.checked_rem(rows_of_one).unwrap_or(0));
            if counted.is_some_and(|counted| counted.limit == limit) {
                let mut shared = rule.at_share(share);
                if is_open && shared.enforcement == Enforcement::Enforce as u8 {
                    shared.enforcement = Enforcement::Observe as u8;
                }
                self.rows.replace(row, &shared);
            }
        }
        self.shares.insert(limit, share);
    }

    /// A row of rules as it is in force, by its place in the image.
    #[must_use]
    pub fn rule_in_force(&self, row: usize) -> Option<Rule> {
        let rule = self.image.rules.get(row)?;
        let counted = self.image.catalogue.get(row.checked_rem(self.image.catalogue.len())?)?;
        Some(self.shares.get(&counted.limit).map_or(*rule, |share| rule.at_share(*share)))
    }

    /// Whether refused packets are answered.
    #[must_use]
    pub const fn replies(&self) -> bool {
        self.settings.reject_in_use != 0
    }

    /// Has refused packets answered in the name of these addresses, and of no others.
    ///
    /// # Errors
    ///
    /// When the map cannot be written.
    pub fn set_own(&mut self, own: OwnAddresses) -> Result<(), LoadError> {
        if own != self.own {
            own.write(map_mut(&mut self.ebpf, "OWN")?, &self.own)?;
            self.own = own;
        }
        Ok(())
    }

    /// Which packets the policy is for.
    #[must_use]
    pub const fn direction(&self) -> Direction {
        if self.settings.is_egress != 0 { Direction::Egress } else { Direction::Ingress }
    }

    /// What is banned, for reading and changing it.
    ///
    /// # Errors
    ///
    /// When the map is not ours.
    pub fn bans(&mut self) -> Result<Bans<'_>, LoadError> {
        Bans::of(map_mut(&mut self.ebpf, pins::BANS)?)
    }

    /// Has the kernel verify an entry point, unless it has.
    ///
    /// # Errors
    ///
    /// When it refuses.
    pub fn prepare(&mut self, entry: Entry) -> Result<(), LoadError> {
        let name = entry.name(&self.settings);
        match self.ebpf.program_mut(name).ok_or(LoadError::ForeignObject)? {
            Program::Xdp(program) if program.fd().is_err() => program.load(),
            Program::SchedClassifier(program) if program.fd().is_err() => program.load(),
            _ => return Ok(()),
        }
        .map_err(|error| LoadError::from_program(name, error))
    }

    /// How many instructions the verifier went through for a prepared entry point, on all ways together. It gives up at
    /// a million. `None` where the kernel does not tell (before Linux 5.16).
    ///
    /// # Errors
    ///
    /// When the object is not ours, or the entry point not prepared.
    pub fn verified_instructions(&self, entry: Entry) -> Result<Option<u32>, LoadError> {
        let info = match self.ebpf.program(entry.name(&self.settings)).ok_or(LoadError::ForeignObject)? {
            Program::Xdp(program) => program.info()?,
            Program::SchedClassifier(program) => program.info()?,
            _ => return Err(LoadError::ForeignObject),
        };
        Ok(info.verified_instruction_count())
    }

    /// A prepared entry point, for a program of somebody else's that calls it.
    ///
    /// # Errors
    ///
    /// When the object is not ours, or the entry point not prepared.
    pub fn entry_point(&self, entry: Entry) -> Result<&ProgramFd, LoadError> {
        match self.ebpf.program(entry.name(&self.settings)).ok_or(LoadError::ForeignObject)? {
            Program::Xdp(program) => Ok(program.fd()?),
            Program::SchedClassifier(program) => Ok(program.fd()?),
            _ => Err(LoadError::ForeignObject),
        }
    }

    /// Runs a prepared entry point on given packets.
    ///
    /// # Errors
    ///
    /// When the object is not ours, or the entry point not prepared.
    pub fn test_run(&self, entry: Entry, options: TestRunOptions<'_>) -> Result<TestRunResult, LoadError> {
        match self.ebpf.program(entry.name(&self.settings)).ok_or(LoadError::ForeignObject)? {
            Program::Xdp(program) => Ok(program.test_run(options)?),
            Program::SchedClassifier(program) => Ok(program.test_run(options)?),
            _ => Err(LoadError::ForeignObject),
        }
    }
}

fn write_policy(ebpf: &mut Ebpf, image: &Image) -> Result<(), LoadError> {
    let mut rules = Array::<_, Rule>::try_from(map_mut(ebpf, "RULES")?)?;
    for (row, rule) in (0u32..).zip(&image.rules) {
        rules.set(row, rule, 0)?;
    }
    let mut marks = Array::<_, Mark>::try_from(map_mut(ebpf, "MARKS")?)?;
    for (row, mark) in (0u32..).zip(&image.marks) {
        marks.set(row, mark, 0)?;
    }
    let mut ports = Array::<_, PortSpans>::try_from(map_mut(ebpf, "PORTS")?)?;
    for (port, spans) in (0u32..).zip(&image.ports) {
        // Most ports have no limits of their own and share one row's content; rows start out as zero.
        if *spans != PortSpans::default() {
            ports.set(port, spans, 0)?;
        }
    }
    prefixes::write(array_of(ebpf, "PREFIXES")?, &image.prefixes)
}

fn map<'e>(ebpf: &'e Ebpf, name: &'static str) -> Result<&'e aya::maps::Map, LoadError> {
    ebpf.map(name).ok_or(LoadError::ForeignObject)
}

fn map_mut<'e>(ebpf: &'e mut Ebpf, name: &'static str) -> Result<&'e mut aya::maps::Map, LoadError> {
    ebpf.map_mut(name).ok_or(LoadError::ForeignObject)
}

/// The map data of an array, whose file descriptor can be mapped into memory.
fn array_of<'e>(ebpf: &'e Ebpf, name: &'static str) -> Result<&'e MapData, LoadError> {
    match map(ebpf, name)? {
        aya::maps::Map::Array(data) => Ok(data),
        _ => Err(LoadError::ForeignObject),
    }
}

/// `bpf_xdp_get_buff_len` came with frames in several buffers, Linux 5.18 (commit 0165cc817075).
fn kernel_has_multi_buffer() -> bool {
    aya::util::KernelVersion::current().is_ok_and(|version| version >= aya::util::KernelVersion::new(5, 18, 0))
}

/// A seed nobody can guess, from the kernel's random numbers.
fn random_seed() -> Result<HashSeed, LoadError> {
    let mut random = [0u8; 32];
    getrandom::fill(&mut random).map_err(|error| LoadError::Random(error.to_string()))?;
    let word = |nth: usize| u64::from_ne_bytes(random[nth * 8..][..8].try_into().unwrap_or_default());
    Ok(HashSeed::new([word(0), word(1), word(2), word(3)]))
}
