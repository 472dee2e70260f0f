//! The number of hosts by which `when_store_is_down = "share"` divides a limit.
//!
//! Hosts that lose the store one after another are removed from it one after another. If each divided the limit by the
//! hosts of its last reply, four would pass 1/4 + 1/3 + 1/2 + 1 of it. So a host divides by the most hosts that it has
//! seen within [`REMEMBERED`].

use std::collections::VecDeque;
use std::time::Duration;

/// How long a larger number of hosts counts after it was last seen. Hosts that lose the store within this time of each
/// other pass no more than the limit.
pub const REMEMBERED: Duration = Duration::from_secs(600);

/// The number of hosts in the last reply, and the most within [`REMEMBERED`]. While no replies come, the most stays.
#[derive(Clone, Debug)]
pub struct RecentHosts {
    last: u64,
    /// (instant, number), by decreasing number: when each was last the most since then.
    most: VecDeque<(u64, u64)>,
}

impl RecentHosts {
    /// The number that an earlier run saw, or one. `now` is in nanoseconds of a monotonic clock.
    #[must_use]
    pub fn new(hosts: u64, now: u64) -> Self {
        let hosts = hosts.max(1);
        Self {
            last: hosts,
            most: VecDeque::from([(now, hosts)]),
        }
    }

    /// Records the number of hosts in a reply.
    pub fn record(&mut self, hosts: u64, now: u64) {
        self.last = hosts.max(1);
        while self
            .most
            .back()
            .is_some_and(|(_, earlier)| *earlier <= self.last)
        {
            self.most.pop_back();
        }
        self.most.push_back((now, self.last));
        let is_past =
            |(at, _): &(u64, u64)| u128::from(now.saturating_sub(*at)) >= REMEMBERED.as_nanos();
        while self.most.front().is_some_and(is_past) {
            self.most.pop_front();
        }
    }

    /// The hosts in the last reply.
    #[must_use]
    pub const fn last(&self) -> u64 {
        self.last
    }

    /// The most hosts within [`REMEMBERED`] of the last reply.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.most.front().map_or(self.last, |(_, most)| *most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_most_hosts_count_for_ten_minutes() {
        let mut hosts = RecentHosts::new(0, 0);
        assert_eq!((hosts.last(), hosts.most()), (1, 1));
        for (at, number, most) in [
            (1, 4, 4),
            (2, 3, 4),
            (300, 2, 4),
            (600, 1, 4),
            (601, 1, 3),
            (602, 1, 2),
            (899, 1, 2),
            (900, 1, 1),
            (901, 5, 5),
            (1_501, 2, 2),
        ] {
            hosts.record(number, at * SECOND);
            assert_eq!((hosts.last(), hosts.most()), (number, most), "at {at} s");
        }
    }

    #[test]
    fn a_saved_number_counts_as_seen_at_the_start() {
        let mut hosts = RecentHosts::new(4, 7 * SECOND);
        hosts.record(1, 8 * SECOND);
        assert_eq!(hosts.most(), 4);
        hosts.record(1, 607 * SECOND);
        assert_eq!(hosts.most(), 1);
    }
}
