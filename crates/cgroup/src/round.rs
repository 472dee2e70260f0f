//! A round over all processes, and the clock that limits it.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use super::process::Process;

/// An unfinished round over all processes.
#[derive(Debug, Default)]
pub struct Round {
    pub left: Vec<Process>,
}

/// The CPU time of this thread.
pub fn cpu_time() -> Duration {
    // Every kernel has this clock.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .map(Duration::from)
        .unwrap_or_default()
}
