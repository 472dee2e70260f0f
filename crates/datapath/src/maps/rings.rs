//! A ring for each CPU, which exists while somebody reads it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use aya::Ebpf;
use aya::maps::{ArrayOfMaps, Map, MapData, PerCpuArray, RingBuf};
use aya::util::online_cpus;

use super::inner::{self, Attributes};
use crate::error::LoadError;

/// From `enum bpf_map_type` of Linux's uapi/linux/bpf.h.
const BPF_MAP_TYPE_RINGBUF: u32 = 27;

/// Bytes before each record.
pub(crate) const RECORD_HEADER: usize = 8;

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

    /// Allocates the rings, unless there are some. An error is the kernel's text, and leaves none.
    pub(crate) fn open(&self) -> Result<(), String> {
        let mut inner = self.lock();
        if !inner.rings.is_empty() {
            return Ok(());
        }
        inner.noted = inner.lost().map_err(|error| error.to_string())?;
        for cpu in online_cpus().map_err(|(path, error)| format!("{path}: {error}"))? {
            if let Err(error) = inner.add(cpu, self.bytes) {
                inner.close();
                return Err(error);
            }
        }
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
    fn add(&mut self, cpu: u32, bytes: u32) -> Result<(), String> {
        let ring = inner::create(Attributes {
            map_type: BPF_MAP_TYPE_RINGBUF,
            max_entries: bytes,
            map_name: *b"weir.ring\0\0\0\0\0\0\0",
            ..Attributes::default()
        })
        .map_err(|error| error.to_string())?;
        let ring = MapData::from_fd(ring)
            .and_then(|ring| RingBuf::try_from(Map::RingBuf(ring)))
            .map_err(|error| error.to_string())?;
        ArrayOfMaps::<_, RingBuf<MapData>>::try_from(&mut self.map)
            .and_then(|mut rings| rings.set(cpu, &ring, 0))
            .map_err(|error| error.to_string())?;
        self.rings.push((cpu, ring));
        Ok(())
    }

    fn close(&mut self) {
        for (cpu, _) in self.rings.drain(..) {
            // The programs write into a ring that stays, which costs memory and is no error for anybody.
            if let Err(error) = inner::remove(&self.map, cpu) {
                tracing::debug!("the ring of CPU {cpu} stays: {error}");
            }
        }
    }

    fn lost(&self) -> Result<u64, LoadError> {
        Ok(self.lost.get(&0, 0)?.iter().sum())
    }
}
