//! How instants of one boot's clock become those of another's.

use std::fs;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::stats::monotonic_nanoseconds;

/// An instant by all clocks there are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// Which boot of the kernel; empty where the kernel does not say.
    pub boot: String,
    /// Nanoseconds of that boot's monotonic clock.
    pub monotonic: u64,
    /// Nanoseconds since 1970.
    pub wall: u64,
}

impl Moment {
    /// This instant.
    #[must_use]
    pub fn now() -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self {
            boot: boot.trim().to_owned(),
            monotonic: monotonic_nanoseconds(),
            wall: u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// What this moment's monotonic clock would show at `now`, had its boot gone on. A wall clock that was set back
    /// counts as no time passed.
    #[must_use]
    pub const fn continued(&self, now: &Self) -> u64 {
        self.monotonic.saturating_add(now.wall.saturating_sub(self.wall))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_goes_on_by_the_wall_clock_and_never_back() {
        let at = |monotonic, wall| Moment { boot: String::new(), monotonic, wall };
        assert_eq!(at(500, 10_000).continued(&at(7, 10_300)), 800);
        assert_eq!(at(500, 10_000).continued(&at(7, 9_000)), 500);
    }
}
