//! The interface numbers, for limits with `interfaces`.

use aya::maps::HashMap;

use super::access::{map_mut, unless_missing};
use crate::datapath::Datapath;
use crate::devices::device::Interface;
use crate::devices::topology;
use crate::error::LoadError;

impl Datapath {
    /// Writes the number of an interface, by its present names.
    ///
    /// # Errors
    ///
    /// When the map cannot be written.
    pub fn number_interface(&mut self, device: &Interface) -> Result<(), LoadError> {
        if !self.image().interfaces.are_in_use() {
            return Ok(());
        }
        let number = self.image().interfaces.of(device.device.names());
        // XDP on a bond runs on its members, which cannot change while it is attached.
        let members = if device.is_bond {
            topology::devices().map_err(LoadError::Interfaces)?
        } else {
            Vec::new()
        };
        let members = members
            .iter()
            .filter(|member| member.master == Some(device.index))
            .map(|member| member.index);
        let mut map = HashMap::<_, u32, u32>::try_from(map_mut(&mut self.ebpf, "INTERFACES")?)?;
        // The members first, so that the bond's own index is written last.
        members
            .chain([device.index])
            .try_for_each(|index| Ok(map.insert(index, number, 0)?))
    }

    /// Removes the number of a removed interface.
    pub(crate) fn forget_interface(&mut self, index: u32) -> Result<(), LoadError> {
        if !self.image().interfaces.are_in_use() {
            return Ok(());
        }
        let mut map = HashMap::<_, u32, u32>::try_from(map_mut(&mut self.ebpf, "INTERFACES")?)?;
        Ok(unless_missing(map.remove(&index))?)
    }
}
