//! Demand that rises, stops or is small, with the store near or far away: all hosts together pass at most a tenth more.

use common::limiter::Rate;
use common::rate_limiter::Policy;

use super::events::{N, idle, windows};
use super::world::{MS, SECOND, TICK, World};
use super::{SPREADS, part_of};

/// Demand of one host rises, or of all hosts one after the other, at any instant before a window begins.
#[test]
fn a_window_passes_its_count_when_demand_rises_before_it() {
    let per_tick = |per_second: f64| per_second * TICK as f64 / SECOND as f64;
    for (name, policy) in windows(N, 10) {
        for (one_way, hosts_that_rise) in [(0, 1), (0, 4), (50 * MS, 4), (150 * MS, 4)] {
            for before in [20, 100, 140, 260] {
                let mut world = World::new(policy, 4, 1, 100 * MS);
                world.one_way = one_way;
                while world.now % (10 * SECOND) >= TICK {
                    world.step(&idle);
                }
                world.passed.clear();
                world.run(11 * SECOND, &|host, _, after| {
                    let rises = host < hosts_that_rise && after + before * MS >= 10 * SECOND;
                    per_tick(if rises { 20_000.0 } else { 20.0 })
                });
                let most = match name {
                    "log" => world.most_in(0, 10 * SECOND),
                    _ => world.most_in_windows(0, 10 * SECOND),
                };
                let what = format!(
                    "{name}, {hosts_that_rise} hosts {before} ms before, {} ms one way",
                    one_way / MS
                );
                eprintln!("{what}: {most} of {N}");
                assert!(most <= N * 11 / 10, "{what}: {most} of {N}");
            }
        }
    }
}

/// Each of four hosts has the demand in turn; the store is as far away as its timeout allows.
#[test]
fn windows_pass_their_count_at_any_round_trip() {
    for (name, policy) in windows(N, 10) {
        for one_way in [80, 160] {
            for spread in SPREADS.into_iter().skip(1) {
                let mut world = World::new(policy, 4, 1, 100 * MS);
                world.one_way = one_way * MS;
                world.run(20 * SECOND, &part_of(500.0, 4, spread));
                let most = match name {
                    "log" => world.most_in(0, 10 * SECOND),
                    _ => world.most_in_windows(0, 10 * SECOND),
                };
                let total = world.total(0);
                let what = format!("{name}, {}, {one_way} ms one way", spread.0);
                eprintln!("{what}: {most} of {N}, {total}");
                assert!(most <= N * 11 / 10, "{what}: {most} of {N}");
            }
        }
    }
}

/// Log-ins: a few tries one after the other on one or all hosts, then one on each host at once, again and again.
#[test]
fn a_window_of_few_units_passes_no_more_than_them() {
    for (count, hosts) in [(5, 5), (8, 5), (20, 4)] {
        for (name, policy) in windows(count, 36_000) {
            for (pause, first) in [(SECOND, 2), (SECOND, 4), (150 * MS, 4), (300 * MS, 12)] {
                let mut world = World::new(policy, hosts, 1, 100 * MS);
                for nth in 0..first {
                    world.step(&|host, _, _| f64::from(u8::from(host == nth % hosts)));
                    world.run(pause, &idle);
                }
                let before = world.total(0);
                for _ in 0..40 {
                    world.step(&|_, _, _| 1.0);
                    world.run(pause, &idle);
                }
                let total = world.total(0);
                let what = format!("{name}, {count} on {hosts}, {first} each {} ms", pause / MS);
                eprintln!("{what}: {before}, {total}");
                assert!(total >= count, "{what}: {total}");
                assert!(total <= count, "{what}: {total}");
            }
        }
    }
}

/// Twice the rate, from a store that stands still for three fourths of a lease, again and again: hosts assume the others'
/// demand for as long as they wait.
#[test]
fn a_bucket_keeps_its_rate_while_the_store_stalls() {
    for burst in [20, 100] {
        let policy = Policy::token_bucket(Rate::per_second(100), burst);
        let mut world = World::new(policy, 4, 1, 100 * MS);
        let demand = |_: usize, _: usize, _: u64| 50.0 * TICK as f64 / SECOND as f64;
        world.run(2 * SECOND, &demand);
        let (rounds, before) = (10, world.total(0));
        for _ in 0..rounds {
            world.one_way = 375 * MS;
            world.run(750 * MS, &demand);
            world.one_way = 0;
            world.run(750 * MS, &demand);
        }
        let (passed, limit) = (world.total(0) - before, burst + rounds * 150);
        eprintln!("burst {burst}: {passed} of {limit}");
        assert!(
            passed <= limit * 11 / 10,
            "burst {burst}: {passed} of {limit}"
        );
        assert!(
            passed >= limit * 7 / 10,
            "burst {burst}: {passed} of {limit}"
        );
    }
}

/// Demand for a fifth of a second in two.
#[test]
fn a_bucket_keeps_its_rate_when_demand_stops_between() {
    for (rate, burst, pulse) in [
        (21, 50, 28.0),
        (45, 50, 200.0),
        (21, 50, 12.0),
        (400, 50, 200.0),
    ] {
        let mut world = World::new(
            Policy::token_bucket(Rate::per_second(rate), burst),
            4,
            1,
            100 * MS,
        );
        world.run(40 * SECOND, &|_, _, after| {
            f64::from(u8::from(after % (2 * SECOND) < 200 * MS)) * pulse / 40.0
        });
        let (passed, limit) = (world.total(0), burst + 40 * rate);
        eprintln!("{rate}/s, burst {burst}, {pulse} at a time: {passed} of {limit}");
        // Before the first exchange each host has the burst.
        assert!(
            passed <= limit * 11 / 10 + 3 * burst,
            "{rate}/s, burst {burst}: {passed} of {limit}"
        );
    }
}
