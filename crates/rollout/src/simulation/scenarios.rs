//! The scenarios that the promises survive.

use std::collections::BTreeSet;
use std::time::Duration;

use super::naive;
use super::store::Lie;
use super::world::{BAKE, EVERY, World, version_of};

pub const HOSTS: usize = 1_000;
pub const SECOND: Duration = Duration::from_secs(1);
/// Until followers have confirmed as well.
pub const WHOLE: Duration = Duration::from_secs(200);

pub fn assert_kept(world: &World) {
    assert_eq!(world.broken, BTreeSet::new());
}

#[test]
fn good_rules_are_on_all_hosts_within_ten_seconds_of_the_bake() {
    for seed in 0..3 {
        let mut world = World::new(HOSTS, seed);
        world.run(SECOND * (20 + 3 * seed as u32));
        let (began, requests) = (world.now, requests(&world));
        let release = world.release(1, "1%", "ops");
        world.publish(release);
        world.run(BAKE);
        assert_eq!(world.with_version(1), 10);
        world.run(EVERY * 3);
        assert_eq!(world.with_version(1), HOSTS);
        let last = world.hosts.iter().map(|host| host.since).max().unwrap();
        let after = last - world.held_at;
        assert!(after <= EVERY, "{after:?}");
        let most = (world.now - began).as_secs_f64() / EVERY.as_secs_f64() * HOSTS as f64;
        let sent = requests_since(&world, requests);
        // Each host has at most one more at an edge.
        assert!(sent as f64 <= most + HOSTS as f64, "{sent} {most}");
        assert_kept(&world);
    }
}

fn requests(world: &World) -> u64 {
    world.hosts.iter().map(|host| host.requests).sum()
}

fn requests_since(world: &World, before: u64) -> u64 {
    requests(world) - before
}

#[test]
fn bad_rules_reach_only_canaries_and_are_back_within_a_check() {
    let mut world = World::new(HOSTS, 1);
    let release = world.release(1, "100%", "ops");
    world.publish(release);
    world.run(BAKE + EVERY * 2);
    let release = world.release(2, "1%", "ops");
    world.publish_bad(release);
    world.run(BAKE * 5);
    assert_eq!(world.with_version(1), HOSTS);
    assert_eq!(world.reached[&2], world.canaries(2));
    assert_eq!(world.reached[&2].len(), 10);
    // The next version repairs it.
    let release = world.release(3, "1%", "ops");
    world.publish(release);
    world.run(WHOLE);
    assert_eq!(world.with_version(3), HOSTS);
    assert_kept(&world);
}

#[test]
fn bad_rules_stay_on_canaries_that_cannot_report() {
    let mut world = World::new(HOSTS, 2);
    naive::bad_rules_on_cut_off_canaries(&mut world);
    assert_eq!(world.with_version(1), 0);
    assert_kept(&world);
}

#[test]
fn hosts_that_cannot_reach_the_store_follow_later() {
    let mut world = World::new(HOSTS, 3);
    let release = world.release(1, "1%", "ops");
    world.publish(release);
    world.run(SECOND * 15);
    let canaries = world.canaries(1);
    for nth in 0..HOSTS {
        world.hosts[nth].is_cut_off = nth % 3 == 0 && !canaries.contains(&nth);
    }
    let cut_off = world.hosts.iter().filter(|host| host.is_cut_off).count();
    world.run(WHOLE);
    assert_eq!(world.with_version(1), HOSTS - cut_off);
    // The whole store is away, and then back.
    world.store.is_down = true;
    world.run(BAKE);
    assert_eq!(world.with_version(1), HOSTS - cut_off);
    world.store.is_down = false;
    for host in &mut world.hosts {
        host.is_cut_off = false;
    }
    world.run(EVERY * 5);
    assert_eq!(world.with_version(1), HOSTS);
    assert_kept(&world);
}

