//! Zones with the real ledgers, hosts and leads, on a simulated clock: requests and replies take time and get lost, zones
//! are cut off, leads are killed and stand still, and stores lose their contents.
//!
//! Asserted at every step: the shares of all hosts of all zones never exceed the limit. `when_store_is_down` is `closed`
//! where stores fail, so that this holds in every case.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use common::share::Share;
use config::policy::WhenStoreIsDown;
use testbed::random::Random;

use super::zone_member::ZoneMember;
use crate::ledger::{Claim, ClaimReply, Grant, Ledger, Report};
use crate::member::{LeaseState, Member, Terms, Usage};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// The limit, in units a second.
const RATE: f64 = 100_000.0;
const STEP: u64 = 5 * MS;
/// One way between the zones, and within one.
const FAR: u64 = 150 * MS;
const NEAR: u64 = MS / 2;

enum Message {
    ToZone(Report),
    FromZone(Option<Grant>),
    Claim(Claim),
    Claimed(ClaimReply),
    ToAll(Report),
    FromAll(Option<Grant>),
}

/// A message on its way to or from a host.
struct Sent {
    zone: usize,
    host: usize,
    run: u64,
    asked: u64,
    message: Message,
}

struct Host {
    run: u64,
    member: Member,
    lead: ZoneMember,
    usage: Usage,
    wanted: f64,
    refused: f64,
    /// When it has sent the requests that have no reply yet, and their timeouts.
    leases: Option<(u64, u64)>,
    leads: Option<(u64, u64)>,
    /// It stands still until then, and its traffic with it.
    stands_until: u64,
}

struct Zone {
    ledger: Ledger,
    /// How far its store's clock is ahead, in microseconds.
    ahead: u64,
    hosts: Vec<Host>,
    is_cut_off: bool,
    has_store: bool,
    /// Requests that a store which stands still has received.
    waiting: Vec<Sent>,
}

struct World {
    now: u64,
    seed: u64,
    random: Random,
    all: Ledger,
    zones: Vec<Zone>,
    sent: BTreeMap<u64, Sent>,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    count: u64,
    runs: u64,
    terms: Terms,
    /// Per mille of messages.
    lost: u64,
    is_rough: bool,
    /// A first host enforces the whole limit until it knows of others, unless it is `closed`.
    asserts_from: u64,
    passed: f64,
    wanted: f64,
}

impl World {
    fn new(zones: &[usize], when_store_is_down: WhenStoreIsDown, seed: u64) -> Self {
        let sync = Duration::from_millis(100);
        let terms = Terms {
            sync,
            lease: Terms::lease_for(sync),
            when_store_is_down,
            rate: RATE,
            units: RATE as u64,
            in_zone: true,
        };
        let mut world = Self {
            now: SECOND,
            seed,
            random: Random::new(seed),
            all: Ledger::default(),
            zones: Vec::new(),
            sent: BTreeMap::new(),
            queue: BinaryHeap::new(),
            count: 0,
            runs: 0,
            terms,
            lost: 0,
            is_rough: true,
            asserts_from: match when_store_is_down {
                WhenStoreIsDown::Closed => 0,
                _ => 5 * SECOND,
            },
            passed: 0.0,
            wanted: 0.0,
        };
        for hosts in zones {
            let hosts = (0..*hosts).map(|_| world.host()).collect();
            world.zones.push(Zone {
                ledger: Ledger::default(),
                ahead: 0,
                hosts,
                is_cut_off: false,
                has_store: true,
                waiting: Vec::new(),
            });
        }
        world
    }

    /// A new host's members, or those of an agent's next run.
    fn members(&mut self) -> (Member, ZoneMember) {
        self.runs += 1;
        let (run, sync) = (format!("host/{}", self.runs), Duration::from_millis(500));
        (
            Member::new(self.terms.clone(), run.clone(), Usage::default(), self.now),
            ZoneMember::new(&self.terms, sync, "zone", run, self.now),
        )
    }

    fn host(&mut self) -> Host {
        let (member, lead) = self.members();
        Host {
            run: self.runs,
            member,
            lead,
            usage: Usage::default(),
            wanted: 0.0,
            refused: 0.0,
            leases: None,
            leads: None,
            stands_until: 0,
        }
    }

