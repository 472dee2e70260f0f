//! Hosts that start at once, or without their store: what each has used of its share alone is not what all have used.

use common::limiter::Rate;
use common::rate_limiter::Policy;

use super::world::{Ledger, MS, SECOND, TICK, World};

/// (rate per second, burst).
const BUCKETS: [(u64, u64); 4] = [(100, 100), (1_000, 100), (10, 10), (10, 600)];

impl World {
    /// Hosts that have not exchanged yet, and a store that has not seen any.
    fn of_new_hosts((rate, burst): (u64, u64), hosts: usize, keys: usize) -> Self {
        let policy = Policy::token_bucket(Rate::per_second(rate), burst);
        let mut world = Self::new(policy, 0, keys, 100 * MS);
        world.ledger = Ledger::default();
        (0..hosts).for_each(|_| world.join());
        for host in world.hosts.iter_mut().flatten() {
            host.is_serving = false;
        }
        world
    }

    /// Runs for ten seconds without the store, with twice the rate as demand for each key on each host.
    fn run_without_store(&mut self, rate: u64) {
        self.ledger.is_away = true;
        self.run(10 * SECOND, &|_, _, _| {
            2.0 * rate as f64 * TICK as f64 / SECOND as f64
        });
        self.ledger.is_away = false;
    }

    /// Runs for so many seconds with this demand for a key on each host, and asserts that its bucket keeps its rate, except
    /// for `lost` seconds. `more` are the units that it may have at first.
    fn assert_rate(
        &mut self,
        what: &str,
        (key, rate, more): (usize, u64, u64),
        (seconds, lost): (u64, u64),
    ) {
        let before = self.total(key);
        self.run(seconds * SECOND, &|_, other, _| {
            f64::from(u8::from(other == key)) * rate as f64 * TICK as f64 / SECOND as f64
        });
        let passed = self.total(key) - before;
        eprintln!("{what}: {passed} of {}", rate * seconds);
        assert!(
            passed <= (rate * seconds + more) * 11 / 10,
            "{what}: {passed}"
        );
        assert!(
            passed >= rate * (seconds - lost) * 95 / 100,
            "{what}: {passed}"
        );
    }
}

#[test]
fn hosts_that_start_at_once_with_a_new_store_pass_the_rate() {
    for (rate, burst) in BUCKETS {
        for hosts in [1, 2, 4, 8, 20] {
            let mut world = World::of_new_hosts((rate, burst), hosts, 1);
            let what = format!("{hosts} hosts, {rate}/s, burst {burst}");
            // The store is new for a second, in which hosts take shares.
            world.assert_rate(&what, (0, rate, burst), (15, 2));
        }
    }
}

/// They know of no other host: each takes the whole limit until the store comes.
#[test]
fn hosts_that_start_without_their_store_pass_the_rate_with_it() {
    for (rate, burst) in BUCKETS {
        for hosts in [2, 4, 8] {
            let mut world = World::of_new_hosts((rate, burst), hosts, 1);
            world.run_without_store(rate);
            let what = format!("{hosts} hosts, {rate}/s, burst {burst}");
            world.assert_rate(&what, (0, rate, burst), (15, 2));
        }
    }
}

/// One key is used before, another only while the store is away.
#[test]
fn keys_that_are_used_without_the_store_pass_the_rate_with_it() {
    for (rate, burst) in BUCKETS {
        for hosts in [2, 4, 8] {
            let mut world = World::of_new_hosts((rate, burst), hosts, 2);
            world.assert_rate("before", (0, rate, burst), (10, 2));
            world.run_without_store(rate);
            for key in [1, 0] {
                let what = format!("{hosts} hosts, {rate}/s, burst {burst}, key {key}");
                world.assert_rate(&what, (key, rate, burst), (15, 2));
            }
        }
    }
}
