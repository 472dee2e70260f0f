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
