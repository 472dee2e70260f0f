//! A simulated host: a server with a capacity and a finite queue, behind one token bucket per source.

use std::env;

use super::reports::{Reporter, Reports};
use super::sources::{Block, Demand, STEP, Sent, Way};
use crate::signals::{LongQueue, overflowed};
use crate::{Connections, Law, Level, Queue, Reading, Samples, Settings, Tier, Unit, period};
use testbed::random::Random;

/// Sampled units a second.
const SAMPLES: f64 = 4000.0;
/// Seconds after which a reply counts as lost.
const PATIENCE: f64 = 0.25;
/// Sources that samples have room for.
const MOST_SAMPLED: usize = 200_000;

#[derive(Clone, Copy, PartialEq)]
pub enum Server {
    /// 10,000 units a second, and a queue of 256.
    Udp,
    /// The same with 2,000 units a second.
    SlowUdp,
    /// 600 connections a second, and a queue of 511.
    Tcp,
    /// 390 connections a second, and a queue of 128.
    Short,
    /// 2,000 requests a second on kept connections, and a queue of 800 inside of the server.
    Inside,
    /// 6,000 connections a second, and a queue of 64: less than the wait to which a queue is regulated.
    Small,
}

impl Server {
    pub const fn capacity(self) -> f64 {
        match self {
            Self::Udp => 10_000.0,
            Self::SlowUdp => 2_000.0,
            Self::Tcp => 600.0,
            Self::Short => 390.0,
            Self::Inside => 2000.0,
            Self::Small => 6_000.0,
        }
    }

    const fn room(self) -> f64 {
        match self {
            Self::Udp | Self::SlowUdp => 256.0,
            Self::Tcp => 511.0,
            Self::Short => 128.0,
            Self::Inside => 800.0,
            Self::Small => 64.0,
        }
    }
}

/// The server of a host, and its traffic.
#[derive(Clone)]
pub struct Scenario {
    pub server: Server,
    pub blocks: Vec<Block>,
    /// The onset and the end of the overload. Equal: there is none, for so long.
    pub onset: f64,
    pub end: f64,
    /// The capacity's share, by time.
    pub capacity: fn(f64) -> f64,
    /// Whether it halves at 5 s and returns at 8 s.
    pub follows: bool,
    /// The least level, in capacities.
    pub least: f64,
    /// Whether the signals can be read, by time.
    pub readable: fn(f64) -> bool,
    /// Drops a second that are no overload, which the socket counts as others.
    pub false_drops: f64,
    /// Overflows a second of queues that are no signal of the limit.
    pub overflows: f64,
    /// Connections to a backend for each of the limit, which another server takes.
    pub backends: f64,
    /// The memory that the kernel charges for a datagram, in times what the signals take it for.
    pub charge: f64,
    /// Datagrams that a program receives at once. The kernel counts them as one drop.
    pub merged: f64,
    /// Whether the network namespace's counters can be read.
    pub counters: bool,
    /// Whether the limit is on packets; each connection is one.
    pub are_packets: bool,
    /// The widest keys that can be limited.
    pub widest: Tier,
    /// The reports of the service, whose sockets then show nothing.
    pub reports: Option<Reports>,
}

impl Scenario {
    /// Seconds.
    fn length(&self) -> f64 {
        self.end + if self.onset < self.end { 6.0 } else { 0.0 }
    }
}

/// The figures of a step, with columns by block.
pub struct Entry {
    pub offered: Vec<f64>,
    pub passed: Vec<f64>,
    /// Units that were served within the patience.
    pub good: Vec<f64>,
    pub served: f64,
    /// Units that the server could have served.
    pub can: f64,
    /// Infinite: off.
    pub level: f64,
}

/// The figures of a run.
pub struct Log {
    pub entries: Vec<Entry>,
    /// The accepted units of each source, from a second after the onset to the end.
    pub accepted: Vec<f64>,
    pub law: Law,
    /// The reports of the law after each tick, by time.
    pub reports: Vec<(f64, crate::Report)>,
}

