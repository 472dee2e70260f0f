//! A ring for each CPU, which exists while somebody reads it.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use aya::Ebpf;
use aya::maps::{Map, MapData, PerCpuArray, RingBuf};
use aya::util::online_cpus;

use super::inner::{self, MapAttributes};
use crate::error::LoadError;

/// From `enum bpf_map_type` of Linux's uapi/linux/bpf.h.
const BPF_MAP_TYPE_RINGBUF: u32 = 27;

/// The threads that put rings into their map.
const MOST_THREADS: usize = 16;

/// Bytes before each record.
pub(crate) const RECORD_HEADER: usize = 8;

/// One more than the highest number of a CPU: some machines leave numbers out.
pub(crate) fn cpus() -> u32 {
    let possible = aya::util::nr_cpus().map_or(1, |cpus| cpus as u32);
    let online = online_cpus().unwrap_or_default();
    online
        .into_iter()
        .map(|cpu| cpu + 1)
        .fold(possible, u32::max)
}

/// The rings of a map, and the number of records that found no room.
pub(crate) struct Rings {
    /// The size of a ring: a power of two, and whole pages.
    bytes: u32,
    /// The most records of one ring in one read: a full ring, even if it is refilled meanwhile.
    most_at_once: usize,
    inner: Mutex<Inner>,
}

struct Inner {
    /// An array of rings, by CPU.
    map: Map,
    lost: PerCpuArray<MapData, u64>,
    /// With their CPUs; none while nobody reads them.
    rings: Vec<(u32, RingBuf<MapData>)>,
    /// The number of lost records that have been reported.
    noted: u64,
}

impl Rings {
    /// Of the maps with these names.
    pub(crate) fn take(
        ebpf: &mut Ebpf,
        (map, lost): (&str, &str),
        bytes: u32,
        most_at_once: usize,
    ) -> Result<Self, LoadError> {
        let map = ebpf.take_map(map).ok_or(LoadError::ForeignObject)?;
        let lost = PerCpuArray::try_from(ebpf.take_map(lost).ok_or(LoadError::ForeignObject)?)?;
        Ok(Self {
            bytes,
            most_at_once,
            inner: Mutex::new(Inner {
                map,
                lost,
                rings: Vec::new(),
                noted: 0,
            }),
        })
    }

    /// Allocates the rings of those online CPUs that have none. After an error, none of these is there.
    pub(crate) fn open(&self) -> io::Result<()> {
        let mut inner = self.lock();
        if inner.rings.is_empty() {
            inner.noted = inner.lost().map_err(io::Error::other)?;
        }
        let mut cpus = online_cpus().map_err(|(_, error)| error)?;
        cpus.retain(|cpu| inner.rings.iter().all(|(present, _)| present != cpu));
        let new = cpus
            .into_iter()
            .map(|cpu| Ok((cpu, ring(self.bytes)?)))
            .collect::<io::Result<Vec<_>>>()?;
        let outer = inner::outer(&inner.map)?;
        let set = at_the_same_time(&new, |(cpu, ring)| inner::set(outer, *cpu, ring.as_fd()));
        if let Err(error) = set {
            remove(outer, &new);
            return Err(error);
        }
        inner.rings.extend(new);
        Ok(())
    }

    /// Releases the rings and the records in them.
    pub(crate) fn close(&self) {
        self.lock().close();
    }

    /// Reads the records, CPU by CPU. Returns the number of records without room since the last call.
    pub(crate) fn drain(&self, mut read: impl FnMut(&[u8])) -> Result<u64, LoadError> {
        let mut inner = self.lock();
        for (_, ring) in &mut inner.rings {
            for _ in 0..self.most_at_once {
                let Some(record) = ring.next() else {
                    break;
                };
                read(&record);
            }
        }
        let lost = inner.lost()?;
        Ok(lost.saturating_sub(std::mem::replace(&mut inner.noted, lost)))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // After a panic elsewhere, some records are missing.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn close(&mut self) {
        if let Ok(outer) = inner::outer(&self.map) {
            remove(outer, &self.rings);
        }
        self.rings.clear();
    }

    fn lost(&self) -> Result<u64, LoadError> {
        Ok(self.lost.get(&0, 0)?.iter().sum())
    }
}

fn ring(bytes: u32) -> io::Result<RingBuf<MapData>> {
    let ring = inner::create(MapAttributes {
        map_type: BPF_MAP_TYPE_RINGBUF,
        max_entries: bytes,
        map_name: *b"weir.ring\0\0\0\0\0\0\0",
        ..MapAttributes::default()
    })?;
    MapData::from_fd(ring)
        .and_then(|ring| RingBuf::try_from(Map::RingBuf(ring)))
        .map_err(io::Error::other)
}

/// Takes rings out of their map. One that stays costs memory, and is no error for anybody.
fn remove(outer: BorrowedFd<'_>, rings: &[(u32, RingBuf<MapData>)]) {
    let removed = at_the_same_time(rings, |(cpu, _)| inner::remove(outer, *cpu).map(drop));
    if let Err(error) = removed {
        tracing::debug!("a ring stays: {error}");
    }
}

/// Does for each of the rings what takes a grace period of the kernel. Calls at the same time share theirs.
fn at_the_same_time(
    rings: &[(u32, RingBuf<MapData>)],
    work: impl Fn(&(u32, RingBuf<MapData>)) -> io::Result<()> + Sync,
) -> io::Result<()> {
    thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> = rings
            .chunks(rings.len().div_ceil(MOST_THREADS).max(1))
            .map(|rings| scope.spawn(move || rings.iter().try_for_each(work)))
            .collect();
        workers.into_iter().try_for_each(|worker| {
            worker
                .join()
                .unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
        })
    })
}
