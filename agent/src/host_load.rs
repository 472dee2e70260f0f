//! Whether the host has resources to spare: what elastic limits go by.

use std::io;
use std::path::{Path, PathBuf};

/// Below this share of idle processor time, or above this pressure, there is no room any more.
const TIGHT: Sample = Sample { idle: 0.10, pressure: Some(20.0) };
/// Above this share of idle processor time and below this pressure, there is room again. The distance to [`TIGHT`] keeps
/// the decision from swinging: what elastic limits give takes processor time itself.
const SPARE: Sample = Sample { idle: 0.25, pressure: Some(5.0) };
/// So many samples in a row have to agree before there is room; one is enough to lose it.
const AGREEING: u32 = 2;

/// How busy the host was between two looks at it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// The share of processor time that nothing used, 0 to 1.
    pub idle: f64,
    /// The percentage of the last ten seconds in which some task waited for a processor, where the kernel measures it
    /// (pressure stall information, Linux 4.20).
    pub pressure: Option<f64>,
}

/// Reads how busy the host is.
#[derive(Clone, Debug)]
pub struct HostLoad {
    proc: PathBuf,
    /// Processor time so far: (idle, all), in ticks of the kernel's.
    last: Option<(u64, u64)>,
}

impl HostLoad {
    /// Of this host.
    #[must_use]
    pub fn new() -> Self {
        Self::under(Path::new("/proc"))
    }

    /// With another `/proc`.
    #[must_use]
    pub fn under(proc: &Path) -> Self {
        Self { proc: proc.to_owned(), last: None }
    }

    /// What happened since the last sample; `None` the first time, and when no time has passed.
    ///
    /// # Errors
    ///
    /// When `/proc/stat` cannot be read, or is not what it should be.
    pub fn sample(&mut self) -> io::Result<Option<Sample>> {
        let now = processor_time(&std::fs::read_to_string(self.proc.join("stat"))?)
            .ok_or_else(|| io::Error::other("/proc/stat does not begin with processor times"))?;
        let pressure = std::fs::read_to_string(self.proc.join("pressure/cpu")).ok().as_deref().and_then(some_avg10);
        let last = self.last.replace(now);
        Ok(last.and_then(|last| {
            let (idle, all) = (now.0.saturating_sub(last.0), now.1.saturating_sub(last.1));
            (all > 0).then(|| Sample { idle: idle as f64 / all as f64, pressure })
        }))
    }
}

impl Default for HostLoad {
    fn default() -> Self {
        Self::new()
    }
}

/// (idle, all) of the first line: user, nice, system, idle, iowait, irq, softirq, steal; guests are in user already.
fn processor_time(stat: &str) -> Option<(u64, u64)> {
    let times: Vec<u64> = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace()
        .take(8)
        .filter_map(|time| time.parse().ok())
        .collect();
    Some((times.get(3)? + times.get(4)?, times.iter().sum()))
}

fn some_avg10(pressure: &str) -> Option<f64> {
    let some = pressure.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split_whitespace().find_map(|field| field.strip_prefix("avg10="))?.parse().ok()
}

/// Decides from samples whether there is room, with hysteresis. At first there is none.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoomDecision {
    has_room: bool,
    agreeing: u32,
}

impl RoomDecision {
    /// Whether there is room, the latest sample included.
    pub fn decide(&mut self, sample: &Sample) -> bool {
        if !sample.is_better_than(&TIGHT) {
            *self = Self::default();
        } else if !self.has_room {
            self.agreeing = if sample.is_better_than(&SPARE) { self.agreeing + 1 } else { 0 };
            self.has_room = self.agreeing >= AGREEING;
        }
        self.has_room
    }
}

impl Sample {
    fn is_better_than(&self, bound: &Self) -> bool {
        let is_below = |pressure: f64| bound.pressure.is_none_or(|bound| pressure < bound);
        self.idle > bound.idle && self.pressure.is_none_or(is_below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn idle(idle: f64) -> Sample {
        Sample { idle, pressure: None }
    }

    #[test]
    fn room_is_found_slowly_lost_at_once_and_kept_between_the_bounds() {
        let mut decision = RoomDecision::default();
        let steps = [
            (0.9, false),
            (0.9, true),
            (0.2, true),
            (0.11, true),
            (0.09, false),
            (0.2, false),
            (0.9, false),
            (0.2, false),
            (0.9, false),
            (0.9, true),
        ];
        for (nth, (share, expected)) in steps.into_iter().enumerate() {
            assert_eq!(decision.decide(&idle(share)), expected, "step {nth}");
        }
    }

    #[test]
    fn pressure_takes_room_away_where_it_is_measured() {
        let mut decision = RoomDecision::default();
        let sample = |pressure| Sample { idle: 0.9, pressure: Some(pressure) };
        assert!(!decision.decide(&sample(1.0)) && decision.decide(&sample(1.0)));
        assert!(decision.decide(&sample(19.0)));
        assert!(!decision.decide(&sample(21.0)));
        assert!(!decision.decide(&sample(6.0)) && !decision.decide(&sample(6.0)), "6 % is not spare");
    }

    #[test]
    fn samples_are_what_happened_between_two_looks() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        std::fs::create_dir(folder.path().join("pressure")).unwrap();
        let mut load = HostLoad::under(folder.path());
        assert!(load.sample().is_err());
        write("stat", "cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1 2 3\n");
        assert_eq!(load.sample().unwrap(), None);
        write("stat", "cpu  150 0 125 720 105 0 0 0 90 0\ncpu0 1 2 3\n");
        assert_eq!(load.sample().unwrap(), Some(Sample { idle: 0.25, pressure: None }));
        write("pressure/cpu", "some avg10=12.50 avg60=1.00 avg300=0.00 total=9\nfull avg10=0.00 avg60=0.00\n");
        write("stat", "cpu  150 0 125 820 105 0 0 0 90 0\n");
        assert_eq!(load.sample().unwrap(), Some(Sample { idle: 1.0, pressure: Some(12.5) }));
        assert_eq!(load.sample().unwrap(), None, "no time has passed");
        write("stat", "intr 5\n");
        assert!(load.sample().is_err());
    }
}
