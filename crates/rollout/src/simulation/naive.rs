//! Hosts that lack one idea each. The real state machine runs on falsified inputs; the world must notice.

use std::time::{Duration, SystemTime};

use super::store::Published;
use super::world::{BAKE, EVERY, Simulated, World, is_of_version};
use crate::board::Board;
use crate::canary::Canary;
use crate::host::{Head, Reply};

/// The idea that a host lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naive {
    /// Follows when the bake has passed since the publication.
    FollowsByTime,
    /// Follows when the bake has passed and no canary has reported a failure.
    TakesSilenceForHealth,
    /// Measures time by the wall clock.
    WallClock,
    /// Remembers nothing over a restart.
    Forgetful,
    /// Takes documents of one version for one document.
    ComparesVersions,
    /// Reports once, whether the store still has the report or not.
    ReportsOnce,
}

impl Naive {
    /// Changes what the store replied into what such a host makes of it.
    pub fn misread(
        self,
        reply: &mut Reply,
        host: &Simulated,
        head: Option<&Published>,
        wall: SystemTime,
    ) {
        let Some(head) = head else {
            return;
        };
        let is_over = wall >= head.release.published + BAKE + EVERY;
        match self {
            Self::FollowsByTime => {
                reply.board = Board {
                    held: is_over.into(),
                    ..Board::default()
                };
            }
            Self::TakesSilenceForHealth => {
                let is_silent = reply.board.failed.is_none() && reply.board.trying == 0;
                if is_over && is_silent {
                    reply.board.held = 1;
                }
            }
            Self::ComparesVersions => {
                if is_of_version(&reply.head, head, host.host.saved().highest())
                    && host.host.known().is_some()
                {
                    reply.head = Head::Unchanged;
                }
            }
            Self::ReportsOnce => {
                let report = host.host.report();
                reply.board.mine = report.counts.then_some(report);
            }
            Self::WallClock | Self::Forgetful => {}
        }
    }
}

fn assert_broken(world: &World, promise: &str) {
    let is_broken = world.broken.iter().any(|broken| broken == promise);
    assert!(is_broken, "{:?}", world.broken);
}

/// Canaries fail while they cannot reach the store.
pub fn bad_rules_on_cut_off_canaries(world: &mut World) {
    let release = world.release(1, "1%", "ops");
    world.publish_bad(release);
    world.run(EVERY + Duration::from_millis(300));
    for canary in world.canaries(1) {
        world.hosts[canary].is_cut_off = true;
    }
    world.store.forget_reports();
    world.run(BAKE * 4);
}

/// Clocks are set forwards during the bake.
pub fn clocks_set_during_the_bake(world: &mut World) {
    let release = world.release(1, "50%", "ops");
    world.publish(release);
    world.run(EVERY + Duration::from_secs(2));
    for (nth, host) in world.hosts.iter_mut().enumerate() {
        host.ahead += if nth % 2 == 0 { 3_600_000 } else { -3_600_000 };
    }
    world.run(BAKE * 3);
}

/// A store that was restored to its first release, and hosts that reboot.
pub fn reboots_before_a_restored_store(world: &mut World) {
    for version in 1..=2 {
        let release = world.release(version, "100%", "ops");
        world.publish(release);
        world.run(BAKE + EVERY * 3);
    }
    world.store.restore(1);
    for host in 0..world.hosts.len() {
        world.restart(host);
    }
    world.run(BAKE + EVERY * 3);
}

/// Two publishers sign the same version; the second replaces the first while canaries have it on trial.
pub fn two_publishers_at_once(world: &mut World) {
    let (first, second) = (
        world.release(1, "10%", "ann"),
        world.release(1, "10%", "bob"),
    );
    world.publish(first);
    world.run(EVERY / 2);
    world.publish(second);
    world.run(BAKE * 4);
}

/// The second publisher comes when the first document is confirmed on canaries, and hosts join that have read neither.
pub fn second_publisher_after_the_bake(world: &mut World) {
    let (first, second) = (
        world.release(1, "10%", "ann"),
        world.release(1, "10%", "bob"),
    );
    let newcomers = world.hosts.len() / 2;
    for host in &mut world.hosts[..newcomers] {
        host.is_off = true;
    }
    world.publish(first);
    let canaries = world.canaries(1);
    let is_held = |world: &World| {
        canaries
            .iter()
            .any(|canary| world.hosts[*canary].confirmed == 1)
    };
    while !is_held(world) {
        world.run(Duration::from_millis(100));
    }
    world.publish(second);
    world.run(EVERY * 3);
    for host in 0..newcomers {
        world.restart(host);
    }
    world.run(BAKE * 4);
}

/// The store loses all reports at the end of the bake.
pub fn reports_lost_at_the_end(world: &mut World) {
    let release = world.release(1, "1%", "ops");
    world.publish(release);
    let canaries = world.canaries(1);
    while !canaries
        .iter()
        .all(|canary| world.hosts[*canary].confirmed == 1)
    {
        world.run(Duration::from_millis(100));
    }
    world.run(Duration::from_millis(300));
    world.store.forget_reports();
    world.run(EVERY * 6);
}

#[test]
fn time_alone_lets_bad_rules_out() {
    let mut world = World::with(200, 1, Some(Naive::FollowsByTime));
    bad_rules_on_cut_off_canaries(&mut world);
    assert_broken(&world, "bad rules reached a host that is no canary");
}

#[test]
fn silence_lets_bad_rules_out() {
    let mut world = World::with(200, 2, Some(Naive::TakesSilenceForHealth));
    bad_rules_on_cut_off_canaries(&mut world);
    assert_broken(&world, "bad rules reached a host that is no canary");
}

#[test]
fn the_wall_clock_breaks_the_pace() {
    let mut world = World::with(200, 3, Some(Naive::WallClock));
    clocks_set_during_the_bake(&mut world);
    assert_broken(&world, "more than one request in `every`");
}

#[test]
fn without_memory_a_restored_store_wins() {
    let mut world = World::with(50, 4, Some(Naive::Forgetful));
    reboots_before_a_restored_store(&mut world);
    assert_broken(&world, "a host returned to older rules");
}

#[test]
fn versions_alone_keep_two_documents() {
    let mut world = World::with(200, 5, Some(Naive::ComparesVersions));
    two_publishers_at_once(&mut world);
    assert_broken(&world, "two documents of one version were kept");
}

#[test]
fn a_report_that_is_sent_once_may_be_lost() {
    let mut world = World::with(200, 6, Some(Naive::ReportsOnce));
    reports_lost_at_the_end(&mut world);
    assert!(world.with_version(1) < 200, "{}", world.with_version(1));
}

#[test]
fn a_share_of_positions_leaves_small_fleets_without_a_canary() {
    // 1 % of all positions, whatever hosts there are.
    let text = format!(
        "share = \"1%\"\nhosts = 3\nup_to = \"{:016x}\"\n",
        u64::MAX / 100
    );
    let canary: Canary = toml::from_str(&text).unwrap();
    let without = (1..=100).filter(|version| {
        let hosts = ["host-0", "host-1", "host-2"];
        !hosts
            .iter()
            .any(|host| canary.includes(host, "web", *version))
    });
    assert!(without.count() > 90);
}