    fn reload(&mut self, zone: usize, host: usize) {
        let (asked, (_, new)) = (self.now, self.members());
        let known = &mut self.zones[zone].hosts[host];
        let claim = std::mem::replace(&mut known.lead, new).leave();
        known.leads = None;
        if self.random.below(2) == 0 {
            let (run, message) = (0, Message::Claim(claim));
            self.send(
                NEAR,
                Sent {
                    zone,
                    host,
                    run,
                    asked,
                    message,
                },
            );
        }
    }

    fn send(&mut self, after: u64, sent: Sent) {
        if self.random.below(1_000) < self.lost {
            return;
        }
        // While the network is rough, one in twenty takes up to ten times as long.
        let after = match self.random.below(20) {
            0 if self.is_rough => after * (1 + self.random.below(10)),
            _ => after + self.random.below(after / 5 + 1),
        };
        self.count += 1;
        self.sent.insert(self.count, sent);
        self.queue.push(Reverse((self.now + after, self.count)));
    }

    fn arrives(&mut self, sent: Sent) {
        let (micros, now) = (self.now / 1_000, self.now);
        let zone = &mut self.zones[sent.zone];
        let reply = match sent.message {
            Message::ToZone(report) if zone.has_store => Some((
                NEAR,
                Message::FromZone(zone.ledger.lease(micros + zone.ahead, &report)),
            )),
            Message::Claim(claim) if zone.has_store => Some((
                NEAR,
                Message::Claimed(zone.ledger.claim(micros + zone.ahead, &claim)),
            )),
            Message::ToAll(report) if !zone.is_cut_off => {
                Some((FAR, Message::FromAll(self.all.lease(micros, &report))))
            }
            Message::ToZone(_) | Message::Claim(_) => {
                // A client that has gone away has closed its connection: what it has sent is executed all the same.
                zone.waiting.push(sent);
                return;
            }
            Message::ToAll(_) => None,
            reply => {
                let host = &mut zone.hosts[sent.host];
                if host.run == sent.run {
                    host.receive(sent.asked, reply, now);
                }
                None
            }
        };
        if let Some((after, message)) = reply {
            self.send(after, Sent { message, ..sent });
        }
    }

    /// Runs to `until`, with this demand on each host of each zone, as a part of the limit's rate.
    fn run(&mut self, until: u64, demand: impl Fn(usize, usize, u64) -> f64) {
        while self.now < until {
            let end = self.now + STEP;
            while let Some(Reverse((at, number))) = self.queue.peek().copied() {
                if at > end {
                    break;
                }
                self.queue.pop();
                self.now = at.max(self.now);
                if let Some(sent) = self.sent.remove(&number) {
                    self.arrives(sent);
                }
            }
            self.now = end;
            let seconds = STEP as f64 / 1e9;
            let (mut held, mut messages) = (0.0, Vec::new());
            for (zone_number, zone) in self.zones.iter_mut().enumerate() {
                for (number, host) in zone.hosts.iter_mut().enumerate() {
                    let share = host.share(end);
                    let wanted = demand(zone_number, number, end) * RATE * seconds;
                    let passed = wanted.min(share * RATE * seconds);
                    held += share;
                    (self.wanted, self.passed) = (self.wanted + wanted, self.passed + passed);
                    host.count(wanted, wanted - passed);
                    let sent = host.requests(end).map(|(far, message)| {
                        let (zone, run, asked) = (zone_number, host.run, end);
                        let host = number;
                        (
                            far,
                            Sent {
                                zone,
                                host,
                                run,
                                asked,
                                message,
                            },
                        )
                    });
                    messages.extend(sent);
                }
            }
            assert!(
                held <= 1.0 + 1e-9 || end < self.asserts_from,
                "seed {}: {held} of the limit at {} ms",
                self.seed,
                end / MS
            );
            for (after, sent) in messages {
                self.send(after, sent);
            }
        }
    }

    fn used(&mut self, seconds: f64) -> f64 {
        let used = self.passed / (RATE * seconds).min(self.wanted);
        (self.passed, self.wanted) = (0.0, 0.0);
        used
    }
}

impl Host {
    fn share(&mut self, now: u64) -> f64 {
        if now < self.stands_until {
            return 0.0;
        }
        self.member.in_effect(now).share.factor()
    }

    fn count(&mut self, wanted: f64, refused: f64) {
        (self.wanted, self.refused) = (self.wanted + wanted, self.refused + refused);
        self.usage = Usage {
            wanted: self.wanted as u64,
            refused: self.refused.ceil() as u64,
        };
    }

