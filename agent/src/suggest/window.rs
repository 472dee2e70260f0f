//! A source's highest count in any window of a length.

use super::traffic::WINDOWS;

/// The number of parts of a window. One more is counted, so that every window of the length is covered.
const PARTS: usize = 4;

/// The highest count in windows of one length, at any offset.
///
/// Exact for windows of 5/4 of the length that start with a part: so never below the count of the length itself, and
/// never above that of 5/4 of it.
#[derive(Clone, Copy, Debug, Default)]
struct Highest<C> {
    /// The index of the last counted part.
    part: u32,
    counts: [C; PARTS + 1],
    highest: C,
}

/// A count: `u32`, or `u64` for bytes.
pub(super) trait Count: Copy + Default + Ord + Into<u64> {
    /// The nearest value to a count.
    fn of(count: u64) -> Self;
    /// The sum, or the maximum.
    fn plus(self, other: Self) -> Self;
}

impl Count for u32 {
    fn of(count: u64) -> Self {
        Self::try_from(count).unwrap_or(Self::MAX)
    }

    fn plus(self, other: Self) -> Self {
        self.saturating_add(other)
    }
}

impl Count for u64 {
    fn of(count: u64) -> Self {
        count
    }

    fn plus(self, other: Self) -> Self {
        self.saturating_add(other)
    }
}

impl<C: Count> Highest<C> {
    #[inline]
    fn add(&mut self, part: u32, added: C) {
        let passed = part.saturating_sub(self.part) as usize;
        for nth in 0..passed.min(self.counts.len()) {
            self.counts[(self.part as usize + 1 + nth) % (PARTS + 1)] = C::default();
        }
        self.part = self.part.max(part);
        let count = &mut self.counts[self.part as usize % (PARTS + 1)];
        *count = count.plus(added);
        let sum = self
            .counts
            .iter()
            .fold(C::default(), |sum, count| sum.plus(*count));
        self.highest = self.highest.max(sum);
    }
}

/// The same for all of [`WINDOWS`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Busiest<C = u32>([Highest<C>; WINDOWS.len()]);

impl<C: Count> Busiest<C> {
    /// With these highest counts so far.
    pub(super) fn of(counts: [u64; WINDOWS.len()]) -> Self {
        Self(counts.map(|highest| Highest {
            highest: C::of(highest),
            ..Highest::default()
        }))
    }

    /// Adds to the count, at an instant in nanoseconds that is no earlier than previous ones.
    #[inline]
    pub(super) fn add(&mut self, nanoseconds: u64, added: u64) {
        let quarters = nanoseconds / (1_000_000_000 / PARTS as u64);
        for (highest, seconds) in self.0.iter_mut().zip(WINDOWS) {
            highest.add((quarters / seconds) as u32, C::of(added));
        }
    }

    /// The counts, in the order of [`WINDOWS`].
    pub(super) fn counts(&self) -> [u64; WINDOWS.len()] {
        self.0.map(|highest| highest.highest.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MILLISECOND: u64 = 1_000_000;

    /// The most instants in any window of this length, by definition.
    fn most(instants: &[u64], length: u64) -> u64 {
        let within = |from: u64| {
            instants
                .iter()
                .filter(|at| (from..from + length).contains(at))
                .count() as u64
        };
        instants.iter().map(|at| within(*at)).max().unwrap_or(0)
    }

    proptest! {
        #[test]
        fn no_window_is_missed_and_none_is_longer_than_five_quarters(
            gaps in proptest::collection::vec(0u64..4_000, 1..200),
        ) {
            let mut busiest = Busiest::<u32>::default();
            let mut now = 3_600_000 * MILLISECOND;
            let mut instants = Vec::new();
            for gap in gaps {
                // Squared, for bursts and pauses.
                now += gap * gap / 40 * MILLISECOND;
                instants.push(now);
                busiest.add(now, 1);
            }
            for (count, seconds) in busiest.counts().into_iter().zip(WINDOWS) {
                let length = seconds * 1_000 * MILLISECOND;
                prop_assert!(count >= most(&instants, length), "{seconds} s: {count}");
                prop_assert!(count <= most(&instants, length + length / 4), "{seconds} s: {count}");
            }
        }
    }
}
