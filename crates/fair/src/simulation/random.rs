//! Random numbers that are the same in each run.

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub struct Random(u64);

/// Poisson variables with a larger mean are sums of ones with at most this.
const MOST_MEAN: f64 = 30.0;

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to below 1.
    pub fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.uniform() * end as f64) as usize
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
