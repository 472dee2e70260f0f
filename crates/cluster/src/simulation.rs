//! A thousand hosts with the real ledger and real members, on a simulated clock.
//!
//! Requests and replies take time and get lost; hosts join, die and leave; demand is skewed and moves. Asserted at
//! every step: the shares of living and dead hosts never exceed the limit. Asserted in total: passed units are within a
//! tenth of the lesser of limit and demand.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use common::share::Share;
use config::policy::WhenStoreIsDown;
use testbed::random::Random;

use super::ledger::{Grant, Ledger};
use super::member::{LeaseState, Member, Terms, Usage};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// The limit, in units a second.
const RATE: f64 = 1_000_000.0;

/// The demand on a host at an instant, in units a second.
type Demand = fn(usize, u64) -> f64;

enum Event {
    /// A request reaches the store; its reply follows, or was lost.
    Arrives {
        host: usize,
        run: usize,
        report: super::ledger::Report,
        requested_at: u64,
    },
    /// A reply arrives.
    Answered {
        host: usize,
        run: usize,
        requested_at: u64,
        grant: Option<Grant>,
    },
}

struct Host {
    member: Member,
    /// The number of restarts of its agent.
    run: usize,
    /// How far its clock is ahead, and its drift in millionths.
    ahead: u64,
    faster: u64,
    lives: bool,
    waits: bool,
    usage: Usage,
    passed: f64,
    /// The end of a dead host's share: no host may have it before.
    holds_until: u64,
}

impl Host {
    fn clock(&self, now: u64) -> u64 {
        self.ahead + now + now / 1_000_000 * self.faster
    }
}

struct World {
    now: u64,
    random: Random,
    ledger: Ledger,
    hosts: Vec<Host>,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    contents: std::collections::HashMap<u64, Event>,
    next_event: u64,
    terms: Terms,
    /// Per mille of lost requests and replies.
    lost: u64,
    store_is_up: bool,
    /// How far the store's clock is ahead.
    ahead: u64,
    most_held: f64,
    passed: f64,
    wanted: f64,
}

impl World {
    fn new(sync: Duration, lost: u64) -> Self {
        let when_store_is_down = WhenStoreIsDown::Share;
        let terms = Terms {
            sync,
            lease: Terms::lease_for(sync),
            when_store_is_down,
            rate: RATE,
            units: RATE as u64,
            in_zone: false,
        };
        Self {
            now: SECOND,
            random: Random::new(7),
            ledger: Ledger::default(),
            hosts: Vec::new(),
            events: BinaryHeap::new(),
            contents: Default::default(),
            next_event: 0,
            terms,
            lost,
            store_is_up: true,
            ahead: 0,
            most_held: 0.0,
            passed: 0.0,
            wanted: 0.0,
        }
    }

    fn join(&mut self, count: usize) {
        for _ in 0..count {
            // All clocks differ: by days, and by up to a hundredth of a percent in speed.
            let (ahead, faster) = (
                self.random.below(1_000_000) * SECOND,
                self.random.below(100),
            );
            let host = self.hosts.len();
            let mut new = Host {
                member: Member::new(
                    self.terms.clone(),
                    format!("host-{host}"),
                    Usage::default(),
                    0,
                ),
                run: 0,
                ahead,
                faster,
                lives: true,
                waits: false,
                usage: Usage::default(),
                passed: 0.0,
                holds_until: 0,
            };
            // Joined by its own clock, at a time of its own within a sync; until then it takes no requests.
            let late = self.random.below(self.terms.sync.as_nanos() as u64);
            new.member = Member::new(
                self.terms.clone(),
                format!("host-{host}"),
                Usage::default(),
                new.clock(self.now),
            );
            new.member.request_after(new.clock(self.now + late));
            self.hosts.push(new);
        }
    }

    /// A host dies: it passes nothing any more.
    fn die(&mut self, host: usize) {
        self.hosts[host].lives = false;
        self.hosts[host].holds_until = 0;
    }

    fn leave(&mut self, host: usize) {
        let clock = self.hosts[host].clock(self.now);
        let report = self.hosts[host].member.leave(clock);
        self.hosts[host].lives = false;
        self.ledger.lease((self.now + self.ahead) / 1_000, &report);
    }

