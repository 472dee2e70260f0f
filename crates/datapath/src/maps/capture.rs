//! The rings of captured packets.

use aya::Ebpf;
use common::capture::{CaptureSettings, Captured, CapturedFrame, SNAP_LENGTH};

use super::rings::{RECORD_HEADER, Rings};
use crate::error::LoadError;

/// The size of a ring: each CPU and direction has one, while packets are captured.
const RING_BYTES: u32 = 256 << 10;
/// The most packets of one ring in one read: a full ring, even if it is refilled meanwhile.
const MOST_AT_ONCE: usize = RING_BYTES as usize / (size_of::<CapturedFrame>() + RECORD_HEADER);

/// The rings in which a policy's programs put captured packets.
pub struct CaptureRings(Rings);

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
        let mut packet = Self {
            record,
            bytes: [0; SNAP_LENGTH as usize],
        };
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
pub fn new_capture(
    until: u64,
    one_in: u32,
    only_refused: bool,
) -> Result<CaptureSettings, LoadError> {
    let random = || getrandom::u64().map_err(|error| LoadError::Random(error.to_string()));
    Ok(CaptureSettings {
        until,
        seed: [random()?, random()?],
        one_in,
        only_refused: only_refused.into(),
    })
}

impl CaptureRings {
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self, LoadError> {
        Ok(Self(Rings::take(
            ebpf,
            ("CAPTURE", "CAPTURE_LOST"),
            RING_BYTES,
            MOST_AT_ONCE,
        )?))
    }

    /// Allocates the rings, unless there are some.
    ///
    /// # Errors
    ///
    /// When the kernel allows no more memory for rings.
    pub fn open(&self) -> Result<(), LoadError> {
        self.0.open().map_err(LoadError::Capture)
    }

    /// Releases the rings and the packets in them.
    pub fn close(&self) {
        self.0.close();
    }

    /// Takes packets, ordered by their time, and the number of packets without room since the last call.
    ///
    /// # Errors
    ///
    /// When the number cannot be read.
    pub fn drain(&self) -> Result<(Vec<CapturedPacket>, u64), LoadError> {
        let mut packets = Vec::new();
        let lost = self.0.drain(|bytes| {
            packets.extend(
                Captured::from_bytes(bytes)
                    .map(|(record, bytes)| CapturedPacket::new(record, bytes)),
            );
        })?;
        packets.sort_by_key(|packet| packet.record.at);
        Ok((packets, lost))
    }
}
