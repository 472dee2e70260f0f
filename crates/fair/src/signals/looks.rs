//! Looks at the connections of listeners that show no sign of service: whether some were accepted since the last look.
//!
//! An attacker may hold any number of connections, so a look has bounds. One that ends early has seen a part of them, and
//! another part than the look before. Then only a connection that waited and is accepted now proves something. As for dumps,
//! processor time counts.

use std::collections::BTreeMap;
use std::time::Duration;

use super::dumps::processor_time;
use super::owner::Local;
use super::reader::{Bound, Connection, Connections, Reader};

/// Seconds between looks at a port.
const BETWEEN: f64 = 0.4;
/// Bounds of all looks of a reading.
const MOST_CONNECTIONS: usize = 10_000;
const LONGEST: Duration = Duration::from_millis(20);
/// The pause after a look, in times its length: looks take up to 5 % of the time.
const REST: f64 = 20.0;
/// Seconds after which a look says nothing of the present.
const STALE: f64 = 3.0;

/// Looks at ports.
#[derive(Debug)]
pub(super) struct Looks {
    pub most_connections: usize,
    pub longest: Duration,
    pub rest: f64,
    /// The time before which there is none.
    free_at: f64,
    ports: BTreeMap<u16, Look>,
}

/// The connections of a port, by their local ends.
#[derive(Debug)]
struct Look {
    at: f64,
    are_all: bool,
    seen: BTreeMap<Local, Seen>,
}

/// Numbers of connections in ascending order.
#[derive(Debug, Default)]
struct Seen {
    accepted: Vec<u64>,
    queued: Vec<u64>,
}

/// The findings of a look at a port.
#[derive(Debug)]
pub(super) struct Findings {
    /// The time of the look before. `None`: there was none, or it is too old.
    pub since: Option<f64>,
    pub are_all: bool,
    pub changes: Vec<(Local, Change)>,
}

/// Changes since the look before of connections with one local end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    /// A program accepted some.
    pub accepted: bool,
    /// More wait.
    pub more_wait: bool,
}

impl Looks {
    pub const fn new() -> Self {
        Self {
            most_connections: MOST_CONNECTIONS,
            longest: LONGEST,
            rest: REST,
            free_at: f64::NEG_INFINITY,
            ports: BTreeMap::new(),
        }
    }

    /// Looks at those ports that are due; first at the one with the oldest look. `None`: not in this reading.
    pub fn take(
        &mut self,
        now: f64,
        ports: impl Iterator<Item = u16>,
        reader: &mut Reader,
    ) -> Vec<(u16, Option<Findings>)> {
        self.ports.retain(|_, look| now - look.at <= STALE);
        let at = |port| {
            self.ports
                .get(&port)
                .map_or(f64::NEG_INFINITY, |look| look.at)
        };
        let mut due: Vec<(f64, u16)> = ports.map(|port| (at(port), port)).collect();
        due.retain(|(at, _)| now - at >= BETWEEN - 1e-9);
        due.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let began = processor_time();
        let until = began + self.longest;
        let mut left = self.most_connections;
        let mut found = Vec::new();
        for (_, port) in due {
            let is_free = now >= self.free_at && left > 0 && processor_time() < until;
            let bound = Bound {
                connections: left,
                until,
            };
            // A reply that fails has shown nothing.
            let connections = is_free
                .then(|| reader.connections(port, bound).ok())
                .flatten();
            found.push((
                port,
                connections.map(|connections| {
                    left -= connections.found.len();
                    self.compare(now, port, connections)
                }),
            ));
        }
        if found.iter().any(|(_, findings)| findings.is_some()) {
            let took = processor_time().saturating_sub(began);
            self.free_at = now + self.rest * took.as_secs_f64();
        }
        found
    }

    fn compare(&mut self, now: f64, port: u16, connections: Connections) -> Findings {
        let look = Look::new(now, connections);
        let before = self.ports.get(&port);
        let are_all = look.are_all && before.is_none_or(|before| before.are_all);
        let none = Seen::default();
        let change = |(local, seen): (&Local, &Seen)| {
            let before = before.map(|before| before.seen.get(local).unwrap_or(&none));
            let change = before.map(|before| seen.since(before, are_all));
            (*local, change.unwrap_or_default())
        };
        let findings = Findings {
            since: before.map(|before| before.at),
            are_all: look.are_all,
            changes: look.seen.iter().map(change).collect(),
        };
        self.ports.insert(port, look);
        findings
    }
}

impl Look {
    fn new(at: f64, connections: Connections) -> Self {
        let mut seen: BTreeMap<Local, Seen> = BTreeMap::new();
        for Connection {
            cookie,
            local,
            is_accepted,
        } in connections.found
        {
            let seen = seen.entry(local).or_default();
            if is_accepted {
                seen.accepted.push(cookie);
            } else {
                seen.queued.push(cookie);
            }
        }
        for seen in seen.values_mut() {
            seen.accepted.sort_unstable();
            seen.queued.sort_unstable();
        }
        Self {
            at,
            are_all: connections.are_all,
            seen,
        }
    }
}

impl Seen {
    fn since(&self, before: &Self, are_all: bool) -> Change {
        let has = |all: &[u64], one: &u64| all.binary_search(one).is_ok();
        let mut accepted = self.accepted.iter();
        Change {
            accepted: accepted
                .any(|one| has(&before.queued, one) || (are_all && !has(&before.accepted, one))),
            more_wait: are_all && self.queued.iter().any(|one| !has(&before.queued, one)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(accepted: &[u64], queued: &[u64]) -> Seen {
        Seen {
            accepted: accepted.to_vec(),
            queued: queued.to_vec(),
        }
    }

    #[test]
    fn a_connection_that_was_accepted_since_is_a_sign_of_service() {
        let before = seen(&[1, 2], &[3, 4]);
        let accepted = |now: Seen| now.since(&before, true).accepted;
        assert!(accepted(seen(&[1, 2, 3], &[4])) && accepted(seen(&[5], &[3, 4])));
        assert!(!accepted(seen(&[1, 2], &[3, 4])) && !accepted(seen(&[1], &[3, 4, 5])));
        assert!(seen(&[1, 2], &[4, 5]).since(&before, true).more_wait);
        assert!(!seen(&[1, 2], &[4]).since(&before, true).more_wait);
    }

    #[test]
    fn of_a_part_of_the_connections_only_those_that_waited_count() {
        // Others may be old ones that were not seen before.
        let before = seen(&[1, 2], &[3, 4]);
        let since = |now: Seen| now.since(&before, false);
        assert_eq!(since(seen(&[1, 5, 6], &[3, 7])), Change::default());
        assert!(since(seen(&[4], &[])).accepted);
    }
}