    fn later(&mut self, after: u64, event: Event) {
        self.next_event += 1;
        self.contents.insert(self.next_event, event);
        self.events
            .push(Reverse((self.now + after, self.next_event)));
    }

    /// Some 0.2 ms, sometimes 20 ms.
    fn travel(&mut self) -> u64 {
        if self.random.below(100) == 0 {
            20 * MS
        } else {
            100_000 + self.random.below(200_000)
        }
    }

    fn arrives(
        &mut self,
        host: usize,
        run: usize,
        report: &super::ledger::Report,
        requested_at: u64,
    ) {
        if run != self.hosts[host].run {
            return;
        }
        let is_lost = !self.store_is_up || self.random.below(1_000) < self.lost;
        let grant = if is_lost {
            None
        } else {
            self.ledger.lease((self.now + self.ahead) / 1_000, report)
        };
        // The reply may get lost as well; in both cases the host notices by its timeout.
        let is_answered = grant.is_some() && self.random.below(1_000) >= self.lost;
        let after = if is_answered {
            self.travel()
        } else {
            Terms::patience_for(self.terms.sync).as_nanos() as u64
        };
        self.later(
            after,
            Event::Answered {
                host,
                run,
                requested_at,
                grant: grant.filter(|_| is_answered),
            },
        );
    }

    fn answered(&mut self, host: usize, run: usize, requested_at: u64, grant: Option<Grant>) {
        let now = self.now;
        let host = &mut self.hosts[host];
        if run != host.run {
            return;
        }
        host.waits = false;
        if !host.lives {
            return;
        }
        let clock = host.clock(now);
        match grant {
            Some(grant) => drop(host.member.granted(requested_at, &grant, clock)),
            None => host.member.request_after(clock + 50 * MS),
        }
    }

    /// Runs in steps to `until`, with this demand on each host, in units a second.
    fn run(&mut self, until: u64, demand: impl Fn(usize, u64) -> f64) {
        let step = self.terms.sync.as_nanos() as u64 / 10;
        while self.now < until {
            let end = self.now + step;
            while let Some(Reverse((at, nth))) = self
                .events
                .peek()
                .copied()
                .filter(|Reverse((at, _))| *at <= end)
            {
                self.events.pop();
                self.now = self.now.max(at);
                match self.contents.remove(&nth) {
                    Some(Event::Arrives {
                        host,
                        run,
                        report,
                        requested_at,
                    }) => self.arrives(host, run, &report, requested_at),
                    Some(Event::Answered {
                        host,
                        run,
                        requested_at,
                        grant,
                    }) => self.answered(host, run, requested_at, grant),
                    None => {}
                }
            }
            self.now = end;
            let seconds = step as f64 / 1e9;
            let (mut held, mut asking) = (0.0, Vec::new());
            for nth in 0..self.hosts.len() {
                let host = &mut self.hosts[nth];
                if !host.lives {
                    continue;
                }
                let clock = host.clock(end);
                let wanted = demand(nth, end) * seconds;
                let in_effect = host.member.in_effect(clock);
                let passed = wanted.min(in_effect.share.factor() * RATE * seconds);
                host.passed += wanted;
                host.usage.wanted = host.passed as u64;
                host.usage.refused += (wanted - passed).ceil() as u64;
                self.passed += passed;
                self.wanted += wanted;
                host.member.count(host.usage, clock);
                if host.member.state() != LeaseState::Joining {
                    held += in_effect.share.factor();
                }
                if !host.waits && host.member.is_due(clock) {
                    host.waits = true;
                    asking.push((nth, host.member.report(clock), clock));
                }
            }
            self.most_held = self.most_held.max(held);
            for (host, report, requested_at) in asking {
                let after = self.travel();
                let run = self.hosts[host].run;
                self.later(
                    after,
                    Event::Arrives {
                        host,
                        run,
                        report,
                        requested_at,
                    },
                );
            }
        }
    }

    /// The part of the possible units that passed since the last call.
    fn utilisation(&mut self, seconds: f64) -> f64 {
        let could = (RATE * seconds).min(self.wanted);
        let part = self.passed / could;
        (self.passed, self.wanted) = (0.0, 0.0);
        part
    }
}

