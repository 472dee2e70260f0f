//! One host's part in the exchange: its publications, and the adjustments from the others' publications.
//!
//! Without a clock and a store: the agent runs it against a store, the simulation against a model of one.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::Duration;

use decide::{Adjustment, Cut, fnv1a};

use super::series::{HostNumber, Newest, Round, Series};
use super::wire::Publication;
use crate::member::Terms;

/// Hosts that have not published for this many syncs are not waited for.
const TIMELY_SYNCS: u64 = 3;
/// How many leases a host has to return after an outage, until the others pass its part of windows.
const RETURN_LEASES: u64 = 3;
/// How long a host's publications are kept after it was last seen, in microseconds, since it may return.
const REMEMBERED: u64 = 60_000_000;

/// The hosts, and what they have published since this one last read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// The store's clock, in microseconds.
    pub now: u64,
    /// Every host, this one included.
    pub hosts: Vec<PeerHost>,
    /// The other hosts' publications.
    pub publications: Vec<(String, Vec<u8>)>,
}

/// A host that takes part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerHost {
    pub name: String,
    /// The instant of its last publication, in microseconds.
    pub at: u64,
    /// Its time between two exchanges, in microseconds; 0 if it is not known.
    pub sync: u64,
}

/// One host's part.
#[derive(Debug)]
pub struct Peer {
    name: String,
    most_keys: usize,
    /// In microseconds.
    sync: u64,
    /// How long a host without publications still takes part, in microseconds.
    lease: u64,
    sequence: u64,
    read: u64,
    hosts: u64,
    rank: u64,
    /// The hosts before this one was away, and until when they may return, by the store's clock.
    returning: (u64, u64),
    /// By the hash of the host's name, so that all hosts agree on the order.
    newest: HashMap<HostNumber, Newest>,
    series: HashMap<u64, Series>,
    /// See [`Self::take_orphaned`].
    orphaned: Vec<(u64, Vec<u64>)>,
}

impl Peer {
    /// A host that publishes every `sync`, at most `most_keys` keys at a time.
    #[must_use]
    pub fn new(name: String, most_keys: usize, sync: Duration) -> Self {
        let lease = Terms::lease_for(sync).as_micros() as u64;
        let sync = sync.as_micros() as u64;
        Self {
            name,
            most_keys,
            sync,
            lease,
            sequence: 0,
            read: 0,
            hosts: 1,
            rank: 0,
            returning: (1, 0),
            newest: HashMap::new(),
            series: HashMap::new(),
            orphaned: Vec::new(),
        }
    }

    /// Sets the number of hosts that the cluster had when it was last seen.
    #[must_use]
    pub fn among(self, hosts: u64) -> Self {
        Self {
            hosts: hosts.max(1),
            ..self
        }
    }

    /// Takes on another config.
    pub fn reconfigure(&mut self, most_keys: usize, sync: Duration) {
        self.lease = Terms::lease_for(sync).as_micros() as u64;
        (self.most_keys, self.sync) = (most_keys, sync.as_micros() as u64);
    }

    /// The host's name in the store.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of the last publication.
    #[must_use]
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The store's clock at the last read, in microseconds.
    #[must_use]
    pub const fn read(&self) -> u64 {
        self.read
    }

    /// Hosts that took part at the last read, this one included.
    #[must_use]
    pub const fn hosts(&self) -> u64 {
        self.hosts
    }

    /// Hosts that may use a window: after an outage, those that have not returned yet as well.
    #[must_use]
    pub fn window_hosts(&self) -> u64 {
        if self.are_returning() {
            self.returning.0
        } else {
            self.hosts
        }
    }

    /// Whether hosts may return that took part before this one was away.
    #[must_use]
    pub fn are_returning(&self) -> bool {
        self.hosts < self.returning.0 && self.read < self.returning.1
    }

    /// Of the hosts, those of lower rank.
    #[must_use]
    pub const fn rank(&self) -> u64 {
        self.rank
    }

    /// Whether no other host of lower number publishes a key.
    #[must_use]
    pub fn is_own(&self, number: u64, key: u64) -> bool {
        let series = self.series.get(&number);
        series.is_none_or(|series| !series.is_published_before(key, number_of(&self.name)))
    }

