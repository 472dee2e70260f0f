//! A sliding count of events, from sums over short spans.

use std::collections::VecDeque;

/// The number of parts of a window.
const PARTS: u64 = 16;

/// Events in a sliding window, of which only sums over spans of time are known.
///
/// [`SlidingCount::total`] is at least the number of events in the window. It is at most the number in a window that is
/// longer by a sixteenth, or by the longest added span, whichever is more.
#[derive(Clone, Debug, Default)]
pub struct SlidingCount {
    /// Oldest first; at most 34, since any two adjacent ones span more than a sixteenth of the window.
    parts: VecDeque<Part>,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    /// The start of the span, exclusive.
    after: u64,
    /// The end of the span, inclusive.
    until: u64,
    count: u64,
}

impl SlidingCount {
    /// Adds events of a span, which ends no earlier than previous ones.
    pub fn add(&mut self, count: u64, (after, until): (u64, u64), window: u64) {
        match self.parts.back_mut() {
            Some(part) if until.saturating_sub(part.after) <= window / PARTS => {
                part.until = until;
                part.count = part.count.saturating_add(count);
            }
            _ => self.parts.push_back(Part {
                after,
                until,
                count,
            }),
        }
    }

    /// Events in the window that ends at an instant; removes earlier ones.
    pub fn total(&mut self, now: u64, window: u64) -> u64 {
        while self
            .parts
            .front()
            .is_some_and(|part| now.saturating_sub(part.until) >= window)
        {
            self.parts.pop_front();
        }
        self.parts
            .iter()
            .fold(0, |sum: u64, part| sum.saturating_add(part.count))
    }

    /// Removes all events.
    pub fn clear(&mut self) {
        self.parts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The count lies between the exact ones of the window and of the longer one.
        #[test]
        fn the_count_is_within_its_bound(
            looks in prop::collection::vec((1u64..2_000, prop::collection::vec((0u64..2_000, 1u64..50), 0..4)), 1..200),
            window in 16u64..20_000,
        ) {
            let (mut count, mut events, mut before) = (SlidingCount::default(), Vec::new(), 1u64 << 40);
            for (gap, came) in looks {
                let now = before + gap;
                let since_then: Vec<(u64, u64)> =
                    came.into_iter().map(|(offset, number)| (before + 1 + offset % gap, number)).collect();
                let sum: u64 = since_then.iter().map(|(_, number)| number).sum();
                events.extend(since_then);
                if sum > 0 {
                    count.add(sum, (before, now), window);
                }
                before = now;
                let true_count = |window: u64| -> u64 {
                    events.iter().filter(|(at, _)| now - at < window).map(|(_, number)| number).sum()
                };
                let total = count.total(now, window);
                let bound = (window / PARTS).max(2_000);
                prop_assert!(total >= true_count(window), "{total} < {}", true_count(window));
                prop_assert!(total <= true_count(window + bound), "{total} > {}", true_count(window + bound));
                prop_assert!(count.parts.len() as u64 <= 2 * PARTS + 2, "{} parts", count.parts.len());
            }
        }
    }

    #[test]
    fn a_window_that_has_passed_is_empty() {
        let mut count = SlidingCount::default();
        count.add(7, (0, 10), 160);
        assert_eq!(
            (
                count.total(10, 160),
                count.total(169, 160),
                count.total(170, 160)
            ),
            (7, 7, 0)
        );
        assert!(count.parts.is_empty());
    }
}
