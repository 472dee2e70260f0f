//! The last seconds of a fair limit.

use std::collections::VecDeque;

use crate::law::Cause;

/// The seconds that are remembered: five minutes.
const REMEMBERED: usize = 300;
/// The part of a second that has to be measured for a rate.
const LEAST_PART: f64 = 0.5;
/// Seconds after which the time between two readings says nothing of each second in it. Levels end in the kernel by then.
const LONGEST: f64 = 2.0;

/// A reading, and the level in effect from then on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Step {
    /// The reading before and this one, in seconds.
    pub from: f64,
    pub to: f64,
    /// Units between both: passed and refused. None: the counters could not be read.
    pub units: Option<(f64, f64)>,
    pub level: Option<f64>,
    pub cause: Option<Cause>,
}

/// One second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Second {
    /// Units a second.
    pub passed: f64,
    pub refused: f64,
    /// The level at its end. None: nothing was refused.
    pub level: Option<f64>,
    pub cause: Option<Cause>,
}

/// The last complete seconds, and the one that is not.
#[derive(Debug, Default)]
pub struct History {
    /// The oldest first. None: less than half of it was measured.
    seconds: VecDeque<Option<Second>>,
    /// The number of the second that is not complete. None before the first step.
    number: Option<u64>,
    /// Its measured part: the time, passed and refused units.
    measured: f64,
    passed: f64,
    refused: f64,
    /// The level in effect.
    level: Option<f64>,
    cause: Option<Cause>,
}

impl Clone for History {
    fn clone(&self) -> Self {
        let mut copy = Self::new();
        copy.clone_from(self);
        copy
    }

    /// Without an allocation.
    fn clone_from(&mut self, other: &Self) {
        let mut seconds = std::mem::take(&mut self.seconds);
        seconds.clear();
        seconds.extend(other.seconds.iter().copied());
        *self = Self { seconds, ..*other };
    }
}

impl History {
    /// With room for all that it will have.
    #[must_use]
    pub fn new() -> Self {
        Self {
            seconds: VecDeque::with_capacity(REMEMBERED),
            ..Self::default()
        }
    }

    /// Adds a reading. Returns whether a second has ended.
    pub fn add(&mut self, step: &Step) -> bool {
        let last = whole(step.to);
        let first = *self.number.get_or_insert_with(|| whole(step.from));
        // A longer pause leaves nothing of what was before.
        let ended = last.saturating_sub(first).min(REMEMBERED as u64 + 1);
        for number in first..first + ended {
            self.measure(step, number);
            self.end();
        }
        self.number = Some(last.max(first));
        self.measure(step, last);
        (self.level, self.cause) = (step.level, step.cause);
        ended > 0
    }

    /// Adds the part of a step that is in a second.
    fn measure(&mut self, step: &Step, number: u64) {
        let (begin, length) = (number as f64, step.to - step.from);
        let part = step.to.min(begin + 1.0) - step.from.max(begin);
        let Some((passed, refused)) = step.units else {
            return;
        };
        if part <= 0.0 || length > LONGEST {
            return;
        }
        self.measured += part;
        self.passed += passed * part / length;
        self.refused += refused * part / length;
    }

    fn end(&mut self) {
        if self.seconds.len() == REMEMBERED {
            self.seconds.pop_front();
        }
        let is_known = self.measured >= LEAST_PART;
        self.seconds.push_back(is_known.then_some(Second {
            passed: self.passed / self.measured,
            refused: self.refused / self.measured,
            level: self.level,
            cause: self.cause,
        }));
        (self.measured, self.passed, self.refused) = (0.0, 0.0, 0.0);
    }

    /// The complete seconds, the oldest first. None: not measured.
    pub fn seconds(&self) -> impl ExactSizeIterator<Item = Option<Second>> + '_ {
        self.seconds.iter().copied()
    }

    /// When the last complete second ended. None before the first step.
    #[must_use]
    pub fn end_of_last(&self) -> Option<f64> {
        self.number.map(|number| number as f64)
    }
}