    fn requests(&mut self, now: u64) -> impl Iterator<Item = (u64, Message)> + use<> {
        let mut messages = Vec::new();
        if now >= self.stands_until {
            self.member.count(self.usage, now);
            let is_over = |request: &mut Option<(u64, u64)>| {
                request.take_if(|(_, until)| now >= *until).is_some()
            };
            if is_over(&mut self.leases) {
                self.member.request_after(now + 100 * MS);
            }
            if is_over(&mut self.leads) {
                self.lead.failed(now + 500 * MS);
            }
            if self.leases.is_none() && self.member.is_due(now) {
                self.leases = Some((now, now + 333 * MS));
                messages.push((NEAR, Message::ToZone(self.member.report(now))));
            }
            if self.leads.is_none() {
                if self.lead.claims(now) {
                    self.leads = Some((now, now + 333 * MS));
                    messages.push((NEAR, Message::Claim(self.lead.claim(now))));
                } else if self.lead.is_due(now)
                    && let Some(report) = self.lead.report(now)
                {
                    self.leads = Some((now, now + 1_667 * MS));
                    messages.push((FAR, Message::ToAll(report)));
                }
            }
        }
        messages.into_iter()
    }

    fn receive(&mut self, asked: u64, reply: Message, now: u64) {
        if now < self.stands_until {
            return;
        }
        // A reply after the timeout is ignored.
        let is_awaited = |request: &mut Option<(u64, u64)>| {
            request.take_if(|(sent, _)| *sent == asked).is_some()
        };
        match reply {
            Message::FromZone(Some(grant)) if is_awaited(&mut self.leases) => {
                self.member.granted(asked, &grant, now);
            }
            Message::FromZone(None) => _ = is_awaited(&mut self.leases),
            Message::Claimed(reply) if is_awaited(&mut self.leads) => {
                self.lead.claimed(asked, &reply, now);
            }
            Message::FromAll(Some(grant)) if is_awaited(&mut self.leads) => {
                self.lead.granted(asked, &grant, now);
            }
            _ => {}
        }
    }
}

/// All demand, three times the limit, is in one zone at a time, and there on one host at a time.
fn moving(zone: usize, host: usize, now: u64) -> f64 {
    let (zones, hosts) = (
        (now / (20 * SECOND)) as usize % 2,
        (now / (3 * SECOND)) as usize % 3,
    );
    if (zone, host) == (zones, hosts) {
        3.0
    } else {
        0.01
    }
}

fn even(_: usize, _: usize, _: u64) -> f64 {
    0.5
}

#[test]
fn zones_use_the_limit_however_demand_is_spread() {
    type Demand = fn(usize, usize, u64) -> f64;
    let cases: [(&str, Demand, f64); 4] = [
        ("even", even, 0.98),
        (
            "one zone",
            |zone, _, _| if zone == 0 { 0.7 } else { 0.0 },
            0.95,
        ),
        (
            "nine tenths in one zone",
            |zone, _, _| if zone == 0 { 0.9 } else { 0.1 },
            0.95,
        ),
        ("moving every 20 s, and every 3 s in the zone", moving, 0.85),
    ];
    for (name, demand, least) in cases {
        let mut world = World::new(&[3, 3], WhenStoreIsDown::Closed, 1);
        world.run(10 * SECOND, demand);
        world.used(1.0);
        let until = world.now + 120 * SECOND;
        world.run(until, demand);
        let used = world.used(120.0);
        println!("{name}: {:.1} % used", used * 100.0);
        assert!((least..=1.0 + 1e-9).contains(&used), "{name}: {used}");
    }
}

#[test]
fn zones_that_are_cut_off_have_a_part_each_and_divide_it_by_demand() {
    let one_host = |_, host, now| {
        if host == (now / (5 * SECOND)) as usize % 3 {
            2.0
        } else {
            0.0
        }
    };
    for (when, least, most) in [
        (WhenStoreIsDown::Share, 0.9, 1.0),
        (WhenStoreIsDown::Closed, 0.0, 0.0),
    ] {
        let mut world = World::new(&[3, 3], when, 2);
        let used = |world: &mut World, seconds: u64| {
            world.used(1.0);
            let until = world.now + seconds * SECOND;
            world.run(until, one_host);
            world.used(seconds as f64)
        };
        used(&mut world, 10);
        for zone in &mut world.zones {
            zone.is_cut_off = true;
        }
        // The leases between zones end, and those of other zones.
        used(&mut world, 15);
        let apart = used(&mut world, 30);
        println!(
            "{when}: {:.1} % used by zones that are cut off",
            apart * 100.0
        );
        assert!((least..=most + 1e-9).contains(&apart), "{when}: {apart}");
        for zone in &mut world.zones {
            zone.is_cut_off = false;
        }
        used(&mut world, 15);
        let again = used(&mut world, 30);
        assert!(again > 0.9, "{when}: {again}");
    }
}

