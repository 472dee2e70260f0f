//! Open connections: the programs that count them, and their maps.
//!
//! The maps and links are pinned in a folder for each set of limits, since sockets are counted under its keys. So they
//! outlive the agent and every policy with the same limits. Another set starts with its own maps, in which the sockets
//! that exist are counted.

mod existing;
mod offsets;

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use aya::maps::{Array, HashMap as KernelMap, Map, MapData, PerCpuArray};
use aya::programs::links::FdLink;
use aya::programs::{BtfTracePoint, Iter, ProgramError};
use aya::{Btf, Ebpf, EbpfLoader};
use bpf::objects::CONNECTIONS;
use common::connections::{Connection, MOST_STALE, Pending, Reservation, Stale, Tuple, window};
use common::key::Key;
use host::monotonic_nanoseconds;

use crate::compile::Image;
use crate::error::LoadError;
use crate::hooks::attached::Attached;
use crate::hooks::pins::{PinDirectory, remove};
use crate::loading::load;
use crate::maps::access::map_mut;
use crate::maps::size::{MOST_OPEN, MOST_RESERVED};

pub use offsets::{NO_TRACEPOINT, unsupported};

/// After this time, no handshake is left whose reservation is in the maps of the policy before.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// The interval at which sockets are compared with the counts: a flood may have displaced reservations.
const LOOK: Duration = Duration::from_secs(30);
/// The interval at which keys without connections are removed if there are many.
const SWEEP: Duration = Duration::from_secs(10);
const MANY: usize = MOST_OPEN as usize / 2;

const FOLDER: &str = "connections-";
const LINK: &str = "link-";
const TRACEPOINT: &str = "inet_sock_set_state";
/// The maps that the packet path shares.
const SHARED: [(&str, u32); 4] = [
    ("OPEN", MOST_OPEN),
    ("PENDING", MOST_RESERVED),
    ("RESERVED", MOST_RESERVED),
    ("ADDRESSED", MOST_RESERVED),
];
const SOCKETS: &str = "SOCKETS";
const UNCOUNTED: &str = "UNCOUNTED";
/// Both programs of each change of state; see `weir_socket`.
const PROGRAMS: [&str; 2] = ["weir_socket", "weir_socket_too"];

/// The counting of the open connections of a policy.
pub struct Connections {
    ebpf: Ebpf,
    folder: PathBuf,
    /// When to look again for connections that are not counted.
    look_at: Instant,
    /// When the last two visits of all sockets began, the older one first, on the clock of [`Connection::since`]; 0 for
    /// none.
    visits: [u64; 2],
    swept: Instant,
}

impl PinDirectory {
    /// The folder of a policy's counts, which are those of the agent's network namespace.
    fn connections(&self, image: &Image) -> PathBuf {
        self.map(&format!(
            "{FOLDER}{:016x}-{}",
            image.connections,
            offsets::namespace().unwrap_or(0)
        ))
    }

    /// Removes the counts of all policies but that of `image`.
    ///
    /// # Errors
    ///
    /// When a pin cannot be removed.
    pub fn forget_connections(&self, except: Option<&Image>) -> Result<(), LoadError> {
        let kept = except
            .filter(|image| image.connections != 0)
            .map(|image| self.connections(image));
        for entry in fs::read_dir(self.path())
            .into_iter()
            .flatten()
            .filter_map(Result::ok)
        {
            let folder = entry.path();
            if !entry.file_name().to_string_lossy().starts_with(FOLDER)
                || kept.as_ref() == Some(&folder)
            {
                continue;
            }
            // Links first: without its maps, a program would count into none.
            let mut all: Vec<PathBuf> = fs::read_dir(&folder)
                .into_iter()
                .flatten()
                .filter_map(|pin| Some(pin.ok()?.path()))
                .collect();
            all.sort_by_key(|pin| !is_link(pin));
            all.iter().try_for_each(|pin| remove(pin))?;
            // Fails if others' files are in it, which is no error.
            let _ = fs::remove_dir(folder);
        }
        Ok(())
    }
}

/// The name of a program's link among the pins.
fn link(program: &str) -> String {
    format!("{LINK}{program}")
}

fn is_link(pin: &Path) -> bool {
    pin.file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with(LINK))
}

/// Sizes the maps of the packet path, and connects them to those of [`Connections`] if the policy counts connections.
pub(crate) fn configure(loader: &mut EbpfLoader<'_>, image: &Image, pins: &PinDirectory) {
    for (map, most) in SHARED {
        let is_in_use = image.connections != 0;
        loader.map_max_entries(map, if is_in_use { most } else { 1 });
        if is_in_use {
            loader.map_pin_path(map, pins.connections(image).join(map));
        }
    }
}

