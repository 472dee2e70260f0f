//! A ring for each CPU, which exists while somebody reads it.

use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aya::Ebpf;
use aya::maps::perf::{PerfEvent, PerfEventArrayBuffer};
use aya::maps::{MapData, PerCpuArray, PerfEventArray};
use aya::util::online_cpus;
use nix::unistd::{SysconfVar, sysconf};

use crate::error::LoadError;

/// The rings of a map, and the number of records that found no room.
pub(crate) struct Rings {
    /// The size of a ring. The kernel allows 516 KiB for each CPU without further capabilities
    /// (`kernel.perf_event_mlock_kb`).
    bytes: usize,
    /// The most records of one ring in one read: a full ring, even if it is refilled meanwhile.
    most_at_once: usize,
    inner: Mutex<Inner>,
}

struct Inner {
    map: PerfEventArray<MapData>,
    lost: PerCpuArray<MapData, u64>,
    /// None while nobody reads them.
    rings: Vec<PerfEventArrayBuffer<MapData>>,
    /// The number of lost records that have been reported.
    noted: u64,
}

impl Rings {
    /// Of the maps with these names.
    pub(crate) fn take(
        ebpf: &mut Ebpf,
        (map, lost): (&str, &str),
        bytes: usize,
        most_at_once: usize,
    ) -> Result<Self, LoadError> {
        let map = PerfEventArray::try_from(ebpf.take_map(map).ok_or(LoadError::ForeignObject)?)?;
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

    /// Allocates the rings, unless there are some. An error is the kernel's text.
    pub(crate) fn open(&self) -> Result<(), String> {
        let mut inner = self.lock();
        if !inner.rings.is_empty() {
            return Ok(());
        }
        inner.noted = inner.lost().map_err(|error| error.to_string())?;
        let page = sysconf(SysconfVar::PAGE_SIZE)
            .ok()
            .flatten()
            .unwrap_or(4_096);
        let pages = self.bytes / page as usize;
        let mut rings = Vec::new();
        for cpu in online_cpus().map_err(|(path, error)| format!("{path}: {error}"))? {
            rings.push(
                inner
                    .map
                    .open(cpu, Some(pages.max(1)))
                    .map_err(|error| error.to_string())?,
            );
        }
        inner.rings = rings;
        Ok(())
    }

    /// Releases the rings and the records in them.
    pub(crate) fn close(&self) {
        self.lock().rings.clear();
    }

    /// Reads the records, CPU by CPU. Returns the number of records without room since the last call.
    pub(crate) fn drain(&self, mut read: impl FnMut(&[u8])) -> Result<u64, LoadError> {
        let mut inner = self.lock();
        let mut joined = Vec::new();
        for ring in &mut inner.rings {
            let _ = ring.try_fold(1, |count, event| {
                if let PerfEvent::Sample { head, tail } = event {
                    if tail.is_empty() {
                        read(head);
                    } else {
                        joined.clear();
                        joined.extend_from_slice(head);
                        joined.extend_from_slice(tail);
                        read(&joined);
                    }
                }
                if count < self.most_at_once {
                    ControlFlow::Continue(count + 1)
                } else {
                    ControlFlow::Break(())
                }
            });
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
    fn lost(&self) -> Result<u64, LoadError> {
        Ok(self.lost.get(&0, 0)?.iter().sum())
    }
}
