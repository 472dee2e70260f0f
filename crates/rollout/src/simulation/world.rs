//! The world: hosts, store, clocks, and the promises that are checked with every output.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use testbed::random::Random;

use super::naive::Naive;
use super::store::{Published, Store};
use crate::canary::{Canary, Share};
use crate::document::{Object, Release};
use crate::health::Unhealthy;
use crate::host::{CHECK, Clock, Head, Host, Input, Output, Request, Rules, Saved, Settings};
use crate::keyring::Keyring;
use crate::rules::Rights;
use crate::testing::{DAY, Key, limit, release, start};

pub const EVERY: Duration = Duration::from_secs(10);
pub const BAKE: Duration = Duration::from_secs(60);
pub const STEP: Duration = Duration::from_millis(100);

/// A host, and the truth about it.
pub struct Simulated {
    pub name: String,
    pub host: Host,
    disk: Saved,
    /// How far its wall clock is ahead, in milliseconds.
    pub ahead: i64,
    /// Whether the store cannot be reached.
    pub is_cut_off: bool,
    /// Whether it is switched off.
    pub is_off: bool,
    in_flight: Option<(Duration, Request)>,
    due: Duration,
    next_check: Duration,
    last_request: Option<Duration>,
    pub requests: u64,
    /// The rules in effect, and since when.
    pub rules: Option<Rules>,
    pub since: Duration,
    highest_tried: u64,
    pub confirmed: u64,
}

pub struct World {
    pub now: Duration,
    pub store: Store,
    pub hosts: Vec<Simulated>,
    /// The hosts that have rules of another stream on trial.
    pub occupied: BTreeSet<usize>,
    /// Rules that wait for the end of these trials.
    pub waiting: BTreeMap<usize, Rules>,
    pub random: Random,
    pub key: Key,
    keyring: Keyring,
    bad: BTreeSet<String>,
    naive: Option<Naive>,
    /// The hosts on which a version was tried.
    pub reached: BTreeMap<u64, BTreeSet<usize>>,
    /// The documents that hosts confirmed of a version.
    kept: BTreeMap<u64, BTreeSet<String>>,
    /// The last confirmation of a canary.
    pub held_at: Duration,
    pub broken: BTreeSet<String>,
}

impl World {
    pub fn new(hosts: usize, seed: u64) -> Self {
        Self::with(hosts, seed, None)
    }

    pub fn with(hosts: usize, seed: u64, naive: Option<Naive>) -> Self {
        let key = Key::new();
        let mut world = Self {
            now: Duration::ZERO,
            store: Store::default(),
            hosts: Vec::new(),
            occupied: BTreeSet::new(),
            waiting: BTreeMap::new(),
            random: Random::new(seed),
            keyring: key.keyring(),
            key,
            bad: BTreeSet::new(),
            naive,
            reached: BTreeMap::new(),
            kept: BTreeMap::new(),
            held_at: Duration::ZERO,
            broken: BTreeSet::new(),
        };
        for host in 0..hosts {
            let name = format!("host-{host}");
            // Within 100 ms of each other.
            let ahead = world.random.below(100) as i64;
            let host = Host::new(settings(&name), Saved::default(), world.clock(ahead));
            world.hosts.push(Simulated {
                due: host.next_at(),
                name,
                host,
                disk: Saved::default(),
                ahead,
                is_cut_off: false,
                is_off: false,
                in_flight: None,
                next_check: Duration::ZERO,
                last_request: None,
                requests: 0,
                rules: None,
                since: Duration::ZERO,
                highest_tried: 0,
                confirmed: 0,
            });
        }
        world
    }

    fn clock(&self, ahead: i64) -> Clock {
        let offset = Duration::from_millis(ahead.unsigned_abs());
        let true_wall = start() + self.now;
        let wall = if ahead < 0 {
            true_wall - offset
        } else {
            true_wall + offset
        };
        let monotonic = if self.naive == Some(Naive::WallClock) {
            wall.duration_since(start()).unwrap_or_default()
        } else {
            self.now
        };
        Clock { wall, monotonic }
    }

