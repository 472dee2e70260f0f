//! Buckets whose hosts are without the store for a time.

use common::limiter::Rate;
use common::rate_limiter::Policy;
use testbed::random::Random;

use super::events::{N, SEEDS, idle, on};
use super::seconds;
use super::world::{MS, SECOND, TICK, World};

/// A bucket that refills in ten hours.
fn slow() -> Policy {
    Policy::token_bucket(seconds(N, 36_000), N)
}

/// Each outage uses what the share has, on one host or on all.
#[test]
fn outages_reset_no_slow_bucket() {
    for is_even in [false, true] {
        let mut world = World::new(slow(), 4, 1, 100 * MS);
        let mut passed = Vec::new();
        for outage in 0..4 {
            let before = world.total(0);
            let demand = |nth: usize, _: usize, _: u64| {
                let is_asked = is_even || nth == outage;
                f64::from(u8::from(is_asked)) * 0.1 * N as f64 * TICK as f64 / SECOND as f64
            };
            world.ledger.is_away = true;
            world.run(6 * SECOND, &demand);
            world.ledger.is_away = false;
            world.run(SECOND, &demand);
            world.run(SECOND, &idle);
            passed.push(world.total(0) - before);
            for host in world.hosts.iter().flatten() {
                let debt = host
                    .store
                    .peek(world.keys[0], world.now + host.ahead, 1)
                    .debt;
                assert!(debt <= N / 50, "{passed:?}: {debt}");
            }
        }
        for host in 0..4 {
            passed.push(world.exhaust(host));
        }
        eprintln!("even: {is_even}: {passed:?}");
        // Each unit of one host counts for all hosts.
        let most = if is_even { N } else { N / 4 };
        assert!(world.total(0) <= most + N / 100, "{passed:?}");
        assert!(world.total(0) >= most - N / 100, "{passed:?}");
    }
}

/// All hosts use a key that none has used before, and return one after the other: each reads what those before wrote.
#[test]
fn what_all_hosts_use_without_a_store_is_counted_once() {
    let mut world = World::new(slow(), 4, 1, 100 * MS);
    let demand = |_: usize, _: usize, _: u64| 0.02 * N as f64 * TICK as f64 / SECOND as f64;
    for host in world.hosts.iter_mut().flatten() {
        host.is_cut_off = true;
    }
    world.run(2 * SECOND, &idle);
    world.run(5 * SECOND, &demand);
    for host in 0..4 {
        world.hosts[host].as_mut().unwrap().is_cut_off = false;
        world.run(400 * MS, &idle);
    }
    world.run(2 * SECOND, &idle);
    let passed = world.total(0);
    for host in world.hosts.iter().flatten() {
        let outcome = host.store.peek(world.keys[0], world.now + host.ahead, 1);
        eprintln!("all use {passed}, left {}", outcome.remaining);
        assert!(outcome.remaining.abs_diff(N - passed) <= N / 50);
    }
}

/// Three hosts use their shares, and a fourth one has all demand from the instant at which the store returns, which may be
/// empty by then.
#[test]
fn demand_that_moves_when_the_store_returns_passes_no_slow_bucket_again() {
    for is_emptied in [false, true] {
        let mut world = World::new(slow(), 4, 1, 100 * MS);
        let quarter = N as f64 / 4.0 * TICK as f64 / SECOND as f64;
        world.ledger.is_away = true;
        world.run(6 * SECOND, &|nth, _, _| {
            f64::from(u8::from(nth < 3)) * quarter
        });
        let before = world.total(0);
        if is_emptied {
            world.ledger.empty();
        }
        world.ledger.is_away = false;
        world.run(6 * SECOND, &on(3));
        let passed = world.total(0);
        eprintln!("moves at the return, emptied: {is_emptied}: {before}, {passed}");
        assert!(passed <= N * 11 / 10, "{before}, {passed}");
    }
}

/// Each host that is cut off passes its share meanwhile, and the others all of the limit.
#[test]
fn a_host_that_is_cut_off_adds_its_share_of_a_slow_bucket() {
    for seed in 0..SEEDS {
        let mut world = World::new(slow(), 4, 1, 100 * MS);
        world.random = Random::new(seed);
        let mut times = 0;
        for _ in 0..8 {
            let (cut, host) = (
                world.random.below(6) as usize,
                world.random.below(4) as usize,
            );
            if let Some(Some(host)) = world.hosts.get_mut(cut) {
                host.is_cut_off = true;
                times += 1;
            }
            let demand = |nth: usize, _: usize, _: u64| {
                f64::from(u8::from(nth == host || nth == cut)) * 0.05 * N as f64 * TICK as f64
                    / SECOND as f64
            };
            world.run(4 * SECOND, &demand);
            for host in world.hosts.iter_mut().flatten() {
                host.is_cut_off = false;
            }
            world.run(SECOND, &demand);
        }
        let passed = world.total(0);
        eprintln!("seed {seed}: {passed}, {times} times");
        assert!(
            passed <= N * 11 / 10 + N / 4,
            "seed {seed}: {passed}, {times} times"
        );
    }
}

/// The others pass all of the limit meanwhile.
#[test]
fn a_host_that_was_cut_off_owes_no_more_than_a_bucket() {
    let bucket = Policy::token_bucket(Rate::per_second(N), 100);
    for away in [5, 60, 600] {
        let mut world = World::new(bucket, 3, 1, 100 * MS);
        let demand = |_: usize, _: usize, _: u64| 0.5 * N as f64 * TICK as f64 / SECOND as f64;
        world.hosts[0].as_mut().unwrap().is_cut_off = true;
        world.run(away * SECOND, &demand);
        world.hosts[0].as_mut().unwrap().is_cut_off = false;
        world.run(2 * SECOND, &demand);
        world.passed.clear();
        world.run(10 * SECOND, &on(0));
        let passed = world.total(0);
        eprintln!("away for {away} s: {passed} of {}", 10 * N);
        assert!(passed >= 9 * N, "away for {away} s: {passed}");
        assert!(passed <= 11 * N, "away for {away} s: {passed}");
    }
}