/// A thousand hosts with a sync of one second, as the manual advises.
fn thousand() -> World {
    let mut world = World::new(Duration::from_secs(1), 2);
    world.join(1_000);
    // Until every host has its share.
    let until = world.now + 15 * SECOND;
    world.run(until, |_, _| 2_000.0);
    world.utilisation(15.0);
    world.most_held = 0.0;
    world
}

#[test]
fn a_thousand_hosts_hold_the_limit_and_use_it_however_demand_is_spread() {
    let mut world = thousand();
    let spreads: [(&str, Demand); 4] = [
        ("even", |_, _| 2_000.0),
        (
            "ninety to ten",
            |host, _| if host < 100 { 18_000.0 } else { 222.0 },
        ),
        (
            "one host alone",
            |host, _| if host == 17 { 3_000_000.0 } else { 0.0 },
        ),
        // A hundred hosts at a time; every twenty seconds the next hundred.
        ("moving", |host, now| {
            if (now / (20 * SECOND)) as usize % 10 == host / 100 {
                20_000.0
            } else {
                10.0
            }
        }),
    ];
    for (name, demand) in spreads {
        let seconds = 60;
        let until = world.now + seconds * SECOND;
        world.run(until, demand);
        let utilisation = world.utilisation(seconds as f64);
        println!(
            "{name}: {:.1} % used, {:.4} held at the most",
            100.0 * utilisation,
            world.most_held
        );
        assert!((0.9..=1.1).contains(&utilisation), "{name}: {utilisation}");
    }
    assert!(world.most_held <= 1.0 + 1e-9, "{}", world.most_held);
}

#[test]
fn hosts_that_join_die_and_leave_take_nothing_beyond_the_limit() {
    let mut world = thousand();
    let demand = |host: usize, _: u64| {
        if host.is_multiple_of(3) {
            9_000.0
        } else {
            500.0
        }
    };
    let mut gone = 0;
    for round in 0..12 {
        let until = world.now + 5 * SECOND;
        world.run(until, demand);
        world.join(50);
        for _ in 0..20 {
            world.die(gone);
            world.leave(gone + 1);
            gone += 2;
        }
        assert!(
            world.most_held <= 1.0 + 1e-9,
            "round {round}: {}",
            world.most_held
        );
    }
    let utilisation = world.utilisation(60.0);
    println!(
        "{:.1} % used while 600 joined, 240 died and 240 left",
        100.0 * utilisation
    );
    assert!((0.9..=1.0 + 1e-9).contains(&utilisation), "{utilisation}");
}

#[test]
fn eight_hosts_follow_demand_that_moves_every_few_seconds() {
    let mut world = World::new(Duration::from_millis(100), 0);
    world.join(8);
    let until = world.now + 2 * SECOND;
    world.run(until, |_, _| RATE);
    world.utilisation(2.0);
    let until = world.now + 30 * SECOND;
    world.run(until, |host, now| {
        if (now / (5 * SECOND)) as usize % 8 == host {
            2.0 * RATE
        } else {
            0.0
        }
    });
    let utilisation = world.utilisation(30.0);
    println!(
        "moving every 5 s between 8 hosts: {:.1} % used",
        100.0 * utilisation
    );
    assert!((0.95..=1.0 + 1e-9).contains(&utilisation), "{utilisation}");
    assert!(world.most_held <= 1.0 + 1e-9, "{}", world.most_held);
}

#[test]
fn a_store_that_fails_or_restarts_empty_never_exceeds_the_limit() {
    let mut world = thousand();
    let demand = |host: usize, _: u64| if host < 100 { 18_000.0 } else { 222.0 };
    let until = world.now + 30 * SECOND;
    world.run(until, demand);
    // Unavailable for longer than a lease: each host enforces its fallback, and the sum is the limit.
    world.store_is_up = false;
    let until = world.now + 30 * SECOND;
    world.run(until, demand);
    assert!(
        world
            .hosts
            .iter()
            .all(|host| host.member.state() == LeaseState::Alone)
    );
    // Available again, with its contents lost.
    world.store_is_up = true;
    world.ledger = Ledger::default();
    let until = world.now + 30 * SECOND;
    world.run(until, demand);
    // Emptied again, while all leases are valid.
    world.ledger = Ledger::default();
    let until = world.now + 2 * SECOND;
    world.run(until, demand);
    let settling = world
        .hosts
        .iter()
        .filter(|host| host.member.is_quiet())
        .count();
    assert!(settling > 900, "{settling}");
    let until = world.now + 28 * SECOND;
    world.run(until, demand);
    assert!(world.most_held <= 1.0 + 1e-9, "{}", world.most_held);
    world.utilisation(1.0);
    let until = world.now + 20 * SECOND;
    world.run(until, demand);
    let utilisation = world.utilisation(20.0);
    assert!((0.9..=1.0 + 1e-9).contains(&utilisation), "{utilisation}");
    assert!(Share::of_parts(world.ledger.held()) <= Share::WHOLE);
}

