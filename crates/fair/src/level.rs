//! The level of a fair limit.

use crate::parameters::{BURST, GATHERED, LEAST_AT_ALL, LEAST_BURST, Unit};

/// The rates that a fair limit allows, in units a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// The rate of a source of weight 1.
    pub rate: f64,
    /// The rate of a network, where sources alone cannot be limited.
    pub network: Option<f64>,
    /// The rate of all sources together, where networks alone cannot be limited.
    pub all: Option<f64>,
    /// The share of a burst, from 0.3 at the onset to 1: what buckets stored before would else be sent at once.
    pub burst_share: f64,
    pub(crate) unit: Unit,
}

impl Level {
    /// The largest burst of a source of this weight, in units.
    #[must_use]
    pub fn burst(&self, weight: f64) -> f64 {
        let granule = self.unit.granule();
        let least = LEAST_BURST * granule;
        let most = (self.unit.most_burst() * weight).max(least);
        let burst = (self.rate * weight * BURST).clamp(least, most);
        let gathered = self.rate * weight * GATHERED;
        (burst * self.burst_share)
            .max(LEAST_AT_ALL * granule)
            .max(gathered)
    }

    /// The largest burst of a network, in units.
    #[cfg(test)]
    pub(crate) fn network_burst(&self) -> Option<f64> {
        let least = LEAST_BURST * self.unit.granule();
        let most = crate::parameters::FULL_TIMES_A_NETWORK * self.unit.most_burst();
        self.network.map(|rate| (rate * BURST).clamp(least, most))
    }
}