/// Token buckets: the state of a source is the time at which its bucket is full again.
struct Buckets {
    sources: Vec<f64>,
    networks: Vec<f64>,
    /// The part of an interval by which each network's next packet is late.
    phases: Vec<f64>,
    all: f64,
    random: Random,
}

impl Buckets {
    fn allow(
        &mut self,
        now: f64,
        sent: &[Sent],
        weights: &[f64],
        networks: &[usize],
        level: Option<Level>,
    ) -> Vec<f64> {
        let Some(level) = level else {
            return sent.iter().map(|sent| sent.units).collect();
        };
        let mut allowed: Vec<f64> = Vec::with_capacity(sent.len());
        for sent in sent {
            let weight = weights[sent.block];
            let rate = level.rate * weight;
            let state = &mut self.sources[sent.source];
            let free = level.burst(weight) - (*state - now).max(0.0) * rate;
            let units = sent.units.min((free.max(0.0) + 1e-9).floor());
            *state = state.max(now) + units / rate;
            allowed.push(units);
        }
        if let (Some(rate), Some(burst)) = (level.network, level.network_burst()) {
            for (sent, units) in sent.iter().zip(&mut allowed) {
                let network = networks[sent.source];
                let (state, phase) = (&mut self.networks[network], &mut self.phases[network]);
                let wanted = std::mem::take(units);
                while *units < wanted {
                    let ahead = (*state - now).max(0.0) * rate;
                    if ahead > 0.0 && ahead + 1.0 + *phase > burst + 1e-9 {
                        break;
                    }
                    *units += 1.0;
                    *state = state.max(now) + 1.0 / rate;
                    *phase = self.random.uniform();
                }
            }
        }
        if let (Some(rate), Some(burst)) = (level.all, level.all_burst()) {
            let free = (burst - (self.all - now).max(0.0) * rate).max(0.0);
            let asked: f64 = allowed.iter().sum();
            let share = (free / asked.max(1e-9)).min(1.0);
            allowed.iter_mut().for_each(|units| *units *= share);
            self.all = self.all.max(now) + asked * share / rate;
        }
        allowed
    }
}

/// The server: noise of 5 %, and a stall of 15 ms every 0.7 s, as other work on its CPU causes.
struct Service {
    queue: f64,
    stalled: f64,
    mean_cost: f64,
}

impl Service {
    /// Units that are served and could be, and the share of arriving units for which the queue had room.
    fn serve(
        &mut self,
        arriving: f64,
        speed: f64,
        room: f64,
        random: &mut Random,
    ) -> (f64, f64, f64) {
        let stalls = random.uniform() < STEP / 0.7;
        self.stalled = if stalls {
            0.015
        } else {
            (self.stalled - STEP).max(0.0)
        };
        let noise = 1.0 + 0.05 * random.normal();
        let can = (speed * noise * (STEP - self.stalled.min(STEP))).max(0.0);
        let served = can.min(self.queue + arriving);
        let has_room = (room + served - self.queue).max(0.0);
        let accepted = if arriving > 0.0 {
            (has_room / arriving).min(1.0)
        } else {
            1.0
        };
        self.queue = (self.queue + arriving * accepted - served).max(0.0);
        (served, can, accepted)
    }
}

/// Counts since the last tick.
#[derive(Default)]
struct Counted {
    passed: f64,
    refused: f64,
    taken: f64,
    dropped: f64,
    units: Vec<f64>,
}

/// Seeds that differ little give sequences that differ wholly. `WEIR_SEED` is added, for other sequences than the tests'.
fn seeded(seed: u64) -> Random {
    let first = env::var("WEIR_SEED").map_or(0, |first| first.parse().expect("a number"));
    Random::new(seed.wrapping_add(first).wrapping_mul(0x2545_f491_4f6c_dd1d))
}

