//! Units that a charge does not need after all.

/// A refund: the units of one charge that were not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refund {
    /// When they were charged, on the clock of the state. Windows and logs count them where they were charged.
    pub at: u64,
    /// The charged units.
    pub charged: u64,
    /// Those of them that stay charged.
    pub used: u64,
    /// When a bucket has made up for the charge, on the same clock: nothing is returned from then on. `None`: not known.
    pub ends: Option<u64>,
}

impl Refund {
    /// The newest `units`: nothing of them has been made up for.
    #[must_use]
    pub const fn newest(units: u64, now: u64) -> Self {
        Self {
            at: now,
            charged: units,
            used: 0,
            ends: None,
        }
    }

    /// The units to return.
    #[must_use]
    pub const fn units(self) -> u64 {
        self.charged.saturating_sub(self.used)
    }
}
