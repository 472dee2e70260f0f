//! The load of the host's CPUs, and whether they have spare time for elastic limits.
//!
//! Reading ([`HostLoad`]) and deciding ([`RoomDecision`]) are separate, so that the decision is a pure function.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long spare time counts unless it is renewed: elastic limits stay raised this long after the agent stops. Four
/// periods of the agent, so that one late renewal has no effect.
pub const ROOM: Duration = Duration::from_secs(2);

/// The longest first line of /proc/stat in bytes: a name and ten numbers of up to 20 digits.
const FIRST_LINE: usize = 256;

/// The CPUs' load between two samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// The share of all CPUs' time that was idle, from 0 to 1. Waiting for a disk is idle.
    pub idle: f64,
    /// The percentage of the last ten seconds in which some task waited for a CPU, from 0 to 100 (`some avg10` of
    /// /proc/pressure/cpu); `None` on kernels without pressure stall information.
    pub pressure: Option<f64>,
}

/// Reads how busy the host is.
#[derive(Clone, Debug)]
pub struct HostLoad {
    proc: PathBuf,
    previous: CpuTimes,
}

/// Jiffies of all CPUs since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CpuTimes {
    idle: u64,
    all: u64,
}

impl HostLoad {
    /// Starts sampling: the first sample covers the time from this call on.
    ///
    /// # Errors
    ///
    /// When /proc/stat cannot be read.
    pub fn new() -> io::Result<Self> {
        Self::at(Path::new("/proc"))
    }

    /// Like [`HostLoad::new`], with another directory instead of /proc.
    ///
    /// # Errors
    ///
    /// When its `stat` cannot be read.
    pub fn at(proc: &Path) -> io::Result<Self> {
        Ok(Self {
            proc: proc.to_owned(),
            previous: read_times(proc)?,
        })
    }

    /// The load since the last sample. Two samples within one jiffy (at most 10 ms) count as busy, since nothing was
    /// measured.
    ///
    /// # Errors
    ///
    /// When /proc/stat cannot be read.
    pub fn sample(&mut self) -> io::Result<Sample> {
        let now = read_times(&self.proc)?;
        let all = now.all.saturating_sub(self.previous.all);
        // The kernel's idle times may decrease slightly: they are estimates on CPUs without a tick.
        let idle = now.idle.saturating_sub(self.previous.idle).min(all);
        self.previous = now;
        let idle = if all == 0 {
            0.0
        } else {
            idle as f64 / all as f64
        };
        let pressure = fs::read_to_string(self.proc.join("pressure/cpu"))
            .ok()
            .and_then(|text| some_avg10(&text));
        Ok(Sample { idle, pressure })
    }
}

fn read_times(proc: &Path) -> io::Result<CpuTimes> {
    let path = proc.join("stat");
    // The kernel returns the first line with the first read; those of the CPUs and interrupts are not needed.
    let mut start = [0; FIRST_LINE];
    let length = File::open(&path)
        .and_then(|mut file| file.read(&mut start))
        .map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("reading {} failed: {error}", path.display()),
            )
        })?;
    cpu_times(&String::from_utf8_lossy(&start[..length])).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "{} does not begin with the times of all CPUs",
                path.display()
            ),
        )
    })
}

/// The line of all CPUs: user, nice, system, idle, iowait, irq, softirq, steal. Guest times are part of user.
fn cpu_times(text: &str) -> Option<CpuTimes> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let times: Vec<u64> = line
        .split_whitespace()
        .take(8)
        .map_while(|field| field.parse().ok())
        .collect();
    let idle = times.get(3)? + times.get(4).copied().unwrap_or(0);
    Some(CpuTimes {
        idle,
        all: times.iter().sum(),
    })
}

/// Percent of the last ten seconds in which some task waited: `some avg10=1.50 avg60=…` of a pressure file.
#[must_use]
pub fn some_avg10(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    line.split_whitespace()
        .find_map(|field| field.strip_prefix("avg10=")?.parse().ok())
}

/// Whether the host has spare CPU time, with hysteresis against rapid changes.
///
/// | | idle | pressure, where there is one |
/// |---|---|---|
/// | begins | at least 20 % | and below 20 % |
/// | ends | below 5 % | or at least 40 % |
///
/// In between, the last decision stays. Initially there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoomDecision {
    has_room: bool,
}

