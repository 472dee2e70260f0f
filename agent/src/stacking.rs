//! Which of the interfaces that a config names charge packets, as the host is at this moment.

use std::io;

use crate::config::policy::Config;
use crate::datapath::topology::{Placement, devices, place};

/// Where the packets of each interface that a config names and the host has are charged.
///
/// # Errors
///
/// When the kernel does not list its devices.
pub fn placements(config: &Config) -> io::Result<Vec<Placement>> {
    if config.agent.interfaces.is_empty() {
        return Ok(Vec::new());
    }
    let mut devices = devices()?;
    devices.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    let mut named: Vec<String> = Vec::new();
    for pattern in &config.agent.interfaces {
        for device in devices.iter().filter(|device| pattern.matches(&device.name)) {
            if !named.contains(&device.name) {
                named.push(device.name.clone());
            }
        }
    }
    Ok(place(&devices, &named))
}

/// Packets of the interfaces that a config names which nothing limits, and what to do.
#[must_use]
pub fn gaps(config: &Config) -> Vec<String> {
    placements(config).unwrap_or_default().into_iter().filter_map(|placement| placement.gap).collect()
}