impl Connections {
    /// Starts to count, or continues to. `None` if the policy counts no connections.
    ///
    /// # Errors
    ///
    /// [`LoadError::Connections`] where the kernel cannot count them: it has no BTF, or rejects a program.
    pub(crate) fn start(image: &Image, pins: &PinDirectory) -> Result<Option<Self>, LoadError> {
        if image.connections == 0 {
            return Ok(None);
        }
        let started = Self::load(image, pins).map_err(|error| {
            // A refusal by this kernel concerns no other limit. After a failure of the moment the whole start is tried again, while
            // the policy of before is in effect.
            if error.is_of_the_kernel() {
                LoadError::Connections {
                    reason: error.to_string(),
                }
            } else {
                error
            }
        });
        started.map(Some)
    }

    fn load(image: &Image, pins: &PinDirectory) -> Result<Self, LoadError> {
        let fail = |reason: String| LoadError::Connections { reason };
        if let Some(reason) = offsets::forbidden(Path::new("/sys")) {
            return Err(fail(reason.to_owned()));
        }
        let settings = offsets::settings()?;
        let folder = pins.connections(image);
        bpf::create_directory(&folder)?;
        // An agent that was killed while it removed them, or somebody else, may have left links without maps.
        if SHARED.iter().any(|(map, _)| !folder.join(map).exists()) {
            PROGRAMS
                .iter()
                .try_for_each(|name| remove(&folder.join(link(name))))?;
        }
        let mut loader = EbpfLoader::new();
        loader.override_global("CONNECTION_SETTINGS", &settings, true);
        for (map, most) in SHARED.into_iter().chain([(SOCKETS, MOST_OPEN)]) {
            loader
                .map_max_entries(map, most)
                .map_pin_path(map, folder.join(map));
        }
        loader.map_pin_path(UNCOUNTED, folder.join(UNCOUNTED));
        let mut ebpf = loader.load(CONNECTIONS).map_err(LoadError::from_aya)?;
        let btf = Btf::from_sys_fs().map_err(|error| LoadError::from_aya(error.into()))?;
        for name in PROGRAMS {
            let pin = folder.join(link(name));
            if pin.exists() {
                continue;
            }
            let of = |error: ProgramError| LoadError::from_program(name, error);
            let program: &mut BtfTracePoint = ebpf
                .program_mut(name)
                .ok_or(LoadError::ForeignObject)?
                .try_into()
                .map_err(of)?;
            load(name, || program.load(TRACEPOINT, &btf))?;
            let link = program
                .attach()
                .and_then(|id| program.take_link(id))
                .map_err(of)?;
            FdLink::from(link)
                .pin(&pin)
                .map_err(|error| LoadError::Pin {
                    path: pin.clone(),
                    reason: error.to_string(),
                })?;
        }
        let name = "weir_sockets";
        let of = |error: ProgramError| LoadError::from_program(name, error);
        let program: &mut Iter = ebpf
            .program_mut(name)
            .ok_or(LoadError::ForeignObject)?
            .try_into()
            .map_err(of)?;
        load(name, || program.load("tcp", &btf))?;
        Ok(Self {
            ebpf,
            folder,
            look_at: Instant::now(),
            visits: [0; 2],
            swept: Instant::now(),
        })
    }

    /// Compares the counts with the sockets: counts the connections that exist and are not counted yet, as if they had
    /// come in on this interface, and ends the counts of sockets that several successive visits have not found. Returns
    /// how many were not counted.
    ///
    /// # Errors
    ///
    /// When sockets cannot be listed, or the kernel's maps not be read or written.
    pub(crate) fn count_existing(
        &mut self,
        image: &Image,
        interface: &Attached,
    ) -> Result<usize, LoadError> {
        let fail = |error: io::Error| LoadError::Connections {
            reason: format!("listing sockets: {error}"),
        };
        let [before_last, last] = self.visits;
        let now = monotonic_nanoseconds();
        let entries = self.entries()?;
        let counted: HashSet<Tuple> = entries
            .iter()
            .map(|(_, connection)| connection.tuple)
            .collect();
        let uncounted: Vec<(Tuple, Reservation)> = existing::to_this_host()
            .map_err(fail)?
            .into_iter()
            .filter(|tuple| !counted.contains(tuple))
            .filter_map(|tuple| Some((tuple, existing::reservation(image, interface, &tuple)?)))
            .collect();
        let stale: Vec<Stale> = entries
            .iter()
            .filter(|(_, connection)| connection.is_missing_since(before_last))
            .map(|(socket, connection)| Stale::of(*socket, connection))
            .collect();
        if !stale.is_empty() {
            tracing::debug!(
                "the end of {} connections was missed, unless this visit finds them",
                stale.len()
            );
        }
        // The map of reservations forgets the oldest of more.
        let (mut to_count, mut to_remove) = (
            uncounted.chunks(MOST_RESERVED as usize / 2),
            stale.chunks(MOST_STALE as usize),
        );
        let mut reserved: KernelMap<_, Tuple, Reservation> = self.map("RESERVED")?;
        loop {
            for (tuple, reservation) in to_count.next().unwrap_or_default() {
                reserved.insert(tuple, reservation, 0)?;
            }
            self.write_stale(to_remove.next().unwrap_or_default())?;
            self.visit()?;
            if to_count.len() + to_remove.len() == 0 {
                break;
            }
        }
        self.visits = [last, now];
        Ok(uncounted.len())
    }

