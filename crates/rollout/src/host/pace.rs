//! When a host sends its requests: one each `every`, at an instant of its own.
//!
//! Two are moved, never closer to the one before. A canary keeps its request free for the report at the bake's end. Others
//! read a bit after the bake's end rather than a bit before, so that all read within `every` of it: hosts whose clocks agree
//! to a twentieth of `every` need no second reading.

use std::time::Duration;

use super::CHECK;

/// How often a host sends its report again, in case the store has lost it.
pub const RENEWAL: Duration = Duration::from_secs(3_600);

#[derive(Clone, Debug)]
pub(super) struct Pace {
    every: Duration,
    next: Duration,
    /// The host's part of the time between two requests, from 0 to 1.
    phase: f64,
}

impl Pace {
    /// `position` is the host's among all.
    pub fn new(every: Duration, position: u64, now: Duration) -> Self {
        // The upper half has all that matters.
        let phase = f64::from((position >> 32) as u32) / f64::from(u32::MAX);
        Self {
            every,
            next: now + every.mul_f64(phase),
            phase,
        }
    }

    pub fn sent(&mut self, now: Duration) {
        self.next = now + self.every;
    }

    pub const fn next(&self) -> Duration {
        self.next
    }

    /// When a canary reads whose bake ends at `end`: not so late that its report would have to wait.
    pub fn before_report(&self, end: Duration) -> Duration {
        let is_in_the_way = self.next < end && self.next + self.every > end;
        if is_in_the_way {
            end + CHECK
        } else {
            self.next
        }
    }

    /// When a host reads that waits for the end of a bake.
    pub fn after_bake(&self, end: Duration) -> Duration {
        let margin = self.every / 20;
        // The check at the bake's end may be a CHECK late.
        let settled = end + CHECK + margin;
        if self.next + margin > end && self.next < settled {
            settled + margin.mul_f64(self.phase)
        } else {
            self.next
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(10);

    #[test]
    fn every_host_reads_once_within_every_after_the_end_whatever_its_phase() {
        let end = Duration::from_secs(100);
        for part in 0..1_000_u64 {
            let mut pace = Pace::new(EVERY, part << 54, Duration::ZERO);
            let mut before = None;
            while pace.after_bake(end) <= end {
                let at = pace.after_bake(end);
                pace.sent(at);
                before = Some(at);
            }
            let at = pace.after_bake(end);
            // The canary's report comes up to a CHECK late and takes some milliseconds.
            assert!(at > end + CHECK, "{at:?}");
            assert!(at < end + EVERY, "{at:?}");
            assert!(before.is_none_or(|before| at - before >= EVERY));
        }
    }

    #[test]
    fn without_moved_requests_some_host_reads_later_than_every() {
        let end = Duration::from_secs(100);
        let first_after = |part: u64| {
            let mut pace = Pace::new(EVERY, part << 54, Duration::ZERO);
            while pace.next() <= end + CHECK {
                pace.sent(pace.next());
            }
            pace.next()
        };
        assert!((0..1_000).map(first_after).max() > Some(end + EVERY));
    }

    #[test]
    fn a_canary_keeps_its_request_for_the_report() {
        let end = Duration::from_secs(100);
        for part in 0..1_000_u64 {
            let mut pace = Pace::new(EVERY, part << 54, Duration::ZERO);
            while pace.before_report(end) < end {
                pace.sent(pace.before_report(end));
            }
            assert!(pace.next() <= end, "{:?}", pace.next());
        }
    }
}
