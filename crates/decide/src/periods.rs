//! The calendar periods of a limit. Each period of a key has a state of its own, under a fingerprint with the period's
//! number: nothing is reset at midnight, and a clock that is set back finds the earlier state.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use common::rate_limiter::{DecidingTier, Outcome};
use config::calendar::{Calendar, Period};

use super::fingerprint::{Fingerprint, Fingerprints};

const NANOSECONDS: u64 = 1_000_000_000;

/// The wall clock.
#[derive(Clone, Debug, Default)]
pub(super) struct Wall(Option<Arc<AtomicU64>>);

impl Wall {
    /// Nanoseconds since 1970.
    fn now(&self) -> u64 {
        if let Some(clock) = &self.0 {
            return clock.load(Ordering::Relaxed);
        }
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
impl super::engine::Engine {
    /// The engine with a wall clock that a test sets.
    pub(super) fn by_wall(mut self, clock: &Arc<AtomicU64>) -> Self {
        self.wall = Wall(Some(Arc::clone(clock)));
        for limit in &mut self.limits {
            let calendar = limit.policy.calendar.clone();
            limit.periods =
                calendar.map(|calendar| Arc::new(Periods::new(calendar, self.wall.clone())));
        }
        self
    }
}

/// A limit's periods.
#[derive(Debug)]
pub(super) struct Periods {
    calendar: Calendar,
    /// The last one that was needed.
    known: ArcSwap<Period>,
    wall: Wall,
}

/// A key in the current period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InPeriod {
    pub(super) key: Fingerprint,
    pub(super) number: i64,
    /// The time until the next period.
    pub(super) left: Duration,
}

impl Periods {
    pub(super) fn new(calendar: Calendar, wall: Wall) -> Self {
        let known = calendar.period(second_of(wall.now()));
        Self {
            calendar,
            known: ArcSwap::from_pointee(known),
            wall,
        }
    }

    /// The current period of the key with this fingerprint.
    pub(super) fn now(&self, named: Fingerprint, fingerprints: &Fingerprints) -> InPeriod {
        let now = self.wall.now();
        let period = self.period(second_of(now));
        InPeriod {
            key: fingerprints.of(&(named.word(), self.calendar.unit.word(), period.number)),
            number: period.number,
            left: left(&period, now),
        }
    }

    fn period(&self, second: i64) -> Period {
        let known = **self.known.load();
        if known.contains(second) {
            return known;
        }
        let period = self.calendar.period(second);
        self.known.store(Arc::new(period));
        period
    }
}

fn second_of(wall: u64) -> i64 {
    (wall / NANOSECONDS) as i64
}

/// The time until a period ends; at least a nanosecond also by a clock beyond the calendar.
fn left(period: &Period, wall: u64) -> Duration {
    let end = u64::try_from(period.end)
        .unwrap_or(0)
        .saturating_mul(NANOSECONDS);
    Duration::from_nanos(end.saturating_sub(wall).max(1))
}

/// The outcome on a state that ends with its period: with the next one the whole allowance is there.
pub(super) fn within(outcome: Outcome, left: Option<Duration>) -> Outcome {
    let Some(left) = left else { return outcome };
    Outcome {
        retry_after: outcome.retry_after.map(|wait| wait.min(left)),
        reset_after: outcome.reset_after.min(left),
        tier: DecidingTier {
            reset_after: outcome.tier.reset_after.min(left),
            ..outcome.tier
        },
        ..outcome
    }
}