    /// A release for all hosts; its text is of its own, as is that of another publisher.
    pub fn release(&self, version: u64, share: &str, publisher: &str) -> Release {
        let share: Share = share.parse().unwrap();
        let names = self.hosts.iter().map(|host| host.name.as_str());
        let rate = format!("{version}000/s");
        Release {
            publisher: publisher.into(),
            published: start() + self.now,
            expires: start() + self.now + DAY,
            bake: BAKE,
            canary: Canary::among(names, share, "web", version).unwrap(),
            objects: vec![Object::new("rules.toml", limit(publisher, &rate))],
            ..release(version)
        }
    }

    pub fn publish(&mut self, release: Release) {
        let object = self.key.release(&release);
        self.store.publish(Published::new(release, object));
    }

    /// Publishes a release of which every host's health check fails.
    pub fn publish_bad(&mut self, release: Release) {
        self.publish(release);
        let digest = self
            .store
            .contents
            .releases
            .last()
            .map(|head| head.digest.clone());
        self.bad.extend(digest);
    }

    pub fn canaries(&self, version: u64) -> BTreeSet<usize> {
        let releases = self.store.contents.releases.iter();
        let of_version = |published: &&Published| published.release.version == version;
        let release = &releases.rev().find(of_version).unwrap().release;
        let is_canary = |name: &str| release.canary.includes(name, "web", version);
        let hosts = self.hosts.iter().enumerate();
        hosts
            .filter(|(_, host)| is_canary(&host.name))
            .map(|(nth, _)| nth)
            .collect()
    }

