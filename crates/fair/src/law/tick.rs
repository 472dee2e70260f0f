//! A reading in rates.

use super::arrivals::Flow;
use crate::parameters::{
    FEWEST_WAITING, NO_GOODPUT, NO_PART, TARGET, TARGET_OF_BUFFER, USUAL_TIMES, Unit, long_wait,
};
use crate::reading::Reading;

/// A reading, in units a second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tick {
    pub now: f64,
    pub elapsed: f64,
    pub offered: f64,
    pub passed: f64,
    pub refused: f64,
    pub drops: f64,
    /// How much more waits.
    pub growth: f64,
    /// No less than what entered queues. Infinite if that is not known.
    pub entered: f64,
    /// Whether drops and growth are counted in units of the limit.
    pub is_exact: bool,
    /// The share of passed units that servers dropped.
    pub loss: f64,
    /// Units that servers served: at least one a second, so that it divides.
    pub goodput: f64,
    /// The same for a pause of the server, in connections if these alone arrive; and the units of one.
    pub usual: f64,
    pub each: f64,
    served: f64,
    pub is_queued: bool,
    /// Seconds that a unit waits, and to which that is regulated.
    pub wait: f64,
    pub target: f64,
    /// Whether these are what the service reports, since that is nearer to an overload.
    pub is_reported: bool,
    /// Whether the service has reported since the reading before.
    is_new_report: bool,
    /// The goodput as of sockets alone, in units a second.
    pub least_goodput: f64,
}

impl Tick {
    /// `capacity`: the estimate so far, in units a second. `is_off`: nothing is refused.
    pub fn new(reading: &Reading, flow: &Flow, capacity: f64, is_off: bool, unit: Unit) -> Self {
        let granule = unit.granule();
        let rate = |units: f64| units / reading.elapsed;
        let came = rate(flow.served(granule));
        let served = if flow.is_new_report {
            flow.reported.served_of(came, capacity)
        } else {
            came
        };
        let goodput = served.max(granule);
        let is_queued = flow.waiting >= FEWEST_WAITING * granule;
        // Of fragments, one datagram is read. While nothing is refused, drops show an overload early enough.
        let unbounded = rate(reading.passed - flow.dropped - flow.growth).max(goodput);
        let reads = if is_off && flow.buffer.is_some() {
            unbounded
        } else {
            goodput
        };
        let speed = reads.max(0.5 * capacity);
        let of_buffer = |buffer: f64| TARGET_OF_BUFFER * buffer / capacity.max(goodput);
        let wait = if is_queued { flow.waiting / speed } else { 0.0 };
        let target = flow.buffer.map_or(TARGET, of_buffer).min(TARGET);
        let is_reported = flow.reported.wait / long_wait(TARGET) > wait / long_wait(target);
        let (wait, target) = if is_reported {
            (flow.reported.wait, TARGET)
        } else {
            (wait, target)
        };
        Self {
            now: reading.now,
            elapsed: reading.elapsed,
            offered: rate(reading.passed + reading.refused),
            passed: rate(flow.passed),
            refused: rate(reading.refused),
            drops: rate(flow.dropped),
            growth: if is_reported {
                rate(flow.passed) - goodput
            } else {
                rate(flow.growth)
            },
            entered: flow
                .taken
                .filter(|_| flow.is_exact)
                .map_or(f64::INFINITY, |taken| rate(taken + flow.growth)),
            is_exact: flow.is_exact || is_reported,
            loss: (flow.dropped / flow.passed.max(granule)).min(1.0),
            goodput,
            usual: unbounded.min(USUAL_TIMES * goodput) / flow.each,
            each: flow.each,
            served,
            is_queued,
            wait,
            target,
            is_reported,
            is_new_report: flow.is_new_report,
            least_goodput: came.max(granule).min(goodput),
        }
    }

    /// Whether it says nothing that the reading before has not said: a report is one reading.
    pub const fn is_old(&self) -> bool {
        self.is_reported && !self.is_new_report
    }

    /// Whether anything was served.
    pub fn has_goodput(&self) -> bool {
        self.served > 0.0
    }

    /// Whether servers served next to nothing: of what passed, and of this, in units a second.
    pub fn serves_none_of(&self, rate: f64) -> bool {
        self.served < NO_GOODPUT * rate && self.served <= NO_PART * self.passed
    }
}
