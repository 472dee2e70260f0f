//! The rings of captured packets.

use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aya::Ebpf;
use aya::maps::perf::{PerfEvent, PerfEventArrayBuffer};
use aya::maps::{MapData, PerCpuArray, PerfEventArray};
use aya::util::online_cpus;
use common::capture::{CaptureSettings, Captured, SNAP_LENGTH};
use nix::unistd::{SysconfVar, sysconf};

use crate::error::LoadError;

/// The size of a ring: each CPU and direction has one, while packets are captured. The kernel allows 516 KiB for each CPU
/// without further capabilities (`kernel.perf_event_mlock_kb`).
const RING_BYTES: usize = 128 << 10;
/// The most packets of one ring in one read: a full ring, even if it is refilled meanwhile.
const MOST_AT_ONCE: usize = 2_048;

/// The rings in which a policy's programs put captured packets.
pub struct CaptureRings(Mutex<Inner>);

struct Inner {
    map: PerfEventArray<MapData>,
    lost: PerCpuArray<MapData, u64>,
    /// Those of a capture; none otherwise.
    rings: Vec<PerfEventArrayBuffer<MapData>>,
    /// The number of lost packets that have been reported.
    noted: u64,
}

/// A captured packet.
#[derive(Clone, Copy, Debug)]
pub struct CapturedPacket {
    pub record: Captured,
    bytes: [u8; SNAP_LENGTH as usize],
}

impl CapturedPacket {
    /// A packet with these first bytes, of which the longest part that fits is kept.
    #[must_use]
    pub fn new(record: Captured, bytes: &[u8]) -> Self {
        let mut packet = Self { record, bytes: [0; SNAP_LENGTH as usize] };
        let length = bytes.len().min(packet.bytes.len());
        packet.bytes[..length].copy_from_slice(&bytes[..length]);
        packet.record.captured = length as u32;
        packet
    }

    /// Its captured bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.record.captured as usize]
    }
}

/// The settings of a new capture, with a sample of its own.
///
/// # Errors
///
/// When random numbers are unavailable.
pub fn new_capture(until: u64, one_in: u32, only_refused: bool) -> Result<CaptureSettings, LoadError> {
    let random = || getrandom::u64().map_err(|error| LoadError::Random(error.to_string()));
    Ok(CaptureSettings { until, seed: [random()?, random()?], one_in, only_refused: only_refused.into() })
}

impl CaptureRings {
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self, LoadError> {
        let map = PerfEventArray::try_from(ebpf.take_map("CAPTURE").ok_or(LoadError::ForeignObject)?)?;
        let lost = PerCpuArray::try_from(ebpf.take_map("CAPTURE_LOST").ok_or(LoadError::ForeignObject)?)?;
        Ok(Self(Mutex::new(Inner { map, lost, rings: Vec::new(), noted: 0 })))
    }

    /// Allocates the rings, unless there are some.
    ///
    /// # Errors
    ///
    /// When the kernel allows no more memory for rings.
    pub fn open(&self) -> Result<(), LoadError> {
        let mut inner = self.lock();
        if !inner.rings.is_empty() {
            return Ok(());
        }
        let failed = |error: &dyn std::fmt::Display| LoadError::Capture(error.to_string());
        inner.noted = inner.lost()?;
        let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4_096);
        let pages = RING_BYTES / page as usize;
        let mut rings = Vec::new();
        for cpu in online_cpus().map_err(|(path, error)| failed(&format!("{path}: {error}")))? {
            rings.push(inner.map.open(cpu, Some(pages.max(1))).map_err(|error| failed(&error))?);
        }
        inner.rings = rings;
        Ok(())
    }

    /// Releases the rings and the packets in them.
    pub fn close(&self) {
        self.lock().rings.clear();
    }

    /// Takes packets, ordered by their time, and the number of packets without room since the last call.
    ///
    /// # Errors
    ///
    /// When the number cannot be read.
    pub fn drain(&self) -> Result<(Vec<CapturedPacket>, u64), LoadError> {
        let mut inner = self.lock();
        let mut packets = Vec::new();
        for ring in &mut inner.rings {
            let mut joined = Vec::new();
            let _ = ring.try_fold(0, |count, event| {
                if let PerfEvent::Sample { head, tail } = event {
                    let bytes = if tail.is_empty() {
                        head
                    } else {
                        joined.clear();
                        joined.extend_from_slice(head);
                        joined.extend_from_slice(tail);
                        &joined
                    };
                    packets
                        .extend(Captured::from_bytes(bytes).map(|(record, bytes)| CapturedPacket::new(record, bytes)));
                }
                if count < MOST_AT_ONCE { ControlFlow::Continue(count + 1) } else { ControlFlow::Break(()) }
            });
        }
        packets.sort_by_key(|packet| packet.record.at);
        let lost = inner.lost()?;
        let new = lost.saturating_sub(std::mem::replace(&mut inner.noted, lost));
        Ok((packets, new))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // After a panic elsewhere, some packets are missing.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn lost(&self) -> Result<u64, LoadError> {
        Ok(self.lost.get(&0, 0)?.iter().sum())
    }
}