#[test]
fn a_store_that_is_away_at_the_end_of_the_bake_delays_followers_only() {
    let mut world = World::new(HOSTS, 4);
    let release = world.release(1, "1%", "ops");
    world.publish(release);
    world.run(SECOND * 30);
    world.store.is_down = true;
    world.run(BAKE * 2);
    let canaries = world.canaries(1);
    assert!(
        canaries
            .iter()
            .all(|canary| world.hosts[*canary].confirmed == 1)
    );
    assert_eq!(world.with_version(1), canaries.len());
    world.store.is_down = false;
    world.run(EVERY * 5);
    assert_eq!(world.with_version(1), HOSTS);
    assert_kept(&world);
}

#[test]
fn steps_of_wall_clocks_shorten_no_bake_and_expire_nothing() {
    let mut world = World::new(HOSTS, 5);
    naive::clocks_set_during_the_bake(&mut world);
    assert_eq!(world.with_version(1), HOSTS);
    // By years, over and over, also beyond the expiry.
    for step in 0..20 {
        for nth in 0..HOSTS {
            let years = world.random.below(20) as i64 - 10;
            world.hosts[nth].ahead = years * 31_536_000_000;
        }
        if step == 5 {
            let release = world.release(2, "1%", "ops");
            world.publish(release);
        }
        world.run(EVERY);
        let lost = world
            .hosts
            .iter()
            .filter(|host| host.rules.is_none())
            .count();
        assert_eq!(lost, 0);
    }
    for host in &mut world.hosts {
        host.ahead = 0;
    }
    world.run(WHOLE * 2);
    assert_eq!(world.with_version(2), HOSTS);
    assert_kept(&world);
}

#[test]
fn a_store_that_lies_changes_nothing_in_effect() {
    let mut world = World::new(HOSTS, 6);
    for version in 1..=2 {
        let release = world.release(version, "100%", "ops");
        world.publish(release);
        world.run(BAKE + EVERY * 2);
    }
    for lie in Lie::ALL {
        world.store.lie = Some(lie);
        world.run(EVERY * 3);
        assert_eq!(world.with_version(2), HOSTS, "{lie:?}");
        let reported = world
            .hosts
            .iter()
            .filter(|host| host.host.report().refused.is_some());
        assert_eq!(reported.count(), HOSTS, "{lie:?}");
    }
    // Lies during a trial stop it neither, and do not let followers out.
    world.store.lie = None;
    let release = world.release(3, "1%", "ops");
    world.publish(release);
    world.run(SECOND * 15);
    for lie in Lie::ALL {
        world.store.lie = Some(lie);
        world.run(SECOND * 15);
        assert!(world.with_version(3) == 10 || world.with_version(3) == 0);
    }
    world.store.lie = None;
    world.run(WHOLE);
    assert_eq!(world.with_version(3), HOSTS);
    assert_kept(&world);
}

#[test]
fn a_restored_store_takes_no_host_back() {
    let mut world = World::new(HOSTS, 7);
    naive::reboots_before_a_restored_store(&mut world);
    assert_eq!(world.with_version(2), HOSTS);
    assert_kept(&world);
}

#[test]
fn a_store_that_lost_the_reports_gets_them_again() {
    let mut world = World::new(HOSTS, 9);
    naive::reports_lost_at_the_end(&mut world);
    assert_eq!(world.with_version(1), HOSTS);
    assert_kept(&world);
}

#[test]
fn an_abort_ends_a_release_at_every_stage() {
    // On canaries, while others begin, and when all have it.
    for after in [30, 80, 200] {
        let mut world = World::new(HOSTS, 10);
        let release = world.release(1, "100%", "ops");
        world.publish(release);
        world.run(BAKE + EVERY * 2);
        let release = world.release(2, "1%", "ops");
        world.publish(release);
        world.run(SECOND * after);
        assert!(world.with_version(2) > 0);
        let abort = world.key.abort(2);
        world.store.abort(2, abort);
        // A report may take the place of the next read.
        world.run(EVERY * 2 + SECOND);
        assert_eq!(world.with_version(1), HOSTS, "{after}");
        world.run(WHOLE);
        assert_eq!(world.with_version(1), HOSTS, "{after}");
        assert_kept(&world);
    }
}

