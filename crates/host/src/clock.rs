//! The host's clocks, and conversion of instants across a reboot.

use std::fs;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// Nanoseconds of `CLOCK_MONOTONIC`, which the kernel programs use.
#[must_use]
pub fn monotonic_nanoseconds() -> u64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
    })
}

/// Nanoseconds since boot (`CLOCK_BOOTTIME`), with suspended time; changes of the wall clock do not affect it.
#[must_use]
pub fn boot_nanoseconds() -> u64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).map_or(0, |time| {
        time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
    })
}

/// An instant on the monotonic and the wall clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// The boot's ID; empty where the kernel does not report one.
    pub boot: String,
    /// Nanoseconds of that boot's monotonic clock.
    pub monotonic: u64,
    /// Nanoseconds since 1970.
    pub wall: u64,
}

impl Moment {
    /// The current instant.
    #[must_use]
    pub fn now() -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self::of_boot(boot.trim())
    }

    /// The current instant, of the boot with this ID.
    #[must_use]
    pub fn of_boot(boot: &str) -> Self {
        let wall = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            boot: boot.to_owned(),
            monotonic: monotonic_nanoseconds(),
            wall: u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// The value that this moment's monotonic clock would have at `now` without the reboot. If the wall clock was set
    /// back, no time has passed.
    #[must_use]
    pub const fn continued(&self, now: &Self) -> u64 {
        self.monotonic
            .saturating_add(now.wall.saturating_sub(self.wall))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_goes_on_by_the_wall_clock_and_never_back() {
        let at = |monotonic, wall| Moment {
            boot: String::new(),
            monotonic,
            wall,
        };
        assert_eq!(at(500, 10_000).continued(&at(7, 10_300)), 800);
        assert_eq!(at(500, 10_000).continued(&at(7, 9_000)), 500);
    }
}
