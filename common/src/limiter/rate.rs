//! Rates.

/// A rate: `count` units in each `per_nanoseconds`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Units, at least 1.
    pub count: u64,
    /// The period in nanoseconds, at least 1.
    pub per_nanoseconds: u64,
}

impl Rate {
    /// `count` a second.
    #[must_use]
    pub const fn per_second(count: u64) -> Self {
        Self {
            count,
            per_nanoseconds: 1_000_000_000,
        }
    }

    /// The duration of `units` at this rate in nanoseconds, rounded up.
    #[must_use]
    pub fn nanoseconds_for(self, units: u64) -> u128 {
        (u128::from(units) * u128::from(self.per_nanoseconds)).div_ceil(u128::from(self.count))
    }
}

/// Whether costs are always 1 or anything up to the burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Costs {
    /// Packets, connections, requests.
    Single,
    /// Bytes, credits.
    Many,
}