#[test]
fn canaries_that_are_switched_off_are_not_waited_for() {
    let mut world = World::new(HOSTS, 11);
    let release = world.release(1, "1%", "ops");
    world.publish(release);
    world.run(SECOND * 30);
    for canary in world.canaries(1).into_iter().take(4) {
        world.hosts[canary].is_off = true;
    }
    world.run(WHOLE);
    assert_eq!(world.with_version(1), HOSTS);
    assert_kept(&world);
}

#[test]
fn a_store_without_conditional_writes_keeps_the_promises() {
    // Half of the hosts, so that canaries write at the same time.
    let mut world = World::new(HOSTS, 15);
    world.store.is_racy = true;
    let release = world.release(1, "50%", "ops");
    world.publish(release);
    world.run(WHOLE * 3);
    assert_eq!(world.with_version(1), HOSTS);
    let release = world.release(2, "50%", "ops");
    world.publish_bad(release);
    world.run(WHOLE * 3);
    assert_eq!(world.with_version(1), HOSTS);
    assert_kept(&world);
}

#[test]
fn fleets_of_any_size_have_a_canary() {
    for hosts in [1, 2, 3, 30] {
        let mut world = World::new(hosts, 12);
        let release = world.release(1, "1%", "ops");
        world.publish(release);
        world.run(EVERY * 2);
        assert_eq!(world.with_version(1), 1);
        world.run(WHOLE);
        assert_eq!(world.with_version(1), hosts);
        assert_kept(&world);
    }
}

#[test]
fn chaos_breaks_no_promise_and_good_rules_arrive_at_last() {
    for seed in 0..4 {
        let mut world = World::new(300, 100 + seed);
        let mut version = 0;
        for _ in 0..60 {
            chaos(&mut world, &mut version);
            world.run(SECOND * 8);
            assert_kept(&world);
        }
        world.store.lie = None;
        world.store.is_down = false;
        for nth in 0..300 {
            if world.hosts[nth].is_off {
                world.restart(nth);
            }
            (world.hosts[nth].is_cut_off, world.hosts[nth].ahead) = (false, 0);
        }
        version += 1;
        let release = world.release(version, "2%", "ops");
        world.publish(release);
        world.run(WHOLE);
        assert_eq!(world.with_version(version), 300, "seed {seed}");
        assert_kept(&world);
    }
}

/// One mishap, and sometimes a release.
fn chaos(world: &mut World, version: &mut u64) {
    let nth = world.random.below(300) as usize;
    match world.random.below(9) {
        0 => world.hosts[nth].ahead = world.random.below(1 << 40) as i64 - (1 << 39),
        1 => world.restart(nth),
        2 if world.hosts[nth].is_off => world.restart(nth),
        2 => world.hosts[nth].is_off = true,
        3 => {
            for host in world.hosts.iter_mut().step_by(1 + nth % 7) {
                host.is_cut_off ^= true;
            }
        }
        4 => world.store.is_down ^= true,
        5 => {
            let lie = Lie::ALL[nth % Lie::ALL.len()];
            world.store.lie = world.store.lie.is_none().then_some(lie);
        }
        6 => world.store.forget_reports(),
        7 => {
            let tried = world
                .hosts
                .iter()
                .map(|host| version_of(host.rules.as_ref()));
            let newest = tried.max().unwrap_or(0);
            if newest > 0 && world.random.once_in(3) {
                let abort = world.key.abort(newest);
                world.store.abort(newest, abort);
            }
        }
        _ => {
            *version += 1;
            let release = world.release(*version, "2%", "ops");
            if world.random.once_in(2) {
                world.publish_bad(release);
            } else {
                world.publish(release);
            }
        }
    }
}