    /// A key is published once it has used this part of its allowance: all hosts together can use a quarter
    /// unpublished.
    #[must_use]
    pub fn threshold(&self) -> f64 {
        0.25 / self.hosts as f64
    }

    /// (keys in all publications, keys without room in the last one) of a limit.
    #[must_use]
    pub fn counts(&self, number: u64) -> (u64, usize) {
        self.series
            .get(&number)
            .map_or((0, 0), |series| (series.published(), series.local()))
    }

    /// Removes a limit's keys that are not in use.
    pub fn retain(&mut self, number: u64, is_used: impl Fn(u64) -> bool) {
        if let Some(series) = self.series.get_mut(&number) {
            series.retain(is_used);
        }
    }

    /// The publication at `at`, in nanoseconds of the cluster's clock. `cuts` has each limit's number, whether it has
    /// windows, and its keys' cuts.
    pub fn publish(&mut self, at: u64, cuts: &[(u64, bool, Vec<Cut>)]) -> Vec<u8> {
        self.sequence += 1;
        self.series
            .retain(|number, _| cuts.iter().any(|(other, ..)| other == number));
        for (number, has_windows, cuts) in cuts {
            self.series
                .entry(*number)
                .or_insert_with(|| Series::new(*has_windows))
                .cut(cuts);
        }
        let first_without_room = self.first_without_room();
        let mut publication = Publication {
            sequence: self.sequence,
            read: self.read,
            at,
            series: Vec::new(),
        };
        let hosts = (self.window_hosts(), self.rank);
        for (number, series) in &mut self.series {
            let has_room = |demand, key| {
                first_without_room
                    .is_none_or(|first| by_demand(&(demand, *number, key), &first).is_lt())
            };
            let entries = series.publish(has_room, self.sequence, self.sync, hosts);
            if !entries.is_empty() {
                publication.series.push((*number, entries));
            }
        }
        publication.encode()
    }

    /// Ends the publications of a limit of buckets with these cuts, since this host is without the others. Returns the units
    /// of each key to be charged for them, out of `hosts`.
    pub fn part(&mut self, number: u64, cuts: &[Cut], hosts: u64) -> Vec<(u64, u64)> {
        let Some(mut series) = self.series.remove(&number) else {
            return Vec::new();
        };
        series.cut(cuts);
        series.part(hosts)
    }

    /// The adjustments of each limit's keys without room in the last publication. They need no reply.
    pub fn take_parted(&mut self) -> Vec<(u64, Vec<Adjustment>)> {
        let parted = |(number, series): (&u64, &mut Series)| (*number, series.take_parted());
        self.series.iter_mut().map(parted).collect()
    }

    /// Keys with a record, of all limits.
    #[cfg(test)]
    pub fn keys(&self) -> usize {
        self.series.values().map(Series::keys).sum()
    }

    /// The first key by demand that has no room in a publication, if any.
    fn first_without_room(&self) -> Option<Busy> {
        let mut busy: Vec<Busy> = Vec::new();
        for (limit, series) in &self.series {
            busy.extend(series.busy().map(|(demand, key)| (demand, *limit, key)));
        }
        if busy.len() <= self.most_keys {
            return None;
        }
        let (_, first, _) = busy.select_nth_unstable_by(self.most_keys, by_demand);
        Some(*first)
    }

    /// The keys of each limit that a host published last before it ended. It may not have written their use.
    pub fn take_orphaned(&mut self) -> Vec<(u64, Vec<u64>)> {
        std::mem::take(&mut self.orphaned)
    }

    /// Before [`Self::receive`], if the store is new: it may have lost hosts that take part, which return within a lease.
    pub fn expect_all(&mut self, news: &News) {
        let hosts = self.window_hosts();
        if (news.hosts.len() as u64) < hosts {
            self.returning = (hosts, news.now + self.lease);
            self.series
                .values_mut()
                .for_each(Series::return_from_absence);
        }
    }

