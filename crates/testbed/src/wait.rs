//! Waiting for a state that has to come.

use std::thread;
use std::time::{Duration, Instant};

/// How long tests wait for a state that has to come, on a machine that may do a lot of other things: a test that fails for
/// this reason waits in vain.
pub const PATIENCE: Duration = Duration::from_secs(300);
const INTERVAL: Duration = Duration::from_millis(5);

/// Waits until there is something; panics after [`PATIENCE`].
#[track_caller]
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            start.elapsed() < PATIENCE,
            "{what} did not come within {PATIENCE:?}"
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
