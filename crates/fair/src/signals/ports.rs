//! The ports of a limit's sockets.

use std::ops::RangeInclusive;

/// Ports, as ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports(pub Vec<RangeInclusive<u16>>);

impl Ports {
    pub(super) fn contains(&self, port: u16) -> bool {
        self.0.iter().any(|range| range.contains(&port))
    }

    /// The ports one by one, if they are no more than this.
    pub(super) fn few(&self, most: usize) -> Option<Vec<u16>> {
        let ports: Vec<u16> = self.0.iter().cloned().flatten().take(most + 1).collect();
        (ports.len() <= most).then_some(ports)
    }
}
