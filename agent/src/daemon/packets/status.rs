//! The packet part of `weir status`.

use datapath::LoadError;
use datapath::memory::{MemoryStatus, Room};

use super::in_effect::InEffect;
use crate::stats::{Extent, Status, monotonic_nanoseconds};

impl InEffect {
    pub(in crate::daemon) fn status(&self, extent: Extent) -> Result<Status, LoadError> {
        let (totals, sources, bypass, proofs) = self.reader().totals(extent)?;
        let has_room = self.runtime.room_until > monotonic_nanoseconds();
        Ok(Status {
            mode: self.config.agent.mode.to_string(),
            interfaces: self.interfaces()?,
            totals,
            sources,
            bypass,
            proofs,
            bans: self.bans.len() as u64,
            has_room: self.is_elastic().then_some(has_room),
            memory: Some(MemoryStatus {
                in_effect: self.footprint,
                limit: Room::now().tightest().cloned(),
            }),
            notes: self.notes(),
            ..Status::default()
        })
    }
}
