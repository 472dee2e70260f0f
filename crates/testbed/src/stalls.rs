//! The time that a busy machine kept a test from running.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// The interval at which the thread wakes.
const INTERVAL: Duration = Duration::from_millis(10);
/// Shorter delays are the kernel's timers, not the machine's load.
const NEGLIGIBLE: Duration = Duration::from_millis(10);

/// Measures how late a sleeping thread wakes, from its creation to its drop. A promised time may be exceeded by this
/// time: the agent had none of it either.
pub struct Stalls(Arc<Mutex<State>>);

struct State {
    late: Duration,
    due: Instant,
}

impl Stalls {
    /// Begins to measure.
    pub fn watch() -> Self {
        let state = Arc::new(Mutex::new(State {
            late: Duration::ZERO,
            due: Instant::now() + INTERVAL,
        }));
        let weak = Arc::downgrade(&state);
        thread::spawn(move || wake(&weak));
        Self(state)
    }

    /// The sum of all delays so far, the present one included.
    pub fn so_far(&self) -> Duration {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.late + delay(state.due)
    }
}

/// The gaps in the work of a thread that a figure depends on.
pub struct Gaps(Mutex<Work>);

struct Work {
    last: Instant,
    gaps: Vec<(Instant, Instant)>,
}

impl Gaps {
    /// Notes that the thread works. Call it in each of its turns.
    pub fn mark(&self) {
        let now = Instant::now();
        let mut work = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = std::mem::replace(&mut work.last, now);
        if now - last > NEGLIGIBLE {
            work.gaps.push((last, now));
        }
    }

    /// The sum of the gaps since then, the present one included, without what the thread makes up for after each. Call it before
    /// the thread ends.
    pub fn since(&self, from: Instant, made_up: Duration) -> Duration {
        let work = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let present = (work.last, Instant::now());
        let excess = |(began, ended): &(Instant, Instant)| {
            let length = ended.saturating_duration_since(*began);
            let within = ended.saturating_duration_since(from);
            length.saturating_sub(made_up.max(NEGLIGIBLE)).min(within)
        };
        work.gaps.iter().chain([&present]).map(excess).sum()
    }
}

impl Default for Gaps {
    fn default() -> Self {
        Self(Mutex::new(Work {
            last: Instant::now(),
            gaps: Vec::new(),
        }))
    }
}

/// Until the measurement is dropped.
fn wake(state: &Weak<Mutex<State>>) {
    loop {
        thread::sleep(INTERVAL);
        let Some(state) = state.upgrade() else { return };
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let late = delay(state.due);
        state.late += late;
        state.due = Instant::now() + INTERVAL;
    }
}

fn delay(due: Instant) -> Duration {
    let late = due.elapsed();
    if late > NEGLIGIBLE {
        late
    } else {
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_count_beyond_what_is_made_up_and_since_an_instant() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let gaps = Gaps(Mutex::new(Work {
            // Later than the test: there is no present gap.
            last: at(3_600_000),
            gaps: vec![(at(0), at(100)), (at(200), at(230))],
        }));
        let since = |from, made_up| gaps.since(at(from), Duration::from_millis(made_up));
        assert_eq!(since(0, 20), Duration::from_millis(80 + 10));
        assert_eq!(since(60, 0), Duration::from_millis(40 + 20));
        assert_eq!(since(230, 0), Duration::ZERO);
    }
}