#[test]
fn nothing_passes_beyond_the_limit_whatever_fails() {
    let seeds = std::env::var("WEIR_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    for seed in seeds.map_or(0..60, |seed: u64| seed..seed + 1) {
        let zones: &[usize] = [&[3, 3][..], &[1, 4], &[2, 2, 2], &[5, 1, 1, 1]][seed as usize % 4];
        let mut world = World::new(zones, WhenStoreIsDown::Closed, seed);
        world.lost = [0, 5, 50][seed as usize % 3];
        world.run(8 * SECOND, moving);
        for _ in 0..40 {
            let zone = world.random.below(zones.len() as u64) as usize;
            let host = world.random.below(zones[zone] as u64) as usize;
            match world.random.below(11) {
                0 => world.zones[zone].is_cut_off ^= true,
                1 => {
                    world.zones[zone].has_store ^= true;
                    if world.zones[zone].has_store {
                        for sent in std::mem::take(&mut world.zones[zone].waiting) {
                            world.send(0, sent);
                        }
                    }
                }
                2 => world.zones[zone].ledger = Ledger::default(),
                // A zone that has never seen a reply would have the whole limit until the others report theirs.
                3 if world
                    .zones
                    .iter()
                    .flat_map(|zone| &zone.hosts)
                    .all(|host| host.lead.has_seen()) =>
                {
                    world.all = Ledger::default();
                    let until = world.now + 8 * SECOND;
                    world.run(until, moving);
                }
                3 => {}
                // Its agent has another limit, with or without an end to its lead.
                10 => {
                    world.reload(zone, host);
                }
                // Killed, and started again.
                4 => world.zones[zone].hosts[host] = world.host(),
                5 => {
                    let until = world.now + world.random.below(9 * SECOND);
                    world.zones[zone].hosts[host].stands_until = until;
                }
                // Replicas that have lagged, by up to a second.
                6 => {
                    let lagging = world.all.clone();
                    let until = world.now + world.random.below(SECOND);
                    world.run(until, moving);
                    world.all = lagging;
                    let hosts = world.zones.iter_mut().flat_map(|zone| &mut zone.hosts);
                    hosts.for_each(|host| {
                        host.leads = None;
                        host.lead.reconnected();
                    });
                }
                7 => {
                    let lagging = world.zones[zone].ledger.clone();
                    let until = world.now + world.random.below(SECOND);
                    world.run(until, moving);
                    world.zones[zone].ledger = lagging;
                    for host in &mut world.zones[zone].hosts {
                        (host.leases, host.leads) = (None, None);
                        host.member.reconnected();
                    }
                }
                8 => {
                    let zone = &mut world.zones[zone];
                    (zone.ledger, zone.has_store) = (Ledger::default(), true);
                }
                // A lease that ends early by the store's clock, and a host that requests none meanwhile: that is an excess
                // without zones as well.
                _ if world.lost > 0
                    || world.zones[zone]
                        .hosts
                        .iter()
                        .any(|host| world.now < host.stands_until) => {}
                _ => {
                    world.zones[zone].ahead += world.random.below(2_000_000);
                    let until = world.now + SECOND;
                    world.run(until, moving);
                }
            }
            let until = world.now + world.random.below(4 * SECOND);
            world.run(until, moving);
        }
        for zone in &mut world.zones {
            (zone.is_cut_off, zone.has_store) = (false, true);
        }
        (world.lost, world.is_rough) = (0, false);
        let until = world.now + 40 * SECOND;
        world.run(until, even);
        world.used(1.0);
        let until = world.now + 5 * SECOND;
        world.run(until, even);
        let used = world.used(5.0);
        assert!(used > 0.9, "seed {seed}: {used} used after all faults");
        assert!(Share::of_parts(world.all.held()) <= Share::WHOLE);
        assert!(
            world
                .zones
                .iter()
                .flat_map(|zone| &zone.hosts)
                .all(|host| host.member.state() == LeaseState::Leased),
            "seed {seed}"
        );
    }
}
