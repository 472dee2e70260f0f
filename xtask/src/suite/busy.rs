//! Busy loops beside the tests, which show whether a test measures the machine.

use std::hint;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Threads that use all the CPU time they get, until it is dropped. They end with this process, whatever ends it.
pub struct Busy(Arc<AtomicBool>);

impl Busy {
    pub fn start(loops: u8) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        for _ in 0..loops {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            });
        }
        Self(is_over)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use nix::time::{ClockId, clock_gettime};

    use super::*;

    fn used() -> Duration {
        clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)
            .unwrap()
            .into()
    }

    #[test]
    fn busy_loops_use_cpu_time_until_they_are_dropped() {
        let busy = Busy::start(2);
        let (before, deadline) = (used(), Instant::now() + Duration::from_secs(120));
        // While this thread sleeps, the loops use the time.
        while used() - before < Duration::from_millis(100) {
            assert!(Instant::now() < deadline, "the loops use no CPU time");
            thread::sleep(Duration::from_millis(10));
        }
        let flag = Arc::downgrade(&busy.0);
        drop(busy);
        while flag.strong_count() > 0 {
            assert!(Instant::now() < deadline, "the loops go on");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