    /// Processes the store's reply to the last publication; returns the adjustments of each limit's keys.
    pub fn receive(&mut self, news: &News) -> Vec<(u64, Vec<Adjustment>)> {
        // The other hosts treated this host's part as free, so it must be published again.
        if news.now.saturating_sub(self.read) >= self.lease {
            self.returning = (self.window_hosts(), news.now + RETURN_LEASES * self.lease);
            self.series
                .values_mut()
                .for_each(Series::return_from_absence);
        }
        self.read = news.now;
        self.hosts = (news.hosts.len() as u64).max(1);
        let others = || news.hosts.iter().filter(|host| host.name != self.name);
        // A silent host is counted for as long as it is kept, where excess is never returned.
        let is_timely =
            |host: &&PeerHost| host.at + TIMELY_SYNCS * self.sync.max(host.sync) > news.now;
        let received_soon = others()
            .filter(is_timely)
            .map(|host| host.at)
            .min()
            .unwrap_or(u64::MAX);
        let mut present: Vec<HostNumber> = others()
            .filter(is_timely)
            .map(|host| number_of(&host.name))
            .collect();
        present.sort_unstable();
        // Until all have returned, the ranks of those that are here would be those of others.
        if !self.are_returning() {
            let is_before = |host: &&HostNumber| **host < number_of(&self.name);
            self.rank = present.iter().filter(is_before).count() as u64;
        }
        // A late host keeps its part of a window for as long as it takes part.
        let mut known: Vec<HostNumber> = others().map(|host| number_of(&host.name)).collect();
        known.sort_unstable();
        let syncs: HashMap<HostNumber, u64> = others()
            .map(|host| (number_of(&host.name), host.sync))
            .filter(|(_, sync)| *sync > 0)
            .collect();
        self.newest.retain(|host, newest| {
            if known.binary_search(host).is_ok() {
                newest.seen = news.now;
            }
            newest.seen + REMEMBERED > news.now
        });
        for (name, bytes) in &news.publications {
            let (host, Some(publication)) = (number_of(name), Publication::decode(bytes)) else {
                continue;
            };
            if self
                .newest
                .get(&host)
                .is_some_and(|newest| newest.sequence >= publication.sequence)
            {
                continue;
            }
            let Publication {
                sequence, read, at, ..
            } = publication;
            let before = self.newest.get(&host);
            // A host that was away for long may have passed the units just now.
            let since = before
                .map_or(at, |newest| newest.at)
                .max(at.saturating_sub(1_000 * self.lease))
                .min(at);
            let newest = Newest {
                sequence,
                read,
                seen: news.now,
                at,
                sync: self.sync,
                syncs: self.sync as f64 / *syncs.get(&host).unwrap_or(&self.sync) as f64,
            };
            for series in self.series.values_mut() {
                series.meet(host, sequence);
            }
            self.newest.insert(host, newest);
            for (number, entries) in &publication.series {
                if let Some(series) = self.series.get_mut(number) {
                    series.receive(host, newest, (since, at), entries);
                }
            }
        }
        // Units that a host passed before it knew of this one are in the publication that says it has.
        let read = |host: &PeerHost| {
            self.newest
                .get(&number_of(&host.name))
                .map_or(0, |newest| newest.read)
        };
        let received = if self.are_returning() {
            0
        } else {
            others().map(read).min().unwrap_or(u64::MAX)
        };
        let (me, newest) = (number_of(&self.name), &self.newest);
        let round = Round {
            now: news.now,
            received,
            received_soon,
            hosts: self.window_hosts(),
            rank: self.rank,
        };
        let adjust = |(number, series): (&u64, &mut Series)| {
            let counted = if series.has_windows() {
                &known
            } else {
                &present
            };
            let orphaned = series.forget(newest, &known, counted);
            if !orphaned.is_empty() {
                self.orphaned.push((*number, orphaned));
            }
            (*number, series.adjust(me, round))
        };
        self.series.iter_mut().map(adjust).collect()
    }
}

/// A key to publish: its demand, its limit's number and its own.
type Busy = (f64, u64, u64);

/// The order in which keys have room: the largest demand first, of equal ones the lowest numbers, as on every host.
fn by_demand(one: &Busy, other: &Busy) -> Ordering {
    let numbers = |busy: &Busy| (busy.1, busy.2);
    let demand = other.0.total_cmp(&one.0);
    demand.then_with(|| numbers(one).cmp(&numbers(other)))
}

/// FNV-1a: the same on every host.
fn number_of(name: &str) -> HostNumber {
    name.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// The number of a limit's keys of one class multiplier: the same on every host, whatever the rest of its config.
#[must_use]
pub fn series_number(limit: &str, multiplier: &str) -> u64 {
    fnv1a(limit.bytes().chain([0]).chain(multiplier.bytes()))
}
