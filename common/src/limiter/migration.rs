//! Migration of a state to another rate: used units stay used.
//!
//! A source that has used 10 of 10 has 10 left of 20, and none of 5. A window whose length changes keeps its count, and
//! the share of it that remains. Units are rounded up. For buckets, whose state is a span of time, the result is the same
//! for every multiplier of a class, since it divides the time of a unit by the same factor before and after.

use crate::time::{Ticks, is_alive};

/// An instant in the ticks of both policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instants {
    /// In the ticks of the state's policy.
    pub from: Ticks,
    /// In the ticks of the new policy.
    pub to: Ticks,
}

impl Instants {
    /// How far ahead of now an instant lies under the new policy, if it is not past. `old` ticks become `new` ones.
    pub(super) fn ahead(self, instant: u64, old: Ticks, new: Ticks) -> Option<u64> {
        is_alive(instant, self.from).then(|| scaled(instant.wrapping_sub(self.from), new, old))
    }
}

/// `value` × `numerator` ÷ `denominator`, rounded up.
pub(super) fn scaled(value: u64, numerator: u64, denominator: u64) -> u64 {
    let scaled =
        (u128::from(value) * u128::from(numerator)).div_ceil(u128::from(denominator.max(1)));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
