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
}

impl Refund {
    /// The units to return.
    #[must_use]
    pub const fn units(self) -> u64 {
        self.charged.saturating_sub(self.used)
    }
}
