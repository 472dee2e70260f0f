//! Publishers: one that counts hosts, and two at once.

use std::collections::BTreeMap;

use super::naive;
use super::scenarios::{HOSTS, SECOND, WHOLE, assert_kept};
use super::world::{BAKE, EVERY, World};
use crate::canary::NoHosts;
use crate::overview::Overview;
use crate::publish::{self, Draft, PublishError};
use crate::testing::start;

#[test]
fn two_publishers_at_once_stop_the_version() {
    let mut world = World::new(HOSTS, 8);
    naive::two_publishers_at_once(&mut world);
    assert_kept(&world);
    assert_eq!(world.with_version(1), 0);
    let release = world.release(2, "1%", "ann");
    world.publish(release);
    world.run(WHOLE);
    assert_eq!(world.with_version(2), HOSTS);
    assert_kept(&world);
}

#[test]
fn a_second_publisher_after_the_bake_reaches_nobody() {
    let mut world = World::new(HOSTS, 14);
    naive::second_publisher_after_the_bake(&mut world);
    assert_kept(&world);
    let release = world.release(2, "1%", "bob");
    world.publish(release);
    world.run(WHOLE);
    assert_eq!(world.with_version(2), HOSTS);
    assert_kept(&world);
}

#[test]
fn a_publisher_counts_the_hosts_that_have_reported() {
    let mut world = World::new(HOSTS, 13);
    let draft = |world: &World| Draft {
        stream: "web".into(),
        publisher: "ops".into(),
        share: "1%".parse().unwrap(),
        bake: BAKE,
        lifetime: BAKE * 100,
        select: BTreeMap::new(),
        predicted: BTreeMap::new(),
        objects: world.release(1, "1%", "ops").objects,
    };
    let publish = |world: &mut World| {
        let (reports, now) = (world.store.reports(), start() + world.now);
        let published = world.store.contents.releases.iter();
        let published: Vec<u64> = published.map(|head| head.release.version).collect();
        let release = publish::next(draft(world), &published, &reports, now)?;
        world.publish(release);
        Ok::<_, PublishError>(())
    };
    assert_eq!(publish(&mut world), Err(NoHosts.into()));
    world.run(EVERY * 3);
    for version in 1..=2 {
        publish(&mut world).unwrap();
        world.run(EVERY * 2 + SECOND);
        let overview = Overview::of(&world.store.reports(), version);
        assert_eq!((overview.trying, overview.waiting), (10, 990));
        world.run(WHOLE);
        let overview = Overview::of(&world.store.reports(), version);
        assert_eq!((overview.held, overview.obstacles.len()), (1_000, 0));
        assert_eq!(overview.effective, BTreeMap::from([(version, 1_000)]));
    }
    assert_kept(&world);
}
