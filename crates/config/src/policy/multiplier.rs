//! Exact factors.

use super::{Algorithm, Rate};

/// An exact factor above 0: a reduced fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Multiplier {
    numerator: u64,
    denominator: u64,
}

impl Multiplier {
    /// The factor 1.
    pub const ONE: Self = Self {
        numerator: 1,
        denominator: 1,
    };

    /// The factor rounded to a millionth; `None` outside 10⁻⁶ to 10⁶.
    #[must_use]
    pub fn new(factor: f64) -> Option<Self> {
        const STEPS: u64 = 1_000_000;
        let steps = (factor * STEPS as f64).round();
        if !(1.0..=(STEPS * STEPS) as f64).contains(&steps) {
            return None;
        }
        let steps = steps as u64;
        let common = greatest_common_divisor(steps, STEPS);
        Some(Self {
            numerator: steps / common,
            denominator: STEPS / common,
        })
    }

    /// The factor as a double.
    #[must_use]
    pub fn factor(self) -> f64 {
        self.numerator as f64 / self.denominator as f64
    }

    /// Both factors, rounded like [`Self::new`] and within its bounds.
    #[must_use]
    pub fn times(self, other: Self) -> Self {
        let both = (self.factor() * other.factor()).clamp(0.000_001, 1_000_000.0);
        Self::new(both).unwrap_or(self)
    }

    /// The rate times this factor, exactly.
    #[must_use]
    pub fn rate(self, rate: Rate) -> Rate {
        // Count × numerator over period × denominator, reduced; the bounds of rates and factors prevent overflow.
        let count = u128::from(rate.count) * u128::from(self.numerator);
        let period = u128::from(rate.per_nanoseconds) * u128::from(self.denominator);
        let common = greatest_common_divisor_wide(count, period);
        let (mut count, mut period) = (count / common, period / common);
        while count > u128::from(u64::MAX) || period > u128::from(u64::MAX) {
            count /= 2;
            period = period.div_ceil(2);
        }
        Rate {
            count: (count as u64).max(1),
            per_nanoseconds: period as u64,
        }
    }

    /// `rate` so many times. A window keeps its length and multiplies its count, rounded down to at least 1.
    #[must_use]
    pub fn rate_of(self, algorithm: Algorithm, rate: Rate) -> Rate {
        if algorithm.has_burst() {
            self.rate(rate)
        } else {
            Rate {
                count: self.units(rate.count).max(1),
                ..rate
            }
        }
    }

    /// `units` times this factor, rounded down.
    #[must_use]
    pub fn units(self, units: u64) -> u64 {
        let scaled = u128::from(units) * u128::from(self.numerator) / u128::from(self.denominator);
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 {
        a
    } else {
        greatest_common_divisor(b, a % b)
    }
}

fn greatest_common_divisor_wide(a: u128, b: u128) -> u128 {
    if b == 0 {
        a
    } else {
        greatest_common_divisor_wide(b, a % b)
    }
}