    /// The hosts with a version in effect.
    pub fn with_version(&self, version: u64) -> usize {
        let has = |host: &&Simulated| version_of(host.rules.as_ref()) == version;
        self.hosts.iter().filter(has).count()
    }

    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += STEP;
            self.store.pass();
            for host in 0..self.hosts.len() {
                self.turn(host);
            }
        }
    }

    fn turn(&mut self, nth: usize) {
        let clock = self.clock(self.hosts[nth].ahead);
        let host = &mut self.hosts[nth];
        if host.is_off {
            return;
        }
        if let Some(rules) = self.waiting.remove(&nth) {
            self.try_rules(nth, rules);
        }
        let host = &mut self.hosts[nth];
        if host.host.is_baking() && self.now >= host.next_check {
            host.next_check = self.now + CHECK;
            let is_bad = host
                .rules
                .as_ref()
                .is_some_and(|rules| self.bad.contains(&rules.digest));
            let health = if is_bad {
                Err(Unhealthy::Application("503".into()))
            } else {
                Ok(())
            };
            self.step(nth, Input::Health(health));
        }
        let host = &mut self.hosts[nth];
        if let Some((_, request)) = host.in_flight.take_if(|(arrives, _)| *arrives <= self.now) {
            self.arrives(nth, request);
        }
        let host = &mut self.hosts[nth];
        if host.in_flight.is_some() || clock.monotonic < host.due {
            return;
        }
        let Some(request) = host.host.take_request(clock) else {
            return;
        };
        if host
            .last_request
            .is_some_and(|last| self.now - last < EVERY)
        {
            self.broken
                .insert("more than one request in `every`".into());
        }
        host.last_request = Some(self.now);
        host.requests += 1;
        host.due = host.host.next_at();
        // Mostly 0.1 s, sometimes 0.3 s.
        let travel = if self.random.once_in(20) {
            STEP * 3
        } else {
            STEP
        };
        self.hosts[nth].in_flight = Some((self.now + travel, request));
    }

    fn arrives(&mut self, nth: usize, request: Request) {
        let host = &self.hosts[nth];
        let input = match request {
            _ if host.is_cut_off || self.store.is_down => Input::StoreFailed("timeout".into()),
            Request::Report(report) => {
                self.store.put(&report);
                Input::Reported(report)
            }
            Request::Read => {
                let mut reply = self.store.read(&host.name, host.host.known());
                if let Some(naive) = self.naive {
                    let wall = self.clock(host.ahead).wall;
                    let head = self.store.contents.releases.last();
                    naive.misread(&mut reply, host, head, wall);
                }
                Input::Replied(Box::new(reply))
            }
        };
        self.step(nth, input);
    }

    pub fn step(&mut self, nth: usize, input: Input) {
        let clock = self.clock(self.hosts[nth].ahead);
        let out = self.hosts[nth].host.step(input, &self.keyring, clock);
        for output in out {
            self.carry_out(nth, output);
        }
        let host = &mut self.hosts[nth];
        host.due = host.host.next_at();
    }

    fn carry_out(&mut self, nth: usize, output: Output) {
        match output {
            Output::Save => self.hosts[nth].disk = self.hosts[nth].host.saved().clone(),
            Output::Try(rules) => self.try_rules(nth, rules),
            Output::RollBack(rules) => {
                self.waiting.remove(&nth);
                let host = &self.hosts[nth];
                let was_bad = host
                    .rules
                    .as_ref()
                    .is_some_and(|rules| self.bad.contains(&rules.digest));
                if was_bad && self.now - host.since > CHECK + STEP {
                    self.broken
                        .insert("bad rules stayed for more than a check".into());
                }
                self.replace(nth, rules);
            }
            Output::Confirm => {
                let host = &mut self.hosts[nth];
                host.disk = host.host.if_confirmed().unwrap();
                self.check_confirmation(nth);
                self.step(nth, Input::Confirmed);
            }
            Output::Merge | Output::Event(_) => {}
        }
    }

    fn try_rules(&mut self, nth: usize, rules: Rules) {
        if self.occupied.contains(&nth) {
            self.waiting.insert(nth, rules);
            self.step(nth, Input::Waits);
            return;
        }
        self.check_trial(nth, &rules);
        self.replace(nth, Some(rules));
        self.hosts[nth].next_check = self.now + CHECK;
        self.step(nth, Input::Tried(Ok(())));
    }

    fn replace(&mut self, nth: usize, rules: Option<Rules>) {
        let host = &mut self.hosts[nth];
        (host.rules, host.since) = (rules, self.now);
    }

    fn check_trial(&mut self, nth: usize, rules: &Rules) {
        let version = rules.version;
        self.reached.entry(version).or_default().insert(nth);
        if self.bad.contains(&rules.digest) && !self.canaries(version).contains(&nth) {
            self.broken
                .insert("bad rules reached a host that is no canary".into());
        }
        let host = &mut self.hosts[nth];
        if version < host.highest_tried {
            self.broken.insert("a host returned to older rules".into());
        }
        host.highest_tried = host.highest_tried.max(version);
    }

    fn check_confirmation(&mut self, nth: usize) {
        let host = &mut self.hosts[nth];
        let Some(rules) = &host.rules else {
            return;
        };
        host.confirmed = rules.version;
        if self.now - host.since + STEP < BAKE {
            self.broken.insert("a bake was shortened".into());
        }
        let (version, digest) = (rules.version, rules.digest.clone());
        let kept = self.kept.entry(version).or_default();
        kept.insert(digest);
        if kept.len() > 1 {
            self.broken
                .insert("two documents of one version were kept".into());
        }
        if self.canaries(version).contains(&nth) {
            self.held_at = self.now;
        }
    }

    /// The agent ends, if it runs, and starts with what is on disk.
    pub fn restart(&mut self, nth: usize) {
        let clock = self.clock(self.hosts[nth].ahead);
        let host = &mut self.hosts[nth];
        if self.naive == Some(Naive::Forgetful) {
            host.disk = Saved::default();
        }
        host.host = Host::new(settings(&host.name), host.disk.clone(), clock);
        host.due = host.host.next_at();
        // Another process, whose first request may follow the last one of before.
        (host.in_flight, host.last_request, host.is_off) = (None, None, false);
        self.waiting.remove(&nth);
        let host = &self.hosts[nth];
        let rules = host.host.in_effect().cloned();
        self.replace(nth, rules);
    }
}

fn settings(host: &str) -> Settings {
    Settings {
        host: host.to_owned(),
        labels: BTreeMap::new(),
        stream: "web".into(),
        every: EVERY,
        rights: Rights::all(),
    }
}

pub fn version_of(rules: Option<&Rules>) -> u64 {
    rules.map_or(0, |rules| rules.version)
}

/// A head of the same version as one that the host has.
pub fn is_of_version(head: &Head, published: &Published, version: u64) -> bool {
    matches!(head, Head::Is(_)) && published.release.version == version
}
