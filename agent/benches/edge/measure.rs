//! Figures: what was measured, and of what.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use serde::Serialize;

/// Every figure of one thing. The nth sample of every series of a part was taken in the same round, so that two series
/// are compared round by round.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// Which part of the benchmark.
    pub part: &'static str,
    /// What was measured.
    pub case: String,
    /// Whose: Weir or what a user would pick instead.
    pub by: String,
    /// What the samples count.
    pub unit: &'static str,
    /// One a round; none if it could not be measured here.
    pub samples: Vec<f64>,
    /// What a reader should know of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Series {
    /// A series without samples yet.
    pub fn new(part: &'static str, case: impl Into<String>, by: impl Into<String>, unit: &'static str) -> Self {
        Self { part, case: case.into(), by: by.into(), unit, samples: Vec::new(), note: None }
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

/// Keeps this thread on one CPU.
pub fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("keeping to CPU {cpu}"))
}

/// Runs `work` on one CPU, and lets the thread go wherever it could before.
pub fn pinned<T>(cpu: usize, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let this = Pid::from_raw(0);
    let before = sched_getaffinity(this).context("asking where this thread may run")?;
    pin(cpu)?;
    let result = work();
    sched_setaffinity(this, &before).context("letting this thread go")?;
    result
}

/// What this thread has worked: time in which others had its processor is not counted.
pub fn worked() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

/// What a CPU has worked for the packets that this thread, which keeps to it, has sent: by this thread itself, and by
/// the kernel's own thread that takes over what there is too much of.
pub struct CpuTime {
    helper: Option<PathBuf>,
}

impl CpuTime {
    /// Of this CPU.
    pub fn of(cpu: usize) -> Self {
        Self { helper: kernel_threads(&format!("ksoftirqd/{cpu}\n")).pop() }
    }

    /// So far.
    pub fn now(&self) -> Result<Duration> {
        let helper = self.helper.as_deref().map(scheduled).transpose()?.unwrap_or_default();
        Ok(worked()? + helper)
    }
}

/// The folders in /proc of the kernel's threads whose name begins so.
fn kernel_threads(name: &str) -> Vec<PathBuf> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let is_it = |path: &PathBuf| std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.starts_with(name));
    processes.filter(is_it).collect()
}

/// How long a thread has run, by its folder in /proc.
pub fn scheduled(thread: &Path) -> Result<Duration> {
    let path = thread.join("schedstat");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let nanoseconds = text.split(' ').next().and_then(|field| field.parse().ok());
    Ok(Duration::from_nanos(nanoseconds.with_context(|| format!("{} has no figure", path.display()))?))
}
