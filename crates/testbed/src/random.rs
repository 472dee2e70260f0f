//! Random numbers that are the same in each run.

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub struct Random(u64);

/// Poisson variables with a larger mean are sums of ones with at most this.
const MOST_MEAN: f64 = 30.0;

impl Random {
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub const fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number below `end`.
    pub const fn below(&mut self, end: u64) -> u64 {
        self.word() % end
    }

    /// Both ends included.
    pub const fn up_to(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True once in so many times.
    pub const fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// From 0 to below 1.
    pub const fn uniform(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub const fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform()
    }

    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.uniform()).ln()
    }

    /// Pareto's, from `least` on, cut at `most`.
    pub fn heavy(&mut self, least: f64, exponent: f64, most: f64) -> f64 {
        (least * (1.0 - self.uniform()).powf(-1.0 / exponent)).min(most)
    }

    /// Standard normal (Box and Muller, 1958).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Poisson, by counting exponential times (Knuth).
    pub fn poisson(&mut self, mean: f64) -> f64 {
        let mut count = 0.0;
        let mut left = mean;
        while left > 0.0 {
            let part = left.min(MOST_MEAN);
            left -= part;
            let end = (-part).exp();
            let mut product = self.uniform();
            while product > end {
                count += 1.0;
                product *= self.uniform();
            }
        }
        count
    }

    /// The number of `units` that are sampled at this chance.
    pub fn sampled(&mut self, units: f64, chance: f64) -> u32 {
        if chance >= 1.0 {
            return units as u32;
        }
        (0..units as u32)
            .map(|_| u32::from(self.uniform() < chance))
            .sum()
    }
}
