//! A store or a host that loses what it knows of a quota: another one has it.

use super::events::{N, idle, on, quotas};
use super::world::{MS, SECOND, TICK, World};

#[test]
fn a_used_up_quota_survives_an_emptied_store() {
    for (name, policy) in quotas() {
        let mut world = World::new(policy, 2, 1, 100 * MS);
        let mut passed = vec![world.exhaust(0)];
        for _ in 0..2 {
            world.ledger.empty();
            world.run(SECOND, &idle);
            world.join();
            world.run(SECOND, &idle);
            passed.push(world.exhaust(world.hosts.len() - 1));
        }
        world.assert_quota(name, &passed);
    }
}

/// Hosts that do not see each other in the store for a while still take only their parts.
#[test]
fn a_store_that_is_emptied_between_exchanges_passes_no_quota_again() {
    for (name, policy) in quotas()
        .into_iter()
        .filter(|(name, _)| !name.contains("bucket"))
    {
        for every in [30 * MS, 50 * MS, 150 * MS] {
            let mut world = World::new(policy, 4, 1, 100 * MS);
            for _ in 0..8 * SECOND / every {
                world.ledger.empty();
                world.run(every, &|_, _, _| {
                    N as f64 * TICK as f64 / SECOND as f64 / 4.0
                });
            }
            let total = world.total(0);
            eprintln!("{name}, emptied every {} ms: {total}", every / MS);
            assert!(total <= N + N / 20, "{name}, {every}: {total}");
        }
    }
}

/// The other host has only received the use; the one that passed it ends before it writes. A host that joins reads it.
#[test]
fn the_use_of_a_killed_host_is_written_by_the_others() {
    for (name, policy) in quotas() {
        for hosts in [1, 2, 4] {
            let mut world = World::new(policy, hosts, 1, 100 * MS);
            world.run(SECOND + 500 * MS, &|host, _, _| {
                f64::from(u8::from(host == 0)) * 0.6 * N as f64 * TICK as f64 / SECOND as f64
            });
            world.hosts[0] = None;
            world.run(2 * SECOND, &idle);
            let before = world.total(0);
            world.join();
            world.run(SECOND, &idle);
            let passed = [before, world.exhaust(hosts)];
            // The units since its last exchange are lost with it; those of three syncs if it is alone.
            let lost = if hosts == 1 { 300 } else { 100 } * 6 * N / 10_000;
            eprintln!("{name}, one of {hosts} killed: {passed:?}");
            assert!(world.total(0) <= N + lost, "{name}, {hosts}: {passed:?}");
            assert!(world.total(0) >= N * 95 / 100, "{name}: {passed:?}");
        }
    }
}

/// A replica that lacks the last seconds becomes the master, and as much is written to it before the first host notices.
#[test]
fn use_that_a_failover_loses_is_written_again() {
    for (name, policy) in quotas() {
        let mut world = World::new(policy, 2, 2, 100 * MS);
        world.run(SECOND, &idle);
        let replica = world.ledger.clone();
        world.run(700 * MS, &|host, key, _| {
            f64::from(u8::from(host == 0 && key == 0)) * 0.02 * N as f64
        });
        // It is written, and not used any more.
        world.run(SECOND, &idle);
        world.ledger = replica;
        // The version is soon that of before the loss.
        world.ledger.version += 10;
        world.run(2 * SECOND, &|host, key, _| {
            f64::from(u8::from(host == 1 && key == 1)) * 0.001 * N as f64
        });
        world.hosts[0] = None;
        world.hosts[1] = None;
        world.join();
        world.run(SECOND, &idle);
        world.exhaust(2);
        world.assert_quota(name, &[world.total(0)]);
    }
}

/// The host that finds the store empty first is new, and has demand at once.
#[test]
fn a_new_host_in_an_emptied_store_passes_no_quota_again() {
    for (name, policy) in quotas() {
        let mut world = World::new(policy, 2, 1, 100 * MS);
        world.exhaust(0);
        world.ledger.empty();
        for host in world.hosts.iter_mut().flatten() {
            host.is_stopped = true;
        }
        let host = world.host(100 * MS);
        world.hosts.push(Some(host));
        world.hosts[2].as_mut().unwrap().next_sync = world.now;
        world.run(500 * MS, &|host, _, _| {
            f64::from(u8::from(host == 2)) * N as f64 * TICK as f64 / SECOND as f64
        });
        for host in world.hosts.iter_mut().flatten() {
            host.is_stopped = false;
        }
        world.run(3 * SECOND, &on(2));
        world.assert_quota(name, &[world.total(0)]);
    }
}
