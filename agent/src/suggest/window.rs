//! A source's highest count in any window of a length.

use super::traffic::WINDOWS;

/// The number of parts of a window. One more is counted, so that every window of the length is covered.
const PARTS: usize = 4;

/// The highest count in windows of one length, at any offset.
///
/// Exact for windows of 5/4 of the length that start with a part: so never below the count of the length itself, and
/// never above that of 5/4 of it.
#[derive(Clone, Copy, Debug, Default)]
struct Highest {
    /// The index of the last counted part.
    part: u32,
    counts: [u32; PARTS + 1],
    highest: u32,
}

impl Highest {
    #[inline]
    fn add(&mut self, part: u32) {
        let passed = part.saturating_sub(self.part) as usize;
        for nth in 0..passed.min(self.counts.len()) {
            self.counts[(self.part as usize + 1 + nth) % (PARTS + 1)] = 0;
        }
        self.part = self.part.max(part);
        let count = &mut self.counts[self.part as usize % (PARTS + 1)];
        *count = count.saturating_add(1);
        let sum = self.counts.iter().fold(0u32, |sum, count| sum.saturating_add(*count));
        self.highest = self.highest.max(sum);
    }
}

/// The same for all of [`WINDOWS`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Busiest([Highest; WINDOWS.len()]);

impl Busiest {
    /// Counts one packet, at an instant in nanoseconds that is no earlier than previous ones.
    #[inline]
    pub(super) fn add(&mut self, nanoseconds: u64) {
        let quarters = nanoseconds / (1_000_000_000 / PARTS as u64);
        for (highest, seconds) in self.0.iter_mut().zip(WINDOWS) {
            highest.add((quarters / seconds) as u32);
        }
    }

    /// The counts, in the order of [`WINDOWS`].
    pub(super) fn counts(&self) -> [u32; WINDOWS.len()] {
        self.0.map(|highest| highest.highest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MILLISECOND: u64 = 1_000_000;

    /// The most instants in any window of this length, by definition.
    fn most(instants: &[u64], length: u64) -> u32 {
        let within = |from: u64| instants.iter().filter(|at| (from..from + length).contains(at)).count() as u32;
        instants.iter().map(|at| within(*at)).max().unwrap_or(0)
    }

    proptest! {
        #[test]
        fn no_window_is_missed_and_none_is_longer_than_five_quarters(
            gaps in proptest::collection::vec(0u64..4_000, 1..200),
        ) {
            let mut busiest = Busiest::default();
            let mut now = 3_600_000 * MILLISECOND;
            let mut instants = Vec::new();
            for gap in gaps {
                // Squared, for bursts and pauses.
                now += gap * gap / 40 * MILLISECOND;
                instants.push(now);
                busiest.add(now);
            }
            for (count, seconds) in busiest.counts().into_iter().zip(WINDOWS) {
                let length = seconds * 1_000 * MILLISECOND;
                prop_assert!(count >= most(&instants, length), "{seconds} s: {count}");
                prop_assert!(count <= most(&instants, length + length / 4), "{seconds} s: {count}");
            }
        }
    }
}
