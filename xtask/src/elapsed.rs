//! The time since a verb was typed, its build included, in the form of the documents.

use std::fmt;
use std::fs;
use std::time::Duration;

/// `/proc` reports hundredths of a second on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;
/// The start of a process, counted from the state, the first field after its name in `/proc/PID/stat`.
const START_FIELD: usize = 19;

/// The time since this process began as `cargo`, which builds the program and then becomes it. `None` without `/proc`.
pub fn since_start() -> Option<Elapsed> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    between(&stat, &uptime)
}

fn between(stat: &str, uptime: &str) -> Option<Elapsed> {
    // The name may contain spaces and brackets.
    let (_, fields) = stat.rsplit_once(") ")?;
    let ticks: f64 = fields.split(' ').nth(START_FIELD)?.parse().ok()?;
    let now: f64 = uptime.split(' ').next()?.parse().ok()?;
    Duration::try_from_secs_f64(now - ticks / TICKS_PER_SECOND)
        .ok()
        .map(Elapsed)
}

/// A duration, as in "4 min 2 s".
pub struct Elapsed(Duration);

impl Elapsed {
    /// Whether somebody waited for it.
    pub fn is_long(&self) -> bool {
        self.0 >= Duration::from_secs(5)
    }
}

impl fmt::Display for Elapsed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match seconds / 60 {
            0 => write!(formatter, "{seconds} s"),
            minutes => write!(formatter, "{minutes} min {} s", seconds % 60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elapsed_time_is_counted_from_the_start_of_the_process() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 12345 99 1";
        let elapsed = between(stat, "200.45 300.00\n").unwrap();
        assert_eq!(elapsed.to_string(), "1 min 17 s");
        assert_eq!(Elapsed(Duration::from_secs(59)).to_string(), "59 s");
        assert!(between("garbage", "1 2").is_none());
    }
}