pub fn run(scenario: &Scenario, seed: u64) -> Log {
    let mut random = seeded(seed);
    let (full_speed, room) = (scenario.server.capacity(), scenario.server.room());
    let steps = (scenario.length() / STEP).round() as usize;
    let mut demand = Demand::new(&scenario.blocks, steps);
    let weights: Vec<f64> = scenario.blocks.iter().map(|block| block.weight).collect();
    let (networks, numbers) = numbered(&demand.networks());
    let block_of: Vec<usize> = (0..scenario.blocks.len())
        .flat_map(|block| std::iter::repeat_n(block, scenario.blocks[block].number))
        .collect();
    let mut buckets = Buckets {
        sources: vec![0.0; demand.count()],
        networks: vec![0.0; numbers],
        phases: vec![0.0; numbers],
        all: 0.0,
        random: seeded(!seed),
    };
    let is_udp = matches!(scenario.server, Server::Udp | Server::SlowUdp);
    let are_requests = scenario.server == Server::Inside;
    let unit = if is_udp || are_requests || scenario.are_packets {
        Unit::Packets
    } else {
        Unit::Connections
    };
    let mut log = Log {
        entries: Vec::with_capacity(steps),
        accepted: vec![0.0; demand.count()],
        law: Law::new(Settings {
            unit,
            at_least: scenario.least * full_speed,
            at_most: (!scenario.are_packets).then_some(2.0 * full_speed),
            widest: scenario.widest,
        }),
        reports: Vec::new(),
    };
    let mut samples = Samples::new(MOST_SAMPLED);
    let mut service = Service {
        queue: 0.0,
        stalled: 0.0,
        mean_cost: 1.0,
    };
    let mut counted = Counted {
        units: vec![0.0; demand.count()],
        ..Counted::default()
    };
    let (mut long, mut waited) = (LongQueue::new(0.0), 0.0);
    let mut reporter = Reporter::new(scenario.reports);
    let mut last = 0;
    for step in 0..steps {
        let now = step as f64 * STEP;
        let sent = demand.offer(step, &mut random);
        let (limited, outside): (Vec<Sent>, Vec<Sent>) = sent
            .into_iter()
            .partition(|sent| scenario.blocks[sent.block].way != Way::Outside);
        let mut allowed = buckets.allow(now, &limited, &weights, &networks, log.law.level());
        let passed: f64 = allowed.iter().sum();
        let offered: f64 = limited.iter().map(|sent| sent.units).sum();
        allowed.extend(outside.iter().map(|sent| sent.units));
        let sent = [limited, outside].concat();
        let arrive =
            |sent: &Sent| f64::from(u8::from(scenario.blocks[sent.block].way != Way::Junk));
        let units = sent.iter().zip(&allowed);
        let arriving: f64 = units.map(|(sent, units)| units * arrive(sent)).sum();
        let arriving = arriving * scenario.backends;
        if arriving > 0.0 {
            let cost: f64 = sent
                .iter()
                .zip(&allowed)
                .map(|(sent, units)| scenario.blocks[sent.block].cost * units * arrive(sent))
                .sum();
            service.mean_cost += 0.1 * (cost / arriving - service.mean_cost);
        }
        let speed = full_speed * (scenario.capacity)(now) / service.mean_cost;
        let (served, can, accepted) = service.serve(arriving, speed, room, &mut random);
        reporter.step(now, (served, can), service.queue, speed);
        let is_good = service.queue <= PATIENCE * speed;
        let mut entry = Entry {
            offered: vec![0.0; scenario.blocks.len()],
            passed: vec![0.0; scenario.blocks.len()],
            good: vec![0.0; scenario.blocks.len()],
            served,
            can,
            level: log.law.level().map_or(f64::INFINITY, |level| level.rate),
        };
        for (sent, units) in sent.iter().zip(&allowed) {
            entry.offered[sent.block] += sent.units;
            entry.passed[sent.block] += units;
            entry.good[sent.block] += if is_good { units * accepted } else { 0.0 };
            if scenario.blocks[sent.block].way != Way::Outside {
                counted.units[sent.source] += sent.units;
            }
            if (scenario.onset + 1.0..scenario.end).contains(&now) {
                log.accepted[sent.source] += units * accepted;
            }
        }
        log.entries.push(entry);
        let through: Vec<(f64, f64)> = allowed
            .iter()
            .map(|units| (*units, units * accepted))
            .collect();
        demand.react(step, &sent, &through, &mut random);
        counted.passed += passed;
        counted.refused += offered - passed;
        counted.taken += served;
        if scenario.backends > 1.0 {
            counted.taken += passed;
        }
        counted.dropped += arriving * (1.0 - accepted);
        let elapsed = (step + 1 - last) as f64 * STEP;
        let units = counted.passed + counted.refused;
        let lacks_report = log.law.follows_reports() && reporter.lacks_report(now);
        if elapsed > period(log.law.is_off(), unit, units, lacks_report) - 0.001 {
            last = step + 1;
            sample(
                &mut samples,
                &mut counted,
                elapsed,
                &block_of,
                &weights,
                &networks,
                &mut random,
            );
            let false_drops = random.poisson(scenario.false_drops * elapsed);
            let drops = counted.dropped + false_drops;
            let is_evident = long.observe(now, service.queue, room);
            let overflows = counted.dropped + scenario.overflows * elapsed;
            let share = overflowed(drops, Some(overflows)) * f64::from(u8::from(is_evident));
            let queue = Queue {
                waiting: scenario.charge * service.queue,
                growth: scenario.charge * (service.queue - waited),
                dropped: drops * share / scenario.merged,
                buffer: is_udp.then_some(room),
                taken: scenario.counters.then_some(counted.taken),
                ..Queue::default()
            };
            let reading = Reading {
                now,
                elapsed,
                passed: counted.passed,
                refused: counted.refused,
                queue: if reporter.reports() {
                    let reported = reporter.read(now);
                    reported.map(|reported| Queue {
                        reported: Some(reported),
                        ..Queue::default()
                    })
                } else {
                    (scenario.readable)(now).then_some(if scenario.are_packets {
                        queue.of_connections()
                    } else {
                        queue
                    })
                },
                sources: &samples.read(elapsed, log.law.is_off()),
            };
            waited = service.queue;
            log.law.step(&reading);
            log.reports.push((now, log.law.report()));
            counted = Counted {
                units: counted.units,
                ..Counted::default()
            };
        }
    }
    log
}

