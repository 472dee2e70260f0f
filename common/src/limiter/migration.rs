//! Migration of a state to another rate: the used part of the allowance stays used, in proportion.
//!
//! A source with half of its burst left has half of the new burst left. Half of a window's count becomes half of the
//! new window's, with the same share of the window remaining. Proportions are rounded such that the used part never
//! shrinks. For buckets, whose state is a span of time, the result is the same for every multiplier of a class, since a
//! multiplier scales rate and burst alike.

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