/// Four hosts, one of which at a time has nearly all demand.
fn four() -> World {
    let mut world = World::new(Duration::from_millis(100), 0);
    world.join(4);
    let until = world.now + 3 * SECOND;
    world.run(until, |_, _| RATE);
    world.most_held = 0.0;
    world
}

fn moving(host: usize, now: u64) -> f64 {
    if (now / (700 * MS)) as usize % 4 == host {
        2.0 * RATE
    } else {
        RATE / 10.0
    }
}

#[test]
fn a_replica_that_lagged_lets_out_no_more_than_the_limit() {
    for lag in [50, 150, 300, 900, 3_000] {
        let mut world = four();
        for round in 0..20 {
            let until = world.now + (1_000 + 37 * round) * MS;
            world.run(until, moving);
            // Later grants are lost.
            let replica = world.ledger.clone();
            let until = world.now + lag * MS;
            world.run(until, moving);
            world.ledger = replica;
            for host in &mut world.hosts {
                // Pending requests are lost with the connection.
                (host.run, host.waits) = (host.run + 1, false);
                host.member.reconnected();
            }
            // A replica has another machine's clock.
            world.ahead = world.random.below(20 * MS);
        }
        let until = world.now + 5 * SECOND;
        world.run(until, moving);
        println!(
            "a replica {lag} ms behind: {:.4} held at the most",
            world.most_held
        );
        assert!(
            world.most_held <= 1.0 + 1e-9,
            "{lag} ms: {}",
            world.most_held
        );
    }
}

#[test]
fn a_store_whose_clock_steps_by_any_part_of_a_lease_lets_out_no_more_than_the_limit() {
    for step in [100, 400, 499, 501, 700, 850, 950, 999, 1_001, 5_000] {
        let mut world = four();
        for round in 0..20 {
            let until = world.now + (1_000 + 37 * round) * MS;
            world.run(until, moving);
            world.ahead += step * MS;
        }
        println!(
            "a clock {step} ms ahead: {:.4} held at the most",
            world.most_held
        );
        assert!(
            world.most_held <= 1.0 + 1e-9,
            "{step} ms: {}",
            world.most_held
        );
    }
}

#[test]
fn agents_that_are_killed_and_restarted_take_their_leases_over() {
    let mut world = four();
    for round in 0..40usize {
        let until = world.now + 500 * MS;
        world.run(until, moving);
        let (now, host) = (world.now, round % 4);
        let past = super::Past::from_iter([("limit".to_owned(), world.hosts[host].member.past())]);
        let (terms, clock) = (world.terms.clone(), world.hosts[host].clock(now));
        let known = world.hosts[host].usage;
        let new = Member::new(terms, format!("host-{host}-{round}"), known, clock);
        world.hosts[host].member = Member::after(past.limit("limit"), past.hosts(), new);
        (world.hosts[host].run, world.hosts[host].waits) = (round + 1, false);
        // No wait for the old lease's end: a second later there are four hosts again.
        let until = world.now + 300 * MS;
        world.run(until, moving);
        assert_eq!(world.hosts[host].member.state(), LeaseState::Leased);
        assert_eq!(world.hosts[host].member.hosts(), 4, "round {round}");
    }
    println!("restarts: {:.4} held at the most", world.most_held);
    assert!(world.most_held <= 1.0 + 1e-9, "{}", world.most_held);
    let seconds = 40.0 * 0.8;
    let utilisation = world.utilisation(seconds);
    assert!(utilisation > 0.8, "{utilisation}");
}
