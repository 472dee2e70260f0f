//! The counters of recorded sources.

use std::os::fd::AsFd;

use aya::Ebpf;
use aya::maps::{Map, MapData, PerCpuArray};
use common::record::{MOST_RECORDED, RecordKey, Recorded};

use super::batch;
use crate::error::LoadError;

/// The maps of a policy in which its programs count the sources of a recording.
pub struct RecordMaps {
    /// Of parts with an even and with an odd number.
    maps: [MapData; 2],
    lost: PerCpuArray<MapData, u64>,
}

impl RecordMaps {
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self, LoadError> {
        let mut map = |name| match ebpf.take_map(name) {
            Some(Map::HashMap(data)) => Ok(data),
            _ => Err(LoadError::ForeignObject),
        };
        let maps = [map("RECORD_EVEN")?, map("RECORD_ODD")?];
        let lost = PerCpuArray::try_from(
            ebpf.take_map("RECORD_LOST")
                .ok_or(LoadError::ForeignObject)?,
        )?;
        Ok(Self { maps, lost })
    }

    /// Takes the counters of parts whose number is even or odd as that of `part`. Programs must not count in such a part
    /// meanwhile, or some of its packets are lost.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn drain(&self, part: u32) -> Result<Vec<(RecordKey, Recorded)>, LoadError> {
        let map = &self.maps[part as usize % 2];
        // Twice the most: sources are added again while the map is emptied.
        batch::take(map.fd().as_fd(), 2 * MOST_RECORDED as usize).map_err(LoadError::Record)
    }

    /// Packets without room so far.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn lost(&self) -> Result<u64, LoadError> {
        Ok(self.lost.get(&0, 0)?.iter().sum())
    }
}
