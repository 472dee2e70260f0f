//! Keys without room, in publications or in stores: all hosts together pass at most a tenth more.

use std::time::Duration;

use common::rate_limiter::Policy;
use decide::Cut;

use super::super::peer::Peer;
use super::super::wire::Publication;
use super::events::{N, idle, quotas, windows};
use super::seconds;
use super::world::{MS, NUMBER, SECOND, TICK, World};

/// A publication has room for those with the most demand, whatever their order in memory.
#[test]
fn of_keys_with_equal_demand_the_lowest_numbers_have_room() {
    let mut peer = Peer::new("a".to_owned(), 20, Duration::from_millis(100));
    let cut = |key| Cut {
        key,
        spent: if key == 15 { 9 } else { 5 },
        used: 9,
        over: 0,
        refused: 0,
        open: 5,
    };
    let cuts = || (1..=15).map(cut).collect();
    let cuts = [(NUMBER, true, cuts()), (NUMBER + 1, true, cuts())];
    let publication = Publication::decode(&peer.publish(SECOND, &cuts)).unwrap();
    let mut published = Vec::new();
    for (number, entries) in &publication.series {
        published.extend(entries.iter().map(|entry| (*number, entry.key)));
    }
    published.sort_unstable();
    let first = (1..=15).map(|key| (NUMBER, key));
    let second = [1, 2, 3, 4, 15].map(|key| (NUMBER + 1, key));
    assert!(first.chain(second).eq(published.clone()), "{published:?}");
    assert_eq!(peer.counts(NUMBER), (15, 0));
    assert_eq!(peer.counts(NUMBER + 1), (5, 10));
}

/// Junk keys take the room in publications: of a key without room, each host passes its part.
#[test]
fn keys_without_room_pass_their_limit() {
    let units = |count| {
        let bucket = Policy::token_bucket(seconds(count, 36_000), count);
        windows(count, 36_000)
            .into_iter()
            .chain([("bucket", bucket)])
    };
    let count = 8;
    for (name, policy) in units(count) {
        let mut world = World::new(policy, 3, 60, 100 * MS);
        for host in world.hosts.iter_mut().flatten() {
            host.peer.reconfigure(20, Duration::from_nanos(100 * MS));
        }
        let demand = |victim: f64| {
            move |_: usize, key: usize, _: u64| if key == 0 { victim } else { count as f64 }
        };
        world.run(SECOND, &demand(0.0));
        world.run(8 * SECOND, &demand(0.02 * count as f64));
        let passed = world.total(0);
        eprintln!("{name}: {passed} of {count}");
        // Units before the first exchange count for every host.
        let most = if name == "bucket" { 11 } else { count };
        assert!(passed <= most, "{name}: {passed} of {count}");
        assert!(passed >= count - 1, "{name}: {passed} of {count}");
    }
}

/// A key without room passes its part of each window, and the exchange keeps no record of it.
#[test]
fn keys_without_room_pass_their_limit_in_each_window() {
    let count = 80;
    for (name, policy) in windows(count, 10) {
        let mut world = World::new(policy, 4, 200, 100 * MS);
        for host in world.hosts.iter_mut().flatten() {
            host.peer.reconfigure(20, Duration::from_nanos(100 * MS));
        }
        while world.now % (10 * SECOND) >= TICK {
            world.step(&idle);
        }
        world.passed.clear();
        // Other keys each second, with more demand.
        world.run(30 * SECOND, &|_, key, after| match key {
            0 => 0.002 * count as f64,
            _ if key as u64 % 10 == after / SECOND % 10 => 0.1 * count as f64,
            _ => 0.0,
        });
        let most = match name {
            "log" => world.most_in(0, 10 * SECOND),
            _ => world.most_in_windows(0, 10 * SECOND),
        };
        let total = world.total(0);
        eprintln!("{name}: {most} of {count}, {total}");
        assert!(most <= count * 11 / 10 + 3, "{name}: {most} of {count}");
        assert!(total >= 2 * count, "{name}: {total}");
        // Its own twenty, and those of each other host.
        for host in world.hosts.iter().flatten() {
            assert!(host.peer.keys() <= 4 * 20, "{name}: {}", host.peer.keys());
        }
    }
}

/// Of four hosts, some have room in their stores for no other key.
#[test]
fn a_key_without_room_on_some_hosts_passes_its_limit() {
    for (name, policy) in quotas() {
        // A bucket's key that starts on several hosts at once may take a burst on each.
        for full in if name == "bucket" { 3..=4 } else { 1..=4 } {
            let mut world = World::new(policy, 4 - full, 9, 100 * MS);
            world.capacity = 8;
            (0..full).for_each(|_| world.join());
            world.run(SECOND, &|_, key, _| f64::from(u8::from(key > 0)));
            world.run(4 * SECOND, &|_, key, _| {
                f64::from(u8::from(key == 0)) * 0.01 * N as f64
            });
            let total = world.total(0);
            eprintln!("{name}, without room on {full} of 4: {total} of {N}");
            assert!(total <= N * 11 / 10, "{name}, on {full}: {total} of {N}");
            assert!(total > 0, "{name}, on {full}: {total}");
        }
    }
}
