//! The rings of the sources of sampled packets.

use aya::Ebpf;
use common::stream::Streamed;

use super::rings::{RECORD_HEADER, Rings};
use crate::error::LoadError;

/// The size of a ring: each CPU has one, while somebody watches.
const RING_BYTES: u32 = 64 << 10;
/// The most samples of one ring in one read: a full ring, even if it is refilled meanwhile.
const MOST_AT_ONCE: usize = RING_BYTES as usize / (Streamed::LENGTH + RECORD_HEADER);

/// The rings in which a policy's programs put the sources of sampled packets.
pub struct StreamRings(Rings);

impl StreamRings {
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self, LoadError> {
        Ok(Self(Rings::take(
            ebpf,
            ("STREAM", "STREAM_LOST"),
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
        self.0.open().map_err(LoadError::Stream)
    }

    /// Releases the rings and the samples in them.
    pub fn close(&self) {
        self.0.close();
    }

    /// Takes samples, and the number of samples without room since the last call.
    ///
    /// # Errors
    ///
    /// When the number cannot be read.
    pub fn drain(&self) -> Result<(Vec<Streamed>, u64), LoadError> {
        let mut samples = Vec::new();
        let lost = self
            .0
            .drain(|bytes| samples.extend(Streamed::from_bytes(bytes)))?;
        Ok((samples, lost))
    }
}
