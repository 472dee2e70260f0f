//! Two streams on the same hosts: a fleet's, and that of a team. A host has one trial at a time.

use std::collections::BTreeSet;
use std::time::Duration;

use super::scenarios::{HOSTS, SECOND, WHOLE, assert_kept};
use super::world::{BAKE, EVERY, STEP, World};

/// Both have the name `web`, and so the same canaries.
struct Both {
    fleet: World,
    team: World,
    /// How many steps of time a host has waited with rules of one stream for those of the other.
    waits: usize,
}

impl Both {
    fn new(seed: u64) -> Self {
        Self {
            fleet: World::new(HOSTS, seed),
            team: World::new(HOSTS, seed + 1),
            waits: 0,
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.fleet.now + time;
        while self.fleet.now < end {
            self.fleet.occupied = trying(&self.team);
            self.fleet.run(STEP);
            self.team.occupied = trying(&self.fleet);
            self.team.run(STEP);
            let (fleet, team) = (trying(&self.fleet), trying(&self.team));
            assert!(fleet.is_disjoint(&team), "two trials at once");
            self.waits += self.fleet.waiting.len() + self.team.waiting.len();
        }
    }

    fn publish(&mut self, version: u64, is_team_bad: bool) {
        let release = self.fleet.release(version, "1%", "ops");
        self.fleet.publish(release);
        let release = self.team.release(version, "1%", "search");
        if is_team_bad {
            self.team.publish_bad(release);
        } else {
            self.team.publish(release);
        }
        assert_eq!(self.fleet.canaries(version), self.team.canaries(version));
    }
}

/// The hosts that have rules on trial.
fn trying(world: &World) -> BTreeSet<usize> {
    let hosts = world.hosts.iter().enumerate();
    let baking = hosts.filter(|(_, host)| !host.is_off && host.host.is_baking());
    baking.map(|(nth, _)| nth).collect()
}

#[test]
fn two_streams_at_once_arrive_one_after_the_other() {
    let mut both = Both::new(20);
    both.publish(1, false);
    both.run(WHOLE * 2);
    assert!(both.waits > 0);
    for world in [&both.fleet, &both.team] {
        assert_eq!(world.with_version(1), HOSTS);
        assert_kept(world);
    }
}

#[test]
fn bad_rules_of_a_team_leave_those_of_the_fleet_in_effect() {
    let mut both = Both::new(22);
    both.publish(1, false);
    both.run(WHOLE * 2);
    both.publish(2, true);
    both.run(WHOLE * 2);
    assert_eq!(both.team.with_version(1), HOSTS);
    assert_eq!(both.team.reached[&2], both.team.canaries(2));
    assert_eq!(both.fleet.with_version(2), HOSTS);
    for world in [&both.fleet, &both.team] {
        assert_kept(world);
    }
}

#[test]
fn an_abort_ends_rules_that_wait_for_another_trial() {
    let mut both = Both::new(24);
    both.publish(1, false);
    both.run(EVERY + SECOND * 2);
    assert!(both.waits > 0);
    let abort = both.team.key.abort(1);
    both.team.store.abort(1, abort);
    both.run(EVERY * 2 + SECOND);
    assert_eq!(both.team.waiting.len() + trying(&both.team).len(), 0);
    both.run(BAKE + WHOLE);
    assert_eq!(both.team.with_version(1), 0);
    assert_eq!(both.fleet.with_version(1), HOSTS);
    for world in [&both.fleet, &both.team] {
        assert_kept(world);
    }
}
