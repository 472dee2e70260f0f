//! A reading in rates.

use crate::parameters::{FEWEST_WAITING, TARGET, TARGET_OF_BUFFER, Unit};
use crate::reading::{Queue, Reading};

/// A reading, in units a second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tick {
    pub now: f64,
    pub elapsed: f64,
    pub offered: f64,
    pub passed: f64,
    pub refused: f64,
    pub drops: f64,
    /// The share of passed units that servers dropped.
    pub loss: f64,
    /// What servers served: at least one unit a second, so that it divides.
    pub goodput: f64,
    served: f64,
    pub is_queued: bool,
    /// Seconds that a unit waits, and to which that is regulated.
    pub wait: f64,
    pub target: f64,
}

impl Tick {
    pub fn new(reading: &Reading, queue: Queue, capacity: f64, unit: Unit) -> Self {
        let granule = unit.granule();
        let rate = |units: f64| units / reading.elapsed;
        let served = rate(reading.passed - queue.dropped - queue.growth);
        let goodput = served.max(granule);
        let is_queued = queue.waiting >= FEWEST_WAITING * granule;
        let speed = goodput.max(0.5 * capacity);
        let of_buffer = |buffer: f64| TARGET_OF_BUFFER * buffer / capacity.max(goodput);
        Self {
            now: reading.now,
            elapsed: reading.elapsed,
            offered: rate(reading.passed + reading.refused),
            passed: rate(reading.passed),
            refused: rate(reading.refused),
            drops: rate(queue.dropped),
            loss: queue.dropped / reading.passed.max(granule),
            goodput,
            served,
            is_queued,
            wait: if is_queued {
                queue.waiting / speed
            } else {
                0.0
            },
            target: queue.buffer.map_or(TARGET, of_buffer).min(TARGET),
        }
    }

    /// Whether anything was served.
    pub fn has_goodput(&self) -> bool {
        self.served > 0.0
    }

    /// Whether less than this was served, in units a second.
    pub fn serves_less_than(&self, rate: f64) -> bool {
        self.served < rate
    }
}