    /// Writes the entries that the next visit removes. The kernel program does it, since only that counts down atomically.
    fn write_stale(&mut self, stale: &[Stale]) -> Result<(), LoadError> {
        let mut map = Array::<_, Stale>::try_from(map_mut(&mut self.ebpf, "STALE")?)?;
        for (nth, stale) in (0..MOST_STALE).zip(stale.iter().chain([&Stale::default()])) {
            map.set(nth, stale, 0)?;
        }
        Ok(())
    }

    /// Counts what exists, and once more when every handshake of now has ended.
    pub(crate) fn begin(
        &mut self,
        image: &Image,
        interface: &Attached,
    ) -> Result<usize, LoadError> {
        let counted = self.count_existing(image, interface)?;
        self.look_at = Instant::now() + LOOK_AGAIN;
        Ok(counted)
    }

    /// The periodic work: counts what is not counted yet, and removes keys without connections.
    pub(crate) fn follow(&mut self, image: &Image, interface: &Attached) -> Result<(), LoadError> {
        let now = Instant::now();
        if now >= self.look_at {
            self.look_at = now + LOOK;
            self.count_existing(image, interface)?;
        }
        if now.duration_since(self.swept) >= SWEEP {
            self.swept = now;
            self.sweep()?;
        }
        Ok(())
    }

    /// Removes the keys without connections if there are many.
    fn sweep(&self) -> Result<(), LoadError> {
        let mut open: KernelMap<_, Key, u64> = self.map("OPEN")?;
        let all: Vec<(Key, u64)> = open.iter().filter_map(Result::ok).collect();
        if all.len() < MANY {
            return Ok(());
        }
        for (key, _) in all.iter().filter(|(_, open)| *open == 0) {
            // Read again, since the list is older.
            if open.get(key, 0).is_ok_and(|now| now == 0) {
                let _ = open.remove(key);
            }
        }
        Ok(())
    }

    /// The connections that found no room and are not counted.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn uncounted(&self) -> Result<u64, LoadError> {
        let map = Map::PerCpuArray(MapData::from_pin(self.folder.join(UNCOUNTED))?);
        let map = PerCpuArray::<_, u64>::try_from(map)?;
        Ok(map.get(&0, 0)?.iter().sum())
    }

    /// Runs the iterator once.
    fn visit(&mut self) -> Result<(), LoadError> {
        let name = "weir_sockets";
        let of = |error: ProgramError| LoadError::from_program(name, error);
        let program: &mut Iter = self
            .ebpf
            .program_mut(name)
            .ok_or(LoadError::ForeignObject)?
            .try_into()
            .map_err(of)?;
        let mut file = program
            .attach()
            .and_then(|id| program.take_link(id))
            .map_err(of)?
            .into_file()
            .map_err(|error| LoadError::Connections {
                reason: error.to_string(),
            })?;
        let read = file.read_to_end(&mut Vec::new());
        read.map_err(|error| LoadError::Connections {
            reason: format!("reading the sockets: {error}"),
        })?;
        Ok(())
    }

    fn map<K: aya::Pod, V: aya::Pod>(
        &self,
        name: &str,
    ) -> Result<KernelMap<MapData, K, V>, LoadError> {
        let map = MapData::from_pin(self.folder.join(name))?;
        let map = if name == "OPEN" || name == SOCKETS {
            Map::HashMap(map)
        } else {
            Map::LruHashMap(map)
        };
        Ok(KernelMap::try_from(map)?)
    }

    /// The open connections.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn open(&self) -> Result<Vec<Connection>, LoadError> {
        Ok(self
            .entries()?
            .into_iter()
            .map(|(_, connection)| connection)
            .collect())
    }

    /// The open connections, with the addresses of their sockets.
    fn entries(&self) -> Result<Vec<(u64, Connection)>, LoadError> {
        let sockets: KernelMap<_, u64, Connection> = self.map(SOCKETS)?;
        Ok(sockets.iter().filter_map(Result::ok).collect())
    }

    /// (open connections, reservations) of a key.
    ///
    /// # Errors
    ///
    /// When a map cannot be read.
    pub fn of_key(&self, key: &Key, nanoseconds: u64) -> Result<(u64, u64), LoadError> {
        let (open, pending): (KernelMap<_, Key, u64>, KernelMap<_, Key, u64>) =
            (self.map("OPEN")?, self.map("PENDING")?);
        let pending = pending
            .get(key, 0)
            .map_or(0, |word| Pending(word).at(window(nanoseconds)).count());
        Ok((open.get(key, 0).unwrap_or(0), pending))
    }

    /// The keys with open connections, and their number.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn keys(&self) -> Result<Vec<(Key, u64)>, LoadError> {
        let open: KernelMap<_, Key, u64> = self.map("OPEN")?;
        Ok(open
            .iter()
            .filter_map(Result::ok)
            .filter(|(_, open)| *open != 0)
            .collect())
    }
}