impl Queue {
    /// Of a limit on packets.
    fn of_connections(self) -> Self {
        Self {
            connections: Connections {
                waiting: self.waiting,
                growth: self.growth,
                dropped: self.dropped,
                taken: self.taken,
                packet: 1.0,
            },
            ..Self::default()
        }
    }
}

/// Numbers from 0 on, and how many there are.
fn numbered(networks: &[usize]) -> (Vec<usize>, usize) {
    let mut known = std::collections::BTreeMap::new();
    let mut number = |network: &usize| {
        let next = known.len();
        *known.entry(*network).or_insert(next)
    };
    let numbers = networks.iter().map(&mut number).collect();
    (numbers, known.len())
}

fn sample(
    samples: &mut Samples<usize>,
    counted: &mut Counted,
    elapsed: f64,
    block_of: &[usize],
    weights: &[f64],
    networks: &[usize],
    random: &mut Random,
) {
    let all: f64 = counted.units.iter().sum();
    let chance = (SAMPLES * elapsed / all.max(1.0)).min(1.0);
    for (source, units) in counted.units.iter_mut().enumerate() {
        for _ in 0..random.sampled(*units, chance) {
            let weight = weights[block_of[source]];
            samples.add(source, weight, networks[source] as u64, 1.0 / chance);
        }
        *units = 0.0;
    }
}
