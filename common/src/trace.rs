//! The sources whose verdicts the kernel programs of a trace build log, and the reason of a verdict.

use crate::packet::Address;
use crate::throttle::{Outcome, TableEvent};

/// The most sources that are traced at one time.
pub const MOST_TRACED: usize = 8;

/// The traced sources, as a value of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct TracedSources {
    count: u64,
    addresses: [[u64; 2]; MOST_TRACED],
}

impl TracedSources {
    /// At most [`MOST_TRACED`] of these addresses.
    pub fn of(addresses: impl IntoIterator<Item = Address>) -> Self {
        let mut traced = Self::default();
        for (place, address) in traced.addresses.iter_mut().zip(addresses) {
            *place = [address.hi, address.lo];
            traced.count += 1;
        }
        traced
    }

    /// Whether an address is traced.
    #[inline(always)]
    #[must_use]
    pub fn has(&self, address: Address) -> bool {
        (0..)
            .zip(&self.addresses)
            .any(|(nth, place)| nth < self.count && *place == [address.hi, address.lo])
    }
}

/// The reason of a verdict: the most specific counter, which is the last refusal, else a refusal under `observe`, else
/// a pass; and the last event of the table of sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Reason {
    /// The row of counters.
    pub counter: u32,
    /// The index in [`Reason::OUTCOMES`] plus one; 0 if nothing was counted.
    pub outcome: u32,
    /// The index in [`Reason::EVENTS`] plus one; 0 without an event.
    pub event: u32,
}

impl Reason {
    /// Ordered by how specific they are.
    pub const OUTCOMES: [Outcome; 5] = [
        Outcome::Passed,
        Outcome::Over,
        Outcome::WouldThrottle,
        Outcome::Throttled,
        Outcome::Contended,
    ];
    /// Every event of the table.
    pub const EVENTS: [TableEvent; 5] = [
        TableEvent::Evicted,
        TableEvent::FullPassed,
        TableEvent::FullThrottled,
        TableEvent::FullShared,
        TableEvent::Contended,
    ];

    /// The number of an outcome.
    #[inline(always)]
    #[must_use]
    pub const fn of_outcome(outcome: Outcome) -> u32 {
        match outcome {
            Outcome::Passed => 1,
            Outcome::Over => 2,
            Outcome::WouldThrottle => 3,
            Outcome::Throttled => 4,
            Outcome::Contended => 5,
        }
    }

    /// The number of an event.
    #[inline(always)]
    #[must_use]
    pub const fn of_event(event: TableEvent) -> u32 {
        match event {
            TableEvent::Evicted => 1,
            TableEvent::FullPassed => 2,
            TableEvent::FullThrottled => 3,
            TableEvent::FullShared => 4,
            TableEvent::Contended => 5,
        }
    }

    /// Adds a count, with the number of its outcome.
    #[inline(always)]
    pub const fn count(&mut self, counter: u32, outcome: u32) {
        if outcome > self.outcome {
            self.counter = counter;
            self.outcome = outcome;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_has_the_addresses_it_was_made_of_and_no_others() {
        let address = |last: u8| Address::from_ipv4([192, 0, 2, last]);
        assert!(
            !TracedSources::default().has(Address::default()),
            "an empty place is no address"
        );
        let traced = TracedSources::of((1..=20).map(address));
        for last in 0..=20 {
            assert_eq!(
                traced.has(address(last)),
                (1..=MOST_TRACED as u8).contains(&last),
                "192.0.2.{last}"
            );
        }
    }

    #[test]
    fn the_reason_is_the_most_important_count_in_any_order() {
        let counts = [
            (7, Outcome::Over),
            (8, Outcome::Throttled),
            (9, Outcome::Passed),
            (10, Outcome::WouldThrottle),
        ];
        for first in 0..counts.len() {
            let mut reason = Reason::default();
            for nth in 0..counts.len() {
                let (counter, outcome) = counts[(first + nth) % counts.len()];
                reason.count(counter, Reason::of_outcome(outcome));
            }
            assert_eq!(
                (
                    reason.counter,
                    Reason::OUTCOMES[reason.outcome as usize - 1]
                ),
                (8, Outcome::Throttled)
            );
        }
    }

    #[test]
    fn numbers_are_places_in_the_lists() {
        for (nth, outcome) in (1..).zip(Reason::OUTCOMES) {
            assert_eq!(Reason::of_outcome(outcome), nth);
        }
        for (nth, event) in (1..).zip(Reason::EVENTS) {
            assert_eq!(Reason::of_event(event), nth);
        }
    }
}
