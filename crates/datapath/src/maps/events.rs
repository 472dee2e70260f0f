//! The ring buffer of a policy's events about refused sources.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use aya::Ebpf;
use aya::maps::{MapData, PerCpuArray, RingBuf};
use common::event::Event;

use super::size::RING_BYTES;
use crate::error::LoadError;

/// The most records of one read: a full ring, even if it is refilled meanwhile.
pub const MOST_AT_ONCE: usize = RING_BYTES as usize / (Event::LENGTH + 8);

/// A policy's ring of events.
pub struct EventRing {
    ring: Mutex<RingBuf<MapData>>,
    lost: PerCpuArray<MapData, u64>,
    /// The number of lost records that have been reported.
    noted: AtomicU64,
}

impl EventRing {
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self, LoadError> {
        let ring = RingBuf::try_from(ebpf.take_map("EVENTS").ok_or(LoadError::ForeignObject)?)?;
        let lost = PerCpuArray::try_from(
            ebpf.take_map("EVENTS_LOST")
                .ok_or(LoadError::ForeignObject)?,
        )?;
        Ok(Self {
            ring: Mutex::new(ring),
            lost,
            noted: AtomicU64::new(0),
        })
    }

    /// A descriptor that is readable while the ring has records.
    ///
    /// # Errors
    ///
    /// When the process has too many open files.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.ring
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_fd()
            .try_clone_to_owned()
    }

    /// Takes at most [`MOST_AT_ONCE`] records, oldest first.
    #[must_use]
    pub fn drain(&self) -> Vec<Event> {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let mut events = Vec::new();
        while events.len() < MOST_AT_ONCE
            && let Some(item) = ring.next()
        {
            events.extend(Event::from_bytes(&item));
        }
        events
    }

    /// Records lost since the last call, because the ring was full.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn newly_lost(&self) -> Result<u64, LoadError> {
        let lost: u64 = self.lost.get(&0, 0)?.iter().sum();
        Ok(lost.saturating_sub(self.noted.swap(lost, Ordering::Relaxed)))
    }
}
