//! The share of sources that is recorded.

/// The most counters of a part: each costs the agent time.
const MOST: usize = 4_096;
/// With fewer in each of [`CALM`] parts, twice as many sources are recorded.
const FEW: usize = 1_024;
/// With fewer, the sample does not depend on the CPU time.
const TELLING: usize = 256;
/// Ten seconds.
const CALM: u32 = 40;
/// The smallest share is one in this many.
const LEAST: u32 = 1 << 16;
/// The reciprocal of the share of a CPU.
const SHARE: u64 = 100;
/// The most CPU time beyond that share, in nanoseconds: that of 10 s.
const MOST_DEBT: u64 = 100_000_000;

/// Keeps the counters of a part and the agent's CPU time within bounds, by recording one in several sources.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sampling {
    one_in: u32,
    calm: u32,
    debt: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            one_in: 1,
            calm: 0,
            debt: 0,
        }
    }
}

impl Sampling {
    /// One in this many sources is recorded, a power of two.
    pub(super) const fn one_in(self) -> u32 {
        self.one_in
    }

    /// Decides after `parts` parts with this many counters in all, which took this much CPU time of this much time, both in
    /// nanoseconds. `is_full`: the kernel had no room for some.
    pub(super) fn follow(
        &mut self,
        counters: usize,
        parts: u32,
        is_full: bool,
        cpu: u64,
        elapsed: u64,
    ) {
        let of_part = counters / parts.max(1) as usize;
        self.debt = self
            .debt
            .saturating_add(cpu)
            .saturating_sub(elapsed / SHARE)
            .min(2 * MOST_DEBT);
        // With few counters, the time is that of looking for them, which a smaller sample does not save.
        let is_busy = self.debt > MOST_DEBT && of_part >= TELLING;
        if of_part > MOST || is_full || is_busy {
            // If the map was full, the number of sources is unknown.
            let factor = if is_full {
                8
            } else {
                (of_part / MOST + 1).next_power_of_two().max(2) as u32
            };
            self.one_in = self.one_in.saturating_mul(factor).min(LEAST);
            (self.calm, self.debt) = (0, 0);
        } else if of_part < FEW && (self.debt < MOST_DEBT / 2 || of_part < TELLING) {
            self.calm += parts;
            if self.calm >= CALM {
                (self.one_in, self.calm) = ((self.one_in / 2).max(1), 0);
            }
        } else {
            self.calm = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: u64 = 250_000_000;

    #[test]
    fn a_flood_is_sampled_within_a_second_and_all_sources_recorded_again_after_it() {
        let mut sampling = Sampling::default();
        let sources = 500_000usize;
        for _ in 0..4 {
            let counters = sources / sampling.one_in() as usize;
            sampling.follow(counters.min(8_192), 1, counters > 8_192, 0, PART);
        }
        assert!(
            sources / sampling.one_in() as usize <= MOST,
            "one in {}",
            sampling.one_in()
        );
        let most = sampling.one_in();
        for _ in 0..CALM * most.ilog2() {
            sampling.follow(100, 1, false, 0, PART);
        }
        assert_eq!(sampling.one_in(), 1);
    }

    #[test]
    fn cpu_time_beyond_the_share_lowers_the_sample_and_a_peak_does_not() {
        let mut sampling = Sampling::default();
        sampling.follow(10, 1, false, MOST_DEBT / 2, PART);
        assert_eq!(sampling.one_in(), 1);
        let mut parts = 0;
        while sampling.one_in() == 1 {
            sampling.follow(2_000, 1, false, PART / 20, PART);
            parts += 1;
        }
        assert!((2..=20).contains(&parts), "{parts}");
        // Nor does a slow CPU, if there are hardly any sources.
        let mut sampling = Sampling::default();
        (0..1_000).for_each(|_| sampling.follow(20, 1, false, PART / 2, PART));
        assert_eq!(sampling.one_in(), 1);
        // At the share itself, the sample stays.
        let mut sampling = Sampling::default();
        (0..10_000).for_each(|_| sampling.follow(2_000, 1, false, PART / SHARE, PART));
        assert_eq!(sampling.one_in(), 1);
    }

    #[test]
    fn the_sample_is_never_smaller_than_the_least() {
        let mut sampling = Sampling::default();
        (0..100).for_each(|_| sampling.follow(usize::MAX / 2, 1, true, u64::MAX / 4, PART));
        assert_eq!(sampling.one_in(), LEAST);
    }
}
