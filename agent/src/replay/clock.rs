//! The clock of a replay: captured times as readings of the kernel's monotonic clock.

/// The initial time: late enough that no state is older than the host.
const START: u64 = 3_600_000_000_000;
/// Packets may be out of order by less than this if they were captured on several CPUs or interfaces.
const REORDERED: u64 = 1_000_000_000;
/// No limit has a longer memory, so the clock need not advance by more.
const LONGEST_GAP: u64 = 400 * 86_400 * 1_000_000_000;
/// The uptime up to which states are distinguishable from zeroed memory; see `common::time::HORIZON`.
const END: u64 = 10 * 365 * 86_400 * 1_000_000_000;

/// Packets with irregular times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ClockTroubles {
    /// Less than a second earlier than the previous packet: evaluated at that packet's time.
    pub reordered: u64,
    /// A second or more earlier: the clock was set back, and continues from its time.
    pub stepped_back: u64,
    /// More than 400 days later than the previous packet: the clock advances by 400 days.
    pub gaps: u64,
    /// Without a time: evaluated at the previous packet's time.
    pub without_time: u64,
}

/// A monotonic clock, like the kernel's.
#[derive(Clone, Debug)]
pub struct Clock {
    now: u64,
    /// The latest captured time.
    captured: Option<u64>,
    first: Option<u64>,
    troubles: ClockTroubles,
}

impl Default for Clock {
    fn default() -> Self {
        Self {
            now: START,
            captured: None,
            first: None,
            troubles: ClockTroubles::default(),
        }
    }
}

impl Clock {
    /// Advances to a packet; returns the clock's time in nanoseconds.
    #[inline]
    pub fn advance(&mut self, captured: Option<u64>) -> u64 {
        let Some(captured) = captured else {
            self.troubles.without_time += 1;
            return self.now;
        };
        let Some(before) = self.captured.replace(captured) else {
            self.first = Some(captured);
            return self.now;
        };
        if let Some(passed) = captured.checked_sub(before) {
            let mut passed = passed;
            if passed > LONGEST_GAP {
                self.troubles.gaps += 1;
                passed = LONGEST_GAP;
            }
            self.now = (self.now + passed).min(END);
        } else if before - captured < REORDERED {
            self.troubles.reordered += 1;
            self.captured = Some(before);
        } else {
            self.troubles.stepped_back += 1;
        }
        self.now
    }

    /// The captured time for reports.
    #[must_use]
    pub fn captured(&self) -> u64 {
        self.captured.unwrap_or(0)
    }

    /// The first captured time.
    #[must_use]
    pub const fn first(&self) -> Option<u64> {
        self.first
    }

    /// How far the clock has advanced, in nanoseconds.
    #[must_use]
    pub const fn elapsed(&self) -> u64 {
        self.now - START
    }

    /// The irregular times.
    #[must_use]
    pub const fn troubles(&self) -> ClockTroubles {
        self.troubles
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_clock_advances_with_the_packets_and_never_goes_back() {
        let mut clock = Clock::default();
        let second = 1_000_000_000;
        let start = 1_700_000_000 * second;
        assert_eq!(clock.advance(Some(start)), START);
        assert_eq!(clock.advance(Some(start + 5)), START + 5);
        assert_eq!(clock.advance(Some(start + 2)), START + 5, "reordered");
        assert_eq!(clock.advance(None), START + 5);
        assert_eq!(
            clock.advance(Some(start + 7)),
            START + 7,
            "measured from the latest"
        );
        assert_eq!(
            clock.advance(Some(start - 10 * second)),
            START + 7,
            "a step back"
        );
        assert_eq!(
            clock.advance(Some(start - 9 * second)),
            START + 7 + second,
            "goes on from there"
        );
        assert_eq!(
            clock.advance(Some(start * 3)),
            START + 7 + second + LONGEST_GAP
        );
        let expected = ClockTroubles {
            reordered: 1,
            stepped_back: 1,
            gaps: 1,
            without_time: 1,
        };
        assert_eq!(clock.troubles(), expected);
    }

    proptest! {
        #[test]
        fn any_times_keep_the_clock_between_its_start_and_its_end(times in proptest::collection::vec(any::<u64>(), 0..200)) {
            let mut clock = Clock::default();
            let mut before = START;
            for time in times {
                let now = clock.advance(Some(time));
                prop_assert!((before..=END).contains(&now));
                before = now;
            }
        }
    }
}
