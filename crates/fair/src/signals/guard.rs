//! Queues that nobody serves: anybody can fill them, and they say nothing of an overload.
//!
//! A full queue alone proves nothing: of a busy server's, 48 of 56 readings were equal. A queue is served if it became
//! shorter, if a program accepted a connection, or if one more came into a full queue.

use std::collections::BTreeSet;

use super::reader::{Connection, Kind};

/// Seconds without a sign of service after which a queue is ignored. A program frees the memory of datagrams in quarters of
/// the buffer, which readings may miss.
const PATIENCE: f64 = 1.0;
const PATIENCE_DATAGRAMS: f64 = 2.0;
/// Seconds without a sign after which connections are compared, and between comparisons.
const LOOK: f64 = 0.4;

/// What is known of one queue.
#[derive(Debug)]
pub(super) struct Guard {
    kind: Kind,
    waiting: u32,
    /// The times of the last sign of service, and of the last comparison.
    served: f64,
    looked: f64,
    /// The connections at the last comparison.
    accepted: BTreeSet<u64>,
    queued: BTreeSet<u64>,
}

impl Guard {
    pub const fn new(kind: Kind, now: f64) -> Self {
        Self {
            kind,
            waiting: 0,
            served: now,
            looked: f64::NEG_INFINITY,
            accepted: BTreeSet::new(),
            queued: BTreeSet::new(),
        }
    }

    /// Takes the length of the queue into account. True: [`Self::look`] wants the connections.
    pub fn observe(&mut self, now: f64, waiting: u32) -> bool {
        if waiting == 0 || waiting < self.waiting {
            self.serve(now);
        }
        self.waiting = waiting;
        let is_due = now - self.served >= LOOK && now - self.looked >= LOOK;
        is_due && self.kind == Kind::Listener
    }

    /// Compares the connections with those of the last time.
    pub fn look(&mut self, now: f64, is_full: bool, connections: &[Connection]) {
        let cookies = |is_accepted| {
            let of = connections
                .iter()
                .filter(move |one| one.is_accepted == is_accepted);
            of.map(|one| one.cookie).collect::<BTreeSet<u64>>()
        };
        let (accepted, queued) = (cookies(true), cookies(false));
        let is_first = self.looked == f64::NEG_INFINITY;
        let one_more = is_full && !queued.is_subset(&self.queued);
        if !is_first && (one_more || !accepted.is_subset(&self.accepted)) {
            self.serve(now);
        }
        self.looked = now;
        (self.accepted, self.queued) = (accepted, queued);
    }

    pub fn is_served(&self, now: f64) -> bool {
        let patience = match self.kind {
            Kind::Listener => PATIENCE,
            Kind::Datagrams => PATIENCE_DATAGRAMS,
        };
        now - self.served < patience
    }

    fn serve(&mut self, now: f64) {
        self.served = now;
        // What was compared before says nothing of what comes.
        self.looked = f64::NEG_INFINITY;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections(
        accepted: impl IntoIterator<Item = u64>,
        queued: impl IntoIterator<Item = u64>,
    ) -> Vec<Connection> {
        let of = |is_accepted| {
            move |cookie| Connection {
                cookie,
                is_accepted,
            }
        };
        let accepted = accepted.into_iter().map(of(true));
        accepted.chain(queued.into_iter().map(of(false))).collect()
    }

    /// Whether a queue counts as served, by tick of 50 ms, while `queue` gives its length and its connections.
    fn served(ticks: u32, queue: impl Fn(u32) -> (u32, Vec<Connection>)) -> Vec<bool> {
        let mut guard = Guard::new(Kind::Listener, 0.0);
        let tick = |tick| {
            let now = f64::from(tick) * 0.05;
            let (waiting, connections) = queue(tick);
            if guard.observe(now, waiting) {
                guard.look(now, waiting >= 129, &connections);
            }
            guard.is_served(now)
        };
        (0..ticks).map(tick).collect()
    }

    #[test]
    fn a_full_queue_that_nobody_serves_is_ignored_after_a_second() {
        let served = served(60, |_| (129, connections([], 0..129)));
        assert!(served[..20].iter().all(|served| *served));
        assert!(served[20..].iter().all(|served| !served));
    }

    #[test]
    fn a_queue_that_only_grows_is_ignored() {
        let served = served(60, |tick| {
            (2 * tick, connections([], 0..u64::from(2 * tick)))
        });
        assert!(!served[59]);
    }

    #[test]
    fn connections_that_are_reset_in_a_full_queue_hide_nothing() {
        // They stay in the queue until they are accepted, and are no connections any more.
        let served = served(60, |tick| (129, connections([], u64::from(tick)..129)));
        assert!(!served[59]);
    }

    #[test]
    fn a_full_queue_with_new_connections_is_served() {
        let served = served(200, |tick| {
            let first = u64::from(tick);
            (129, connections([], first..first + 129))
        });
        assert!(served.iter().all(|served| *served));
    }

    #[test]
    fn a_queue_whose_connections_are_accepted_is_served() {
        let served = served(200, |tick| {
            (
                60 + tick / 10,
                connections(u64::from(tick)..u64::from(tick) + 8, 0..60),
            )
        });
        assert!(served.iter().all(|served| *served));
    }

    #[test]
    fn a_queue_that_becomes_shorter_is_served_again() {
        let served = served(100, |tick| {
            if tick < 50 {
                (129, connections([], 0..129))
            } else {
                (128, Vec::new())
            }
        });
        assert!(!served[49] && served[50] && !served[99]);
    }

    #[test]
    fn datagrams_that_nobody_reads_are_ignored_after_two_seconds() {
        let mut guard = Guard::new(Kind::Datagrams, 0.0);
        let served = |tick: u32| {
            let now = f64::from(tick) * 0.05;
            assert!(
                !guard.observe(now, 200_000),
                "datagrams have no connections"
            );
            guard.is_served(now)
        };
        let served: Vec<bool> = (0..60).map(served).collect();
        assert!(
            served[..39].iter().all(|served| *served) && served[41..].iter().all(|served| !served)
        );
    }
}