impl RoomDecision {
    /// The idle share at which spare time begins …
    pub const BEGINS_IDLE: f64 = 0.20;
    /// … with pressure below this percentage.
    pub const BEGINS_PRESSURE: f64 = 20.0;
    /// Spare time ends below this share of idle time …
    pub const ENDS_IDLE: f64 = 0.05;
    /// … or from this percentage of pressure on.
    pub const ENDS_PRESSURE: f64 = 40.0;

    #[must_use]
    pub const fn new() -> Self {
        Self { has_room: false }
    }

    /// Evaluates a sample; returns whether the host has spare time.
    pub fn decide(&mut self, sample: &Sample) -> bool {
        let pressure = sample.pressure.unwrap_or(0.0);
        self.has_room = if self.has_room {
            sample.idle >= Self::ENDS_IDLE && pressure < Self::ENDS_PRESSURE
        } else {
            sample.idle >= Self::BEGINS_IDLE && pressure < Self::BEGINS_PRESSURE
        };
        self.has_room
    }
}

/// Whether the host has spare time, by its load since the last sample.
#[derive(Debug, Default)]
pub struct HostRoom {
    load: Option<HostLoad>,
    decision: RoomDecision,
}

impl HostRoom {
    /// Takes a sample. Without one, as the first time, the host counts as busy.
    pub fn sample(&mut self) -> bool {
        let Some(load) = &mut self.load else {
            self.load = HostLoad::new().ok();
            return false;
        };
        let sample = load.sample().ok();
        sample.is_some_and(|sample| self.decision.decide(&sample))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(idle: f64, pressure: Option<f64>) -> Sample {
        Sample { idle, pressure }
    }

    #[test]
    fn a_sample_is_what_happened_since_the_last_one() {
        let folder = tempfile::tempdir().unwrap();
        let stat = |line: &str| {
            fs::write(
                folder.path().join("stat"),
                format!("cpu  {line}\ncpu0 1 2 3\n"),
            )
            .unwrap();
        };
        stat("100 0 100 700 100 0 0 0 50 0");
        let mut load = HostLoad::at(folder.path()).unwrap();
        stat("130 0 110 720 140 0 0 0 80 0");
        assert_eq!(load.sample().unwrap(), sample(0.6, None));
        fs::create_dir(folder.path().join("pressure")).unwrap();
        let pressure = "some avg10=12.50 avg60=3.00 avg300=1.00 total=5\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
        fs::write(folder.path().join("pressure/cpu"), pressure).unwrap();
        stat("230 0 110 720 140 0 0 0 80 0");
        assert_eq!(load.sample().unwrap(), sample(0.0, Some(12.5)));
        // No jiffy has passed, so nothing shows that the host was idle.
        assert_eq!(load.sample().unwrap().idle.to_bits(), 0.0f64.to_bits());
    }

    #[test]
    fn a_stat_that_is_none_is_an_error_with_its_path() {
        let folder = tempfile::tempdir().unwrap();
        assert!(
            HostLoad::at(folder.path())
                .unwrap_err()
                .to_string()
                .contains("stat")
        );
        fs::write(folder.path().join("stat"), "intr 5\n").unwrap();
        assert!(
            HostLoad::at(folder.path())
                .unwrap_err()
                .to_string()
                .contains("stat")
        );
    }

    #[test]
    fn this_host_can_be_sampled() {
        let mut load = HostLoad::new().unwrap();
        let sample = load.sample().unwrap();
        assert!((0.0..=1.0).contains(&sample.idle), "{sample:?}");
    }

    #[test]
    fn room_begins_and_ends_at_different_loads() {
        let mut room = RoomDecision::new();
        assert!(!room.decide(&sample(0.10, None)));
        assert!(room.decide(&sample(0.20, None)));
        assert!(room.decide(&sample(0.06, None)));
        assert!(!room.decide(&sample(0.04, None)));
        assert!(!room.decide(&sample(0.19, None)));
    }

    #[test]
    fn pressure_takes_room_away_that_idle_time_would_give() {
        let mut room = RoomDecision::new();
        assert!(!room.decide(&sample(0.90, Some(20.0))));
        assert!(room.decide(&sample(0.90, Some(19.0))));
        assert!(room.decide(&sample(0.90, Some(39.0))));
        assert!(!room.decide(&sample(0.90, Some(40.0))));
    }
}
