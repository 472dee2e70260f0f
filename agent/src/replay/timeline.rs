//! Counts over time, in steps of equal length that double as the capture grows.

use common::counters::Counters;
use serde::Serialize;

/// The most steps.
const MOST: usize = 600;
const SECOND: u64 = 1_000_000_000;

/// A limit's packets in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    pub passed: u64,
    pub refused: u64,
    /// Packets that would be refused.
    pub would_refuse: u64,
}

impl Step {
    fn plus(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            refused: self.refused + other.refused,
            would_refuse: self.would_refuse + other.would_refuse,
        }
    }

    /// From counters.
    #[must_use]
    pub const fn of(counters: &Counters) -> Self {
        Self {
            passed: counters.passed.packets,
            refused: counters.throttled.packets,
            would_refuse: counters.would_throttle.packets,
        }
    }

    const fn since(self, before: Self) -> Self {
        Self {
            passed: self.passed - before.passed,
            refused: self.refused - before.refused,
            would_refuse: self.would_refuse - before.would_refuse,
        }
    }
}

/// The steps of every limit, on the replay's monotonic clock.
#[derive(Clone, Debug)]
pub struct Timeline {
    start: Option<u64>,
    step: u64,
    /// By step, then by limit.
    steps: Vec<Vec<Step>>,
    /// Each limit's counters at the start of the step.
    before: Vec<Step>,
    /// The end of the step.
    end: u64,
}

/// One limit's part of a [`Timeline`] in JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TimelineDocument {
    /// Length of a step.
    pub step_seconds: u64,
    /// Passed packets in each step, starting with the first packet.
    pub passed: Vec<u64>,
    /// Packets refused.
    pub throttled: Vec<u64>,
    /// Packets that would be refused.
    pub would_throttle: Vec<u64>,
}

impl Timeline {
    /// For this many limits.
    #[must_use]
    pub fn new(limits: usize) -> Self {
        Self {
            start: None,
            step: SECOND,
            steps: Vec::new(),
            before: vec![Step::default(); limits],
            end: 0,
        }
    }

    /// Whether `now` is after the current step, so that its counts must be added first.
    #[inline(always)]
    #[must_use]
    pub const fn is_over(&self, now: u64) -> bool {
        now >= self.end
    }

    /// Ends the current step, at whose end each limit's counters are `counted`, and starts that of `now`.
    pub fn advance(&mut self, now: u64, counted: impl IntoIterator<Item = Step>) {
        self.note(counted);
        let start = *self.start.get_or_insert(now);
        while ((now - start) / self.step) as usize >= MOST {
            self.step *= 2;
            let pairs = self.steps.chunks(2).map(|pair| match pair {
                [one, other] => one
                    .iter()
                    .zip(other)
                    .map(|(one, other)| one.plus(*other))
                    .collect(),
                _ => pair.concat(),
            });
            self.steps = pairs.collect();
        }
        let nth = (now - start) / self.step;
        self.steps.resize_with(nth as usize + 1, || {
            vec![Step::default(); self.before.len()]
        });
        self.end = start + (nth + 1) * self.step;
    }

    /// Adds the counts since the start of the current step to it.
    pub fn note(&mut self, counted: impl IntoIterator<Item = Step>) {
        let Some(step) = self.steps.last_mut() else {
            return;
        };
        for ((sum, before), counted) in step.iter_mut().zip(&mut self.before).zip(counted) {
            *sum = sum.plus(counted.since(*before));
            *before = counted;
        }
    }

    /// The steps of one limit.
    #[must_use]
    pub fn document(&self, limit: usize) -> TimelineDocument {
        let of = |what: fn(&Step) -> u64| {
            self.steps
                .iter()
                .map(|step| step.get(limit).map_or(0, what))
                .collect()
        };
        TimelineDocument {
            step_seconds: self.step / SECOND,
            passed: of(|step| step.passed),
            throttled: of(|step| step.refused),
            would_throttle: of(|step| step.would_refuse),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packet_is_in_the_step_of_its_time_however_long_the_capture() {
        let mut timeline = Timeline::new(1);
        let mut counted = Step::default();
        // Ten a second for an hour, then one after a pause of a day.
        for nth in (0..36_000).chain([1_200_000]) {
            let now = 5_000 + nth * SECOND / 10;
            if timeline.is_over(now) {
                timeline.advance(now, [counted]);
            }
            counted.passed += 1;
        }
        timeline.note([counted]);
        let document = timeline.document(0);
        assert!(document.passed.len() <= MOST);
        assert_eq!(document.passed.iter().sum::<u64>(), 36_001);
        assert_eq!(document.passed.last(), Some(&1));
        let full = 10 * document.step_seconds;
        let whole = 3_600 / document.step_seconds as usize;
        assert!(
            document.passed[..whole]
                .iter()
                .all(|packets| *packets == full),
            "{document:?}"
        );
    }
}
