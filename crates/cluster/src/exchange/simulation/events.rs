//! What happens to hosts and their store while a limit is used: all hosts together pass at most a tenth more.

use common::limiter::Rate;
use common::rate_limiter::Policy;
use testbed::random::Random;

use super::seconds;
use super::world::{MS, SECOND, TICK, World};

pub(super) const N: u64 = 1_000;
/// Sequences of random events.
pub(super) const SEEDS: u64 = 100;

pub(super) fn windows(count: u64, time: u64) -> [(&'static str, Policy); 3] {
    let rate = seconds(count, time);
    [
        ("fixed", Policy::fixed_window(rate).unwrap()),
        ("sliding", Policy::sliding_window(rate).unwrap()),
        ("log", Policy::sliding_log(rate).unwrap()),
    ]
}

/// Every algorithm, for quotas that last longer than a test.
pub(super) fn quotas() -> Vec<(&'static str, Policy)> {
    let bucket = Policy::token_bucket(seconds(N, 36_000), N);
    windows(N, 36_000)
        .into_iter()
        .chain([("bucket", bucket)])
        .collect()
}

/// Twice the quota a second on one host.
pub(super) fn on(host: usize) -> impl Fn(usize, usize, u64) -> f64 {
    move |nth, _, _| f64::from(u8::from(nth == host)) * 2.0 * N as f64 * TICK as f64 / SECOND as f64
}

pub(super) fn idle(_: usize, _: usize, _: u64) -> f64 {
    0.0
}

impl World {
    /// Uses the quota on one host, then nothing for longer than keys are published.
    pub(super) fn exhaust(&mut self, host: usize) -> u64 {
        let before = self.total(0);
        self.run(SECOND, &on(host));
        self.run(SECOND, &idle);
        self.total(0) - before
    }

    pub(super) fn assert_quota(&self, what: &str, passed: &[u64]) {
        eprintln!("{what}: {passed:?}");
        let total = self.total(0);
        assert!(total <= N * 11 / 10, "{what}: {passed:?}");
        assert!(total >= N * 95 / 100, "{what}: {passed:?}");
    }
}

#[test]
fn a_used_up_quota_survives_joins_and_restarts() {
    for (name, policy) in quotas() {
        let mut world = World::new(policy, 1, 1, 100 * MS);
        let mut passed = vec![world.exhaust(0)];
        world.join();
        world.run(SECOND, &idle);
        passed.push(world.exhaust(1));
        for host in [1, 0, 1] {
            world.restart(host);
            world.run(SECOND, &idle);
            passed.push(world.exhaust(host));
        }
        // No host that knew of the use is left.
        world.hosts = vec![None, None];
        world.join();
        world.run(SECOND, &idle);
        passed.push(world.exhaust(2));
        world.assert_quota(name, &passed);
    }
}

/// Half is used before, and half while the others join: they read both.
#[test]
fn hosts_that_join_while_a_quota_is_used_add_nothing() {
    for (name, policy) in quotas() {
        let mut world = World::new(policy, 2, 1, 100 * MS);
        let half = |host: usize, _: usize, _: u64| {
            f64::from(u8::from(host < 2)) * 0.05 * N as f64 * TICK as f64 / SECOND as f64
        };
        world.run(4 * SECOND, &half);
        let mut passed = vec![world.total(0)];
        for _ in 0..4 {
            world.join();
            world.run(SECOND, &half);
            passed.push(world.total(0));
        }
        for host in 0..6 {
            passed.push(world.exhaust(host));
        }
        world.assert_quota(name, &passed);
    }
}

#[test]
fn reloads_reset_no_quota() {
    for (name, policy) in quotas() {
        let mut world = World::new(policy, 2, 1, 100 * MS);
        let mut passed = vec![world.exhaust(0)];
        for sync in [200 * MS, SECOND, 100 * MS] {
            for host in world.hosts.iter_mut().flatten() {
                host.reload(world.now, policy, sync);
            }
            world.run(SECOND, &idle);
            passed.extend([world.exhaust(0), world.exhaust(1)]);
        }
        world.assert_quota(name, &passed);
    }
}

/// Joins, kills, reloads, a store that is emptied, full or away, at random. A killed host takes the units with it that it
/// has passed since its last exchange, which may be those of an outage; those of two syncs, and those below the threshold.
#[test]
fn random_events_pass_no_quota_again() {
    for (name, policy) in quotas() {
        for seed in 0..SEEDS {
            let mut world = World::new(policy, 3, 1, 100 * MS);
            world.random = Random::new(seed);
            let (mut kills, mut back, mut unpublished) = (0, 0, 0);
            let mut events = String::new();
            for step in 0..24 {
                let nth = world.random.below(world.hosts.len() as u64) as usize;
                let event = world.random.below(7);
                events.push_str(&format!(" {event}"));
                let is_away = step < back;
                (world.ledger.is_away, world.ledger.is_full) = (is_away, false);
                match event {
                    // Before the first reply a new host has the whole limit.
                    0 if world.hosts.len() < 6 && !is_away => world.join(),
                    1 if !is_away => {
                        kills += 1;
                        let host = world.hosts[nth].as_ref();
                        unpublished += host.map_or(0, |host| host.unpublished);
                        world.restart(nth);
                    }
                    2 => world.ledger.empty(),
                    3 if !is_away => (world.ledger.is_full, back) = (true, step + 3),
                    4 if !is_away => (world.ledger.is_away, back) = (true, step + 3),
                    5 => {
                        if let Some(host) = world.hosts[nth].as_mut() {
                            host.reload(world.now, policy, 100 * MS);
                        }
                    }
                    _ => {}
                }
                let host = world.random.below(world.hosts.len() as u64) as usize;
                world.run(SECOND, &|nth, _, _| {
                    f64::from(u8::from(nth == host || step % 5 == 0))
                        * 0.08
                        * N as f64
                        * TICK as f64
                        / SECOND as f64
                });
            }
            let total = world.total(0) as f64;
            // Below the threshold once, then two syncs of the demand.
            let lost = if kills == 0 { 0.0 } else { N as f64 / 12.0 };
            let lost = lost + f64::from(kills) * 0.2 * 0.08 * N as f64 + unpublished as f64;
            eprintln!("{name}, seed {seed}: {total}, {kills} kills:{events}");
            assert!(
                total <= 1.1 * N as f64 + lost,
                "{name}, seed {seed}: {total}"
            );
        }
    }
}

/// The second host's lease is thirty times the first one's.
#[test]
fn hosts_with_other_syncs_keep_the_limit() {
    for (name, policy) in windows(N, 36_000) {
        let mut world = World::new(policy, 2, 1, 100 * MS);
        for sync in [3 * SECOND, SECOND] {
            let host = world.host(sync);
            world.hosts.push(Some(host));
        }
        world.run(7 * SECOND, &idle);
        for host in world.hosts.iter().flatten() {
            assert_eq!(host.peer.hosts(), 4);
        }
        world.run(15 * SECOND, &|_, _, _| {
            0.5 * N as f64 * TICK as f64 / SECOND as f64
        });
        world.assert_quota(name, &[world.total(0)]);
    }
    let bucket = Policy::token_bucket(Rate::per_second(N), 100);
    let mut world = World::new(bucket, 3, 1, 100 * MS);
    let host = world.host(2 * SECOND);
    world.hosts.push(Some(host));
    world.run(4 * SECOND, &idle);
    world.passed.clear();
    world.run(20 * SECOND, &|_, _, _| {
        1.25 * N as f64 * TICK as f64 / SECOND as f64
    });
    let error = world.total(0) as f64 / (20 * N + 100) as f64 - 1.0;
    eprintln!("a bucket, one host of four syncs every 2 s: {error:+.3}");
    assert!(error <= 0.1, "{error}");
}

/// All hosts lose the store for five seconds, at any instant of a window of ten, or it has no memory.
#[test]
fn windows_that_begin_without_a_store_pass_their_count() {
    for (name, policy) in windows(N, 10) {
        for begin in [2, 4, 6, 8] {
            for is_full in [false, true] {
                let mut world = World::new(policy, 4, 1, 100 * MS);
                let demand =
                    |_: usize, _: usize, _: u64| 0.5 * N as f64 * TICK as f64 / SECOND as f64;
                // The windows of the simulation begin at multiples of ten seconds.
                while world.now % (10 * SECOND) >= TICK {
                    world.step(&idle);
                }
                world.passed.clear();
                world.run(begin * SECOND, &demand);
                (world.ledger.is_full, world.ledger.is_away) = (is_full, !is_full);
                world.run(5 * SECOND, &demand);
                (world.ledger.is_full, world.ledger.is_away) = (false, false);
                world.run(25 * SECOND, &demand);
                let most = match name {
                    "log" => world.most_in(0, 10 * SECOND),
                    _ => world.most_in_windows(0, 10 * SECOND),
                };
                let what = format!("{name}, from {begin} s on, full: {is_full}");
                eprintln!("{what}: {most} of {N}");
                assert!(most <= N * 11 / 10, "{what}: {most}");
            }
        }
    }
}

/// It returns with traffic of its own, after the others have removed it.
#[test]
fn a_host_that_stood_still_adds_nothing() {
    for (name, policy) in windows(N, 10) {
        for (stop, times) in [(1, 1.0), (2, 1.5), (4, 1.5), (7, 1.0), (7, 5.0), (9, 5.0)] {
            let mut world = World::new(policy, 4, 1, 100 * MS);
            let demand =
                |_: usize, _: usize, _: u64| times * N as f64 / 40.0 * TICK as f64 / SECOND as f64;
            while world.now % (10 * SECOND) >= TICK {
                world.step(&idle);
            }
            world.passed.clear();
            world.run(stop * SECOND, &demand);
            world.hosts[0].as_mut().unwrap().is_stopped = true;
            world.run(5 * SECOND, &demand);
            world.hosts[0].as_mut().unwrap().is_stopped = false;
            world.run(16 * SECOND, &demand);
            let most = match name {
                "log" => world.most_in(0, 10 * SECOND),
                _ => world.most_in_windows(0, 10 * SECOND),
            };
            let what = format!("{name}, stopped at {stop} s, demand {times}");
            eprintln!("{what}: {most} of {N}");
            assert!(most <= N * 11 / 10, "{what}: {most}");
        }
    }
}

/// A host without the store passes its part, and the others pass all: at most limit ÷ hosts more.
#[test]
fn a_host_that_is_cut_off_adds_its_part() {
    for (name, policy) in windows(N, 10) {
        let mut world = World::new(policy, 4, 1, 100 * MS);
        let demand = |_: usize, _: usize, _: u64| 0.5 * N as f64 * TICK as f64 / SECOND as f64;
        while world.now % (10 * SECOND) >= TICK {
            world.step(&idle);
        }
        world.passed.clear();
        world.run(8 * SECOND, &demand);
        world.hosts[0].as_mut().unwrap().is_cut_off = true;
        world.run(6 * SECOND, &demand);
        world.hosts[0].as_mut().unwrap().is_cut_off = false;
        world.run(16 * SECOND, &demand);
        let most = match name {
            "log" => world.most_in(0, 10 * SECOND),
            _ => world.most_in_windows(0, 10 * SECOND),
        };
        eprintln!("{name}, one of four cut off: {most} of {N}");
        assert!(most <= N * 5 / 4 + N / 50, "{name}: {most}");
    }
}

/// Each is removed by the others before the next one loses the store.
#[test]
fn hosts_that_are_cut_off_in_turn_pass_the_limit() {
    let bucket = Policy::token_bucket(Rate::per_second(N), 100);
    let mut world = World::new(bucket, 4, 1, 100 * MS);
    let demand = |_: usize, _: usize, _: u64| 2.0 * N as f64 * TICK as f64 / SECOND as f64;
    for host in 0..4 {
        world.hosts[host].as_mut().unwrap().is_cut_off = true;
        world.run(3 * SECOND, &demand);
    }
    world.passed.clear();
    world.run(10 * SECOND, &demand);
    let passed = world.total(0);
    eprintln!("four hosts cut off in turn: {passed} of {}", 10 * N);
    assert!(passed <= 11 * N, "{passed}");
    assert!(passed >= 9 * N, "{passed}");
}