/// The number of the second.
fn whole(seconds: f64) -> u64 {
    seconds.max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of this length, with so many units a second.
    fn run(history: &mut History, from: f64, steps: u32, length: f64, level: Option<f64>) -> f64 {
        let at = |nth: u32| from + f64::from(nth) * length;
        for nth in 0..steps {
            history.add(&Step {
                from: at(nth),
                to: at(nth + 1),
                units: Some((100.0 * length, 10.0 * length)),
                level,
                cause: level.map(|_| Cause::Drops),
            });
        }
        at(steps)
    }

    fn levels(history: &History) -> Vec<Option<f64>> {
        let seconds = history.seconds();
        seconds
            .map(|second| second.and_then(|second| second.level))
            .collect()
    }

    #[test]
    fn a_second_has_the_rates_of_its_part_of_each_step() {
        let mut history = History::new();
        // Steps of 0.4 s are not those of seconds.
        run(&mut history, 10.0, 10, 0.4, None);
        let seconds: Vec<Second> = history.seconds().flatten().collect();
        assert_eq!(seconds.len(), 4);
        for second in seconds {
            assert!((second.passed - 100.0).abs() < 1e-6, "{second:?}");
            assert!((second.refused - 10.0).abs() < 1e-6, "{second:?}");
        }
        assert_eq!(history.end_of_last(), Some(14.0));
    }

    #[test]
    fn a_second_has_the_level_at_its_end() {
        let mut history = History::new();
        let now = run(&mut history, 0.0, 8, 0.25, None);
        let now = run(&mut history, now, 2, 0.25, Some(50.0));
        let now = run(&mut history, now, 4, 0.25, Some(40.0));
        run(&mut history, now, 6, 0.25, None);
        assert_eq!(levels(&history), [None, None, Some(40.0), None, None]);
        let second = history.seconds().nth(2).flatten();
        assert_eq!(second.and_then(|second| second.cause), Some(Cause::Drops));
    }

    #[test]
    fn five_minutes_are_kept_without_an_allocation() {
        let mut history = History::new();
        let room = history.seconds.capacity();
        let now = run(&mut history, 0.5, 4_000, 0.1, Some(5.0));
        assert_eq!(history.seconds().len(), REMEMBERED);
        run(&mut history, now, 1, 1.0, None);
        assert_eq!(history.seconds().len(), REMEMBERED);
        let mut copy = History::new();
        copy.clone_from(&history);
        assert!(copy.seconds().eq(history.seconds()));
        assert_eq!(copy.end_of_last(), Some(401.0));
        assert_eq!(
            (history.seconds.capacity(), copy.seconds.capacity()),
            (room, room)
        );
    }

    #[test]
    fn a_second_of_which_less_than_half_was_measured_is_unknown() {
        let mut history = History::new();
        let now = run(&mut history, 0.75, 9, 0.25, Some(5.0));
        assert_eq!(levels(&history), [None, Some(5.0), Some(5.0)]);
        // The counters of another policy begin 0.75 s later, and then cannot be read.
        let now = run(&mut history, now + 0.75, 5, 0.25, Some(5.0));
        let add = |history: &mut History, from, to, units| {
            let level = Some(5.0);
            history.add(&Step {
                from,
                to,
                units,
                level,
                cause: None,
            })
        };
        assert!(add(&mut history, now, now + 1.0, None));
        let known: Vec<bool> = history.seconds().map(|second| second.is_some()).collect();
        assert_eq!(known, [false, true, true, false, true, false]);
    }

    #[test]
    fn a_pause_leaves_unknown_seconds_and_a_long_one_nothing_else() {
        let mut history = History::new();
        let now = run(&mut history, 0.0, 20, 0.1, Some(5.0));
        let pause = |history: &mut History, from, to| {
            history.add(&Step {
                from,
                to,
                units: Some((9_000.0, 0.0)),
                level: None,
                cause: None,
            });
        };
        pause(&mut history, now, now + 5.0);
        assert_eq!(history.seconds().flatten().count(), 2);
        assert_eq!(history.seconds().len(), 7);
        pause(&mut history, now + 5.0, now + 1e6);
        assert_eq!(
            (history.seconds().len(), history.seconds().flatten().count()),
            (REMEMBERED, 0)
        );
        run(&mut history, now + 1e6, 10, 0.1, None);
        assert_eq!(history.seconds().flatten().count(), 1);
    }
}
