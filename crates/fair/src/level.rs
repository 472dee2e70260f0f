//! The level of a fair limit.

use crate::parameters::{BURST, BURST_OF_ALL, GATHERED, LEAST_AT_ALL, LEAST_BURST, Tier, Unit};

/// The rates that a fair limit allows, in units a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// The rate of a source of weight 1.
    pub rate: f64,
    /// The rate of a network, where sources alone cannot be limited.
    pub network: Option<f64>,
    /// Seconds of that rate that pass at once.
    pub(crate) network_stores: f64,
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
    #[must_use]
    pub fn network_burst(&self) -> Option<f64> {
        self.network.map(|rate| rate * self.network_stores)
    }

    /// The largest burst of all sources together, in units.
    #[must_use]
    pub fn all_burst(&self) -> Option<f64> {
        let least = LEAST_BURST * self.unit.granule();
        self.all.map(|rate| (rate * BURST_OF_ALL).max(least))
    }

    /// The widest keys that have a level now.
    #[must_use]
    pub const fn tier(&self) -> Tier {
        match (self.network, self.all) {
            (_, Some(_)) => Tier::All,
            (Some(_), None) => Tier::Networks,
            (None, None) => Tier::Sources,
        }
    }
}
