//! Waiting for a state that has to come.

use std::thread;
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_millis(5);

/// Waits until there is something; panics after a minute.
#[track_caller]
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{what} did not come within a minute"
        );
        thread::sleep(INTERVAL);
    }
}

/// Waits until this holds; returns how long it took.
#[track_caller]
pub fn wait(what: &str, holds: impl Fn() -> bool) -> Duration {
    let start = Instant::now();
    until(what, || holds().then_some(()));
    start.elapsed()
}
