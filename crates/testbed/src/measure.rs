//! Figures of measurements.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use serde::Serialize;

/// All figures of one measurement. The nth samples of all series of a part are from the same round, so that series are
/// compared round by round.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// The part of the benchmark.
    pub part: &'static str,
    /// The measured case.
    pub case: String,
    /// Weir or an alternative.
    pub by: String,
    /// The unit of the samples.
    pub unit: &'static str,
    /// One sample per round; empty if it could not be measured here.
    pub samples: Vec<f64>,
    /// A note for the reader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Series {
    /// A series without samples yet.
    pub fn new(
        part: &'static str,
        case: impl Into<String>,
        by: impl Into<String>,
        unit: &'static str,
    ) -> Self {
        Self {
            part,
            case: case.into(),
            by: by.into(),
            unit,
            samples: Vec::new(),
            note: None,
        }
    }

    /// The same with samples.
    #[must_use]
    pub fn with(mut self, samples: Vec<f64>) -> Self {
        self.samples = samples;
        self
    }
}

/// Writes the figures for `cargo xtask bench` to read.
pub fn write(path: &Path, series: &[Series]) -> Result<()> {
    let text = serde_json::to_string(series).context("writing the figures as JSON")?;
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// Pins this thread to one CPU.
pub fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("pinning to CPU {cpu}"))
}

/// Runs `work` on one CPU, and then restores the thread's affinity.
pub fn pinned<T>(cpu: usize, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let this = Pid::from_raw(0);
    let before = sched_getaffinity(this).context("reading this thread's CPU affinity")?;
    pin(cpu)?;
    let result = work();
    sched_setaffinity(this, &before).context("restoring this thread's CPU affinity")?;
    result
}

/// The CPU time of this thread: time of other threads on its CPU is not included.
pub fn worked() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

/// The CPU time for the packets that this pinned thread has sent: its own, and that of the kernel's thread that takes
/// over excess work.
pub struct CpuTime {
    helper: Option<PathBuf>,
}

impl CpuTime {
    pub fn of(cpu: usize) -> Self {
        Self {
            helper: kernel_threads(&format!("ksoftirqd/{cpu}\n")).pop(),
        }
    }

    /// The time so far.
    pub fn now(&self) -> Result<Duration> {
        let helper = self
            .helper
            .as_deref()
            .map(scheduled)
            .transpose()?
            .unwrap_or_default();
        Ok(worked()? + helper)
    }
}

/// The folders in /proc of the kernel threads with this name prefix.
fn kernel_threads(name: &str) -> Vec<PathBuf> {
    let processes = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let is_it = |path: &PathBuf| {
        std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.starts_with(name))
    };
    processes.filter(is_it).collect()
}

/// The CPU time of a thread, by its folder in /proc.
pub fn scheduled(thread: &Path) -> Result<Duration> {
    let path = thread.join("schedstat");
    let text =
        std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let nanoseconds = text.split(' ').next().and_then(|field| field.parse().ok());
    Ok(Duration::from_nanos(nanoseconds.with_context(|| {
        format!("{} has no figure", path.display())
    })?))
}
