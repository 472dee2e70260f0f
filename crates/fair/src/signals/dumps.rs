//! Bounds of dumps of sockets. Of more than a few ports all sockets of the namespace are dumped, and any user can open some.
//!
//! Processor time counts, not that which passes: a host that is overloaded is read as often as another.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Bounds of the dumps of a reading.
const MOST_SOCKETS: usize = 10_000;
const LONGEST: Duration = Duration::from_millis(20);
/// The pause after a reading, in times its length: readings take up to 5 % of a processor.
const REST: f64 = 20.0;
/// Sockets after which the time is read.
const BETWEEN: usize = 64;

/// When and how far sockets are dumped.
#[derive(Debug)]
pub(super) struct Dumps {
    pub most_sockets: usize,
    pub longest: Duration,
    pub rest: f64,
    /// The time before which there is none.
    free_at: f64,
    /// Whether the last reading was cut.
    pub is_cut: bool,
}

/// The rest of the bounds of a reading.
#[derive(Debug)]
pub(super) struct Left {
    sockets: usize,
    began: Duration,
    longest: Duration,
    pub is_cut: bool,
}

impl Dumps {
    pub const fn new() -> Self {
        Self {
            most_sockets: MOST_SOCKETS,
            longest: LONGEST,
            rest: REST,
            free_at: f64::NEG_INFINITY,
            is_cut: false,
        }
    }

    /// The bounds of a reading. `None`: it is too early for one.
    pub fn begin(&self, now: f64) -> Option<Left> {
        (now >= self.free_at).then(|| Left {
            sockets: self.most_sockets,
            began: processor_time(),
            longest: self.longest,
            is_cut: false,
        })
    }

    pub fn end(&mut self, now: f64, left: &Left) {
        self.is_cut = left.is_cut;
        // Signals at pauses of half a second are still readable.
        let took = left.took().min(self.longest);
        self.free_at = now + self.rest * took.as_secs_f64();
    }
}

impl Left {
    /// Whether one more socket may be read.
    pub fn take(&mut self) -> bool {
        let is_late = self.sockets.is_multiple_of(BETWEEN) && self.took() > self.longest;
        self.is_cut |= self.sockets == 0 || is_late;
        self.sockets = self.sockets.saturating_sub(1);
        !self.is_cut
    }

    fn took(&self) -> Duration {
        processor_time().saturating_sub(self.began)
    }
}

/// Processor time of this thread.
pub(super) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_has_as_many_sockets_as_its_bound() {
        let dumps = Dumps {
            most_sockets: 70,
            longest: Duration::from_secs(60),
            ..Dumps::new()
        };
        let mut left = dumps.begin(0.0).unwrap();
        assert!((0..70).all(|_| left.take()) && !left.is_cut);
        assert!(!left.take() && left.is_cut && !left.take());
    }

    #[test]
    fn there_is_no_dump_for_twenty_times_as_long_as_one_took() {
        let mut dumps = Dumps {
            longest: Duration::from_millis(3),
            ..Dumps::new()
        };
        let mut left = dumps.begin(0.0).unwrap();
        left.sockets = usize::MAX;
        while left.take() {}
        dumps.end(0.0, &left);
        assert!(dumps.is_cut);
        assert!(dumps.begin(0.05).is_none(), "at least 0.06 s");
        assert!(dumps.begin(60.0).is_some());
    }
}
